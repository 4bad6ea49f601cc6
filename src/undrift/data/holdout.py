"""Splits of the training part that set samples aside for test or validation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch

from undrift.data.part import Part
from undrift.utils.errors import require, require_choice, require_range
from undrift.utils.keys import hashes, uniforms

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: multiples of it are spread evenly over 64 bits."""


def hold_out(
    train: Part,
    ids: Sequence[Hashable],
    share: float,
    seed: int,
    purpose: str,
    by: str,
    labels: np.ndarray | None = None,
    order: np.ndarray | None = None,
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
    labels
        the label of each sample: the share of every class is held out, and the last sample of a
        class is kept; None to disregard classes
    order
        a number for each sample, such as its time: the largest are held out; None for a random
        choice
    """
    require_range(f"The share for {purpose}", share, above=0, below=1)
    require_choice("by", by, ("client", "overall"))
    require(labels is None or order is None, "A split is either stratified or in order, not both.")
    sizes, owner = train.sizes.numpy(), train.owners().numpy()
    number = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    with np.errstate(over="ignore"):
        hashed = hashes(ids)[owner] + (number.astype(np.uint64) + np.uint64(1)) * GOLDEN
    ticket = uniforms(seed, purpose, 0, hashed)
    if order is not None:  # the largest first; of equal ones the last in the file
        ticket = np.empty(len(owner))
        ticket[np.lexsort((np.arange(len(owner)), order))[::-1]] = np.arange(len(owner))
    rank = _ranks(ticket, owner)
    eligible = rank < sizes[owner] - 1  # the last one in this order stays with the client
    groups = owner if by == "client" else np.zeros_like(owner)
    if labels is not None:
        held = eligible & _stratified(ticket, groups, labels, share)
    elif by == "client":
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


def _ranks(ticket: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The position of each sample within its group, in the order of the tickets."""
    order = np.lexsort((ticket, group))
    sizes = np.bincount(group)
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank


def _stratified(
    ticket: np.ndarray, groups: np.ndarray, labels: np.ndarray, share: float
) -> np.ndarray:
    """Which samples a stratified split holds out: of each group, the share of every class.

    Numbers that are no whole ones are rounded so that their sum is the share of the group: the
    largest remainders are rounded up. A class keeps at least one sample.
    """
    pairs, stratum = np.unique(np.stack([groups, labels]), axis=1, return_inverse=True)
    stratum = stratum.reshape(-1)
    counts = np.bincount(stratum)
    wanted = share * counts
    quota = np.floor(wanted).astype(np.int64)
    owner = np.unique(pairs[0], return_inverse=True)[1].reshape(-1)
    totals = np.floor(share * np.bincount(owner, counts) + 0.5).astype(np.int64)
    short = totals - np.bincount(owner, quota).astype(np.int64)
    quota += _ranks(quota - wanted, owner) < short[owner]  # the largest remainders come first
    return _ranks(ticket, stratum) < np.minimum(quota, counts - 1)[stratum]


def _rows_where(part: Part, owner: np.ndarray, mask: np.ndarray) -> Part:
    """A part with the rows of another that a mask selects."""
    assert part.bounds is not None
    counts = np.bincount(owner[mask], minlength=len(part.bounds) - 1)
    bounds = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    return Part(part.x, part.y, part.rows[torch.from_numpy(mask)], bounds)
