"""Samples set aside from training, for test or validation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch

from undrift.data.part import Part
from undrift.utils.errors import require_choice, require_range
from undrift.utils.keys import hashes, uniforms

ODD = np.uint64(0x9E3779B97F4A7C15)


def hold_out(
    train: Part, ids: Sequence[Hashable], share: float, seed: int, purpose: str, by: str
) -> tuple[Part, Part]:
    """A training part without a share of its samples, and a part with those.

    Each sample's fate depends on the seed, on its client's id and on its number there, not on who
    else takes part. Every client keeps at least one sample for training.

    Parameters
    ----------
    share
        between 0 and 1: of each client's samples, or of all
    by
        "client": the share of every client's samples, which stay by client; "overall": the share
        of all samples, at random, in a common part
    """
    require_range(f"The share for {purpose}", share, above=0, below=1)
    require_choice("by", by, ("client", "overall"))
    sizes, owner = train.sizes.numpy(), train.owners().numpy()
    number = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    with np.errstate(over="ignore"):
        hashed = hashes(ids)[owner] + (number.astype(np.uint64) + np.uint64(1)) * ODD
    lot = uniforms(seed, purpose, 0, hashed)
    order = np.lexsort((lot, owner))  # by client, and by lot within a client
    rank = np.empty(len(owner), dtype=np.int64)
    rank[order] = number
    may_go = rank < sizes[owner] - 1  # the last by lot stays
    if by == "client":
        wanted = np.floor(share * sizes + 0.5)
        held = may_go & (rank < wanted[owner])
    else:
        held = np.zeros(len(owner), dtype=bool)
        candidates = np.flatnonzero(may_go)
        count = int(share * len(owner) + 0.5)
        held[candidates[np.argsort(lot[candidates], kind="stable")[:count]]] = True
    kept = _chosen(train, owner, ~held)
    away = _chosen(train, owner, held)
    return kept, away if by == "client" else Part(away.x, away.y, away.rows, None)


def _chosen(part: Part, owner: np.ndarray, chosen: np.ndarray) -> Part:
    """The chosen ones of a part's rows."""
    assert part.bounds is not None
    counts = np.bincount(owner[chosen], minlength=len(part.bounds) - 1)
    bounds = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    return Part(part.x, part.y, part.rows[torch.from_numpy(chosen)], bounds)
