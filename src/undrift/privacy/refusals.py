"""Refuses private runs whose guarantee would not hold, each with a sentence that says why."""

from __future__ import annotations

from undrift.core.clients import Roster
from undrift.core.method import Conditions, Method
from undrift.methods.traffic import traffic_of
from undrift.privacy.gaussian import Gaussian
from undrift.privacy.released import PUBLIC_WEIGHTS
from undrift.utils.errors import UndriftError, require


def check_privacy(
    privacy: Gaussian, method: Method, roster: Roster, conditions: Conditions
) -> None:
    """Raise an `UndriftError` if the guarantee is not defined for this run."""
    require(
        not conditions.asynchronous,
        f"privacy is defined for synchronous rounds only: {method.name} folds single replies here, "
        f"which no noise of a sum protects.",
    )
    require(
        not conditions.buffers,
        "privacy does not cover the model's buffers (BatchNorm's statistics), which clients upload "
        "besides their updates: use GroupNorm, or keep them at the clients with personal = "
        '"normalisation".',
    )
    check_method(method)
    _check_weights(privacy, method, roster)


def check_method(method: Method) -> None:
    """Raise an `UndriftError` if a method uploads what clipping and noise do not protect."""
    sums = method.sums()
    require(
        not method.uploads_models,
        f"{method.name} uploads models, not changes of them: clipping a model moves it towards "
        f"zero. Use a method that uploads moves, such as FedAvg, SCAFFOLD or FedDyn.",
    )
    require(bool(sums), f"{method.name} uploads nothing, so there is nothing to protect.")
    numbers = [name for name in traffic_of(method).up if name not in sums]
    if numbers:
        raise UndriftError(
            f"{method.name} uploads the number {numbers[0]!r} of every client, which no noise "
            f"protects: use a method that uploads vectors only, such as FedAvg, SCAFFOLD, FedDyn, "
            f"or FedNova with a number as its tau_eff."
        )
    require(
        not method.steps_of_others,
        f"In {method.name} the steps of a client depend on the other clients of the cohort, so one "
        f"client can change the uploads of all others.",
    )
    for name, weights in sums.items():
        require(
            bool(weights),
            f"{method.name} needs the upload {name!r} of every single client, but privacy releases "
            f"noisy sums only.",
        )
        for by in weights:
            require(
                by in PUBLIC_WEIGHTS,
                f"{method.name} sums {name!r} with the weights {by.__name__!r}, which may depend "
                f"on the clients' data: use ud.q, ud.once or ud.draws.",
            )


def _check_weights(privacy: Gaussian, method: Method, roster: Roster) -> None:
    """Raise unless the weights q_k are equal, or capped by a public constant."""
    cap = privacy.max_samples
    require(
        cap is None or roster.objective == "samples",
        f"privacy max_samples caps the weights of objective='samples', but the objective is "
        f"{roster.objective!r}: leave it out.",
    )
    if roster.objective == "clients":
        return
    require(
        cap is not None,
        "privacy needs weights that do not depend on the clients' numbers of samples: use "
        "objective='clients', or cap them by a public number with privacy max_samples.",
    )
    several = [name for name, weights in method.sums().items() if len(weights) > 1]
    require(
        not several,
        f"{method.name} sums one upload with several weights, which privacy allows with equal "
        f"weights only: use objective='clients'.",
    )
