"""Public scales of uploads, by which vectors of different units are clipped together."""

from __future__ import annotations

from collections.abc import Mapping

from undrift.core.method import Method
from undrift.local.base import Local
from undrift.privacy.clipping import Scales
from undrift.utils.errors import UndriftError


def upload_scales(method: Method, local: Local, steps: int | None) -> Scales:
    """The scales of a method's uploads, from the learning rate of a round.

    `steps` is a public number of local steps; None for that of the local work. The number of steps
    in some epochs depends on a client's number of samples, so it is not public.
    """
    fixed = steps if steps is not None else _fixed_steps(local)

    def scales(rate: float) -> Mapping[str, float]:
        return method.upload_scales(rate, 1 if fixed is None else fixed)

    if fixed is None and method.upload_scales(1.0, 1) != method.upload_scales(1.0, 2):
        raise UndriftError(
            f"{method.name} uploads vectors of different units, which privacy puts on one scale by "
            f"a public number of local steps: give the local work in steps, or set privacy steps "
            f"to a typical number."
        )
    return scales


def _fixed_steps(local: Local) -> int | None:
    """The number of local steps, if it is one number for all clients."""
    steps = getattr(local, "steps", None)
    return steps if isinstance(steps, int) else None
