"""PyTorch modules as functions of a flat vector: models, losses on data, evaluation passes.

Internal: names may change; the public ones are in `undrift.__all__` and the API reference.
"""
