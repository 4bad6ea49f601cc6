"""The ways of computing clients' work that one can choose from, and which of them may fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from undrift.core.losses import Losses
from undrift.engines.base import Job, SimulationEngine
from undrift.engines.checking import Check
from undrift.engines.serial import SerialEngine
from undrift.engines.vectorised.engine import VectorisedEngine
from undrift.engines.vectorised.networks import (
    ModuleNetwork,
    Network,
    stacked_network,
    vmapped_network,
)
from undrift.nets.modules import ModuleLosses
from undrift.utils.errors import UndriftError, first_line

CACHE = 1_500_000
"""Bytes of parameters that are worked on at once: so many stay near a core."""
COPIES = 6
"""How often a client's parameters are in memory while it works: model, gradient, upload, …"""
LIGHT = 100_000
"""Parameters of a chunk below which one thread may be faster than several."""


@dataclass(frozen=True)
class Strategy:
    """How clients' work is computed.

    `network` is "serial", "stacked" (layers written out), "vmap" or "module" (a client per
    thread); `chunk` is how many clients work at once.
    """

    network: str
    chunk: int = 1
    threads: int = 1
    channels_last: bool = False

    def engine(self, losses: Losses, job: Job) -> SimulationEngine:
        """The engine that works so."""
        if self.network == "serial" or not isinstance(losses, ModuleLosses):
            return SerialEngine(losses, job)
        network = self.of(losses)
        if isinstance(network, str):
            raise UndriftError(f"The model cannot be trained by {self.network}: {network}.")
        return VectorisedEngine(losses, job, network, self.chunk, self.threads)

    def of(self, losses: ModuleLosses) -> Network | str:
        """The network that it computes with, or why there is none."""
        if self.network == "stacked":
            return stacked_network(losses, self.channels_last)
        if self.network == "vmap":
            return vmapped_network(losses)
        return ModuleNetwork(losses, self.channels_last)

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Strategy:
        """What `as_dict` gave."""
        return Strategy(
            str(found["network"]),
            int(found["chunk"]),
            int(found["threads"]),
            bool(found["channels_last"]),
        )


SERIAL = Strategy("serial")


@dataclass(frozen=True)
class Choice:
    """What may fit a model, the likeliest first, and what there is to say about it."""

    strategies: list[Strategy]
    reason: str = ""
    """why clients do not train at once, if they do not"""


def candidates(
    losses: Losses, clients: int, threads: int, memory: float, chunk: int | None = None
) -> Choice:
    """The strategies worth timing for so many clients at a time, which agree with the serial one.

    Parameters
    ----------
    losses
        the model and the data
    clients
        how many there are to train in a round
    threads
        how many may be used
    memory
        the most megabytes for models at work
    chunk
        how many clients are to work at once, if that is given
    """
    if not isinstance(losses, ModuleLosses):
        return Choice([SERIAL])
    try:
        if losses.draws_otherwise:
            return Choice([SERIAL], "it draws random numbers in another way than by nn.Dropout")
        likely = _likely(losses, clients, threads, memory, chunk)
        faults = {each: _fault(losses, each) for each in likely.strategies}
    except Exception as error:  # whatever the model says: where it matters, the engine says it
        return Choice([SERIAL], f"it cannot be tried out ({first_line(error)})")
    fit = [strategy for strategy, fault in faults.items() if fault is None]
    if any(strategy.network != "module" for strategy in fit):
        return Choice(fit, likely.reason)
    if not fit:
        return Choice([SERIAL], faults[likely.strategies[-1]] or "")
    return Choice(fit, likely.reason or faults[likely.strategies[0]] or "")


_faults: WeakKeyDictionary[ModuleLosses, dict[tuple[str, bool, bool], str | None]]
_faults = WeakKeyDictionary()
"""What is known of models, so that methods that share one need not try it out again."""


def _fault(losses: ModuleLosses, strategy: Strategy) -> str | None:
    """Why a strategy cannot take the place of the serial engine, or None."""
    known = _faults.setdefault(losses, {})
    at_once = strategy.chunk > 1
    kind = strategy.network, strategy.channels_last, at_once
    if kind not in known:
        network = strategy.of(losses)
        known[kind] = network if isinstance(network, str) else Check(losses).fault(network, at_once)
    return known[kind]


def _likely(
    losses: ModuleLosses, clients: int, threads: int, memory: float, chunk: int | None
) -> Choice:
    """The strategies worth timing, if they agree."""
    alone = [Strategy("module", 1, threads)]
    images = any(isinstance(m, nn.modules.conv._ConvNd) for m in losses.flat.module.modules())
    on_processor = losses.device.type == "cpu"
    if images and on_processor:
        alone.insert(0, Strategy("module", 1, threads, channels_last=True))
    network: Network | str = stacked_network(losses)
    kind = "stacked"
    if isinstance(network, str):
        reason, kind = network, "vmap"
        heavy = images or any(isinstance(m, nn.RNNBase) for m in losses.flat.module.modules())
        network = "" if heavy and on_processor else vmapped_network(losses)
        if isinstance(network, str):
            return Choice(alone, network or reason)
    if images and on_processor and chunk is None:
        # Convolutions of several clients at once are slow there.
        last = partial(Strategy, kind, 1, threads)
        return Choice([last(channels_last=True), last(), *alone])
    sizes = _chunks(losses, clients, threads, memory) if chunk is None else [chunk]
    found = [Strategy(kind, size, threads) for size in sizes]
    room = int(memory * 1e6 / (COPIES * losses.dimension * losses.flat.x.element_size()))
    light = clients * losses.dimension <= LIGHT and clients <= room
    if chunk is None and threads > 1 and light:
        found.insert(0, Strategy(kind, clients, 1))
    return Choice([*found, *alone])


def _chunks(losses: ModuleLosses, clients: int, threads: int, memory: float) -> list[int]:
    """Numbers of clients at once: so that they stay near a core, and more at a time."""
    size = losses.dimension * losses.flat.x.element_size()
    share = -(-clients // threads)
    most = max(1, min(share, int(memory * 1e6 / (COPIES * size * threads))))
    near = max(1, CACHE // size)
    return list(dict.fromkeys([*(min(most, times * near) for times in (4, 2, 8)), most]))


def described(device: torch.device) -> str:
    """A device in words that tell machines apart."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
