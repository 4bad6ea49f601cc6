"""Everything that an experiment file can name, and the parameters of each.

Checks, the schema, `undrift list` and `undrift show` all read these tables and signatures.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from undrift.compression import COMPRESSORS, Compressor
from undrift.core.regularizers import L1, L2, Box, Regularizer
from undrift.core.sampling import All, Bernoulli, Fixed, Sampler, Uniform, Weighted, as_sampler
from undrift.data import (
    PARTITIONS,
    SIZES,
    SOURCES,
    FederatedData,
    HorizontalFlip,
    RandomCrop,
    ReflectedCrop,
)
from undrift.data.augmentation import Augmentation
from undrift.data.partitions import FunctionPartition, Partition
from undrift.data.sizes import Sizes
from undrift.devices import AVAILABILITIES, KINDS, LAWS, Availability, Law
from undrift.experiments.systems import SYSTEMS
from undrift.local import adaptive
from undrift.local.amounts import NormalAmount, RandomAmount, UniformAmount
from undrift.local.schedules import (
    Constant,
    Cosine,
    Exponential,
    FunctionSchedule,
    Inverse,
    Milestones,
    Schedule,
    Theorem1,
    WarmUp,
)
from undrift.local.solvers import GD, SGD, Exact, Solver
from undrift.loops.paces import PACES, Pace
from undrift.methods import METHODS
from undrift.methods.common import staleness
from undrift.methods.common.server_optimizers import (
    Adagrad,
    Adam,
    Momentum,
    Plain,
    ServerOptimizer,
    Yogi,
)
from undrift.methods.common.staleness import Staleness
from undrift.nets.metrics import METRICS as LIBRARY_METRICS
from undrift.nets.models import MODELS
from undrift.privacy.gaussian import AdaptiveClip, Gaussian, NoisyMetrics
from undrift.robust import STATISTICS, Statistic
from undrift.robust.attacks import ATTACKS, Attack
from undrift.utils.errors import UndriftError, first_line, require_range

SOLVERS: dict[str, type[Solver]] = {
    "SGD": SGD,
    "GD": GD,
    "Adam": adaptive.Adam,
    "AdamW": adaptive.AdamW,
    "TorchOptimizer": adaptive.TorchOptimizer,
    "Exact": Exact,
}
SCHEDULES: dict[str, type[Schedule]] = {
    each.__name__: each
    for each in (Constant, Inverse, Exponential, Milestones, Cosine, WarmUp, Theorem1)
}
SERVERS: dict[str, type[ServerOptimizer]] = {
    each.__name__: each for each in (Plain, Momentum, Adam, Yogi, Adagrad)
}
REGULARIZERS: dict[str, type[Regularizer]] = {each.__name__: each for each in (L1, L2, Box)}
STALENESS: dict[str, type[Staleness]] = {
    each.__name__: each for each in (staleness.Constant, staleness.Polynomial, staleness.Hinge)
}
SAMPLERS: dict[str, type[Sampler]] = {
    "all": All,
    "uniform": Uniform,
    "weighted": Weighted,
    "bernoulli": Bernoulli,
    "fixed": Fixed,
}
AMOUNTS: dict[str, type[RandomAmount]] = {"uniform": UniformAmount, "normal": NormalAmount}
AUGMENTATIONS: dict[str, type[Augmentation]] = {
    "crop": RandomCrop,
    "reflected-crop": ReflectedCrop,
    "flip": HorizontalFlip,
}

NONE = "none"
"""The word that stands for Python's None, which TOML lacks, where a parameter may be None."""
REQUIRED: Any = inspect.Parameter.empty

DERIVED = ("features", "classes", "characters", "channels", "side", "seed", "encoding")
"""Parameters of models that follow from the data or from the run, unless a file gives them."""


@dataclass(frozen=True)
class UserCode:
    """The forms that a user's own component "file.py:name" may have.

    Parameters
    ----------
    arguments
        the arguments of a plain function that may stand for the component; empty if it cannot
    wrap
        function → component; None where the function itself is the component
    check
        raises an error for a component that lacks what the library needs
    """

    arguments: tuple[str, ...] = ()
    wrap: Callable[[Any], Any] | None = None
    check: Callable[[Any], None] = lambda component: None


@dataclass(frozen=True)
class Family:
    """Components of one base class, of which a table names one: schedules, partitions, laws, …"""

    word: str
    """the key of the table that holds the name"""
    base: type
    members: Mapping[str, type]
    what: str
    """what error sentences call a member"""
    user: UserCode | None = None
    """the forms of the user's own members; None if there can be none"""


def _check_schedule(schedule: Schedule) -> None:
    """Check a user's schedule by its first rate."""
    try:
        rate = schedule.at(0)
    except UndriftError:
        raise
    except Exception as error:
        raise UndriftError(f"The schedule fails in round 0: {first_line(error)}.") from error
    require_range("The schedule's rate in round 0", rate, above=0)


def _check_sampler(sampler: Sampler) -> None:
    """Check that a user's sampler declares a known kind of sampling."""
    as_sampler(sampler, by_weight=False)


CRITERION = UserCode(("outputs", "targets"))
"""The user's own losses and metrics."""
STEP = UserCode(("model", "batch"))
"""The user's own way from a batch to its loss."""
SAMPLER = Family("kind", Sampler, SAMPLERS, "sampler", UserCode(check=_check_sampler))
AUGMENTATION = Family("name", Augmentation, AUGMENTATIONS, "augmentation", UserCode())
PACE = Family("kind", Pace, PACES, "pace")
COMPRESSOR = Family("name", Compressor, COMPRESSORS, "compressor", UserCode())
STATISTIC = Family("name", Statistic, STATISTICS, "robust statistic", UserCode())
ATTACK = Family("name", Attack, ATTACKS, "attack", UserCode())
FAMILIES = (
    Family(
        "schedule",
        Schedule,
        SCHEDULES,
        "schedule",
        UserCode(("round",), FunctionSchedule, _check_schedule),
    ),
    Family("name", ServerOptimizer, SERVERS, "server optimiser"),
    Family("name", Regularizer, REGULARIZERS, "regulariser"),
    Family("name", Staleness, STALENESS, "staleness function"),
    Family("kind", Sizes, SIZES, "law of sizes"),
    Family(
        "kind",
        Partition,
        PARTITIONS,
        "partition",
        UserCode(("targets", "clients", "rng"), FunctionPartition),
    ),
    Family("amount", RandomAmount, AMOUNTS, "drawn amount"),
    Family("law", Law, LAWS, "law"),
    Family("kind", Availability, AVAILABILITIES, "law of availability"),
    AUGMENTATION,
    PACE,
    COMPRESSOR,
    STATISTIC,
    ATTACK,
)

GROUPS: dict[str, Mapping[str, Any]] = {
    "methods": METHODS,
    "data": SOURCES,
    "models": MODELS,
    "metrics": LIBRARY_METRICS,
    "partitions": PARTITIONS,
    "sizes": SIZES,
    "samplers": SAMPLERS,
    "solvers": SOLVERS,
    "amounts": AMOUNTS,
    "schedules": SCHEDULES,
    "servers": SERVERS,
    "regularizers": REGULARIZERS,
    "staleness": STALENESS,
    "augmentations": AUGMENTATIONS,
    "systems": SYSTEMS,
    "devices": KINDS,
    "laws": LAWS,
    "availabilities": AVAILABILITIES,
    "paces": PACES,
    "compressors": COMPRESSORS,
    "statistics": STATISTICS,
    "attacks": ATTACKS,
    "privacy": {"gaussian": Gaussian, "adaptive_clip": AdaptiveClip, "noisy_metrics": NoisyMetrics},
}
"""The groups of `undrift list`, each with its members by name."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a component: its default and its type."""

    name: str
    default: Any
    hint: Any
    """its type, or None if it has no annotation"""

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is REQUIRED

    @property
    def optional(self) -> bool:
        """Whether it may be None."""
        return self.default is None or type(None) in type_members(self.hint)

    @property
    def family(self) -> Family | None:
        """The family of which a table may name a member as its value."""
        kinds = [each for each in type_members(self.hint) if inspect.isclass(each)]
        return next((f for f in FAMILIES if any(issubclass(k, f.base) for k in kinds)), None)

    def refuses(self, value: Any) -> str | None:
        """The wanted type in words if the value does not have it, else None."""
        if self.hint is None or (value is None and self.optional):
            return None
        kinds = [each for each in type_members(self.hint) if each is not type(None)]
        plain = [each for each in kinds if type_in_words(each)]
        if any(_fits(value, each) for each in kinds) or not plain:
            return None
        return " or ".join(dict.fromkeys(type_in_words(each) for each in plain))


def parameters(build: Callable[..., Any]) -> Mapping[str, Parameter]:
    """The parameters of a class or function, in the order of its signature."""
    return _parameters(build)


@lru_cache(maxsize=256)
def _parameters(build: Callable[..., Any]) -> Mapping[str, Parameter]:
    signature = _signature(build)
    hints = _hints(build)
    found = {}
    for name, each in signature.parameters.items():
        if each.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        default, hint = each.default, hints.get(name)
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            default, hint = [], None if hint is None else list[hint]  # type: ignore[valid-type]
        found[name] = Parameter(name, default, hint)
    if build is GD:  # its **options are those of SGD, except the batch size
        found |= {n: p for n, p in parameters(SGD).items() if n not in found and n != "batch_size"}
    return types.MappingProxyType(found)


def source_of(name: str) -> Callable[..., FederatedData] | None:
    """The function that reads a data set by its name, with "-" or "_"; None if there is none."""
    return SOURCES.get(name.replace("_", "-"))


def takes_anything(build: Callable[..., Any]) -> bool:
    """Whether a class or function accepts any keyword argument."""
    kinds = [each.kind for each in _signature(build).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds and build is not GD


def _signature(build: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(build)
    except (TypeError, ValueError):  # implemented in C, without a signature
        return inspect.Signature()


def _hints(build: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters; empty if annotations of the user's code cannot be resolved."""
    fields = hasattr(build, "__dataclass_fields__")
    where = build.__init__ if inspect.isclass(build) and not fields else build  # type: ignore[misc]
    try:
        return typing.get_type_hints(where)
    except Exception:
        return {}


def type_members(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _is_list(kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    return origin in (list, tuple, Sequence, typing.Sequence)


def _is_table(kind: Any) -> bool:
    return (typing.get_origin(kind) or kind) in (dict, Mapping)


def type_in_words(kind: Any) -> str:
    """A plain type in words; an empty text for other types."""
    if _is_table(kind):
        return "a table"
    if _is_list(kind):
        inner = [each for each in typing.get_args(kind) if each is not Ellipsis]
        names = {int: "whole numbers", float: "numbers", str: "words"}
        return f"a list of {names.get(inner[0], 'values') if inner else 'values'}"
    return {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a word",
        Path: "a path",
    }.get(kind, "")


def _fits(value: Any, kind: Any) -> bool:
    if _is_table(kind):
        return isinstance(value, Mapping)
    if _is_list(kind):
        inner = [each for each in typing.get_args(kind) if each is not Ellipsis]
        own = isinstance(value, list | tuple)
        plain = bool(inner) and any(type_in_words(each) for each in type_members(inner[0]))
        return own and (
            not plain or all(any(_fits(v, k) for k in type_members(inner[0])) for v in value)
        )
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is Path:
        return isinstance(value, str | Path)
    if kind in (bool, str):
        return isinstance(value, kind)
    if inspect.isclass(kind) and not typing.get_args(kind):
        return isinstance(value, kind)
    return False
