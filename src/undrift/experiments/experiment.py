"""Experiment files: read, checked as a whole before anything runs, and written with all defaults.

The tables check themselves; `Experiment` checks what several tables decide together.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any

import tomlkit
from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import ErrorDetails

from undrift.compression import Compression
from undrift.core.evaluation import Evaluation
from undrift.core.method import Method
from undrift.core.sampling import All, Bernoulli, Sampler, Uniform, Weighted, as_sampler
from undrift.core.targets import PARTS, Target, reached
from undrift.core.uploads import Statistic
from undrift.core.uploads.norm_bounds import NormBound
from undrift.devices import Devices, Profiles
from undrift.engines import EngineOptions
from undrift.experiments.catalogue import ATTACK, NONE
from undrift.experiments.components import InvalidValue, anchored, member, pace_from, shown
from undrift.experiments.pace_checks import PaceChecks, require_longest
from undrift.experiments.presets import filled
from undrift.experiments.settings import applied
from undrift.experiments.tables import (
    CompressionTable,
    DataTable,
    DeployTable,
    EngineTable,
    EvaluationTable,
    HoldOut,
    LocalTable,
    MethodTable,
    ModelTable,
    OutputTable,
    PrivacyTable,
    RobustTable,
    SamplingTable,
)
from undrift.experiments.tables.compression import component
from undrift.experiments.tables.criterion import (
    MEASURES,
    checked_loss,
    checked_metrics,
    checked_personal,
    checked_step,
    checked_weights,
    own_metrics,
)
from undrift.experiments.tables.data import is_function
from undrift.experiments.tables.devices import DevicesTable, LimitTable
from undrift.experiments.tables.fields import (
    ClosedTable,
    Counting,
    Objective,
    Paced,
    Text,
    named,
    or_none,
)
from undrift.experiments.tables.local import changed, solver_from
from undrift.local.amounts import Unfinished
from undrift.local.solvers import Local, Solver
from undrift.loops.comparison import same_regularizer
from undrift.loops.paces import Pace
from undrift.privacy.gaussian import Gaussian
from undrift.privacy.secure.settings import SecureAggregation
from undrift.robust.attacks import Attack
from undrift.utils.errors import (
    UndriftError,
    first_line,
    require,
    require_choice,
    require_range,
    require_type,
    require_whole,
)
from undrift.utils.files import slug, written_whole

Attacked = Annotated[
    dict[str, Any] | None,
    BeforeValidator(component(ATTACK, '{name = "sign-flip", share = 0.2}')),
]
MOST_NESTED = 16
"""How deeply the tables of a file may be nested."""
LABEL_CHARACTERS = 150
"""The most characters of a label, which is the name of a folder."""
METRICS = (
    *(f"{part}_{measure}" for part in PARTS for measure in MEASURES),
    "objective",
    "gradient_mapping",
)
"""The metrics that undrift itself measures, which may be targets."""


def _seeds(value: Any, info: ValidationInfo) -> Any:
    require_type("seeds", value, list, "a list of whole numbers such as [0, 1, 2]")
    require(len(value) > 0, "seeds is empty, but must have at least one seed.")
    for each in value:
        require_whole("One of seeds", each, at_least=0)
    twice = [each for each, times in Counter(value).items() if times > 1]
    require(not twice, f"seeds has {twice[0] if twice else 0} twice.")
    return value


def _targets(value: Any, info: ValidationInfo) -> Any:
    require_type("target", value, dict, "a table such as test_accuracy = 0.9")
    own = own_metrics(info.data.get("metrics") or {})
    for metric, target in value.items():
        try:
            name = metric.rpartition("/")[2]
            require_choice("A target", name, (*METRICS, *own))
            pair = isinstance(target, list) and len(target) == 2
            require(
                pair or name not in own,
                f"undrift does not know whether your metric should rise or fall: write {metric} = "
                f'["above", {shown(target)}] or ["below", {shown(target)}].',
            )
            if not pair:
                require_range(f"target {metric!r}", target)
            reached({metric: tuple(target) if pair else target}, {metric: 0.0})  # type: ignore[dict-item]
        except UndriftError as error:
            raise InvalidValue(str(error), metric) from None
    return value


def _sweep(value: Any, info: ValidationInfo) -> Any:
    require_type("sweep", value, dict, 'a table such as "local.lr" = [0.1, 0.01]')
    found: dict[str, Any] = {}
    _flatten(value, "", found)
    for key, values in found.items():
        if isinstance(values, list):
            if not values:
                raise InvalidValue("The list is empty: give at least one value to try.", key)
        elif isinstance(values, dict):
            _require_interval(key, values)
        else:
            raise InvalidValue(
                f"It is {shown(values)}, but must be a list of values, or an interval "
                f"{{low = …, high = …}}.",
                key,
            )
    return found


def _flatten(table: Mapping[str, Any], prefix: str, found: dict[str, Any]) -> None:
    """Collect values by dotted keys: without quotation marks, TOML reads them as nested tables."""
    for key, value in table.items():
        if isinstance(value, dict) and not {"low", "high"} & value.keys():
            _flatten(value, f"{prefix}{key}.", found)
        else:
            found[prefix + key] = value


def _require_interval(key: str, table: Mapping[str, Any]) -> None:
    try:
        for name in table:
            require_choice("A key of an interval", name, ("low", "high", "log"))
        for name in ("low", "high"):
            require_range(name, table.get(name))  # type: ignore[arg-type]
        log = table.get("log", False)
        require(isinstance(log, bool), f"log is {shown(log)}, but must be true or false.")
        require(table["low"] < table["high"], "An interval needs low < high.")
        require(not log or table["low"] > 0, "With log = true, low must be above 0.")
    except UndriftError as error:
        raise InvalidValue(str(error), key) from None


def tables_in(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, unchecked."""
    inside = path / "experiment.toml"
    hint = f"; did you mean {inside}?" if inside.is_file() else "."
    require(not path.is_dir(), f"{path} is a folder, but must be an experiment file{hint}")
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise UndriftError(f"There is no file {path}.") from None
    except OSError as error:
        raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from None
    except (ValueError, RecursionError, OverflowError) as error:
        said = " ".join(str(error).split()).rstrip(".")
        raise UndriftError(f"{path} is not TOML: {said or 'too deep'}.") from None


class Experiment(ClosedTable):
    """An experiment with all its settings, complete and checked.

    Fields are the tables of the file. Methods build what they describe: `methods()`,
    `local_of(label)`, `cohort()`, …; `undrift.experiments.building` builds data, model and losses.
    """

    name: Text = Field(default="experiment", description="Name of the experiment.")
    rounds: Counting = Field(default=100, description="Number of communication rounds.")
    seeds: Annotated[list[int], BeforeValidator(_seeds)] = Field(
        default=[0],
        min_length=1,
        description="One run of every method for each seed, which decides initial weights, cohorts "
        "and batches.",
    )
    objective: Objective = Field(
        default="samples",
        description="What is minimised: the mean loss over samples, or over clients.",
    )
    system: Text | None = Field(
        default=None,
        description="Name of a paper's system heterogeneity: it sets [devices], [pace], [limit], "
        "[sampling] and the work of [local] where the file does not set them.",
    )
    loss: Annotated[Any, BeforeValidator(checked_loss)] = Field(
        default=None,
        description="Your own loss of (outputs, targets): file.py:function, file.py:Class, "
        "torch.nn:CrossEntropyLoss or a table with its name and parameters; left out, "
        "cross-entropy for classes and squared error for other targets.",
    )
    step: Annotated[Any, BeforeValidator(checked_step)] = Field(
        default=None,
        description="Your own way from a batch to its loss, in place of a loss of (outputs, "
        "targets): file.py:function of (model, batch) that returns the mean loss over the batch.",
    )
    weights: Annotated[str | None, BeforeValidator(checked_weights)] = Field(
        default=None,
        description="The initial weights: a safetensors file, the folder of a finished run, or a "
        "run folder with one run; left out, the model's own.",
    )
    personal: Annotated[Any, BeforeValidator(checked_personal)] = Field(
        default=None,
        description="Parameters that never travel and rest with the client: a list of names where "
        "* stands for any text, the word normalisation, or a table with parameters and "
        "first_epochs, the epochs on personal parameters alone before the shared ones are trained "
        "alone.",
    )
    data: DataTable = Field(description="The data and their partition over clients.")
    model: ModelTable = Field(description="The model.")
    metrics: Annotated[dict[str, Any] | None, BeforeValidator(checked_metrics)] = Field(
        default=None,
        description="Further metrics by name, each a metric of the library (auc, f1, "
        "balanced_accuracy, perplexity, dice), your own function of (outputs, targets) or "
        "streaming object (file.py:name), or a table with its name and parameters.",
    )
    local: LocalTable = Field(description="The clients' local work.")
    sampling: SamplingTable = Field(
        default=SamplingTable(), description="Which clients take part in a round."
    )
    devices: Annotated[DevicesTable | None, BeforeValidator(or_none)] = Field(
        default=None, description="The clients' devices; left out, there is no virtual clock."
    )
    pace: Paced = Field(
        default=None,
        description="Which replies the server waits for; left out, each method's own pace: all "
        "replies, or asynchronous training.",
    )
    limit: Annotated[LimitTable | None, BeforeValidator(or_none)] = Field(
        default=None, description="Clients that do only some of their local work; left out, none."
    )
    method: list[MethodTable] = Field(
        min_length=1, description="The methods, which all get the same cohorts and batches."
    )
    evaluation: EvaluationTable = Field(
        default=EvaluationTable(), description="Which metrics are measured, and how often."
    )
    target: Annotated[dict[str, Any], BeforeValidator(_targets)] = Field(
        default={},
        description='Stop a run once a metric reaches a value, or ["below" or "above", value].',
    )
    engine: Annotated[EngineTable, BeforeValidator(named)] = Field(
        default=EngineTable(),
        description="The engine that computes the clients' work: its name, or a table.",
    )
    deploy: Annotated[DeployTable | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="Settings of a deployment across sites; a simulation ignores them.",
    )
    robust: Annotated[RobustTable | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="Which uploads the server rejects for their size, and the robust statistic "
        "that takes the place of their mean; left out, the mean of all in a simulation, and of "
        "those up to 10 times the recent median in a deployment.",
    )
    compression: Annotated[CompressionTable | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="How uploads and downloads are made smaller to send; left out, not at all.",
    )
    attack: Attacked = Field(
        default=None,
        description="What some clients of a simulation send in place of their uploads, to try "
        "robust statistics with; left out, all are honest.",
    )
    privacy: Annotated[PrivacyTable | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="Client-level differential privacy: uploads are clipped, and their sum is "
        "noised; left out, none.",
    )
    output: OutputTable = Field(
        default=OutputTable(), description="Where runs are stored, and how."
    )
    sweep: Annotated[dict[str, Any], BeforeValidator(_sweep)] = Field(
        default={},
        description="Keys that undrift sweep varies, each with a list of values or an interval.",
    )

    @staticmethod
    def load(path: str | Path, settings: Mapping[str, Any] | None = None) -> Experiment:
        """Read a file; `settings` are values by dotted keys that replace those of the file."""
        path = Path(path)
        raw = tables_in(path)
        name = path.stem if path.stem.isprintable() and path.stem.strip() else "experiment"
        return Experiment.from_dict(
            {"name": name, **raw}, settings, folder=path.parent, where=str(path)
        )

    @staticmethod
    def from_dict(
        raw: Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        *,
        folder: Path | None = None,
        where: str = "",
    ) -> Experiment:
        """An experiment from plain values, as in a file.

        Parameters
        ----------
        raw, settings
            the tables, and values by dotted keys that replace some of theirs
        folder
            the folder that relative paths are relative to; the working directory by default
        where
            the file's name, with which error sentences begin
        """
        try:
            plain = applied(
                _plain(raw, ()), {k: _plain(v, (k,)) for k, v in (settings or {}).items()}
            )
            context = {"folder": folder or Path.cwd()}
            found = Experiment.model_validate(anchored(plain, context["folder"]), context=context)
            found._require_sweepable(folder)
            return found
        except ValidationError as error:
            sentences = [_sentence(each, raw) for each in error.errors()]
        except InvalidValue as error:
            sentences = [_placed(error.keys, str(error))]
        except UndriftError as error:
            sentences = [str(error)]
        except Exception as error:  # an unforeseen kind of value still gives a sentence
            sentences = [f"The experiment cannot be read: {first_line(error)}."]
        prefix = f"{where}: " if where else ""
        raise UndriftError("\n".join(prefix + each for each in dict.fromkeys(sentences)))

    def with_settings(self, settings: Mapping[str, Any]) -> Experiment:
        """A copy with other values at some dotted keys."""
        return Experiment.from_dict(self.resolved(), settings)

    def resolved(self) -> dict[str, Any]:
        """All tables as plain values, defaults included."""
        return self.model_dump(exclude_none=True)

    def to_toml(self) -> str:
        """The resolved experiment as the text of a file."""
        return tomlkit.dumps(self.resolved())

    def write(self, path: str | Path) -> None:
        """Write the resolved experiment to a file."""
        with written_whole(Path(path)) as partial:
            partial.write_text(self.to_toml(), encoding="utf-8")

    @property
    def labels(self) -> list[str]:
        """The labels of the methods."""
        return [str(table.label) for table in self.method]

    def of(self, label: str) -> MethodTable:
        """The table of a method, by its label."""
        require_choice("The method", label, self.labels)
        return next(table for table in self.method if table.label == label)

    def methods(self) -> dict[str, Method]:
        """The methods by label."""
        return {str(table.label): table.build() for table in self.method}

    def local_of(self, label: str) -> Local:
        """The local work of a method: [local] with the method's own changes."""
        return self.local.build(self.of(label).local)

    def cohort(self) -> Sampler | int | None:
        """The cohort as `train` takes it: a sampler, a number of clients, or None for all."""
        return self.sampling.build()

    def device_profiles(self) -> Profiles | None:
        """The clients' devices; None without a virtual clock."""
        return None if self.devices is None else self.devices.build()

    def paces(self) -> dict[str, Pace]:
        """The paces by label, of the methods for which the file has one."""
        found = {label: self.pace_of(label) for label in self.labels}
        return {label: pace for label, pace in found.items() if pace is not None}

    def limits(self) -> Unfinished | None:
        """Which clients do only some of their work; None if all do all of it."""
        return None if self.limit is None else self.limit.build()

    def engine_options(self) -> EngineOptions:
        """The engine that computes the clients' work."""
        return self.engine.build()

    def evaluation_settings(self) -> Evaluation:
        """What is measured, and how often."""
        return self.evaluation.build()

    def norm_bound(self, deployed: bool = False) -> NormBound | None:
        """The bound on the norms of uploads; deployments have one unless the file says no."""
        if self.robust is None:
            # Clipping bounds every upload of a private run already, without looking at others', and
            # norms of masked uploads say nothing.
            return NormBound() if deployed and self.privacy is None else None
        return self.robust.build(deployed)

    def statistic(self) -> Statistic | None:
        """The robust statistic in place of the mean of uploads; None for the mean."""
        return None if self.robust is None else self.robust.build_statistic()

    def compression_settings(self) -> Compression | None:
        """How uploads and downloads are compressed; None for not at all."""
        return None if self.compression is None else self.compression.build()

    def attack_settings(self) -> Attack | None:
        """What some clients send in place of their uploads; None if all are honest."""
        return None if self.attack is None else member(ATTACK, self.attack)

    def secure_aggregation(self) -> SecureAggregation | None:
        """How a deployment hides single uploads from its server; None if it does not."""
        return None if self.privacy is None else self.privacy.build_secure()

    def privacy_settings(self) -> Gaussian | None:
        """Client-level differential privacy; None without it."""
        return None if self.privacy is None else self.privacy.build()

    def targets(self) -> dict[str, Target]:
        """The metrics that end a run early, with their values."""
        return {
            metric: (str(value[0]), value[1]) if isinstance(value, list) else value
            for metric, value in self.target.items()
        }

    def pace_of(self, label: str) -> Pace | None:
        """The pace of a method in the file: its own or [pace]; None if the file has neither."""
        table = self.of(label).pace or self.pace
        return None if table is None else pace_from(table)

    @model_validator(mode="before")
    @classmethod
    def _with_system(cls, tables: Any) -> Any:
        return filled(tables) if isinstance(tables, dict) else tables

    @model_validator(mode="after")
    def _as_a_whole(self) -> Experiment:
        """Check what several tables decide together, and fill in what follows from it."""
        methods = [table.build() for table in self.method]
        self._label(methods)
        if not self.output.folder:
            self.output.folder = f"runs/{slug(self.name)}"
        named = dict(zip(self.labels, methods, strict=True))
        try:
            same_regularizer(named)
        except UndriftError as error:
            raise InvalidValue(str(error), "method") from None
        for table, method in zip(self.method, methods, strict=True):
            base = self.local.model_dump()
            try:
                solver, complete = solver_from(changed(base, table.local or {}))
            except InvalidValue as error:
                raise error.under("method", str(table.label), "local") from None
            if table.local is not None:
                table.local = {key: complete.get(key, NONE) for key in table.local} or None
            self._require_pace(table, method, solver)
        self._require_cohort(methods)
        self._require_targets()
        return self

    def _label(self, methods: list[Method]) -> None:
        """Give every method a distinct label: its name, or its repr where names repeat."""
        names = Counter(m.name for m, t in zip(methods, self.method, strict=True) if not t.label)
        taken: dict[str, str] = {}
        for number, (table, method) in enumerate(zip(self.method, methods, strict=True)):
            if not table.label:
                table.label = method.name if names[method.name] == 1 else repr(method)
            label = table.label
            where = ("method", str(number), "label")
            if not any(each.isalnum() and each.isascii() for each in label):
                raise InvalidValue(
                    f"The label {label!r} is the name of a folder, so it needs a letter.", *where
                )
            if len(label) > LABEL_CHARACTERS:
                raise InvalidValue(f"A label has at most {LABEL_CHARACTERS} characters.", *where)
            same = slug(label).lower()
            if same in taken:
                raise InvalidValue(
                    f"Two methods have the label {label!r}: give each a label of its own."
                    if taken[same] == label
                    else f"The labels {taken[same]!r} and {label!r} name the same folder.",
                    *where,
                )
            taken[same] = label

    def _require_pace(self, table: MethodTable, method: Method, solver: Solver) -> None:
        """Raise an error for a method that cannot run under these settings, whatever the data."""
        label = str(table.label)
        limit = self.limits()
        around = PaceChecks(
            sampler=as_sampler(self.sampling.build(), method.draws_by_weight),
            clients=self._clients(),
            devices=self._devices(),
            limit=limit,
        )
        where = ("pace",) if table.pace is None else ("method", label, "pace")
        around.require_method(label, method, solver, self.pace_of(label), *where)
        require_longest(limit, solver)

    def _devices(self) -> Profiles | None:
        """The devices that a pace may refer to: in a deployment, sites have the real clock."""
        if self.devices is None:
            return Devices() if is_function(self.data.source) else None
        return self.devices.build()

    def _require_cohort(self, methods: list[Method]) -> None:
        clients = self._clients()
        sampler = as_sampler(self.sampling.build(), all(m.draws_by_weight for m in methods))
        # `check` of a user's own sampler needs the roster itself, which only the data have.
        if clients is not None and type(sampler) in (All, Uniform, Weighted, Bernoulli):
            try:
                sampler.check(range(clients))  # type: ignore[arg-type]
            except UndriftError as error:
                raise InvalidValue(str(error), "sampling", "cohort") from None

    def _clients(self) -> int | None:
        clients = self.data.clients
        return clients if clients is not None and clients < 2**31 else None

    def _require_targets(self) -> None:
        for metric in self.target:
            model = metric.rpartition("/")[0] or "server"
            models = self.evaluation.models
            if model not in models:
                raise InvalidValue(
                    f"The target is about the model {model!r}, which is not among those that are "
                    f"evaluated, evaluation.models = {models}.",
                    "target",
                    metric,
                )
            if metric.endswith("gradient_mapping") and self.evaluation.gradient_mapping is None:
                raise InvalidValue(
                    "It is measured only if evaluation.gradient_mapping is set.",
                    "target",
                    metric,
                )
            try:
                self.evaluation_settings().require_measured("The target", metric)
            except UndriftError as error:
                raise InvalidValue(str(error), "target", metric) from None

    def _require_sweepable(self, folder: Path | None) -> None:
        """Check that every value of [sweep] gives a valid experiment."""
        base = self.resolved() | {"sweep": {}}
        for key, values in self.sweep.items():
            if key == "system":
                raise InvalidValue(
                    "A system sets keys that the file leaves out, so it cannot be varied: vary "
                    "those keys.",
                    "sweep",
                    key,
                )
            tried = values if isinstance(values, list) else [values["low"], values["high"]]
            for value in tried:
                try:
                    Experiment.from_dict(base, {key: value}, folder=folder)
                except UndriftError as error:
                    said = str(error).splitlines()[0]
                    raise InvalidValue(f"With {shown(value)}: {said}", "sweep", key) from None


CLOSED: dict[tuple[str, ...], type[ClosedTable]] = {
    (): Experiment,
    ("evaluation",): EvaluationTable,
    ("engine",): EngineTable,
    ("deploy",): DeployTable,
    ("privacy",): PrivacyTable,
    ("robust",): RobustTable,
    ("compression",): CompressionTable,
    ("output",): OutputTable,
    ("limit",): LimitTable,
    ("data", "validation"): HoldOut,
    ("data", "test"): HoldOut,
}
"""The tables that accept no other keys than their own."""


def _sentence(error: ErrorDetails, raw: Mapping[str, Any]) -> str:
    """One validation error as a sentence."""
    loc = [str(each) for each in error["loc"]]
    if loc[:1] == ["method"] and len(loc) > 1:
        loc[1] = _method_at(raw, int(loc[1]))
    value, kind = error.get("input"), error["type"]
    found = (error.get("ctx") or {}).get("error")
    if isinstance(found, InvalidValue):
        return _placed((*loc, *found.keys), str(found))
    if isinstance(found, UndriftError):
        return _placed(tuple(loc), str(found))
    path = ".".join(loc)
    if kind == "extra_forbidden":
        table = CLOSED.get(tuple(loc[:-1]), Experiment)
        what = f"A key of {'.'.join(loc[:-1])}" if loc[:-1] else "A key"
        try:
            require_choice(what, loc[-1], table.model_fields)
        except UndriftError as refused:
            return _placed(tuple(loc), str(refused))
    if kind == "missing":
        what = "a table" if loc[-1] in ("data", "model", "local") else "a key"
        what = "at least one table" if loc[-1] == "method" else what
        return f"{path} is missing: every experiment needs {what} of that name."
    wanted = {
        "model_type": "a table",
        "model_attributes_type": "a table",
        "dict_type": "a table",
        "list_type": "a list of tables, each under [[method]]",
        "too_short": "a list of at least one",
        "string_type": "a text",
    }
    said = wanted.get(kind) or error["msg"][:1].lower() + error["msg"][1:]
    return f"{path} is {shown(value)}, but must be {said}."


def _method_at(raw: Mapping[str, Any], number: int) -> str:
    """How error sentences call a method: by its label or name if it is unique, else by number."""
    tables = raw.get("method")
    if not isinstance(tables, list) or number >= len(tables):
        return str(number)
    names = [t.get("label", t.get("name")) if isinstance(t, dict) else None for t in tables]
    own = names[number]
    readable = isinstance(own, str) and own.isprintable() and 0 < len(own) < LABEL_CHARACTERS
    return str(own) if readable and names.count(own) == 1 else str(number)


def _placed(keys: tuple[str, ...], sentence: str) -> str:
    """A sentence that begins with the dotted key it is about."""
    path = ".".join(keys)
    path = path if path.isprintable() and len(path) < LABEL_CHARACTERS else "a key"
    of_method = keys[:1] == ("method",) and len(keys) == 2  # the last key is a label
    if keys and not of_method and sentence.startswith(f"{keys[-1]} "):
        return path + sentence[len(keys[-1]) :]
    return f"{path}: {sentence}" if path else sentence


def _plain(value: Any, keys: tuple[str, ...]) -> Any:
    """A deep copy; dates and integers of more than 64 bits, which no key accepts, are refused.

    Python's None, which only settings can have, becomes the word "none".
    """
    if len(keys) > MOST_NESTED:
        raise InvalidValue(f"Tables are nested more than {MOST_NESTED} deep.", keys[0])
    if value is None:
        return NONE
    if isinstance(value, Mapping):
        return {str(key): _plain(each, (*keys, str(key))) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, (*keys, str(k))) for k, each in enumerate(value)]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidValue("A whole number has at most 64 bits.", *keys)
    if not isinstance(value, bool | int | float | str):
        raise InvalidValue(
            f"It is a {type(value).__name__}, but must be a number, a text, true, false, a list or "
            f"a table.",
            *keys,
        )
    return deepcopy(value)
