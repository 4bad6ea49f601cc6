"""Splits of the training part that set samples aside for test or validation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch

from undrift.data.part import Part
from undrift.utils.errors import require_choice, require_range
from undrift.utils.keys import hashes, uniforms

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: multiples of it are spread evenly over 64 bits."""


def hold_out(
    train: Part, ids: Sequence[Hashable], share: float, seed: int, purpose: str, by: str
) -> tuple[Part, Part]:
    """Split a training part in two: the samples kept for training, and those held out.

    With "client", whether a sample is held out depends on the seed, its client's id and its number
    within the client, and not on the other clients. Every client keeps at least one sample.

    Parameters
    ----------
    train
        the training part
    ids
        the clients' ids
    share
        the share of samples to hold out, between 0 and 1
    seed
        seed of the random choice
    purpose
        "test" or "validation"; each has its own random numbers
    by
        "client" holds out the share of every client's samples, which stay with their client;
        "overall" holds out the share of all samples and gives a part common to all clients
    """
    require_range(f"The share for {purpose}", share, above=0, below=1)
    require_choice("by", by, ("client", "overall"))
    sizes, owner = train.sizes.numpy(), train.owners().numpy()
    number = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    with np.errstate(over="ignore"):
        hashed = hashes(ids)[owner] + (number.astype(np.uint64) + np.uint64(1)) * GOLDEN
    ticket = uniforms(seed, purpose, 0, hashed)
    order = np.lexsort((ticket, owner))  # by client, and by random number within a client
    rank = np.empty(len(owner), dtype=np.int64)
    rank[order] = number
    eligible = rank < sizes[owner] - 1  # the last one in random order stays with the client
    if by == "client":
        wanted = np.floor(share * sizes + 0.5)
        held = eligible & (rank < wanted[owner])
    else:
        held = np.zeros(len(owner), dtype=bool)
        candidates = np.flatnonzero(eligible)
        count = int(share * len(owner) + 0.5)
        held[candidates[np.argsort(ticket[candidates], kind="stable")[:count]]] = True
    kept = _rows_where(train, owner, ~held)
    away = _rows_where(train, owner, held)
    return kept, away if by == "client" else Part(away.x, away.y, away.rows, None)


def _rows_where(part: Part, owner: np.ndarray, mask: np.ndarray) -> Part:
    """A part with the rows of another that a mask selects."""
    assert part.bounds is not None
    counts = np.bincount(owner[mask], minlength=len(part.bounds) - 1)
    bounds = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    return Part(part.x, part.y, part.rows[torch.from_numpy(mask)], bounds)
