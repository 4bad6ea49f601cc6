"""Layers that compute many clients at once, with parameters `[C, …]` and inputs `[C, B, …]`."""
