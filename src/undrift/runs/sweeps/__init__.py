"""Sweeps: grids and searches over keys of an experiment, chosen by the validation part."""
