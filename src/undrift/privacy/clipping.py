"""`JointClip`: the upload transform that bounds how far one client can move a round's sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from undrift.core.problem import Keep, Upload
from undrift.core.replies import accumulator_dtype
from undrift.core.unformed import UnformedRows
from undrift.core.uploads import Senders, UploadTransform

CLIP = "@clip"
"""Name of the clipping norm among the values that the server sends, if it changes."""
WITHIN = "@within"
"""Name of the number b_k − ½ in an upload: ½ if its norm is within the clipping norm, else −½."""

ROUNDING = 1e-9
"""By how much the server's norm of a clipped upload may exceed the site's, relative."""

Scales = Callable[[float], Mapping[str, float]]
"""A function from the learning rate of a round to the public scale of each uploaded vector."""


class JointClip(UploadTransform):
    """Clips all vectors of an upload together: u ← u·min(1, C/|u|), u = (u_1/s_1, u_2/s_2, …).

    Parameters
    ----------
    norm
        C; None for the norm that the server sends with each round (adaptive clipping), which also
        adds the number b_k − ½ to the upload
    scales
        the public scales s_i of a round
    """

    def __init__(self, norm: float | None, scales: Scales):
        self.norm = norm
        self.scales = scales

    def __repr__(self) -> str:
        return f"JointClip({self.norm!r})"

    def numbers(self) -> tuple[str, ...]:
        return (WITHIN,) if self.norm is None else ()

    def settings(self) -> tuple[str, ...]:
        return (CLIP,) if self.norm is None else ()

    def fault(self, upload: Upload, senders: Senders) -> str | None:
        most = self._most(senders)
        vectors = {name: value for name, value in upload.items() if not name.startswith("@")}
        norm = float(joint_norm(vectors, self.scales(senders.works[0].rate)))
        if not norm <= most * (1 + ROUNDING):
            return f"its norm is {norm:.6g}, above the clipping norm {most:.6g}"
        if self.norm is None and abs(float(getattr(upload, WITHIN))) != 0.5:
            return f"its number {WITHIN} is neither 0.5 nor -0.5"
        return None

    def norm_bound(
        self, names: Sequence[str], dtype: torch.dtype, senders: Senders
    ) -> float | None:
        if len(names) != 1:
            return None
        scale = self.scales(senders.works[0].rate).get(names[0], 1.0)
        return float(self._most(senders)) * _margin([dtype]) * scale

    def _most(self, senders: Senders) -> float:
        """C"""
        return senders.settings[CLIP] if self.norm is None else self.norm

    def update(self, upload: Upload, mine: Keep, senders: Senders) -> tuple[Upload, Keep]:
        scales = self.scales(senders.works[0].rate)
        vectors = dict(upload.items())
        norm = joint_norm(vectors, scales)
        most = self._most(senders)
        # A vector of norm 0 has the factor ∞, cut to 1.
        margin = _margin([value.dtype for value in vectors.values()])
        factor = (most * margin / norm).clamp_max(1.0)
        sent = {
            name: value * (factor.to(value) if isinstance(value, Tensor) else factor)
            for name, value in vectors.items()
        }
        if self.norm is not None:
            return Upload(**sent), Keep()
        within = (norm <= most).double() - 0.5
        # A number for one client, `[C, 1]` for several.
        within = within if within.ndim > 1 else within.squeeze(-1)
        return Upload(**sent, **{WITHIN: within}), Keep()


def _margin(dtypes: Sequence[torch.dtype]) -> float:
    """The share of C to which vectors are cut.

    Products are rounded in the type of the upload: without the margin, the norm of what is sent
    could exceed C by a rounding error.
    """
    return 1 - 2 * max(torch.finfo(dtype).eps for dtype in dtypes)


def joint_norm(vectors: Mapping[str, Tensor | UnformedRows], scales: Mapping[str, float]) -> Tensor:
    """|(u_1/s_1, u_2/s_2, …)| in double precision: `[1]` for one client, `[C, 1]` for several."""
    squares = []
    for name, value in vectors.items():
        if isinstance(value, UnformedRows):
            norm = value.norms()
        else:
            dtype = accumulator_dtype(value)
            norm = torch.linalg.vector_norm(value, dim=-1, keepdim=True, dtype=dtype)
        squares.append((norm / scales.get(name, 1.0)).square())
    return torch.stack(squares).sum(0).sqrt()
