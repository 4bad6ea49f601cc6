"""Checks that the samples of several clients or parts are alike before they become one tensor."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from undrift.data.samples.structure import Tree, named_tensors
from undrift.utils.errors import UndriftError, require, warn


def require_alike(
    ids: Sequence[Hashable] | None,
    pairs: Sequence[tuple[Tree, Tree]],
    first: tuple[Tree, Tree],
    whose: str,
) -> None:
    """Check that samples have the structure, shapes and kinds of numbers of the first client's.

    Floating-point numbers are never merged with whole ones: whole numbers would be rounded, pixels
    from 0 to 255 mixed with fractions, and classes turned into values of a regression.

    Parameters
    ----------
    ids
        the clients' ids; None for a test part that is common to all
    pairs
        inputs and targets of each client
    first
        inputs and targets of the first client
    whose
        names the first client in error messages
    """
    for number, pair in enumerate(pairs):
        who = "the test part" if ids is None else f"client {ids[number]!r}"
        for what, own, like in zip(("inputs", "targets"), pair, first, strict=True):
            wanted = dict(named_tensors(like))
            for at, values in named_tensors(own):
                if at not in wanted or values.shape[1:] != wanted[at].shape[1:]:
                    shape = list(wanted[at].shape[1:]) if at in wanted else "no such tensor"
                    raise UndriftError(
                        f"The {what}{at} of {who} have shape {list(values.shape[1:])} per sample, "
                        f"but those of {whose} have {shape}."
                    )
                require(
                    values.is_floating_point() == wanted[at].is_floating_point() or not len(values),
                    f"The {what}{at} of {who} are {values.dtype}, but those of {whose} are "
                    f"{wanted[at].dtype}: make all of them floating-point or all of them whole "
                    f"numbers.",
                )
            require_same_structure(f"of {who}", what, own, like, f"those of {whose}")


def require_same_structure(whose: str, what: str, values: Tree, like: Tree, others: str) -> None:
    """Check that inputs or targets are made of the same tensors as others."""
    own, wanted = ([at for at, _ in named_tensors(each)] for each in (values, like))
    require(
        set(own) == set(wanted),
        f"The {what} {whose} are {_tensors(own)}, but {others} are {_tensors(wanted)}.",
    )


def _tensors(names: Sequence[str]) -> str:
    """The tensors of a structure in words: those of a mapping or a tuple by name."""
    if not names:
        return "missing"
    return "one tensor" if list(names) == [""] else ", ".join(names)


def warn_of_merging(ids: Sequence[Hashable], pairs: Sequence[tuple[Tree, Tree]]) -> None:
    """Announce that inputs or targets of several types become one tensor of the widest."""
    for what, trees in (("inputs", [x for x, _ in pairs]), ("targets", [y for _, y in pairs])):
        kinds: dict[str, dict[torch.dtype, Hashable]] = {}
        for id, tree in zip(ids, trees, strict=True):
            for at, values in named_tensors(tree):
                kinds.setdefault(at, {}).setdefault(values.dtype, id)
        for at, found in kinds.items():
            if len(found) > 1:
                shown = ", ".join(f"{kind} (client {id!r})" for kind, id in found.items())
                warn(
                    f"The clients' {what}{at} are of several types and are merged into one: "
                    f"{shown}."
                )
