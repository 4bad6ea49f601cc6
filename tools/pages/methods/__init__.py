"""Generates the figures, tables and formulas of the guide's pages about methods.

    python -m tools.pages.methods docs/methods

refreshes the generated blocks of every page and draws the figures. With `--verify` it first runs
`undrift verify` for all methods and stores the results, which takes half a minute.
"""
