"""[data]: the source, its parameters, and the parts that are held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from undrift.data import SOURCES, FederatedData
from undrift.data.augmentation import Augmentation
from undrift.experiments.catalogue import AUGMENTATION, AUGMENTATIONS, NONE, parameters, source_of
from undrift.experiments.components import (
    InvalidValue,
    absolute,
    arguments,
    completed,
    from_words,
    is_user_code,
    member,
    require_types,
    shown,
    table_of,
)
from undrift.experiments.tables.fields import (
    ClosedTable,
    Fraction,
    Natural,
    NotNegative,
    OpenTable,
    Plain,
    Text,
    allowed_words,
    base_folder,
    named,
    one_of,
    or_none,
)
from undrift.utils.errors import (
    UndriftError,
    require,
    require_choice,
    require_range,
    require_type,
    require_whole,
)
from undrift.utils.user_code import user_object

BY = ("client", "overall")
FOLDER = "folder"
"""What a folder of client files is called in lists of sources."""

By = Annotated[str, BeforeValidator(one_of(BY)), allowed_words(BY)]


def _share(value: Any, info: ValidationInfo) -> Any:
    """A number alone is the share to hold out."""
    value = or_none(value)
    if value is None or isinstance(value, dict):
        return value
    require_range(str(info.field_name), value, above=0, below=1)
    return {"share": value}


def _augmentations(value: Any, info: ValidationInfo) -> Any:
    require_type("augment", value, list, 'a list of words such as "crop:4" and "flip"')
    return [_augmentation(each)[1] for each in value]


def _augmentation(value: Any) -> tuple[Augmentation, str | Plain]:
    """An augmentation, and its form in a file."""
    wanted = 'a word such as "crop:4", file.py:Class of your own, or a table with its name'
    require_type("One of augment", value, (str, dict), wanted)
    if isinstance(value, str) and not is_user_code(value, AUGMENTATIONS):
        return from_words(value, "augment", AUGMENTATIONS), value
    try:
        part: Augmentation = member(AUGMENTATION, named(value))
    except InvalidValue as error:
        raise InvalidValue(str(error)) from None  # a list has no keys
    table = table_of(part)
    assert isinstance(table, dict)
    return part, table if len(table) > 1 else table["name"]


class HoldOut(ClosedTable):
    """Training samples that are held out for testing or validation."""

    share: Fraction = Field(description="Share of the training samples to hold out.")
    by: By = Field(
        default="client",
        description="client: hold out that share of every client's samples; overall: of all "
        "samples, in one common part.",
    )
    seed: Natural = Field(default=0, description="Seed of the choice of samples.")
    stratified: bool = Field(
        default=False, description="Whether to hold out the share of every class."
    )
    order: Annotated[Text | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="Column of csv and parquet files, such as a date, by which the newest samples "
        "are held out; left out, random ones.",
    )


class DataTable(OpenTable):
    """The data and their partition; other keys are parameters of the source."""

    source: Text = Field(
        description="Name of a data set, a folder of client files, or file.py:function that "
        "returns the data of a site."
    )
    seed: Natural = Field(
        default=0,
        description="Seed of generated data and of the partition; the run's seed does not change "
        "them.",
    )
    test: Annotated[HoldOut | None, BeforeValidator(_share)] = Field(
        default=None, description="Share to hold out for testing, if the source has no test part."
    )
    validation: Annotated[HoldOut | None, BeforeValidator(_share)] = Field(
        default=None,
        description="Share to hold out for the choice of settings, which undrift sweep needs.",
    )
    noise: NotNegative = Field(
        default=0.0,
        description="Feature skew: client i of N has inputs with Gaussian noise of the standard "
        "deviation noise·i/(N − 1), drawn once.",
    )
    augment: Annotated[list[Any], BeforeValidator(_augmentations)] = Field(
        default=[],
        description='Random changes of training inputs: "crop:4", "flip", "flip:0.5", or your own: '
        '"file.py:Class" or {name = "file.py:Class", …}.',
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
        elif not is_function(source) and "\0" not in source:
            there = isinstance(given.get("sites"), list)  # at the sites, not at their server
            fixed["source"] = source = _client_folder(source, base_folder(info), there)
        if isinstance(given.get("folder"), str) and given["folder"] != NONE:
            given["folder"] = absolute(given["folder"], base_folder(info))
        seed = {"seed": fixed["seed"]} if isinstance(fixed.get("seed"), int) else {}
        for name in ("test", "validation"):  # they use the data's seed unless they have their own
            held = or_none(fixed.get(name))
            if isinstance(held, dict):
                fixed[name] = seed | held
            elif held is not None and not isinstance(held, bool) and isinstance(held, int | float):
                fixed[name] = (seed | {"share": held}) if 0 < held < 1 else held
        return fixed | completed_source(source, given)

    def augmentations(self) -> list[Augmentation]:
        """The augmentations of training inputs."""
        return [_augmentation(each)[0] for each in self.augment]

    @property
    def clients(self) -> int | None:
        """The number of clients if the file alone determines it, else None."""
        number = self.parameters.get("clients")
        partition = self.parameters.get("partition")
        # Clients without samples are left out of the data, so their number is not known yet.
        may_be_empty = isinstance(partition, dict) and (
            partition.get("min_size") == 0 or is_user_code(str(partition.get("kind")))
        )
        return number if isinstance(number, int) and not may_be_empty else None


def source_function(source: str) -> tuple[Callable[..., FederatedData], str]:
    """The function that reads a source, and what error sentences call the source."""
    build = source_of(source)
    if build is None and is_function(source):
        return FederatedData.from_function, "your own function"
    return (FederatedData.from_folder, "a folder") if build is None else (build, source)


def is_function(source: str) -> bool:
    """Whether a source is the user's own file.py:function."""
    return source.rpartition(":")[0].endswith(".py")


def is_folder(source: str) -> bool:
    """Whether a source is a folder of client files."""
    return not is_function(source) and source_of(source) is None


def user_data(where: str) -> Callable[[str], Any]:
    """The user's function that returns the data of a site."""
    try:
        found = user_object(where, "a function: write file.py:function")
        require(
            callable(found), f"{where} is {shown(found)}, but must be a function of a site's name."
        )
    except UndriftError as error:
        raise InvalidValue(str(error), "source") from None
    return found


def completed_source(source: str, given: Mapping[str, Any]) -> Plain:
    """The parameters of a source with all defaults; the source itself checks their ranges."""
    build, what = source_function(source)
    known = parameters(build)
    if "partition" in given and "partition" not in known:
        why = (
            "is generated client by client" if source_of(source) else "has a file for every client"
        )
        raise InvalidValue(f"{what} {why}, so it takes no partition.", "partition")
    if "folder" in given and source_of(source) is None:
        raise InvalidValue("The source itself is a folder: leave the key folder out.", "folder")
    values = arguments(build, given, what)
    require_types(known, values, what)
    if is_function(source) and "sites" not in given:
        raise InvalidValue(
            'The source is a function of a site: list the sites, sites = ["a", "b"].', "sites"
        )
    clients = values.get("clients")
    if clients is not None:
        try:
            require_whole("clients", clients, at_least=1)
        except UndriftError as error:
            raise InvalidValue(str(error), "clients") from None
    found = completed(build, values)
    return {
        key: value
        for key, value in found.items()
        if key not in ("seed", "folder", "function") or key in given
    }


def _client_folder(source: str, folder: Path, may_be_missing: bool) -> str:
    """The absolute path of a folder of client files."""
    path = Path(absolute(source, folder))
    if not path.is_dir() and not may_be_missing:
        try:
            require_choice("The data set", source, SOURCES)
        except UndriftError as error:
            near = "did you mean" in str(error)
            raise InvalidValue(
                str(error)
                if near
                else f"There is no folder {path} and no data set {source!r}: undrift list data "
                f"shows all data sets.",
                "source",
            ) from None
    return str(path)
