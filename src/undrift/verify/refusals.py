"""The fact "refuses": a method refuses what it is not defined for, and claims what is proved.

The tables here say what the papers define. They are written independently of the methods' code.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any

from undrift.core.method import Conditions, Method
from undrift.utils.errors import UndriftError
from undrift.verify.runs import Finding
from undrift.verify.subjects import Subject

PARTICIPATION = ("all", "uniform", "weighted", "bernoulli", "fixed", "responding")
EVERYONE = {"VRLSGD", "FedPD", "Scaffnew"}
"""Defined only if every client takes part in every round."""
BY_WEIGHT = {"FedLGA"}
"""Plain means over clients that are drawn with probability q_k."""
UNIFORM = {"FedACG", "FedExP", "MimeLite", "PFedMe"}
"""Means with the weights q_k over clients that are drawn uniformly."""
SCHEMES = {"I": "by weight", "full": "everyone"}
"""How the clients of an averaging scheme must be drawn; uniformly if it is not named here."""
FOLDS_SINGLE_REPLIES = {"FedDR", "AsyncFedDR", "FedAsync", "FedBuff"}
MEANT_ASYNCHRONOUS = {"AsyncFedDR", "FedAsync", "FedBuff"}
MEANS_OF_MOVES = {
    "DistributedSGD",
    "FedAvg",
    "FedAvgMin",
    "FedProx",
    "FedACG",
    "MimeLite",
    "FedSAM",
}
MEANS_OF_MOVES |= {"Ditto", "PFedMe", "FedBuff"}
"""The server adds a mean of moves and uses nothing else that clients report."""
EXACT_DOWNLOADS = {"VRLSGD", "Scaffnew", "FedDyn", "FedPD", "FedSplit", "FedSpeed", "FedADMM"}
EXACT_DOWNLOADS |= {"Alone"}
"""What a client keeps adds up differences to the server's own model."""
DIVIDES_BY_STEPS = {"DistributedSGD", "VRLSGD", "FedNova", "FedCM", "Scaffnew", "FedLGA"}
ASCENDS = {"FedSAM", "FedSpeed"}
"""Takes gradients at shifted points, if its options do not switch that off."""
NO_LIMIT = {"FedExP", "Alone"}
AVERAGES = {"FedAvg", "FedAvgMin", "FedProx", "FedCM", "FedACG", "MimeLite", "FedSAM", "FedLGA"}
AVERAGES |= {"FedVARP", "MIFA", "Ditto", "PFedMe", "FedAsync", "FedBuff"}
"""Ends at a fixed point of averaging, which is biased."""
UPLOADS_MODELS = {"FedPD", "FedAsync"}


def refuses(subject: Subject) -> Finding | None:
    """The number of conditions that are wrongly refused or wrongly accepted."""
    method = subject.method
    if not type(method).__module__.startswith("undrift.methods."):
        return None
    wrong = [
        f"{'refuses' if defined else 'accepts'} {conditions}"
        for conditions, defined in _cases(method)
        if _accepts(method, conditions) != defined
    ]
    by_weight = _drawing(method.name, method.hyperparameters()) == "by weight"
    if method.draws_by_weight != by_weight:
        wrong.append(f"a number as the cohort must {'' if by_weight else 'not '}mean draws by q_k")
    if method.converges_to != (claim := _claim(method.name, method.hyperparameters())):
        wrong.append(f"claims to converge to {method.converges_to!r}, not {claim!r}")
    if method.uploads_models != _sends_models(method.name, method.hyperparameters()):
        wrong.append("says the wrong thing about whether uploads are models")
    if method.meant_asynchronous != (method.name in MEANT_ASYNCHRONOUS):
        wrong.append("runs in another way by default: synchronously or as replies arrive")
    if method.averages_moves != (method.name in MEANS_OF_MOVES):
        wrong.append("says the wrong thing about whether a robust statistic may be its mean")
    if method.downloads_may_lag != (method.name not in EXACT_DOWNLOADS):
        wrong.append("says the wrong thing about downloads that lag behind")
    # FedPD's x0 is overwritten by the server's model if every round communicates.
    always = method.name == "FedPD" and method.hyperparameters()["communication"] == 1
    if tuple(method.idle) != (("x0",) if always else ()):
        wrong.append(f"says that {', '.join(method.idle) or 'nothing'} need not act")
    note = wrong[0] if wrong else ""
    return Finding("no wrong answer", wrong[:3], float(len(wrong)), note)


def _cases(method: Method) -> Iterator[tuple[Conditions, bool]]:
    for participation, equal in product(PARTICIPATION, (False, True)):
        yield (
            Conditions(5, participation, equal, takes_steps=True),
            _defined(method, participation, equal),
        )
    everyone = {"clients": 5, "participation": "all", "equal": True}
    name, options = method.name, method.hyperparameters()
    single = name in FOLDS_SINGLE_REPLIES and options.get("start") != "everyone"
    yield Conditions(**everyone, takes_steps=True, asynchronous=True), single  # type: ignore[arg-type]
    steps = name in DIVIDES_BY_STEPS or (name == "SCAFFOLD" and options["option"] == "II")
    yield Conditions(**everyone, takes_steps=False), not steps  # type: ignore[arg-type]
    ascends = name in ASCENDS and options["rho"] > 0 and options.get("alpha", 1) > 0
    yield Conditions(**everyone, takes_steps=True, can_ascend=False), not ascends  # type: ignore[arg-type]
    models = _sends_models(name, options)
    yield Conditions(**everyone, takes_steps=True, transformed=True), not models  # type: ignore[arg-type]
    silent = options.get("communication", 1) < 1
    yield Conditions(**everyone, takes_steps=True, buffers=True), not silent  # type: ignore[arg-type]


def _defined(method: Method, participation: str, equal: bool) -> bool:
    """Whether the papers define the method for clients that are drawn in this way."""
    drawn = _drawing(method.name, method.hyperparameters())
    if drawn == "everyone":
        return participation == "all"
    if drawn == "by weight":
        return participation == "weighted" or equal
    return drawn == "any" or participation != "weighted" or equal


def _drawing(name: str, options: dict[str, Any]) -> str:
    if name in EVERYONE or options.get("average") == "full":
        return "everyone"
    if name in BY_WEIGHT or options.get("weights") == "I":
        return "by weight"
    if "scheme" in options:
        return SCHEMES.get(options["scheme"], "uniformly")
    return "uniformly" if name in UNIFORM or "weights" in options else "any"


def _sends_models(name: str, options: dict[str, Any]) -> bool:
    return name in UPLOADS_MODELS or options.get("average") == "act"


def _claim(name: str, options: dict[str, Any]) -> str | None:
    """The limit that is proved for a method with all clients."""
    if name in NO_LIMIT or options.get("communication", 1) < 1:
        return None
    if name == "FedSplit":
        return "optimum" if options["average"] == "full" else None
    if name == "FedNova":
        return "optimum" if options["variance_reduction"] else "normalised averaging"
    if name == "FedSpeed" and options["rho"] > 0 and options["alpha"] > 0:
        return "sharpness-aware gradients"
    return "averaging" if name in AVERAGES else "optimum"


def _accepts(method: Method, conditions: Conditions) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # step sizes outside a theorem's range
        try:
            method.check(conditions)
        except UndriftError:
            return False
    return True
