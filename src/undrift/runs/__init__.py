"""Execution of runs: plans, the driver, run folders, stores, loggers, sweeps.

Internal: names may change; the public ones are in `undrift.__all__` and the API reference.
"""
