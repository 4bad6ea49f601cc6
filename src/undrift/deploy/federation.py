"""What the server of a deployment knows of its sites: `RemoteFederation`, in place of losses."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from hashlib import blake2b

import torch
from torch import Tensor, nn

from undrift.core.losses import Federation
from undrift.core.targets import PARTS
from undrift.nets.flat import FlatModule
from undrift.nets.personal import Personal


class RemoteFederation(Federation):
    """The clients of a deployment: the server has the model and the sites' numbers of samples.

    Parameters
    ----------
    module
        the initial model
    samples
        the number of samples of each site, by part, as the site claims
    moving
        the names of the model's buffers that training changes
    counted
        the numbers of samples that count in weights and metrics, if they are not the claimed ones
    personal
        the parameters that rest with the sites, if there are any
    """

    def __init__(
        self,
        module: nn.Module,
        samples: Mapping[str, Mapping[str, int]],
        moving: Collection[str],
        counted: Mapping[str, Mapping[str, int]] | None = None,
        personal: Personal | None = None,
    ):
        self.personal = personal
        own = set() if personal is None else personal.names_in(module)
        self.flat = FlatModule(module, torch.device("cpu"), own)
        self.samples = samples
        self.counted_samples = samples if counted is None else counted
        self.ids = list(samples)
        self.sizes = torch.tensor([samples[site]["train"] for site in samples])
        if self.counted_samples != samples:
            numbers = [self.counted_samples[site]["train"] for site in samples]
            self.counted = torch.tensor(numbers)
        self.dimension = self.flat.shared
        self._initial_whole = self.flat.x.clone()
        buffers = self.flat.buffers()
        self._buffers = {name: buffers[name] for name in sorted(moving)}

    def initial(self) -> Tensor:
        return self._initial_whole[: self.dimension].clone()

    def initial_personal(self) -> Tensor | None:
        return None if self.personal is None else self._initial_whole[self.dimension :].clone()

    def initial_buffers(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self._buffers.items()}

    def fingerprint(self) -> str:
        return blake2b(json.dumps(self.samples).encode(), digest_size=16).hexdigest()

    @property
    def parts(self) -> tuple[str, ...]:
        found = {part for own in self.samples.values() for part in own}
        return tuple(part for part in PARTS if part in found)
