"""The contract between methods, engines and loops: problems, messages, sums, clients, losses.

Internal: names may change; the public ones are in `undrift.__all__` and the API reference.
"""
