"""The argument `robust=`: a norm bound, a robust statistic, or both; and who can use them."""

from __future__ import annotations

from collections.abc import Sequence

from undrift.core.method import Method
from undrift.core.uploads.norm_bounds import NormBound
from undrift.core.uploads.statistic import Statistic
from undrift.utils.errors import UndriftError, require

Robust = NormBound | Statistic | list[NormBound | Statistic] | tuple[NormBound | Statistic, ...]


def as_robust(value: Robust | None) -> tuple[NormBound | None, Statistic | None]:
    """The norm bound and the statistic of the argument `robust=`, each at most once."""
    given = [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
    bounds = [each for each in given if isinstance(each, NormBound)]
    statistics = [each for each in given if isinstance(each, Statistic)]
    if len(bounds) + len(statistics) < len(given) or len(bounds) > 1 or len(statistics) > 1:
        raise UndriftError(
            f"robust is {value!r}, but must be ud.NormBound(10), a statistic such as "
            f"ud.robust.Median(), or a list of one of each."
        )
    return (bounds or [None])[0], (statistics or [None])[0]  # type: ignore[list-item]


def check_statistic(
    method: Method,
    statistic: Statistic | None,
    participation: str,
    most: int,
    numbers: Sequence[str] = (),
) -> None:
    """Raise unless the server's mean of this method's uploads can be replaced by a statistic.

    `participation` is that of `Conditions`, `most` the largest number of replies of a round, and
    `numbers` the names of what it uploads besides vectors.
    """
    if statistic is None:
        return
    name = type(statistic).__name__
    require(
        method.averages_moves,
        f"{name} takes the place of a mean of moves, but {method.name} does not only average "
        f"moves: {method.why_not_robust}. FedAvg, FedProx, FedSAM, FedACG and MimeLite do.",
    )
    require(
        not numbers,
        f"{name} takes the place of a mean of moves, but {method.name} also uploads the number "
        f"{(*numbers, '')[0]!r}, which one client could make arbitrarily large.",
    )
    require(
        participation != "weighted",
        f"{name} counts every client once, but clients drawn with replacement count as often as "
        f"they are drawn: use cohort=ud.Uniform(K).",
    )
    require(
        statistic.min_replies <= most,
        f"{statistic!r} needs at least {statistic.min_replies} replies, but a round has at most "
        f"{most}: enlarge the cohort or expect fewer attackers.",
    )
