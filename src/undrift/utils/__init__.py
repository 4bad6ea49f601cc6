"""Helpers without domain knowledge: errors, files, random keys, formatting, threads, plots.

Every other package may import this one; it imports none of them.
"""
