"""Upload transforms that round uploads to the words of secure aggregation, with error feedback.

Words of few bits round visibly. As with every compressor, a client's state must advance by what was
really sent, so that the rounding is a transform of the upload, the last of the chain; masking then
changes no bit of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from undrift.core.method import ZERO, Method
from undrift.core.problem import Client, Keep, Upload
from undrift.core.replies import Weight, accumulator_dtype
from undrift.core.uploads import Senders, UploadTransform
from undrift.methods.traffic import traffic_of
from undrift.privacy.secure.fixed_point import FixedPoint
from undrift.utils.errors import require

ROUNDED = "@rounded "
"""Beginning of the names, in a client's state, of what rounding left out of its last upload."""


class RoundToWords(UploadTransform):
    """Rounds each vector so that its product with the client's weight is a whole number of 2^−f.

    Parameters
    ----------
    coding
        the words, with f fractional bits
    weights
        by the name of a vector, the weight by which it is summed
    toward_zero
        whether to round toward zero rather than to the nearest: then no norm grows, which a clipped
        upload must not
    residual
        whether clients keep what was left out, for `AddRounded`
    """

    def __init__(
        self,
        coding: FixedPoint,
        weights: Mapping[str, Weight],
        toward_zero: bool,
        residual: bool,
    ):
        self.coding = coding
        self.weights = dict(weights)
        self.toward_zero = toward_zero
        self.residual = residual

    def init(self) -> Mapping[str, str]:
        return {ROUNDED + name: ZERO for name in self.weights} if self.residual else {}

    def update(self, upload: Upload, mine: Keep, senders: Senders) -> tuple[Upload, Keep]:
        assert senders.client is not None
        sent = {
            name: self._rounded(vectors, self.weights[name], senders.client)
            for name, vectors in upload.items()
        }
        left = {ROUNDED + name: vectors - sent[name] for name, vectors in upload.items()}
        return Upload(**sent), Keep(**left) if self.residual else Keep()

    def _rounded(self, vectors: Tensor, weight: Weight, client: Client) -> Tensor:
        dtype = accumulator_dtype(vectors)
        unit = torch.as_tensor(weight(client), dtype=dtype) * 2.0**self.coding.bits
        whole = vectors.to(dtype) * unit
        whole = whole.trunc() if self.toward_zero else whole.round()
        return (whole / unit).to(vectors.dtype)


class AddRounded(UploadTransform):
    """Adds to each vector what `RoundToWords` left out of the client's last upload.

    It comes first, so that compression and clipping apply to the sum.
    """

    def update(self, upload: Upload, mine: Keep, senders: Senders) -> tuple[Upload, Keep]:
        added = {name: vectors + getattr(mine, ROUNDED + name) for name, vectors in upload.items()}
        return Upload(**added), Keep()


def with_rounding(
    transforms: Sequence[UploadTransform],
    method: Method,
    coding: FixedPoint,
    *,
    feedback: bool,
    clipped: bool,
) -> tuple[UploadTransform, ...]:
    """The upload transforms of a site whose uploads are rounded to words of few bits.

    Methods whose clients keep a copy of what the server accumulates need no residual, as in
    `CompressUploads`: their state advances by what was sent.
    """
    residual = feedback and not traffic_of(method).mirrored
    last = RoundToWords(coding, single_weights(method), clipped, residual)
    return (*([AddRounded()] if residual else []), *transforms, last)


def single_weights(method: Method) -> dict[str, Weight]:
    """The weight by which each vector is summed; refused if a vector has several."""
    weights = {}
    for name, each in method.sums().items():
        require(
            len(each) == 1,
            f"{method.name} sums {name!r} by {len(each)} weights, for which short words of secure "
            f"aggregation have no common rounding: set privacy.word_bits = 64.",
        )
        weights[name] = each[0]
    return weights
