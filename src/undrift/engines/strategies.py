"""The strategies by which clients' work can be computed, and which of them suit a model.

`AutoEngine` times the candidates; the "vectorised" engine takes the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from undrift.core.losses import Losses
from undrift.engines.base import Job, SimulationEngine
from undrift.engines.gradient_check import GradientCheck
from undrift.engines.serial import SerialEngine
from undrift.engines.vectorised.engine import VectorisedEngine
from undrift.engines.vectorised.networks import (
    ModuleNetwork,
    Network,
    stacked_network,
    vmapped_network,
)
from undrift.engines.vectorised.tracing import stacked_layers
from undrift.nets.criteria import cross_entropies, squared_errors
from undrift.nets.module_losses import ModuleLosses
from undrift.nets.per_sample import per_sample_form
from undrift.utils.errors import UndriftError, first_line

CACHE_BYTES = 1_500_000
"""Parameters of a chunk that stay in the cache of a core."""
COPIES = 6
"""How often a client's parameters are in memory while it trains: model, gradient, upload, …"""
LIGHT_PARAMETERS = 100_000
"""Parameters of all clients together below which one thread may be faster than several."""
MEGABYTE = 1e6


@dataclass(frozen=True)
class Strategy:
    """How clients' work is computed.

    Parameters
    ----------
    network
        "serial", "stacked" (layers with hand-written passes for many clients), "vmap", or
        "module" (one client at a time, with the user's module)
    chunk
        how many clients train at once
    threads
        how many chunks are computed at the same time
    channels_last
        whether convolutions keep their channels last in memory
    """

    network: str
    chunk: int = 1
    threads: int = 1
    channels_last: bool = False

    def engine(self, losses: Losses, job: Job) -> SimulationEngine:
        """The engine that follows this strategy."""
        if self.network == "serial" or not isinstance(losses, ModuleLosses):
            return SerialEngine(losses, job)
        network = self.network_for(losses)
        if isinstance(network, str):
            raise UndriftError(f"The model cannot be trained by {self.network}: {network}.")
        return VectorisedEngine(losses, job, network, self.chunk, self.threads)

    def network_for(self, losses: ModuleLosses) -> Network | str:
        """The network of a model, or why the model has none of this kind."""
        if self.network == "stacked":
            return stacked_network(losses, self.channels_last)
        if self.network == "vmap":
            return vmapped_network(losses)
        return ModuleNetwork(losses, self.channels_last)

    def as_dict(self) -> dict[str, Any]:
        """A dictionary that JSON can store."""
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Strategy:
        """The strategy that `as_dict` described."""
        return Strategy(
            str(found["network"]),
            int(found["chunk"]),
            int(found["threads"]),
            bool(found["channels_last"]),
        )


SERIAL = Strategy("serial")
LAZY = "its samples are read when a batch needs them"
"""Why clients with lazy data train one by one."""


@dataclass(frozen=True)
class Candidates:
    """The strategies that suit a model, the most promising first."""

    strategies: list[Strategy]
    reason: str = ""
    """why clients do not train many at once, if they do not"""


def candidates(
    losses: Losses, clients: int, threads: int, memory: float, chunk: int | None = None
) -> Candidates:
    """The strategies worth timing whose gradients agree with the serial engine's.

    Parameters
    ----------
    losses
        the model and the data
    clients
        how many clients train in a round
    threads
        how many threads may be used
    memory
        the most megabytes for the models of clients that train
    chunk
        how many clients train at once, if the user chose that
    """
    if not isinstance(losses, ModuleLosses):
        return Candidates([SERIAL])
    if losses.personal is not None:
        return Candidates([Strategy("module", 1, threads)], "it has personal parameters")
    try:
        if losses.uses_random_numbers_beyond_dropout:
            return Candidates([SERIAL], "it uses random numbers other than nn.Dropout's")
        if losses.train_part.lazy is not None:
            return Candidates([Strategy("module", 1, threads), SERIAL], LAZY)
        promising = _promising(losses, clients, threads, memory, chunk)
        failures = {each: _failure(losses, each) for each in promising.strategies}
    except Exception as error:  # any error of the model; if it matters, the engine raises it
        return Candidates([SERIAL], f"it fails on a few samples: {first_line(error)}")
    fit = [strategy for strategy, failure in failures.items() if failure is None]
    if any(strategy.network != "module" for strategy in fit):
        return Candidates(fit, promising.reason)
    if not fit:
        return Candidates([SERIAL], failures[promising.strategies[-1]] or "")
    return Candidates(fit, promising.reason or failures[promising.strategies[0]] or "")


_failures: WeakKeyDictionary[ModuleLosses, dict[tuple[str, bool, bool], str | None]]
_failures = WeakKeyDictionary()
"""Results of gradient checks, so that methods that share a model do not repeat them."""


def _failure(losses: ModuleLosses, strategy: Strategy) -> str | None:
    """Why a strategy cannot replace the serial engine, or None if it can."""
    known = _failures.setdefault(losses, {})
    at_once = strategy.chunk > 1
    kind = strategy.network, strategy.channels_last, at_once
    if kind not in known:
        network = strategy.network_for(losses)
        known[kind] = (
            network if isinstance(network, str) else GradientCheck(losses).failure(network, at_once)
        )
    return known[kind]


def _promising(
    losses: ModuleLosses, clients: int, threads: int, memory: float, chunk: int | None
) -> Candidates:
    """The strategies worth timing, if their gradients turn out to agree."""
    alone = [Strategy("module", 1, threads)]
    images, on_cpu = _has_convolutions(losses), losses.device.type == "cpu"
    if images and on_cpu:
        alone.insert(0, Strategy("module", 1, threads, channels_last=True))
    if losses.criterion.per_sample is None:
        return Candidates(alone, f"its loss {losses.criterion.not_per_sample}")
    network: Network | str = stacked_network(losses)
    kind = "stacked"
    if isinstance(network, str):
        reason, kind = network, "vmap"
        network = "" if _slow_under_vmap(losses) else vmapped_network(losses)
        if isinstance(network, str):
            return Candidates(alone, network or reason)
    if images and on_cpu and chunk is None:
        # On a CPU, a convolution over several clients is slower than one client after another.
        single = partial(Strategy, kind, 1, threads)
        return Candidates([single(channels_last=True), single(), *alone])
    sizes = _chunk_sizes(losses, clients, threads, memory) if chunk is None else [chunk]
    found = [Strategy(kind, size, threads) for size in sizes]
    client_bytes = COPIES * losses.dimension * losses.flat.x.element_size()
    fits = clients <= int(memory * MEGABYTE / client_bytes)
    light = clients * losses.dimension <= LIGHT_PARAMETERS and fits
    if chunk is None and threads > 1 and light:
        found.insert(0, Strategy(kind, clients, 1))
    return Candidates([*found, *alone])


def _chunk_sizes(losses: ModuleLosses, clients: int, threads: int, memory: float) -> list[int]:
    """Numbers of clients per chunk worth timing: a few times what fits a core's cache, and more.

    No chunk is larger than a thread's share of the clients and of the memory.
    """
    size = losses.dimension * losses.flat.x.element_size()
    share = -(-clients // threads)
    most = max(1, min(share, int(memory * MEGABYTE / (COPIES * size * threads))))
    cached = max(1, CACHE_BYTES // size)
    return list(dict.fromkeys([*(min(most, times * cached) for times in (4, 2, 8)), most]))


def _has_convolutions(losses: ModuleLosses) -> bool:
    return any(isinstance(m, nn.modules.conv._ConvNd) for m in losses.flat.module.modules())


def _slow_under_vmap(losses: ModuleLosses) -> bool:
    """Whether vmap is slower than one client after another: convolutions and RNNs on a CPU."""
    recurrent = any(isinstance(m, nn.RNNBase) for m in losses.flat.module.modules())
    return losses.device.type == "cpu" and (recurrent or _has_convolutions(losses))


def slow_loss_message(losses: Losses) -> str | None:
    """One line that says that only the loss prevents many clients from training at once.

    It names a loss that would be fast. None if clients train at once, or if the model prevents it.
    """
    if not isinstance(losses, ModuleLosses) or len(losses.ids) < 2:
        return None
    criterion = losses.criterion
    if criterion.per_sample in (cross_entropies, squared_errors) or criterion.batchwise:
        return None
    if losses.train_part.lazy is not None:
        return None
    faster = _faster_loss(losses)
    if faster is None:
        return None
    why = criterion.not_per_sample or "is not the default cross-entropy or squared error"
    return (
        f"The loss {why}, so clients train one by one; {faster} would train many clients at once."
    )


def _faster_loss(losses: ModuleLosses) -> str | None:
    """The loss with which many clients could train at once, as text.

    None if they do so already, or if the model prevents it whatever the loss is.
    """
    images_on_cpu = losses.device.type == "cpu" and _has_convolutions(losses)
    if images_on_cpu or losses.uses_random_numbers_beyond_dropout:
        return None
    unknown = losses.criterion.per_sample is None
    if not _slow_under_vmap(losses):
        stand_in = replace(losses.criterion, per_sample=lambda o, targets: o.flatten(1).sum(1))
        if not isinstance(vmapped_network(losses, stand_in), str):
            return per_sample_form(losses.criterion.loss) if unknown else None
    # vmap supports neither dropout nor fast RNNs. Stacked layers do, but for two losses only.
    stackable = not isinstance(stacked_layers(losses.flat.module, losses.flat.names), str)
    y = losses.train_part.y
    classes = "accuracy" in losses.criterion.means and isinstance(y, Tensor) and y.ndim == 1
    return "plain cross-entropy (without loss=…)" if stackable and classes else None
