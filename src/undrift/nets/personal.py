"""Personal parameters: those that never travel and rest with the client.

Methods see the shared parameters only. A client's personal parameters, and the buffers that belong
to them, are part of its state under the name `PERSONAL`: a vector `[p]`, parameters first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from undrift.utils.errors import require, require_type, require_whole

NORMALISATION = "normalisation"
"""The word for the parameters and statistics of all normalisation layers (FedBN)."""
NORMALISING = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)


@dataclass(frozen=True)
class Personal:
    """Which parameters of the model are personal, and how a client trains them.

    Parameters
    ----------
    parameters
        names of parameters, where * stands for any text, such as ["head.*"]; or "normalisation"
        for those of all normalisation layers with their statistics (FedBN, Li et al., ICLR 2021)
    first_epochs
        0 to train personal and shared parameters together (FedPer, Arivazhagan et al., 2019). With
        a number above 0, a client first trains its personal parameters alone, for so many epochs,
        and then does its local work on the shared parameters alone (FedRep, Collins et al., ICML
        2021)
    """

    parameters: Sequence[str] | str
    first_epochs: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        given = [self.parameters] if isinstance(self.parameters, str) else self.parameters
        require_type("personal", given, (list, tuple), 'a list of names such as ["head.*"]')
        for each in given:
            require_type("A name in personal", each, str, 'a text such as "head.*"')
        require(len(given) > 0, "personal is empty: name parameters, or leave it out.")
        object.__setattr__(self, "parameters", tuple(given))
        require_whole("personal's first_epochs", self.first_epochs, at_least=0)

    def names_in(self, module: nn.Module) -> set[str]:
        """The names of the module's parameters and buffers that are personal."""
        held = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
        found: set[str] = set()
        for pattern in self.parameters:
            if pattern == NORMALISATION:
                chosen = _normalising(module)
            else:
                chosen = {name for name in held if fnmatchcase(name, pattern)}
            layers = sorted({name.partition(".")[0] for name in held})
            require(
                bool(chosen),
                f"personal names {pattern!r}, but no parameter of the model is called so; their "
                f"names begin with {', '.join(layers)}.",
            )
            found |= chosen
        return found


def as_personal(value: Personal | Sequence[str] | str | None) -> Personal | None:
    """A `Personal` from what `train` takes; None if there is nothing personal."""
    if value is None or isinstance(value, Personal):
        return value
    return Personal(value)


def _normalising(module: nn.Module) -> set[str]:
    """The names of the parameters and buffers of all normalisation layers."""
    return {
        f"{place}.{name}" if place else name
        for place, layer in module.named_modules()
        if isinstance(layer, NORMALISING)
        for name, _ in (*layer.named_parameters(), *layer.named_buffers())
    }


def packed(parameters: Tensor, buffers: Mapping[str, Tensor]) -> Tensor:
    """Personal parameters and buffers in one vector, `[p]`."""
    return torch.cat(
        [parameters, *(value.reshape(-1).to(parameters) for value in buffers.values())]
    )


def unpacked(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The buffers of the end of a packed vector, in the shapes and types of `like`."""
    parts = vector.split([value.numel() for value in like.values()])
    return {
        name: part.reshape(value.shape).to(value.dtype)
        for (name, value), part in zip(like.items(), parts, strict=True)
    }
