"""What sites claim about their numbers of samples, and what the server counts of it.

Numbers of samples are the weights of sites in averages and metrics, and the server cannot check
them. The operator fixes or caps them in `[deploy]`; a claim far beyond the others is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from undrift.experiments.tables import DeployTable
from undrift.utils.errors import UndriftError, require, require_choice

PLAUSIBLE_RATIO = 1000
"""A claim beyond this many times the median of the other sites' is refused, unless it is capped."""

Samples = Mapping[str, Mapping[str, int]]
"""The numbers of samples of each site, by part."""


def counted_samples(claimed: Samples, deploy: DeployTable) -> dict[str, dict[str, int]]:
    """The numbers of samples that count in weights, after `[deploy]` fixed and capped claims.

    `samples` fixes the training samples of a site, and is the most that its other parts count.
    `max_samples` and then `max_weight` cap every part.
    """
    for site in deploy.samples:
        require_choice("A site in deploy.samples", site, claimed)
    parts = list(next(iter(claimed.values())))
    counted: dict[str, dict[str, int]] = {site: {} for site in claimed}
    for part in parts:
        numbers = {site: _limited(site, part, claimed[site][part], deploy) for site in claimed}
        if deploy.max_weight is not None:
            most = largest_count(list(numbers.values()), deploy.max_weight)
            numbers = {site: min(number, most) for site, number in numbers.items()}
        elif deploy.max_samples is None:
            _require_plausible(part, numbers, deploy)
        for site, number in numbers.items():
            counted[site][part] = number
    return counted


def _limited(site: str, part: str, number: int, deploy: DeployTable) -> int:
    fixed = deploy.samples.get(site)
    if fixed is not None:
        number = fixed if part == "train" else min(number, fixed)
    return number if deploy.max_samples is None else min(number, deploy.max_samples)


def largest_count(numbers: Sequence[int], share: float) -> int:
    """The largest m such that min(n_k, m) is at most `share` of Σ min(n_k, m), for every k."""
    require(
        share * len(numbers) >= 1 - 1e-9,
        f"deploy.max_weight is {share:g}, but {len(numbers)} sites have at least "
        f"{1 / len(numbers):.3g} each, or more than all together: raise it.",
    )
    ordered = sorted(numbers, reverse=True)
    rest = sum(ordered)
    for capped, number in enumerate(ordered):
        # With `capped` sites at m and the others as they are, m = share·(capped·m + rest).
        left = 1 - share * capped
        if left > 1e-12 and share * rest / left >= number:
            return int(share * rest / left)
        rest -= number
    return ordered[-1]


def _require_plausible(part: str, numbers: Mapping[str, int], deploy: DeployTable) -> None:
    """Refuse a claim that would take nearly all the weight of a federation in silence."""
    for site, number in numbers.items():
        others = [each for other, each in numbers.items() if other != site]
        if others and site not in deploy.samples and number > PLAUSIBLE_RATIO * median(others):
            raise UndriftError(
                f"The site {site!r} claims {number} {part} samples, more than {PLAUSIBLE_RATIO} "
                f"times the median of the other sites, {median(others):g}: if that is right, set "
                f"deploy.max_weight = 1, otherwise cap it by deploy.max_weight or "
                f"deploy.max_samples, or fix it by deploy.samples = {{{site} = …}}."
            )


def claim_rows(
    claimed: Samples, counted: Samples, weights: Mapping[str, float]
) -> list[dict[str, Any]]:
    """One row per site for the terminal, `--json` and the report."""
    return [
        {
            "site": site,
            "claimed": dict(claimed[site]),
            "counted": dict(counted[site]),
            "capped": any(counted[site][part] < n for part, n in claimed[site].items()),
            "weight": weights[site],
        }
        for site in claimed
    ]


def claim_line(row: Mapping[str, Any]) -> str:
    """A row in words."""
    claimed, counted = row["claimed"], row["counted"]
    words = [
        f"{n:,} {part}" if counted[part] == n else f"{n:,} {part} (counted as {counted[part]:,})"
        for part, n in claimed.items()
    ]
    return f"Site {row['site']!r} claims {', '.join(words)} samples: weight {row['weight']:.1%}."
