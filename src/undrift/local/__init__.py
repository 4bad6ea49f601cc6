"""Local work of clients: solvers, learning-rate schedules and amounts of work.

Internal: names may change; the public ones are in `undrift.__all__` and the API reference.
"""
