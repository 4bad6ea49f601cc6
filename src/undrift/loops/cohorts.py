"""Draws cohorts from a sampler and checks them: a sampler may be a user's own class."""

from __future__ import annotations

from numbers import Integral

import numpy as np

from undrift.core.clients import Roster
from undrift.core.sampling import Cohort, Sampler
from undrift.utils.errors import UndriftError

SHOWN_CHARACTERS = 60
"""A value is cut to this length in an error message."""


def draw_cohort(
    sampler: Sampler, roster: Roster, seed: int, round: int, among: np.ndarray | None = None
) -> Cohort:
    """The cohort of a round, as `Sampler.draw` returns it, with the roster's ids and int draws.

    Raises an `UndriftError` that names the sampler if it returned anything but a dict from clients
    of the roster, of `among` if given, to positive whole numbers.
    """
    drawn = sampler.draw(roster, seed, round, among)
    where = f"{type(sampler).__name__}.draw returned for round {round + 1}"
    if not isinstance(drawn, dict):
        raise UndriftError(
            f"{where} {_shown(drawn)}, but must return a dict from client ids to draws, such as "
            f"{{{roster.ids[0]!r}: 1}}."
        )
    cohort: Cohort = {}
    for client, draws in drawn.items():
        place = roster.position.get(client)
        if place is None:
            raise UndriftError(
                f"{where} the client {_shown(client)}, which does not exist: choose from "
                f"roster.ids, such as {roster.ids[0]!r}."
            )
        if among is not None and not among[place]:
            raise UndriftError(
                f"{where} client {_shown(client)}, which is not available: choose from the clients "
                f"where the mask `among` is True."
            )
        # Most draws are plain ints, for which the check of the abstract class is slow.
        whole = type(draws) is int or (isinstance(draws, Integral) and not isinstance(draws, bool))
        if not whole or draws < 1:
            raise UndriftError(
                f"{where} {_shown(draws)} as the draws of client {_shown(client)}, but draws must "
                f"be a whole number of at least 1."
            )
        # The roster's id, not the sampler's: NumPy integers equal ids, but cannot be stored.
        cohort[roster.ids[place]] = int(draws)
    return cohort


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
