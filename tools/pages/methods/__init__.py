"""The guide's pages about methods: pictures, tables and formulas, made from the methods.

    python -m tools.pages.methods docs/methods

refreshes the made parts of every page there, and draws the pictures. With `--verify` it first runs
`undrift verify` for all methods and stores what it finds, which takes half a minute.
"""
