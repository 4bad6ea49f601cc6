"""Estimate what an experiment costs before it runs: gradients, bytes, states and virtual time.

`undrift run --dry-run` prints it; the rounds are forecast by the run's own loop without training.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from undrift.core.clients import Roster
from undrift.core.losses import Losses
from undrift.core.method import NUMBER, Method
from undrift.core.sampling import Sampler
from undrift.data.federated import FederatedData
from undrift.devices import Fleet
from undrift.experiments.forecast import forecast_run, shape_of
from undrift.local.minibatches import MinibatchSolver
from undrift.loops import Loop, loop, pace_of
from undrift.loops.comparison import shared_sampler
from undrift.loops.paces import word_of
from undrift.methods.traffic import traffic_of
from undrift.utils.errors import UndriftError
from undrift.utils.formatting import duration, short, size

if TYPE_CHECKING:
    from undrift.experiments.experiment import Experiment


@dataclass(frozen=True)
class MethodCost:
    """The cost of one method with one seed; numbers per round are means over rounds."""

    label: str
    cohort: float
    """clients per round"""
    gradients: float
    """gradients of single samples per round"""
    bytes_down: float
    bytes_up: float
    """per round"""
    seen: float
    """expected number of clients that reply at least once in the run"""
    state: float
    """bytes that the states of those clients take on disk"""
    pace: str
    """the pace, by its word in a file"""
    seconds: float | None = None
    """virtual seconds per round; None without a virtual clock"""
    privacy: str | None = None
    """what a private run spends, in a sentence"""


@dataclass(frozen=True)
class Cost:
    """The cost of an experiment, estimated for its first seed; other seeds cost about the same."""

    rounds: int
    seeds: int
    clients: int
    samples: int
    parameters: int
    methods: tuple[MethodCost, ...]
    at_most: bool = False
    """whether a target or a local tolerance may end runs or local work early"""

    @property
    def gradients(self) -> float:
        """Gradients of single samples, over all runs."""
        return self.seeds * self.rounds * sum(each.gradients for each in self.methods)

    @property
    def bytes(self) -> float:
        """Bytes sent down and up, over all runs."""
        travel = sum(each.bytes_down + each.bytes_up for each in self.methods)
        return self.seeds * self.rounds * travel

    @property
    def state(self) -> float:
        """Bytes of client states, over the stores of all runs."""
        return self.seeds * sum(each.state for each in self.methods)

    def as_dict(self) -> dict[str, Any]:
        """All numbers and totals as plain values."""
        return asdict(self) | {
            "gradients": self.gradients,
            "bytes": self.bytes,
            "state": self.state,
        }

    def __rich__(self) -> Group:
        return self.table()

    def table(self) -> Group:
        """The table that the terminal shows."""
        runs = "run" if self.seeds * len(self.methods) == 1 else "runs"
        head = (
            f"{len(self.methods)} × {self.seeds} {runs} of {self.rounds} rounds: {self.clients} "
            f"clients, {self.samples} samples, {self.parameters} parameters"
        )
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("method", overflow="fold")
        for name in ("cohort", "gradients", "down", "up", "gradients", "bytes", "state"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_row(
            "", "", *(Text(w, style="dim") for w in ("a round",) * 3 + ("in all",) * 2), ""
        )
        for each in self.methods:
            travel = each.bytes_down + each.bytes_up
            table.add_row(
                Text(each.label),
                f"{each.cohort:.3g}",
                short(each.gradients),
                size(each.bytes_down),
                size(each.bytes_up),
                short(self.seeds * self.rounds * each.gradients),
                size(self.seeds * self.rounds * travel),
                size(self.seeds * each.state),
            )
        clock = any(each.seconds is not None for each in self.methods)
        times: list[RenderableType] = [Text(""), self._times()] if clock else []
        most = "At most" if self.at_most else "In all"
        foot = (
            f"{most} {short(self.gradients)} gradients of a sample, {size(self.bytes)} down and "
            f"up, {size(self.state)} of client states on disk."
        )
        private = [Text(f"{each.label}: {each.privacy}") for each in self.methods if each.privacy]
        return Group(Text(head), Text(""), table, *times, Text(""), Text(foot), *private)

    def _times(self) -> Table:
        """A table of virtual times, for the methods that have a virtual clock."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("method", overflow="fold")
        table.add_column("pace", no_wrap=True)
        for name in ("time of a round", "of all rounds"):
            table.add_column(name, justify="right", no_wrap=True)
        for each in self.methods:
            if each.seconds is not None:
                times = duration(each.seconds), duration(self.rounds * each.seconds)
                table.add_row(Text(each.label), each.pace, *times)
        return table


def estimate(
    experiment: Experiment, data: FederatedData | Losses, model: torch.nn.Module | Losses
) -> Cost:
    """Estimate the cost of an experiment.

    Parameters
    ----------
    experiment
        the experiment
    data, model
        its data and its model, or twice the losses of a run; only sizes and shapes are used
    """
    if isinstance(model, Losses):
        parameters, buffers = torch.zeros_like(model.initial()), model.initial_buffers()
    else:
        parameters, buffers = shape_of(model)
    sizes = data.sizes if isinstance(data, Losses) else data.train.sizes
    roster = Roster(data.ids, sizes, experiment.objective)
    methods = experiment.methods()
    paces = experiment.paces()
    shared = _shared_sampler(experiment, data, roster)
    local = {label: experiment.local_of(label) for label in methods}
    early = bool(experiment.target) or any(
        isinstance(each, MinibatchSolver) and each.tolerance is not None for each in local.values()
    )
    last = bool({"all", "own"} & {*experiment.evaluation.models})
    seed = experiment.seeds[0]
    devices = experiment.device_profiles()
    fleet_of(experiment, roster, seed)  # so that its errors name their key
    found = []
    for label, method in methods.items():
        traffic = traffic_of(method)
        try:
            seen, run = forecast_run(
                method,
                list(data.ids),
                sizes,
                parameters,
                buffers,
                traffic,
                experiment.rounds,
                local=local[label],
                sampler=shared,
                objective=experiment.objective,
                seed=seed,
                limit=experiment.limits(),
                devices=devices,
                pace=paces.get(label),
                compression=experiment.compression_settings(),
            )
        except UndriftError as error:
            raise UndriftError(f"method.{label}: {error}") from None
        privacy = _spending(run, method, experiment)
        clients = seen.clients_after(experiment.rounds, len(roster))
        residuals = run.job.uploads.init().values()
        vectors = traffic.kept_vectors + last + sum(kind != NUMBER for kind in residuals)
        kept = vectors * parameters.numel() + traffic.kept_numbers
        rounds = max(1, seen.rounds)
        pace = pace_of(method, paces.get(label))
        found.append(
            MethodCost(
                label,
                cohort=seen.asked / rounds,
                gradients=seen.gradients / rounds,
                bytes_down=seen.bytes_down / rounds,
                bytes_up=seen.bytes_up / rounds,
                seen=clients,
                state=clients * kept * parameters.element_size(),
                pace=word_of(pace),
                seconds=None if run.fleet is None else seen.seconds / rounds,
                privacy=privacy,
            )
        )
    return Cost(
        rounds=experiment.rounds,
        seeds=len(experiment.seeds),
        clients=len(roster),
        samples=int(sizes.sum()),
        parameters=parameters.numel(),
        methods=tuple(found),
        at_most=early,
    )


def _spending(forecast: Loop, method: Method, experiment: Experiment) -> str | None:
    """What a run will spend of its privacy budget; None without privacy."""
    settings = experiment.privacy_settings()
    if settings is None:
        return None
    spec = replace(forecast.spec, method=method, rounds=experiment.rounds, privacy=settings)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the real run warns
            mechanism = loop(spec, lambda losses, job: forecast.engine).mechanism
    except UndriftError as error:
        raise UndriftError(f"privacy: {error}") from None
    assert mechanism is not None
    if mechanism.guarantee.noise == 0:
        return "no noise, so that there is no guarantee."
    allowed = experiment.rounds
    if settings.epsilon is not None:
        allowed = min(allowed, mechanism.guarantee.most_releases(settings.epsilon))
    sentence = mechanism.guarantee.sentence(allowed)
    if allowed < experiment.rounds:
        sentence += f" The budget ends the run after {allowed} rounds."
    return sentence


def fleet_of(experiment: Experiment, roster: Roster, seed: int) -> Fleet | None:
    """The devices of a run's clients; None if the experiment describes none."""
    devices = experiment.device_profiles()
    try:
        return None if devices is None else devices.fleet(roster, seed)
    except UndriftError as error:
        raise UndriftError(f"devices: {error}") from None


def _shared_sampler(experiment: Experiment, data: Any, roster: Roster) -> Sampler:
    """The sampler of all methods, checked against the clients of the data."""
    sizes = data.sizes if isinstance(data, Losses) else data.train.sizes
    clients: Any = SimpleNamespace(ids=data.ids, sizes=sizes)
    sampler = shared_sampler(
        experiment.cohort(), experiment.methods().values(), clients, experiment.objective
    )
    sampler.check(roster)
    return sampler
