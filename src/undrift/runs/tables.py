"""The tables of an experiment file: their keys, what is allowed, and their defaults.

Every table is validated into its complete form, with all defaults written out and paths absolute,
so that what is checked, what is run and what is written down are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)
from torch import nn

from undrift.data import SOURCES, FederatedData
from undrift.data.augmentation import Augmentation
from undrift.engines import ENGINES, EngineOptions
from undrift.errors import (
    UndriftError,
    first_line,
    require,
    require_choice,
    require_range,
    require_type,
    require_whole,
)
from undrift.evaluation import MODELS as REPORTED
from undrift.evaluation import Evaluation
from undrift.methods import Method
from undrift.models import MODELS, fitting
from undrift.runs.catalogue import (
    AUGMENTATIONS,
    DERIVED,
    NONE,
    SAMPLERS,
    SOLVERS,
    parameters,
    source_of,
)
from undrift.runs.parts import (
    Wrong,
    absolute,
    anchored,
    arguments,
    completed,
    from_words,
    guilty,
    make,
    method_of,
    pace_from,
    require_types,
    shown,
    table_of,
    user_object,
)
from undrift.runs.store import DURABILITIES
from undrift.sampling import Sampler
from undrift.solvers import Solver
from undrift.targets import PARTS

OBJECTIVES = ("samples", "clients")
BY = ("client", "overall")
LOGGERS = ("tensorboard", "mlflow", "wandb")
FOLDER = "folder"
"""What a folder of client files is called where a source is named."""

Plain = dict[str, Any]


def _at_least(least: int) -> Callable[[Any, ValidationInfo], int]:
    return lambda value, info: require_whole(str(info.field_name), value, least)


def _within(**limits: float) -> Callable[[Any, ValidationInfo], Any]:
    def check(value: Any, info: ValidationInfo) -> Any:
        require_range(str(info.field_name), value, **limits)
        return value

    return check


def _one_of(words: Iterable[str]) -> Callable[[Any, ValidationInfo], Any]:
    allowed = list(words)

    def check(value: Any, info: ValidationInfo) -> Any:
        require_choice(str(info.field_name), value, allowed)
        return value

    return check


def _some_of(words: Iterable[str], least: int) -> Callable[[Any, ValidationInfo], Any]:
    allowed = list(words)

    def check(value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        value = [value] if isinstance(value, str) else value
        require_type(name, value, list, f"a list of {', '.join(map(repr, allowed))}")
        require(len(value) >= least, f"{name} is empty, but must have at least {least}.")
        for each in value:
            require_choice(f"One of {name}", each, allowed)
        require(len({*value}) == len(value), f"{name} has the same word twice.")
        return value

    return check


def _words(words: Iterable[str]) -> Any:
    """What a schema says of a word that must be one of some."""
    return Field(json_schema_extra={"enum": [*words]})


def _lists(words: Iterable[str]) -> Any:
    """What a schema says of a list of such words."""
    return Field(json_schema_extra={"items": {"type": "string", "enum": [*words]}})


def _text(value: Any, info: ValidationInfo) -> Any:
    name = str(info.field_name)
    require_type(name, value, str, "a text")
    require(value.isprintable() and bool(value.strip()), f"{name} must be a text on one line.")
    return value


def or_none(value: Any) -> Any:
    """A value, or None for the word that stands for it."""
    return None if isinstance(value, str) and value == NONE else value


def _share(value: Any, info: ValidationInfo) -> Any:
    """A number alone is the share that is held out."""
    value = or_none(value)
    if value is None or isinstance(value, dict):
        return value
    require_range(str(info.field_name), value, above=0, below=1)
    return {"share": value}


def named(value: Any) -> Any:
    """A word alone is the name of what the table describes."""
    return {"name": value} if isinstance(value, str) else value


def _pace(value: Any) -> Any:
    """The table of a pace with all defaults."""
    value = or_none(value)
    return None if value is None else table_of(pace_from(value))


def _augmentations(value: Any, info: ValidationInfo) -> Any:
    require_type("augment", value, list, 'a list of words such as "crop:4" and "flip"')
    for each in value:
        require_type("One of augment", each, str, 'a word such as "crop:4" or "flip"')
        from_words(each, "augment", AUGMENTATIONS)
    return value


Text = Annotated[str, BeforeValidator(_text)]
Natural = Annotated[int, Field(ge=0), BeforeValidator(_at_least(0))]
Counting = Annotated[int, Field(ge=1), BeforeValidator(_at_least(1))]
Positive = Annotated[float, Field(gt=0), BeforeValidator(_within(above=0))]
NotNegative = Annotated[float, Field(ge=0), BeforeValidator(_within(at_least=0))]
Fraction = Annotated[float, Field(gt=0, lt=1), BeforeValidator(_within(above=0, below=1))]
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(_within(at_least=0, at_most=1))]
Objective = Annotated[str, BeforeValidator(_one_of(OBJECTIVES)), _words(OBJECTIVES)]
By = Annotated[str, BeforeValidator(_one_of(BY)), _words(BY)]
Engine = Annotated[str, BeforeValidator(_one_of(ENGINES)), _words(ENGINES)]
_INNER = {name: what for name, what in ENGINES.items() if name != "ray"}
Inner = Annotated[str, BeforeValidator(_one_of(_INNER)), _words(_INNER)]
Durability = Annotated[str, BeforeValidator(_one_of(DURABILITIES)), _words(DURABILITIES)]
Reported = Annotated[list[str], BeforeValidator(_some_of(REPORTED, 1)), _lists(REPORTED)]
Parts = Annotated[list[str], BeforeValidator(_some_of(PARTS, 1)), _lists(PARTS)]
Paced = Annotated[Plain | None, BeforeValidator(_pace)]
Loggers = Annotated[list[str], BeforeValidator(_some_of(LOGGERS, 0)), _lists(LOGGERS)]


class Table(BaseModel):
    """A table of the file; a key it does not know is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class OpenTable(Table):
    """A table whose other keys are the parameters of what it names."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())

    @property
    def parameters(self) -> Plain:
        """The parameters of what the table names."""
        return dict(self.__pydantic_extra__ or {})


class HoldOut(Table):
    """Samples set aside from training."""

    share: Fraction = Field(description="Which share of the training samples.")
    by: By = Field(
        default="client",
        description="The share of every client's samples, or of all samples in a common part.",
    )
    seed: Natural = Field(default=0, description="Who is set aside is a function of it.")


class DataTable(OpenTable):
    """The data and who holds which of them; other keys are parameters of the source."""

    source: Text = Field(
        description="The name of a data set, a folder of client files, or file.py:function that "
        "gives the data of a site."
    )
    seed: Natural = Field(
        default=0,
        description="The data and the partition are functions of it, not of the run's seed.",
    )
    test: Annotated[HoldOut | None, BeforeValidator(_share)] = Field(
        default=None, description="The share set aside for test, where the source has no test part."
    )
    validation: Annotated[HoldOut | None, BeforeValidator(_share)] = Field(
        default=None, description="The share set aside to choose settings on."
    )
    augment: Annotated[list[str], BeforeValidator(_augmentations)] = Field(
        default=[], description='Random changes of training images: "crop:4", "flip" or "flip:0.5".'
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, table: Any, info: ValidationInfo) -> Any:
        if not isinstance(table, dict) or not isinstance(table.get("source"), str):
            return table
        fixed = {key: table[key] for key in cls.model_fields if key in table}
        given = {key: value for key, value in table.items() if key not in fixed}
        source = fixed["source"]
        if source_of(source) is not None:
            fixed["source"] = source = source.replace("_", "-")
        elif is_function(source):
            fixed["source"] = source = anchored(source, seen_from(info))
        elif "\0" not in source:
            fixed["source"] = source = _client_folder(source, seen_from(info))
        if isinstance(given.get("folder"), str) and given["folder"] != NONE:
            given["folder"] = absolute(given["folder"], seen_from(info))
        seed = {"seed": fixed["seed"]} if isinstance(fixed.get("seed"), int) else {}
        for name in ("test", "validation"):  # a part is held out by the data's seed
            held = or_none(fixed.get(name))
            if isinstance(held, dict):
                fixed[name] = seed | held
            elif held is not None and not isinstance(held, bool) and isinstance(held, int | float):
                fixed[name] = (seed | {"share": held}) if 0 < held < 1 else held
        return fixed | completed_source(source, given)

    def augmentations(self) -> list[Augmentation]:
        """The random changes of training images."""
        return [from_words(each, "augment", AUGMENTATIONS) for each in self.augment]

    @property
    def clients(self) -> int | None:
        """The number of clients, where it is given rather than found."""
        number = self.parameters.get("clients")
        partition = self.parameters.get("partition")
        may_be_empty = isinstance(partition, dict) and partition.get("min_size") == 0
        return number if isinstance(number, int) and not may_be_empty else None


def source_function(source: str) -> tuple[Callable[..., FederatedData], str]:
    """What makes the data of a source, and its name in sentences."""
    build = source_of(source)
    if build is None and is_function(source):
        return FederatedData.from_function, "a function of the user's"
    return (FederatedData.from_folder, "a folder") if build is None else (build, source)


def is_function(source: str) -> bool:
    """Whether a source is the user's own, file.py:function."""
    return source.rpartition(":")[0].endswith(".py")


def user_data(where: str) -> Callable[[str], Any]:
    """The user's function that reads the data of a site."""
    try:
        found = user_object(where, "a function: write file.py:function")
        require(callable(found), f"{where} is {shown(found)}, but must be a function of a site.")
    except UndriftError as error:
        raise Wrong(str(error), "source") from None
    return found


def completed_source(source: str, given: Mapping[str, Any]) -> Plain:
    """The parameters of a source with all defaults; ranges are the source's own to check."""
    build, what = source_function(source)
    known = parameters(build)
    if "partition" in given and "partition" not in known:
        why = "is made client by client" if source_of(source) else "has a file for every client"
        raise Wrong(f"{what} {why}, so it takes no partition.", "partition")
    if "folder" in given and source_of(source) is None:
        raise Wrong("The source is a folder already: it takes no other.", "folder")
    values = arguments(build, given, what)
    require_types(known, values, what)
    if is_function(source) and "sites" not in given:
        raise Wrong('The source is a function of sites: name them, sites = ["a", "b"].', "sites")
    clients = values.get("clients")
    if clients is not None:
        try:
            require_whole("clients", clients, at_least=1)
        except UndriftError as error:
            raise Wrong(str(error), "clients") from None
    found = completed(build, values)
    return {
        key: value
        for key, value in found.items()
        if key not in ("seed", "folder", "function") or key in given
    }


def _client_folder(source: str, folder: Path) -> str:
    """The absolute path of a folder of client files."""
    path = Path(absolute(source, folder))
    if not path.is_dir():
        try:
            require_choice("The data set", source, SOURCES)
        except UndriftError as error:
            near = "did you mean" in str(error)
            raise Wrong(
                str(error)
                if near
                else f"There is no folder {path}, and no data set {source!r}: undrift list data "
                f"names them.",
                "source",
            ) from None
    return str(path)


def seen_from(info: ValidationInfo) -> Path:
    """The folder from which relative paths are seen."""
    return Path((info.context or {}).get("folder", "."))


class ModelTable(OpenTable):
    """The model; other keys are its parameters, where the data do not say them."""

    name: Text = Field(description="One of the library, or file.py:function of your own.")
    seed: Annotated[Any, BeforeValidator(or_none)] = Field(
        default=None,
        description="The initial weights are a function of it; left out, of the run's seed.",
        json_schema_extra={"type": "integer", "minimum": 0},
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, table: Any, info: ValidationInfo) -> Any:
        if not isinstance(table, dict) or not isinstance(table.get("name"), str):
            return table
        fixed = {key: table[key] for key in cls.model_fields if key in table}
        given = {key: value for key, value in table.items() if key not in fixed}
        name = fixed["name"] = anchored(fixed["name"], seen_from(info))
        seed = or_none(fixed.get("seed"))
        if seed is not None:
            try:
                require_whole("seed", seed, at_least=0)
            except UndriftError as error:
                raise Wrong(str(error), "seed") from None
        return fixed | completed_model(name, seed, given)


def completed_model(name: str, seed: int | None, given: Mapping[str, Any]) -> Plain:
    """The parameters of a model with those defaults that do not follow from the data.

    A model of ours is made without memory for its weights, to hear its own sentences.
    """
    if ":" in name:
        build, what = user_model(name), name.rpartition(":")[2]
    else:
        try:
            require_choice("The model", name, MODELS)
        except UndriftError as error:
            raise Wrong(str(error), "name") from None
        build, what = MODELS[name], name
    if isinstance(build, nn.Module):
        if given:
            raise Wrong(f"{what} is a model already: it takes no parameters.", next(iter(given)))
        return {}
    values = arguments(build, given, what)
    require_types(parameters(build), values, what)
    if name in MODELS:
        if seed is not None and "seed" not in parameters(build):
            raise Wrong(f"{what} draws no initial weights, so it takes no seed.", "seed")
        try:
            with torch.device("meta"):
                fitting(name, (3, 32, 32), 10, **values)
        except UndriftError as error:
            raise Wrong(str(error), *guilty(str(error), values)) from None
        except Exception as error:
            raise Wrong(f"{what} cannot be made: {first_line(error)}.") from None
    found = completed(build, values)
    return {key: value for key, value in found.items() if key in given or key not in DERIVED}


def user_model(where: str) -> Any:
    """The user's function that makes a model, or a model."""
    try:
        found = user_object(where, "a model: write file.py:function")
        require(
            isinstance(found, nn.Module) or callable(found),
            f"{where} is {shown(found)}, but must be a function that makes a model.",
        )
    except UndriftError as error:
        raise Wrong(str(error), "name") from None
    return found


class LocalTable(OpenTable):
    """The clients' local work; other keys are parameters of the solver."""

    solver: Text = Field(default="SGD", description="What a client runs: SGD, GD or Exact.")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, table: Any) -> Any:
        if not isinstance(table, dict) or not isinstance(table.get("solver", "SGD"), str):
            return table
        _, complete = local_of(table)
        return complete

    def build(self, changes: Mapping[str, Any] | None = None) -> Solver:
        """The solver, with a method's changes."""
        return local_of(changed(self.model_dump(), changes or {}))[0]


def local_of(table: Mapping[str, Any]) -> tuple[Solver, Plain]:
    """The solver of a table, and the table with all defaults."""
    name = table.get("solver", "SGD")
    try:
        require_choice("The solver", name, SOLVERS)
    except UndriftError as error:
        raise Wrong(str(error), "solver") from None
    kind = SOLVERS[name]
    given = {key: value for key, value in table.items() if key != "solver"}
    solver = make(kind, given, name)
    values = arguments(kind, given, name)
    if "epochs" in parameters(kind) and not {"epochs", "steps"} & {
        key for key, value in values.items() if value is not None
    }:
        values["epochs"] = 1
    return solver, {"solver": name, **completed(kind, values)}


def changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Plain:
    """[local] with a method's changes: another solver keeps only what it has in common.

    Work in steps takes the place of work in epochs, and the other way round.
    """
    name = changes.get("solver", base.get("solver", "SGD"))
    kept = dict(base)
    if name in SOLVERS and name != base.get("solver", "SGD"):
        takes = parameters(SOLVERS[name])
        kept = {key: value for key, value in base.items() if key in takes}
    for one, other in (("epochs", "steps"), ("steps", "epochs")):
        if one in changes and other not in changes:
            kept.pop(other, None)
    return {**kept, **changes}


class SamplingTable(Table):
    """Who takes part in a round; everyone, unless it says otherwise."""

    kind: Annotated[str | None, BeforeValidator(or_none), _words(SAMPLERS)] = Field(
        default=None,
        description="all; uniform (without replacement); weighted (with replacement, by q_k); "
        "bernoulli; fixed. Left out: as the methods are defined.",
    )
    cohort: Any = Field(
        default=None,
        description="How many clients; for bernoulli, the probability; for fixed, the ids or one "
        "list of ids per round, in turn.",
    )

    @model_validator(mode="after")
    def _check(self) -> SamplingTable:
        try:
            self.build()
        except Wrong:
            raise
        except UndriftError as error:
            raise Wrong(str(error), "cohort") from None
        if self.kind is None and self.cohort is None:
            self.kind = "all"
        return self

    def build(self) -> Sampler | int | None:
        """What `train` takes as its cohort."""
        kind, cohort = self.kind, self.cohort
        cohort = None if isinstance(cohort, str) and cohort == NONE else cohort
        if kind is None:
            return None if cohort is None else require_whole("The cohort", cohort, 1)
        try:
            require_choice("The kind of sampling", kind, SAMPLERS)
        except UndriftError as error:
            raise Wrong(str(error), "kind") from None
        takes = list(parameters(SAMPLERS[kind]))
        if not takes:
            require(cohort is None, "With kind = 'all' everyone takes part: leave cohort out.")
            return SAMPLERS[kind]()
        require(cohort is not None, f"The sampling {kind!r} needs a cohort, which is missing.")
        if kind == "fixed":
            _require_cohorts(cohort)
        build: Callable[..., Sampler] = SAMPLERS[kind]
        return build(cohort)


def _require_cohorts(cohort: Any) -> None:
    """Ids, or lists of ids."""
    wanted = "a list of client ids, or a list of such lists"
    require_type("The fixed cohort", cohort, list, wanted)
    nested = any(isinstance(each, list) for each in cohort)
    lists = cohort if nested else [cohort]
    for each in lists:
        require_type("One of the fixed cohorts", each, list, "a list of client ids like the others")
        for id in each:
            require(
                isinstance(id, int | str) and not isinstance(id, bool),
                f"The fixed cohort has {shown(id)}, but a client's id is a whole number or a word.",
            )


class MethodTable(OpenTable):
    """A method; other keys are its parameters."""

    name: Text = Field(description="One of the library, or file.py:Class of your own.")
    label: Text | None = Field(
        default=None,
        description="What it is called in records, folders and reports; its name if left out.",
    )
    local: Plain | None = Field(default=None, description="Changes to [local] for this method.")
    pace: Paced = Field(default=None, description="Takes the place of [pace] for this method.")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, table: Any, info: ValidationInfo) -> Any:
        if not isinstance(table, dict) or not isinstance(table.get("name"), str):
            return table
        fixed = {key: table[key] for key in cls.model_fields if key in table}
        given = {key: value for key, value in table.items() if key not in fixed}
        fixed["name"] = anchored(fixed["name"], seen_from(info))
        _, values = method_of(fixed["name"], given)
        return fixed | values

    def build(self) -> Method:
        """The method."""
        return method_of(self.name, self.parameters)[0]


class EvaluationTable(Table):
    """What is measured, and how often."""

    every: Counting = Field(default=1, description="The number of rounds between evaluations.")
    models: Reported = Field(
        default=["server"],
        description="Which models to report: the server's, the means of the cohort's or of all "
        "clients' last models, the clients' own.",
    )
    gradient_mapping: Annotated[Positive | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="η of the gradient mapping |x − prox(x − η∇f(x))|/η; left out, none.",
    )
    parts: Parts = Field(
        default=[*PARTS],
        description="On which parts of the data, as far as there are such: without train, there "
        "is no train_loss and no objective.",
    )
    train_clients: Annotated[Counting | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="From how many clients, the same in every round, all that is about the "
        "training data is estimated; left out, from all.",
    )

    @model_validator(mode="after")
    def _check(self) -> EvaluationTable:
        self.build()
        return self

    def build(self) -> Evaluation:
        """What `train` takes as evaluation."""
        return Evaluation(
            self.every,
            tuple(self.models),
            self.gradient_mapping,
            tuple(self.parts),
            self.train_clients,
        )


class EngineTable(Table):
    """How local problems are solved."""

    name: Engine = Field(
        default="auto",
        description="; ".join(f"{name}: {what}" for name, what in ENGINES.items()) + ".",
    )
    threads: Natural = Field(
        default=0,
        description="How many threads it may use; 0: as many as torch does. With ray, each worker; "
        "0: this machine's cores divided by the workers, or one on a cluster.",
    )
    chunk: Natural = Field(
        default=0, description="How many clients work at once; 0: what suits the model."
    )
    memory: Positive = Field(
        default=1000, description="The most megabytes for models at work, which bounds the chunk."
    )
    workers: Natural = Field(
        default=0,
        description="With ray: how many processes; 0: as many as there are cores for.",
    )
    address: Annotated[Text | None, BeforeValidator(or_none)] = Field(
        default=None,
        description='With ray: the cluster, "auto" for that of this machine or the head\'s '
        '"host:port"; left out: this machine alone.',
    )
    gpus: NotNegative = Field(
        default=0, description="With ray: which share of a GPU each worker has (0.25: a quarter)."
    )
    inner: Inner = Field(default="auto", description="With ray: the engine of each worker.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.build()
        return self

    def build(self) -> EngineOptions:
        return EngineOptions(
            self.name,
            self.threads or None,
            self.chunk or None,
            self.memory,
            self.workers or None,
            self.address,
            self.gpus,
            self.inner,
        )


class DeployTable(Table):
    """How an experiment runs across sites; a simulation takes no notice of it."""

    timeout: Positive = Field(
        default=600, description="How many seconds a site may take to answer, at the most."
    )


class OutputTable(Table):
    """Where the run goes and how it is kept."""

    folder: Text = Field(default="", description="The folder of the run; runs/<name> if left out.")
    durability: Durability = Field(
        default="power",
        description="What a committed round survives: a power loss, or a killed process.",
    )
    memory: NotNegative = Field(
        default=64, description="Megabytes of client states held in memory."
    )
    loggers: Loggers = Field(default=[], description="Where records go besides the folder.")
