"""Networks of the benchmark's workloads that are not among the papers' models.

Plain PyTorch, as a user would write them: they show what undrift does with a model it has not seen.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undrift.utils.keys import key, torch_generator_set_to

ADAPTED = ("query", "value")
"""The layers that get adapters, as in LoRA (Hu et al., ICLR 2022)."""


class TransformerBlock(nn.Module):
    """Self-attention and two dense layers, each after LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.mix = nn.Linear(width, width)
        self.before_dense = nn.LayerNorm(width)
        self.dense = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.dense(self.before_dense(x))

    def attention(self, x: Tensor) -> Tensor:
        """Return attention between all tokens of a sample; `x` is `[batch, tokens, width]`."""
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.mix(mixed.transpose(1, 2).flatten(2))


class TransformerClassifier(nn.Module):
    """An encoder over integers `[batch, tokens]` and the scores of classes from the mean token."""

    def __init__(
        self,
        vocabulary: int,
        tokens: int,
        classes: int,
        *,
        width: int,
        heads: int,
        hidden: int,
        layers: int,
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(tokens, width))
        self.blocks = nn.Sequential(
            *(TransformerBlock(width, heads, hidden) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.blocks(self.embedding(tokens) + self.position)
        return self.scores(self.norm(x).mean(1))


class Adapter(nn.Module):
    """A frozen linear layer plus a trainable map of low rank, which is zero at the beginning."""

    def __init__(self, layer: nn.Linear, rank: int):
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


def transformer(seed: int = 0) -> nn.Module:
    """Four layers of width 128 with four heads over 64 bytes: 704 010 parameters."""
    with torch_generator_set_to(key(seed, "model"), torch.device("cpu")):
        return TransformerClassifier(256, 64, 10, width=128, heads=4, hidden=384, layers=4)


def adapted_transformer(rank: int = 4, seed: int = 0) -> nn.Module:
    """The `transformer` with adapters on queries and values: 8192 parameters of rank 4.

    Everything else is frozen.
    """
    model = transformer(seed).requires_grad_(False)
    with torch_generator_set_to(key(seed, "adapters"), torch.device("cpu")):
        for block in model.modules():
            if isinstance(block, TransformerBlock):
                for name in ADAPTED:
                    setattr(block, name, Adapter(getattr(block, name), rank))
    return model


class LastOutput(nn.Module):
    """An LSTM over `[batch, time, features]` and the scores of classes from its last output."""

    def __init__(self, features: int, hidden: int, classes: int):
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.scores = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(x)
        return self.scores(outputs[:, -1])


def series_classifier(seed: int = 0) -> nn.Module:
    """An LSTM of width 32 over 8 features: 5541 parameters."""
    with torch_generator_set_to(key(seed, "model"), torch.device("cpu")):
        return LastOutput(8, 32, 5)


def wide_cnn(seed: int = 0) -> nn.Module:
    """Two convolutions of 32 and 64 channels and a dense layer of 512, as LEAF has for FEMNIST."""
    with torch_generator_set_to(key(seed, "model"), torch.device("cpu")):
        return nn.Sequential(
            *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 62)),
        )


def batch_norm_cnn(seed: int = 0) -> nn.Module:
    """Three convolutions with BatchNorm, whose running statistics are buffers."""
    with torch_generator_set_to(key(seed, "model"), torch.device("cpu")):
        blocks = [
            each
            for inputs, outputs in ((3, 32), (32, 64), (64, 128))
            for each in (
                *(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)),
                *(nn.ReLU(), nn.MaxPool2d(2)),
            )
        ]
        return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(128 * 4 * 4, 10))


def autoencoder(seed: int = 0) -> nn.Module:
    """Dense layers 784-128-32-128-784."""
    with torch_generator_set_to(key(seed, "model"), torch.device("cpu")):
        sizes = [784, 128, 32, 128, 784]
        dense = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        return nn.Sequential(
            *[each for layer in dense[:-1] for each in (layer, nn.ReLU())], dense[-1]
        )
