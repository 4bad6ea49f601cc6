"""The papers' models. Any other `nn.Module` works as well.

Images are `[batch, channels, height, width]`. Initial weights are a function of `seed` and of
nothing else. No model has buffers, so that clients and server exchange parameters only.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from inspect import signature
from itertools import pairwise

import torch
from torch import Tensor, nn

from undrift.utils.errors import (
    require,
    require_choice,
    require_parameter,
    require_type,
    require_whole,
)
from undrift.utils.keys import key, torch_generator_set_to


def logistic(features: int, classes: int) -> nn.Module:
    """Multinomial logistic regression, starting at zero as in the papers."""
    _require_sizes("logistic", features=features, classes=classes)
    model = nn.Linear(features, classes, device="meta").to_empty(device="cpu")
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return nn.Sequential(nn.Flatten(), model)


def mlp(features: int, *hidden: int, classes: int, seed: int = 0) -> nn.Module:
    """A fully connected network with ReLU: `mlp(784, 200, 100, classes=10)`.

    `mlp(784, 200, 200, classes=10)` is FedAvg's "2NN" for MNIST (McMahan et al., AISTATS 2017),
    which FedDyn's code also has, with 100 and 100 for EMNIST (Acar et al., ICLR 2021);
    `mlp(784, 128, classes=10)` and `mlp(60, 32, classes=10)` are FedDR's for MNIST and synthetic
    data (Tran-Dinh et al., NeurIPS 2021); `mlp(784, 400, classes=10)` is FedLGA's for
    Fashion-MNIST (Li et al., 2021).

    Parameters
    ----------
    features, classes
        the numbers of inputs and of outputs
    hidden
        the widths of the hidden layers, from the first to the last; without any it is linear
    seed
        determines the initial weights
    """
    named = {f"hidden layer {number}": width for number, width in enumerate(hidden, start=1)}
    _require_sizes("mlp", features=features, **named, classes=classes)
    widths = [features, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    with _weights_from(seed):
        for i, o in pairwise(widths):
            layers += [nn.Linear(i, o), nn.ReLU()]
        layers.append(nn.Linear(widths[-1], classes))
    return nn.Sequential(*layers)


def cifar_cnn(classes: int = 10, channels: int = 3, side: int = 32, seed: int = 0) -> nn.Module:
    """FedAvg's network for CIFAR as FedDyn trains it (Acar et al., ICLR 2021).

    Two 5×5 convolutions of 64 channels without padding, each with 2×2 max-pooling, then 384 and
    192 neurons: 797 962 parameters for CIFAR-10. FedDyn's text prints 394, its code has 384.
    """
    _require_sizes("cifar_cnn", classes=classes, channels=channels)
    require_whole("cifar_cnn's side", side, at_least=16)  # smaller images leave no pixel
    left = ((side - 4) // 2 - 4) // 2
    with _weights_from(seed):
        return nn.Sequential(
            nn.Conv2d(channels, 64, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * left * left, 384),
            nn.ReLU(),
            nn.Linear(384, 192),
            nn.ReLU(),
            nn.Linear(192, classes),
        )


def lenet(classes: int = 10, channels: int = 3, side: int = 32, seed: int = 0) -> nn.Module:
    """The small convolutional network of NIID-Bench (Li et al., ICDE 2022).

    5×5 convolutions of 6 and 16 channels without padding, each with 2×2 max-pooling, then 120 and
    84 neurons: 62 006 parameters for CIFAR-10.
    """
    _require_sizes("lenet", classes=classes, channels=channels)
    require_whole("lenet's side", side, at_least=16)  # smaller images leave no pixel
    left = ((side - 4) // 2 - 4) // 2
    with _weights_from(seed):
        return nn.Sequential(
            nn.Conv2d(channels, 6, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, kernel_size=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * left * left, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )


def pfl_cnn(classes: int = 10, channels: int = 3, side: int = 32, seed: int = 0) -> nn.Module:
    """The CIFAR-10 network of pfl-research's benchmarks (Granqvist et al., NeurIPS 2024).

    Two 3×3 convolutions without padding, one 2×2 max-pooling, 128 neurons, and dropout: 1 626 442
    parameters for CIFAR-10. Initial weights are uniform as in Glorot & Bengio (AISTATS 2010).
    """
    _require_sizes("pfl_cnn", classes=classes, channels=channels)
    require_whole("pfl_cnn's side", side, at_least=6)  # smaller images leave no pixel
    left = (side - 4) // 2
    with _weights_from(seed):
        model = nn.Sequential(
            nn.Conv2d(channels, 32, kernel_size=3),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * left * left, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, classes),
        )
        for layer in model:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
    return model


def vgg11(classes: int = 10, channels: int = 3, seed: int = 0) -> nn.Module:
    """VGG-11 for 32×32 images, as FedNova trains it (Wang et al., NeurIPS 2020).

    The eight convolutions of configuration A (Simonyan & Zisserman, ICLR 2015), without batch
    normalisation, then two layers of 512 neurons with dropout in place of 4096: 9 750 922
    parameters for CIFAR-10. A k×k convolution to c channels starts at N(0, 2/(k²c)), bias zero.
    """
    _require_sizes("vgg11", classes=classes, channels=channels)
    layers: list[nn.Module] = []
    with _weights_from(seed):
        for widths in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
            for width in widths:
                convolution = nn.Conv2d(channels, width, kernel_size=3, padding=1)
                nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * width)))
                nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
                layers += [convolution, nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        layers.append(nn.Flatten())
        for _ in range(2):
            layers += [nn.Dropout(), nn.Linear(512, 512), nn.ReLU()]
        layers.append(nn.Linear(512, classes))
    return nn.Sequential(*layers)


def resnet18(classes: int = 10, channels: int = 3, groups: int = 2, seed: int = 0) -> nn.Module:
    """ResNet-18 for 32×32 images with GroupNorm: 11 173 962 parameters for CIFAR-10.

    He et al., CVPR 2016, with a 3×3 first convolution and no pooling after it. GroupNorm
    loses less than BatchNorm when clients differ (Hsieh et al., ICML 2020); Reddi et al., ICLR
    2021, and FedDyn's code have two groups. Convolutions start as in He et al., ICCV 2015.

    Parameters
    ----------
    classes, channels
        the numbers of outputs and of image channels; images may have any size
    groups
        into how many groups GroupNorm divides the channels, a divisor of 64
    seed
        determines the initial weights
    """
    _require_sizes("resnet18", classes=classes, channels=channels, groups=groups)
    require(64 % groups == 0, f"resnet18's groups is {groups}, but must divide 64 channels.")
    with _weights_from(seed):
        layers = [
            nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False),
            nn.GroupNorm(groups, 64),
            nn.ReLU(),
        ]
        before = 64
        for width in (64, 128, 256, 512):
            layers += [
                ResidualBlock(before, width, groups, stride=width // before),
                ResidualBlock(width, width, groups, stride=1),
            ]
            before = width
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)]
        model = nn.Sequential(*layers)
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model


class ResidualBlock(nn.Module):
    """relu(residual(x) + shortcut(x)), two 3×3 convolutions long (He et al., CVPR 2016).

    The shortcut is the identity, or a 1×1 convolution where the shape changes.
    """

    def __init__(self, before: int, width: int, groups: int, stride: int):
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(before, width, kernel_size=3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(groups, width),
            nn.ReLU(),
            nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False),
            nn.GroupNorm(groups, width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, width, kernel_size=1, stride=stride, bias=False),
                nn.GroupNorm(groups, width),
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.residual(x) + self.shortcut(x))


def char_lstm(
    characters: int = 80, embedding: int = 8, hidden: int = 100, layers: int = 2, seed: int = 0
) -> nn.Module:
    """FedProx's model of the next character for Shakespeare (Li et al., MLSys 2020).

    It maps integers `[batch, length]` (int32 or int64) to scores `[batch, characters]` and has
    133 520 parameters. FedDyn trains the same model.

    Parameters
    ----------
    characters
        the number of different characters; inputs and labels are in [0, characters)
    embedding, hidden, layers
        the width of the embedding, and the width and the depth of the LSTM
    seed
        determines the initial weights
    """
    _require_sizes(
        "char_lstm", characters=characters, embedding=embedding, hidden=hidden, layers=layers
    )
    with _weights_from(seed):
        return nn.Sequential(
            nn.Embedding(characters, embedding),
            LastOutput(embedding, hidden, layers),
            nn.Linear(hidden, characters),
        )


class LastOutput(nn.Module):
    """The last output of an LSTM: `[batch, length, inputs]` to `[batch, hidden]`."""

    def __init__(self, inputs: int, hidden: int, layers: int):
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(x)
        return outputs[:, -1]


def parameter_count(module: nn.Module) -> int:
    """The number of trainable parameters, tied ones once: the dimension that methods see."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


MODELS: dict[str, Callable[..., nn.Module]] = {
    model.__name__: model
    for model in (logistic, mlp, cifar_cnn, lenet, pfl_cnn, vgg11, resnet18, char_lstm)
}
"""The models above by name."""


def fitting(name: str, inputs: Sequence[int], classes: int, **options: object) -> nn.Module:
    """A model of `MODELS` for inputs of a shape; sizes that follow from the shape are filled in.

    `fitting("mlp", (1, 28, 28), 10, hidden=[200, 100])` is `mlp(784, 200, 100, classes=10)`.
    """
    require_choice("model", name, MODELS)
    build = MODELS[name]
    images = len(inputs) == 3
    known: dict[str, object] = {"features": math.prod(inputs), "classes": classes}
    known |= {"characters": classes}
    known |= {"channels": inputs[0], "side": inputs[-1]} if images else {}
    takes = signature(build).parameters
    for option in options:
        require_parameter(name, option, takes)
    require(
        not images or "side" not in takes or inputs[1] == inputs[2],
        f"{name} takes square images, but an input has shape {list(inputs)}.",
    )
    require(
        images or "channels" not in takes,
        f"{name} takes images of shape [channels, height, width], but an input has shape "
        f"{list(inputs)}.",
    )
    named = {key: value for key, value in {**known, **options}.items() if key in takes}
    hidden = named.pop("hidden", ()) if name == "mlp" else ()
    require_type("hidden", hidden, (list, tuple), "a list of widths")
    if name == "mlp":
        return mlp(named.pop("features"), *hidden, **named)  # type: ignore[arg-type, misc]
    return build(**named)


def _require_sizes(model: str, **sizes: int) -> None:
    for name, size in sizes.items():
        require_whole(f"{model}'s {name}", size, at_least=1)


def _weights_from(seed: int) -> AbstractContextManager[None]:
    """Within the block, the initial weights of new layers are a function of the seed."""
    require_whole("seed", seed, at_least=0)
    return torch_generator_set_to(key(seed, "model"), torch.device("cpu"))
