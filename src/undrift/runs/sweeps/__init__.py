"""Sweeps: grids and searches over the keys of an experiment."""
