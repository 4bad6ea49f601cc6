"""PyTorch modules as functions of a flat vector: models, losses on data, evaluation passes."""
