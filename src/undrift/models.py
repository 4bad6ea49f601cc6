"""Networks of the papers. Any `nn.Module` works in their place."""

from itertools import pairwise

import torch
from torch import nn

from undrift.keys import key, torch_generator_set_to


def logistic(features: int, classes: int) -> nn.Module:
    """Multinomial logistic regression, starting at zero as in the papers."""
    model = nn.utils.skip_init(nn.Linear, features, classes)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return nn.Sequential(nn.Flatten(), model)


def mlp(features: int, *hidden: int, classes: int, seed: int = 0) -> nn.Module:
    """A fully connected network with ReLU: `mlp(784, 200, 100, classes=10)`."""
    widths = [features, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    with torch_generator_set_to(key(seed, "model"), torch.device("cpu")):
        for i, o in pairwise(widths):
            layers += [nn.Linear(i, o), nn.ReLU()]
        layers.append(nn.Linear(widths[-1], classes))
    return nn.Sequential(*layers)
