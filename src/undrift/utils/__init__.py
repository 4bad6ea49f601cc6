"""Helpers without domain knowledge: errors, files, random keys, formatting, threads, plots.

Every other package may import this one; it imports none of them.

Internal: names may change; the public ones are in `undrift.__all__` and the API reference.
"""
