"""Runs people can trust: experiment files, run folders, stores, resume, loggers, sweeps."""
