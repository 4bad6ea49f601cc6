"""Facts about compressors and robust statistics, ours and a user's own.

`undrift verify top-k` and `undrift verify mine.py:Mine` measure them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undrift.compression import COMPRESSORS, Compressor
from undrift.core.uploads import Statistic
from undrift.robust import STATISTICS
from undrift.utils.errors import UndriftError, first_line, require
from undrift.utils.user_code import user_object

SIZE, DRAWS, SEEDS = 40, 4000, range(20)
FAR = 1e6
STANDARD_ERRORS = 6.0
"""Means of unbiased operators may be off by this many standard errors: a right operator fails in
one of 40 coordinates with probability below 40·2e-9."""

Part = Compressor | Statistic


class PartFact(NamedTuple):
    """A fact about a part, as measured."""

    name: str
    meaning: str
    error: float
    allowed: float

    @property
    def holds(self) -> bool:
        """Whether the error is allowed."""
        return self.error <= self.allowed


def part_named(name: str, settings: dict[str, Any]) -> Part | None:
    """The part of a name or of "file.py:name"; None if that is something else, as a method is."""
    known: dict[str, Any] = {**COMPRESSORS, **STATISTICS}
    build = known.get(name)
    if build is None:
        if ":" not in name:
            return None
        build = user_object(name, "a part: write file.py:name")
    if isinstance(build, Compressor | Statistic):
        return build
    if not isinstance(build, type) or not issubclass(build, (Compressor, Statistic)):
        return None
    defaults: dict[str, dict[str, Any]] = {
        "top-k": {"ratio": 0.1},
        "random-k": {"ratio": 0.1},
        "krum": {"f": 2},
    }
    defaults["multi-krum"] = {"f": 2}
    try:
        return build(**(defaults.get(name, {}) | settings))
    except TypeError as error:
        raise UndriftError(f"{name} cannot be made: {first_line(error)}.") from None


def verify_part(part: Part) -> list[PartFact]:
    """The facts of a compressor or a statistic."""
    return list(_compressor(part) if isinstance(part, Compressor) else _statistic(part))


def _vectors(rows: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    found = torch.randn(rows, SIZE, generator=g, dtype=dtype)
    return found * torch.linspace(0.1, 3, SIZE, dtype=dtype)


def _gap(one: Tensor, other: Tensor) -> float:
    require(one.shape == other.shape, f"It has shape {list(one.shape)}, not {list(other.shape)}.")
    return float((one - other).abs().max()) if one.numel() else 0.0


def _compressor(part: Compressor) -> Iterator[PartFact]:
    worst, size_error = 0.0, 0.0
    for seed in SEEDS:
        for dtype in (torch.float32, torch.float64):
            for damped in (False, True):
                (sent,) = part.approximate(_vectors(1, seed, dtype), [seed], damped)
                parts = part.encode(sent, seed)
                worst = max(worst, _gap(part.decode(parts, SIZE, dtype, seed), sent))
                real = sum(each.nbytes for each in parts.values())
                size_error = max(size_error, abs(real - part.encoded_bytes(SIZE, dtype)))
    yield PartFact("decodes", "What is encoded is decoded to the bit.", worst, 0.0)
    yield PartFact("bytes", "Its encoding has the bytes that it declares.", size_error, 0.0)
    several = part.approximate(_vectors(5), range(5))
    single = [part.approximate(_vectors(5)[k : k + 1], [k])[0] for k in range(5)]
    stacked = _gap(several, torch.stack(single))
    yield PartFact("stacked", "Rows [C, P] give the same as one by one.", stacked, 0.0)
    v = _vectors(1, 7)
    drawn = part.approximate(v.expand(DRAWS, -1), range(DRAWS), damped=True)
    share = float((drawn - v).square().sum(1).mean() / v.square().sum())
    meaning = "Damped, its mean squared error is below |v|², as error feedback needs."
    yield PartFact("contracts", meaning, share, 1 - 1e-9 if not part.lossless else 0.0)
    if part.unbiased:
        drawn = part.approximate(v.expand(DRAWS, -1), range(DRAWS))
        error = (drawn.mean(0) - v[0]).abs() / (drawn.std(0) / math.sqrt(DRAWS)).clamp_min(1e-12)
        meaning = f"The mean of {DRAWS} draws is v, in standard errors."
        yield PartFact("unbiased", meaning, float(error.max()), STANDARD_ERRORS)
        square = float((drawn - v).square().sum(1).mean() / v.square().sum())
        meaning = "Its variance is at most ω|v|²."
        yield PartFact("variance", meaning, square, 1.05 * part.variance(SIZE) + 1e-12)


def _statistic(part: Statistic) -> Iterator[PartFact]:
    n = max(11, part.min_replies)
    same = _vectors(1).expand(n, -1)
    yield PartFact(
        "identical", "Of equal replies it is the mean.", _gap(part.checked(same), same[0]), 1e-9
    )
    honest = _vectors(n, 3)
    changed = _gap(part.checked(honest), part.checked(honest.flip(0)))
    yield PartFact("order", "The order of replies does not matter.", changed, 1e-9)
    shifted = _gap(part.checked(honest + 5.0), part.checked(honest) + 5.0)
    yield PartFact("shift", "Moving all replies moves the result.", shifted, 1e-6)
    wrong = honest.clone()
    wrong[: part.tolerates(n)] = FAR
    reach = float(part.checked(wrong).abs().max() / honest.abs().max())
    meaning = f"With {part.tolerates(n)} of {n} replies far away, it stays near the others."
    yield PartFact("tolerates", meaning, reach, 3.0)
