"""Experiment files: tables, checks, schema, teaching texts, forecast of cost.

Internal: names may change; the public ones are in `undrift.__all__` and the API reference.
"""
