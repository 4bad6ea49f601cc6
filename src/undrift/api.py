"""`train`, `compare` and `centralised`: the ways to start a run from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TypedDict, Unpack

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from undrift.core.evaluation import Evaluation
from undrift.core.losses import Losses
from undrift.core.sampling import Sampler
from undrift.core.targets import Target
from undrift.data.federated import FederatedData
from undrift.devices import KINDS, Profiles
from undrift.engines import EngineOptions, engine_options
from undrift.local.amounts import Unfinished
from undrift.local.solvers import SGD, Local
from undrift.loops import Callback, Loop, loop
from undrift.loops.comparison import labels, require_method, same_regularizer, shared_sampler
from undrift.loops.paces import Pace
from undrift.loops.planning import Limit
from undrift.methods import FedAvg, Method
from undrift.nets.criteria import Loss, Metric
from undrift.nets.modules import ModuleLosses
from undrift.report.result import Comparison, Result
from undrift.runs.progress import Bars, progress_bars
from undrift.utils.errors import (
    Diverged,
    UndriftError,
    first_line,
    require,
    require_choice,
    require_type,
    require_whole,
)


class Options(TypedDict, total=False):
    """The arguments of `train`, `compare` and `centralised`; see `train`."""

    model: nn.Module
    data: FederatedData
    problem: Losses
    local: Local
    rounds: int
    cohort: int | Sampler | None
    objective: str
    seed: int
    loss: Loss
    metrics: Mapping[str, Metric]
    evaluate: Evaluation
    weights: str | Path
    limit: Limit
    engine: str | EngineOptions
    devices: Profiles
    pace: Pace | Mapping[str, Pace]
    target: Mapping[str, Target]
    callbacks: Sequence[Callback]
    progress: bool | None
    device: str | torch.device


def train(method: Method, **options: Unpack[Options]) -> Result:
    """Train one model over many clients.

    Parameters
    ----------
    method
        e.g. `ud.FedDyn(alpha=0.01)`
    model
        any `nn.Module`; it is copied, never changed
    data
        a `FederatedData`
    problem
        instead of model and data: an analytic problem of `ud.theory`
    local
        the clients' local work, e.g. `ud.SGD(lr=0.01, batch_size=10, epochs=5)`
    rounds
        the number of communication rounds (default 100)
    cohort
        how many clients take part in a round, or a sampler; None (the default) for all
    objective
        what is minimised: "samples" (the default), q_k = n_k/n, or "clients", q_k = 1/N
    seed
        cohorts, batches and dropout are functions of it (default 0); the initial weights are
        those of `model`
    loss, metrics
        (outputs, targets) → number: the loss to train on (default: cross-entropy for whole-number
        targets, squared error otherwise), and further metrics by name
    evaluate
        an `Evaluation`: how often, which models to report, on which parts of the data, and from
        how many clients training metrics are estimated
    weights
        a safetensors file with the initial weights
    limit
        how many epochs or steps a client manages (None: all; 0: it does not reply): by client id,
        a function of (client id, round), with rounds counted from 0, or `ud.Unfinished(0.5)`
    engine
        how the clients' work is computed: "auto" (the default), the fastest way, timed on the
        first round's work and remembered; "vectorised", many clients at once by a fixed rule;
        "serial", one after another; or `ud.EngineOptions(…)`. They agree to rounding.
    devices
        what the clients' devices are like, e.g. `ud.Devices(speed=ud.devices.Ladder(50, 100))`:
        with them there is a virtual clock, and clients may be slow, away, or fail
    pace
        when the server goes on: `ud.WaitForAll()`, `ud.Deadline(seconds)`,
        `ud.FirstToRespond(K)` or `ud.AsTheyArrive()`; or a mapping from labels, where methods
        differ (default: as the method is meant)
    target
        stop once a metric is reached, e.g. `{"test_accuracy": 0.9}`; a metric of the user's own
        needs a direction, `{"train_rmse": ("below", 0.1)}`
    callbacks
        functions of (run, record), called after every round; one that returns True ends the run
    progress
        whether to show progress bars (default: on a terminal and in a notebook)
    device
        where to compute, e.g. "cuda"
    """
    return _run({labels([method])[0]: method}, options, catch=False)[0]


def compare(
    methods: Sequence[Method] | Mapping[str, Method],
    *,
    seeds: Iterable[int] | None = None,
    **options: Unpack[Options],
) -> Comparison:
    """Train with several methods on the same cohorts and batches.

    A method that diverges is stopped and says so in its result; the others go on.

    Parameters
    ----------
    methods
        a list, or a mapping from labels to methods
    seeds
        run everything once with each of them, e.g. `range(5)`, in place of `seed`; `model` and
        `data` may then be functions of the seed, so that initial weights and partitions differ
    options
        those of `train`
    """
    if not isinstance(methods, Mapping):
        methods = dict(zip(labels(methods), methods, strict=True))
    if seeds is None:
        return Comparison(_run(methods, options, catch=True))
    several = _require_seeds(seeds, options)
    check_options(methods, options)
    found: list[Result] = []
    with _bars(methods, options, len(several)) as bars:
        for seed in several:
            found += _run(methods, _with_seed(options, seed), catch=True, bars=bars)
    return Comparison(found)


def _require_seeds(seeds: Iterable[int], options: Options) -> list[int]:
    """The seeds, each once."""
    require("seed" not in options, "Give either a seed or seeds, not both.")
    require(
        isinstance(seeds, Iterable) and not isinstance(seeds, str),
        f"seeds is {seeds!r}, but must be a list of whole numbers or range(5).",
    )
    found = [require_whole("A seed", seed, at_least=0) for seed in seeds]
    require(len(found) > 0, "There are no seeds.")
    require(len(set(found)) == len(found), "A seed is given twice.")
    return found


def _with_seed(options: Options, seed: int) -> Options:
    """The options with a seed; what is given as a function of it is made."""
    found: Options = {**options, "seed": seed}
    model, data = options.get("model"), options.get("data")
    if model is not None and not isinstance(model, nn.Module) and callable(model):
        found["model"] = model(seed)
    if callable(data):
        found["data"] = data(seed)
    return found


def centralised(**options: Unpack[Options]) -> Result:
    """The baseline with all data in one place, in the hands of one client whose id is "all".

    The options are those of `train`, with the federation's own `data`; `cohort`, `limit`,
    `devices` and `pace` do not apply. Local work in epochs goes over all data in every round, as
    a federation of everybody does; work in steps is that many steps for the one client.
    """
    data = options.get("data")
    if not isinstance(data, FederatedData):
        raise UndriftError("A centralised baseline needs data=FederatedData(...).")
    require(
        options.get("objective", "samples") == "samples",
        "A centralised baseline minimises the mean over samples, which is not the objective "
        "'clients': compare with ud.DistributedSGD() and all clients, which is SGD on F itself.",
    )
    options = {**options, "data": data.pooled(), "cohort": None, "limit": {}}
    options.pop("devices", None)
    options.pop("pace", None)
    return _run({"centralised": FedAvg("full")}, options, catch=False)[0]


def _run(
    methods: Mapping[str, Method], options: Options, catch: bool, bars: Bars | None = None
) -> list[Result]:
    """Run every method on the same losses, cohorts and batches."""
    check_options(methods, options)
    local = options.get("local")
    require_type(
        "local",
        local,
        Local,
        "what clients run: SGD, GD, Exact or PerClient, for example local=ud.SGD(lr=0.01, "
        "batch_size=10, epochs=5)",
    )
    assert local is not None
    losses = losses_of(options)
    objective = options.get("objective", "samples")
    rounds = options.get("rounds", 100)
    same_regularizer(methods)
    sampler = shared_sampler(options.get("cohort"), methods.values(), losses, objective)
    runs = {
        label: loop(
            method,
            losses,
            local,
            sampler,
            rounds,
            objective=objective,
            seed=options.get("seed", 0),
            evaluation=options.get("evaluate", Evaluation()),
            limit=options.get("limit"),
            devices=options.get("devices"),
            pace=_pace_for(label, options.get("pace")),
            engine=engine_options(options.get("engine", "auto")),
            target=options.get("target"),
            callbacks=options.get("callbacks", ()),
        )
        for label, method in methods.items()
    }
    with _bars(methods, options) if bars is None else nullcontext(bars) as shown:
        return [_finish(label, run, catch, shown) for label, run in runs.items()]


def _bars(
    methods: Mapping[str, Method], options: Options, seeds: int = 1
) -> AbstractContextManager[Bars]:
    """A bar per method over all seeds, if they are to be shown."""
    rounds = options.get("rounds", 100)
    return progress_bars(list(methods), rounds, seeds, options.get("progress"))


def check_options(methods: Mapping[str, Method], options: Options) -> None:
    """Refuse arguments of the wrong kind before anything runs."""
    for name in options:
        if name not in Options.__annotations__:
            _refuse_argument(name)
    require(len(methods) > 0, "There is no method to run.")
    for method in methods.values():
        require_method(method)
    loss = options.get("loss")
    require(
        not isinstance(loss, type),
        f"loss is the class {getattr(loss, '__name__', '')}, of which none was made: "
        f"{getattr(loss, '__name__', '')}().",
    )
    require(
        loss is None or callable(loss),
        f"loss is {loss!r}, but must be a function of (outputs, targets).",
    )
    limit = options.get("limit")
    require(
        limit is None or callable(limit) or isinstance(limit, Mapping | Unfinished),
        f"limit is {limit!r}, but must be a mapping from client ids, a function of (client id, "
        f"round) or ud.Unfinished(share).",
    )
    if options.get("devices") is not None:
        kinds = tuple(KINDS.values())
        require_type("devices", options.get("devices"), kinds, "ud.Devices(…) or another profile")
    paces = options.get("pace")
    if isinstance(paces, Mapping):
        for label in paces:
            require_choice("A label of pace", label, methods)
    for pace in paces.values() if isinstance(paces, Mapping) else [paces]:
        if pace is not None:
            require_type("pace", pace, Pace, "a pace such as ud.Deadline(10)")
    if options.get("weights") is not None:
        require_type("weights", options.get("weights"), (str, Path), "a safetensors file")
    engine_options(options.get("engine", "auto"))
    require_whole("seed", options.get("seed", 0), at_least=0)
    require_whole("rounds", options.get("rounds", 100), at_least=0)
    require_type("evaluate", options.get("evaluate", Evaluation()), Evaluation, "an Evaluation")
    for name in ("metrics", "target"):
        value = options.get(name)
        require_type(name, {} if value is None else value, Mapping, "a mapping from metric names")
    for name, metric in (options.get("metrics") or {}).items():
        require(callable(metric), f"The metric {name!r} must be a function of (outputs, targets).")
    callbacks = options.get("callbacks", ())
    require(
        isinstance(callbacks, list | tuple) and all(callable(each) for each in callbacks),
        "callbacks must be a list of functions of (run, record).",
    )
    try:
        torch.empty(0, device=options.get("device", "cpu"))
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UndriftError(
            f"device {options.get('device')!r} cannot be used: {first_line(error)}."
        ) from None


def _refuse_argument(name: str) -> None:
    """An argument that there is not; some belong elsewhere."""
    require(name != "seeds", "seeds belong to ud.compare, which takes several: here it is seed.")
    works = [each.name for each in fields(SGD)]
    require(
        name not in works,
        f"{name} belongs to the clients' local work: local=ud.SGD({name}=…).",
    )
    require_choice("An argument", name, Options.__annotations__)


def _pace_for(label: str, pace: Pace | Mapping[str, Pace] | None) -> Pace | None:
    return pace.get(label) if isinstance(pace, Mapping) else pace


def _finish(label: str, run: Loop, catch: bool, bars: Bars) -> Result:
    """Do all rounds of a run."""
    bars.begin(label, run.seed, run.round)
    try:
        for record in run.rounds():
            bars.show(label, run.seed, record)
    except Diverged as error:
        if not catch:
            raise
        run.stopped, run.diverged = str(error), True
    bars.end(label, run.seed, "diverged" if run.diverged else "finished", run.stopped)
    return Result(label, run)


def losses_of(options: Options) -> Losses:
    """The clients' losses: an analytic problem, or a model on data."""
    model, data, problem = options.get("model"), options.get("data"), options.get("problem")
    if problem is not None:
        require_type("problem", problem, Losses, "an analytic problem of ud.theory")
        for name in ("model", "data", "loss", "metrics", "weights"):
            require(
                options.get(name) is None,
                f"Give either a problem, or a model and data, not both: {name} means nothing here.",
            )
        return problem
    if model is None or data is None:
        raise UndriftError("Give a model and data, or an analytic problem.")
    require(
        isinstance(data, FederatedData),
        f"data is {type(data).__name__}, but must be FederatedData: build it with "
        f"{_builder(data)}.",
    )
    return ModuleLosses(
        model,
        data,
        options.get("loss"),
        options.get("metrics"),
        options.get("weights"),
        options.get("device", "cpu"),
    )


def _builder(data: object) -> str:
    """How to make federated data of something else."""
    if isinstance(data, DataLoader):
        return "ud.data.FederatedData.from_dataset(loader.dataset, partition='iid', clients=10)"
    if isinstance(data, Dataset):
        return "ud.data.FederatedData.from_dataset(dataset, partition='iid', clients=10)"
    return "ud.data.FederatedData.from_clients([(inputs, targets), …])"
