"""Experiment files: tables, checks, schema, teaching texts, forecast of cost."""
