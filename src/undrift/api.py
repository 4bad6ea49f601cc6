"""`train`, `compare`, `centralised` and `resume`: start and resume runs from Python.

Each function checks its arguments, turns them into a `Plan`, and passes it to the driver, which
keeps the runs in memory or, with `out=`, in a run folder as `undrift run` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TypedDict, Unpack

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from undrift.compression import Compression, Compressor, as_compression
from undrift.core.evaluation import Evaluation
from undrift.core.losses import Losses
from undrift.core.method import Method
from undrift.core.sampling import Sampler
from undrift.core.targets import Target
from undrift.core.uploads import UploadTransform
from undrift.data.federated import FederatedData
from undrift.devices import KINDS, Profiles
from undrift.engines import EngineOptions, engine_options
from undrift.local.amounts import Unfinished
from undrift.local.solvers import SGD, Local
from undrift.loops import Callback
from undrift.loops.comparison import labels
from undrift.loops.paces import Pace
from undrift.loops.planning import Limit
from undrift.methods import Alone, FedAvg
from undrift.nets.criteria import Loss, Metrics, Step
from undrift.nets.metrics import named_metrics
from undrift.nets.module_losses import ModuleLosses
from undrift.nets.personal import Personal
from undrift.privacy.gaussian import Gaussian
from undrift.report.result import Comparison, Result
from undrift.robust import as_robust
from undrift.robust.attacks import Attack
from undrift.robust.poisoning import poisoned_losses
from undrift.robust.settings import Robust
from undrift.runs.arguments import (
    claim_arguments,
    described,
    stored_rounds,
    write_arguments,
)
from undrift.runs.driver import RunOutcome, execute
from undrift.runs.experiment_runs import resumed, run_experiment
from undrift.runs.folder import DIVERGED, EXPERIMENT, INTERRUPTED
from undrift.runs.going_back import go_back
from undrift.runs.loggers import GuardedLogger, Logger, make_logger
from undrift.runs.plan import Plan
from undrift.runs.progress import progress_bars
from undrift.runs.storage import FolderStorage
from undrift.utils.errors import (
    Diverged,
    UndriftError,
    first_line,
    require,
    require_choice,
    require_type,
    require_whole,
)

Methods = Sequence[Method] | Mapping[str, Method]


class Options(TypedDict, total=False):
    """The arguments of `train`, `compare` and `centralised`; see `train`."""

    model: nn.Module
    data: FederatedData
    problem: Losses
    local: Local | Mapping[str, Local]
    rounds: int
    cohort: int | Sampler | None
    objective: str
    seed: int
    loss: Loss
    step: Step
    metrics: Metrics
    evaluate: Evaluation
    weights: str | Path
    personal: Personal | Sequence[str] | str
    limit: Limit
    engine: str | EngineOptions
    devices: Profiles
    pace: Pace | Mapping[str, Pace]
    target: Mapping[str, Target]
    callbacks: Sequence[Callback]
    compression: Compression | Compressor | None
    robust: Robust | None
    attack: Attack | None
    privacy: Gaussian | None
    transforms: Sequence[UploadTransform]
    out: str | Path
    loggers: Sequence[str | Logger]
    progress: bool | None
    device: str | torch.device


def train(method: Method, **options: Unpack[Options]) -> Result:
    """Train one model over many clients.

    Parameters
    ----------
    method
        the method, such as `ud.FedDyn(alpha=0.01)`
    model
        an `nn.Module`; it is copied and not changed
    data
        the clients' data, a `FederatedData`
    problem
        an analytic problem of `ud.theory`, in place of model and data
    local
        the clients' local work, such as `ud.SGD(lr=0.01, batch_size=10, epochs=5)`; for
        `compare` also a mapping from the methods' labels
    rounds
        the number of communication rounds (default 100)
    cohort
        the number of clients in a round, or a sampler; None (the default) for all clients
    objective
        the weights q_k in F = Σ q_k f_k + g: "samples" (the default) for n_k/n, "clients" for 1/N
    seed
        the seed of all random numbers, such as cohorts, batches and dropout (default 0); the
        initial weights are those of `model`
    loss
        a function (outputs, targets) → number, the loss to train on (default: cross-entropy for
        integer targets, squared error otherwise)
    step
        a function (model, batch) → the mean loss over the batch, in place of a loss of (outputs,
        targets): it gets a batch as the data hold it, and calls the model itself
    metrics
        further metrics: a list of names such as `["auc", "f1"]`, or a mapping from names to
        functions (outputs, targets) → number, to objects with `update`, `compute` and `reset` as
        those of torchmetrics, or to the names of `ud.metrics`
    evaluate
        an `Evaluation`: how often to measure, which models, on which parts of the data, and from
        how many clients training metrics are estimated
    weights
        initial weights: a safetensors file, or the folder of a finished run
    personal
        parameters that never travel and rest with the client: a list of names such as
        `["head.*"]`, "normalisation", or a `ud.Personal`
    limit
        the most epochs or steps a client can do in a round (None: all; 0: it does not reply): a
        mapping from client ids, a function of (client id, round), with rounds counted from 0, or
        `ud.Unfinished(0.5)`
    engine
        how the clients' work is computed: "auto" (the default), the strategy that should be
        fastest, by a rule that reads no clock; "tuned", the fastest one, timed on the first
        round's work and stored; "vectorised", many clients at once; "serial", one after another;
        or `ud.EngineOptions(…)`. Results agree to rounding.
    devices
        the device profiles of the clients, such as `ud.Devices(speed=ud.devices.Ladder(50, 100))`:
        with them there is a virtual clock, and clients may be slow, unavailable, or fail
    pace
        when the server goes on: `ud.WaitForAll()`, `ud.Deadline(seconds)`,
        `ud.FirstToRespond(K)` or `ud.AsTheyArrive()`, or a mapping from the methods' labels
        (default: the method's own)
    target
        ends the run once a metric is reached, such as `{"test_accuracy": 0.9}`; your own metric
        needs a direction, `{"train_rmse": ("below", 0.1)}`
    callbacks
        functions of (run, record), called after every round; one that returns True ends the run.
        They may read `run.model()`, `run.server.x`, `run.records`, `run.roster`,
        `run.client_metrics` and what else the guide's page on own parts lists
    compression
        how uploads are made smaller to send, such as `ud.compression.TopK(0.01)`; a
        `ud.compression.Compression(up=…, down=…)` compresses downloads, too (default: None)
    robust
        `ud.NormBound()` rejects uploads whose norm is more than 10 times the recent median, as
        deployments do by default; a statistic such as `ud.robust.Median()` takes the place of the
        mean of the uploads; or a list of one of each (default: None, no bound and the mean)
    attack
        what some clients send in place of their uploads, such as `ud.attacks.SignFlip(share=0.2)`,
        to try robust statistics with (default: None, all clients are honest)
    privacy
        client-level differential privacy, such as `ud.privacy.Gaussian(noise=1.0, clip=0.5)`: the
        clients' uploads are clipped and their sum is noised (default: None, no privacy)
    transforms
        `ud.UploadTransform` objects of your own, applied in this order to every client's upload
        before it is clipped and summed
    out
        a run folder as `undrift run` writes it (default: in memory only). Every round is committed,
        so that a killed process loses at most the round in progress; `ud.resume` continues the
        run, and `undrift report` reads the folder
    loggers
        with `out`: "tensorboard", "mlflow", "wandb", or your own `Logger` objects
    progress
        whether to show progress bars (default: on a terminal and in a notebook)
    device
        the device to compute on, such as "cuda"
    """
    return _single(_execute(_labelled([method]), options))


def compare(
    methods: Methods,
    *,
    seeds: Iterable[int] | None = None,
    **options: Unpack[Options],
) -> Comparison:
    """Train with several methods on the same cohorts and batches.

    A method that diverges is stopped, and its result says so; the other methods are run.

    Parameters
    ----------
    methods
        a list of methods, or a mapping from labels to methods
    seeds
        run every method with each of these seeds, such as `range(5)`, in place of `seed`; `model`
        and `data` may then be functions of the seed, for other initial weights and partitions
    options
        the arguments of `train`; `local` and `pace` may be mappings from the methods' labels
    """
    return _comparison(_execute(_labelled(methods), options, _checked_seeds(seeds, options)))


def centralised(**options: Unpack[Options]) -> Result:
    """Train with all data in one place, as the baseline: one client with the id "all".

    The options are those of `train`, with the federation's own `data`; `cohort`, `limit`,
    `devices` and `pace` are ignored. Local work in epochs covers all data in every round, as in a
    federation where all clients take part; work in steps is that many steps of the one client.
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
    return _single(_execute({"centralised": FedAvg("full")}, options))


def alone(**options: Unpack[Options]) -> Result:
    """Train every client alone on its own data, as the baseline without communication.

    The options are those of `train`; all clients take part in every round, so that a client does as
    much local work as in a federation with all clients. Each client's model is measured on its own
    data: the metrics begin with "own/", and `Result.client_model` returns it.
    """
    evaluation = replace(options.get("evaluate", Evaluation()), models=("own",))
    options = {**options, "evaluate": evaluation, "cohort": None}
    return _single(_execute({"alone": Alone()}, options))


def resume(
    folder: str | Path,
    methods: Method | Methods | None = None,
    *,
    seeds: Iterable[int] | None = None,
    from_round: int | None = None,
    **options: Unpack[Options],
) -> Result | Comparison:
    """Continue the runs of a folder from their last committed rounds.

    Parameters
    ----------
    folder
        a run folder of `ud.train(out=…)`, `ud.compare(out=…)` or `undrift run`
    methods, seeds, options
        for a folder written from Python: the arguments of the call that wrote it, because code and
        data are not stored; other arguments raise an error. A folder of `undrift run` needs none.
        A larger number of `rounds` extends the runs; by default it stays the same
    from_round
        take the runs back to this round first, one of the last few; the records of later rounds
        move to records-dropped.jsonl in the folder of each run

    Returns
    -------
    A `Result` for a single method, a `Comparison` for several and for a folder of `undrift run`.
    """
    path = Path(folder)
    if (path / EXPERIMENT).is_file():
        require(
            methods is None and seeds is None and not set(options) - {"progress", "rounds"},
            f"{path} was written from an experiment file, which defines its runs: "
            f"ud.resume({str(path)!r}) takes no methods, and only the options rounds and progress.",
        )
        return _comparison(_resume_experiment(path, options, from_round))
    require("out" not in options, "resume continues in its folder: leave out the argument out.")
    before = stored_rounds(path)
    if methods is None:
        raise UndriftError(
            f"{path} was written from Python, and code and data are not stored: give "
            f"ud.resume the arguments of the call that wrote it, ud.resume(folder, method, …)."
        )
    options = {**options, "out": path, "rounds": options.get("rounds", before)}
    named = _labelled([methods] if isinstance(methods, Method) else methods)
    found = _execute(named, options, _checked_seeds(seeds, options), True, from_round)
    return _single(found) if isinstance(methods, Method) else _comparison(found)


def _resume_experiment(folder: Path, options: Options, from_round: int | None) -> list[RunOutcome]:
    """Continue the runs of an experiment file in their folder."""
    experiment = resumed(folder, {"rounds": options["rounds"]} if "rounds" in options else {})
    if from_round is not None:
        go_back(folder, experiment.labels, experiment.seeds, from_round)
    seeds, shown = len(experiment.seeds), options.get("progress")
    with progress_bars(experiment.labels, experiment.rounds, seeds, shown) as bars:
        return run_experiment(experiment, folder, observer=bars, extend=True, read_ended=True)


def _labelled(methods: Methods) -> Mapping[str, Method]:
    """The methods by label; a list gets labels from the methods' names."""
    if isinstance(methods, Mapping):
        return methods
    return dict(zip(labels(methods), methods, strict=True))


def _execute(
    methods: Mapping[str, Method],
    options: Options,
    seeds: Sequence[int] | None = None,
    extend: bool = False,
    from_round: int | None = None,
) -> list[RunOutcome]:
    """Turn the arguments into a plan and execute it."""
    check_arguments(methods, options)
    plan = _plan(methods, options, seeds)
    storage = _storage(options, plan, extend)
    if from_round is not None and storage is not None:
        go_back(storage.folder, list(plan.methods), plan.seeds, from_round)
    shown = options.get("progress")
    try:
        with progress_bars(list(methods), plan.rounds, len(plan.seeds), shown) as bars:
            return execute(plan, storage, bars, read_ended=True)
    except UndriftError as error:
        # The sentence says what is wrong: forty lines of this library above it would only hide it.
        # A cause, such as an error in the user's model, keeps its own lines.
        raise error.with_traceback(None)  # noqa: B904


def _plan(methods: Mapping[str, Method], options: Options, seeds: Sequence[int] | None) -> Plan:
    """The plan of the arguments; without `seeds` there is one seed."""
    pace = options.get("pace")
    paces = pace if isinstance(pace, Mapping) else dict.fromkeys(methods, pace)
    bound, statistic = as_robust(options.get("robust"))
    attack = options.get("attack")
    losses = _losses_by_seed(options, by_seed=seeds is not None)
    plan = Plan(
        methods=methods,
        losses=poisoned_losses(losses, attack),
        local=_local_work(methods, options.get("local")),
        rounds=options.get("rounds", 100),
        seeds=[options.get("seed", 0)] if seeds is None else seeds,
        cohort=options.get("cohort"),
        objective=options.get("objective", "samples"),
        evaluation=options.get("evaluate", Evaluation()),
        limit=options.get("limit"),
        devices=options.get("devices"),
        paces={label: each for label, each in paces.items() if each is not None},
        target=options.get("target") or {},
        callbacks=options.get("callbacks", ()),
        compression=as_compression(options.get("compression")),
        robust=bound,
        statistic=statistic,
        attack=attack,
        privacy=options.get("privacy"),
        transforms=options.get("transforms", ()),
        engine=engine_options(options.get("engine", "auto")),
        description=described(methods, dict(options)),
    )
    return plan


def _storage(options: Options, plan: Plan, extend: bool) -> FolderStorage | None:
    """The run folder of `out`, or None; an error if the folder has other runs."""
    out = options.get("out")
    if out is None:
        return None
    folder = Path(out)
    plan.engine.require_ready()
    claim_arguments(folder, plan, extend)
    wanted = options.get("loggers") or ()

    def loggers() -> Sequence[Logger]:
        return [
            make_logger(each) if isinstance(each, str) else GuardedLogger(each, type(each).__name__)
            for each in wanted
        ]

    def accepted() -> None:
        """Keep the number of rounds of runs that are extended."""
        if stored_rounds(folder) < plan.rounds:
            write_arguments(folder, plan)

    return FolderStorage(folder, loggers=loggers, accepted=accepted, interrupts=True)


def _local_work(
    methods: Mapping[str, Method], local: Local | Mapping[str, Local] | None
) -> Mapping[str, Local]:
    """The local work of each method."""
    if isinstance(local, Mapping):
        for label in local:
            require_choice("A label of local", label, methods)
        for label in methods:
            require(label in local, f"local has no entry for {label!r}: every method needs one.")
    found = local if isinstance(local, Mapping) else dict.fromkeys(methods, local)
    for each in found.values():
        require_type(
            "local",
            each,
            Local,
            "a solver (SGD, GD, AdamW, Exact, PerClient, …), for example local=ud.SGD(lr=0.01, "
            "batch_size=10, epochs=5)",
        )
    return found  # type: ignore[return-value]  # no value is None: checked above


def _losses_by_seed(options: Options, by_seed: bool) -> Callable[[int], Losses]:
    """A function that returns the clients' losses of a seed.

    With `by_seed`, a model or data given as functions of the seed are called.
    """
    if not by_seed:
        found = losses_of(options)
        return lambda seed: found

    def losses(seed: int) -> Losses:
        model, data = options.get("model"), options.get("data")
        made: Options = {**options}
        if model is not None and not isinstance(model, nn.Module) and callable(model):
            made["model"] = model(seed)
        if callable(data):
            made["data"] = data(seed)
        return losses_of(made)

    return losses


def _checked_seeds(seeds: Iterable[int] | None, options: Options) -> list[int] | None:
    """The seeds as a list; an error unless they are distinct non-negative integers."""
    if seeds is None:
        return None
    require("seed" not in options, "Give either a seed or seeds, not both.")
    require(
        isinstance(seeds, Iterable) and not isinstance(seeds, str),
        f"seeds is {seeds!r}, but must be a list of integers or range(5).",
    )
    found = [require_whole("A seed", seed, at_least=0) for seed in seeds]
    require(len(found) > 0, "seeds is empty: give at least one seed.")
    require(len(set(found)) == len(found), "seeds has a seed twice: give each seed once.")
    return found


def _single(outcomes: Sequence[RunOutcome]) -> Result:
    """The result of the only run; raises `Diverged` if it diverged."""
    (outcome,) = outcomes
    if outcome.status == DIVERGED:
        raise Diverged(str(outcome.reason))
    return _results(outcomes)[0]


def _comparison(outcomes: Sequence[RunOutcome]) -> Comparison:
    return Comparison(_results(outcomes))


def _results(outcomes: Sequence[RunOutcome]) -> list[Result]:
    """The results of runs; raises KeyboardInterrupt if one in a folder was interrupted."""
    for outcome in outcomes:
        if outcome.status == INTERRUPTED:
            raise KeyboardInterrupt(f"{outcome.label} was {outcome.reason}; ud.resume continues it")
    found = []
    for outcome in outcomes:
        assert outcome.run is not None
        found.append(Result(outcome.label, outcome.run, outcome.folder))
    return found


def check_arguments(methods: Mapping[str, Method], options: Options) -> None:
    """Raise if an argument has the wrong type, before anything runs."""
    for name in options:
        if name not in Options.__annotations__:
            _refuse_argument(name)
    loss = options.get("loss")
    require(
        not isinstance(loss, type),
        f"loss is the class {getattr(loss, '__name__', '')}, but must be an object: write "
        f"{getattr(loss, '__name__', '')}().",
    )
    require(
        loss is None or callable(loss),
        f"loss is {loss!r}, but must be a function of (outputs, targets).",
    )
    step = options.get("step")
    require(
        step is None or callable(step),
        f"step is {step!r}, but must be a function of (model, batch).",
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
    for name, what in (("weights", "a safetensors file"), ("out", "a folder")):
        if options.get(name) is not None:
            require_type(name, options.get(name), (str, Path), what)
            require(str(options.get(name)) not in ("", "."), f"{name} is empty: name {what}.")
    loggers = options.get("loggers") or ()
    require(
        isinstance(loggers, list | tuple)
        and all(isinstance(each, str | Logger) for each in loggers),
        "loggers must be a list of names such as 'tensorboard', or of loggers of your own.",
    )
    require(
        options.get("out") is not None or not loggers,
        "loggers need a run folder: give the argument out as well.",
    )
    engine_options(options.get("engine", "auto"))
    require_type("evaluate", options.get("evaluate", Evaluation()), Evaluation, "an Evaluation")
    target = options.get("target")
    require_type("target", {} if target is None else target, Mapping, "a mapping from metric names")
    named_metrics(options.get("metrics"))
    as_robust(options.get("robust"))
    as_compression(options.get("compression"))
    if options.get("attack") is not None:
        what = "an attack such as ud.attacks.SignFlip(share=0.2)"
        require_type("attack", options.get("attack"), Attack, what)
    if options.get("privacy") is not None:
        what = "a mechanism such as ud.privacy.Gaussian(noise=1.0, clip=0.5)"
        require_type("privacy", options.get("privacy"), Gaussian, what)
    own = options.get("transforms", ())
    require(
        isinstance(own, list | tuple) and all(isinstance(each, UploadTransform) for each in own),
        "transforms must be a list of ud.UploadTransform objects.",
    )
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
    """Raise for an unknown argument, with a hint if it belongs elsewhere."""
    require(name != "seeds", "seeds is an argument of ud.compare: use seed here.")
    works = [each.name for each in fields(SGD)]
    require(
        name not in works,
        f"{name} is an argument of the clients' local work: local=ud.SGD({name}=…).",
    )
    require_choice("An argument", name, Options.__annotations__)


def losses_of(options: Options) -> Losses:
    """The clients' losses: those of an analytic problem, or of a model on data."""
    model, data, problem = options.get("model"), options.get("data"), options.get("problem")
    if problem is not None:
        require_type("problem", problem, Losses, "an analytic problem of ud.theory")
        for name in ("model", "data", "loss", "step", "metrics", "weights", "personal"):
            require(
                options.get(name) is None,
                f"Give either a problem, or a model and data, not both: with a problem, {name} has "
                f"no meaning.",
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
        options.get("personal"),
        options.get("step"),
    )


def _builder(data: object) -> str:
    """The call that makes federated data of another object."""
    if isinstance(data, DataLoader):
        return "ud.data.FederatedData.from_dataset(loader.dataset, partition='iid', clients=10)"
    if isinstance(data, Dataset):
        return "ud.data.FederatedData.from_dataset(dataset, partition='iid', clients=10)"
    return "ud.data.FederatedData.from_clients([(inputs, targets), …])"
