"""The strategies by which clients' work can be computed, and which of them suit a model.

`candidates` orders them by the times that `cost_model` estimates: "auto" takes the first one,
"tuned" times all, and "vectorised" takes the first one that trains many clients at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from undrift.core.losses import Losses
from undrift.engines.base import Job, SimulationEngine
from undrift.engines.cost_model import RoundWork
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
from undrift.local.base import Local
from undrift.nets.criteria import cross_entropies, squared_errors
from undrift.nets.module_losses import ModuleLosses
from undrift.nets.per_sample import per_sample_form
from undrift.utils.errors import UndriftError, first_line

COPIES = 6
"""How often a client's parameters are in memory while it trains: model, gradient, upload, …"""
WORTH_TRYING = 3.0
"""Strategies that should take more than this many times as long as the first are left out."""
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
    """The strategies that suit a model, the one that should be fastest first."""

    strategies: list[Strategy]
    reason: str = ""
    """why clients do not train many at once, if they do not"""

    @property
    def many_at_once(self) -> Strategy:
        """The first strategy whose layers are made for many clients; the first if there is none."""
        several = (each for each in self.strategies if each.network in ("stacked", "vmap"))
        return next(several, self.strategies[0])


def candidates(
    losses: Losses,
    local: Local,
    clients: int,
    threads: int,
    memory: float,
    chunk: int | None = None,
    *,
    first_only: bool = False,
) -> Candidates:
    """The strategies worth trying whose gradients agree with the serial engine's.

    Parameters
    ----------
    losses
        the model and the data
    local
        the clients' local work
    clients
        how many clients train in a round
    threads
        how many threads may be used
    memory
        the most megabytes for the models of clients that train
    chunk
        how many clients train at once, if the user chose that
    first_only
        whether the first strategy suffices; the gradients of the others are not checked then
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
        work = RoundWork.of(losses, local, clients)
        promising = _promising(losses, work, threads, memory, chunk)
        fit, failures = [], []
        for strategy in promising.strategies:
            failure = _failure(losses, strategy)
            if failure is not None:
                failures.append(failure)
                continue
            fit.append(strategy)
            if first_only:
                break
    except Exception as error:  # any error of the model; if it matters, the engine raises it
        return Candidates([SERIAL], f"it fails on a few samples: {first_line(error)}")
    if not fit:
        return Candidates([SERIAL], failures[-1])
    reason = promising.reason
    if failures and all(strategy.network == "module" for strategy in fit):
        reason = reason or failures[0]
    return Candidates(fit, reason)


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
    losses: ModuleLosses, work: RoundWork, threads: int, memory: float, chunk: int | None
) -> Candidates:
    """The strategies worth trying if their gradients turn out to agree, in the rule's order."""
    convolves = work.model.convolves
    alone = [Strategy("module", 1, number) for number in sorted({threads, 1}, reverse=True)]
    if convolves:
        alone.append(Strategy("module", 1, threads, channels_last=True))
    reason, kind = "", "stacked"
    network: Network | str = stacked_network(losses)
    if losses.criterion.per_sample is None:
        return _ordered(alone, work, f"its loss {losses.criterion.not_per_sample}")
    if isinstance(network, str):
        reason, kind = network, "vmap"
        network = "" if _slow_under_vmap(losses) else vmapped_network(losses)
        if isinstance(network, str):
            return _ordered(alone, work, network or reason)
    if convolves and chunk is None:
        # On a CPU, a convolution over several clients is slower than one client after another.
        several = [Strategy(kind, 1, threads, channels_last=last) for last in (True, False)]
    elif chunk is not None:
        several = [Strategy(kind, chunk, threads)]
    else:
        several = _several(losses, kind, work.clients, threads, memory)
    return _ordered([*several, *alone], work)


def _ordered(strategies: Sequence[Strategy], work: RoundWork, reason: str = "") -> Candidates:
    """Strategies by the time that they should take; between equals, the first one stays first."""

    def seconds(each: Strategy) -> float:
        return work.seconds(each.network, each.chunk, each.threads, each.channels_last)

    found = sorted(strategies, key=seconds)
    fast = [each for each in found if seconds(each) <= WORTH_TRYING * seconds(found[0])]
    # The user's module is always a candidate: it works where other networks do not.
    single = [each for each in found if each.network == "module" and each not in fast]
    return Candidates([*fast, *single[:1]], reason)


def _several(
    losses: ModuleLosses, kind: str, clients: int, threads: int, memory: float
) -> list[Strategy]:
    """Strategies that train several clients at once, within the memory.

    There are 1, 2, 4, … chunks, as many as there are threads, or multiples of that.
    """
    client_bytes = COPIES * losses.dimension * losses.flat.x.element_size()
    found = []
    number = 1
    while True:
        used = min(threads, number)
        size = max(1, min(-(-clients // number), int(memory * MEGABYTE / (client_bytes * used))))
        found.append(Strategy(kind, size, used))
        if number >= clients:
            return list(dict.fromkeys(found))
        most = threads if number < threads else clients
        number = min(most, 2 * number, clients)


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
