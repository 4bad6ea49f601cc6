"""`CompressUploads`: the upload transform that compresses what clients send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from undrift.compression.compressor import Compressor, rows_of
from undrift.core.method import ZERO
from undrift.core.problem import Keep, Upload
from undrift.core.uploads import Senders, UploadTransform

RESIDUAL = "@residual "
"""Beginning of the names of residuals in a client's state: what it has not sent yet."""


def purpose_of(name: str) -> str:
    """The purpose by which random numbers for an uploaded vector are keyed."""
    return f"compression of {name}"


class CompressUploads(UploadTransform):
    """Compresses every vector of an upload.

    With error feedback a client adds what it has not sent yet, and keeps the new difference:
    sent = C(v + e), e ← v + e − sent (Seide et al. 2014; Stich et al., NeurIPS 2018). A method
    whose clients keep a copy of what the server accumulates (SCAFFOLD, FedDyn, FedDR) needs no e:
    its `settle` advances the copy by what was sent, so that the next upload contains what this one
    left out. A residual as well would count it twice, and such methods then diverge.

    Parameters
    ----------
    compressor
        the operator C
    names
        the vectors that the method uploads
    feedback
        whether there is error feedback; then unbiased operators are damped
    residual
        whether clients keep a residual e
    """

    def __init__(
        self,
        compressor: Compressor,
        names: Sequence[str],
        feedback: bool = True,
        residual: bool = True,
    ):
        self.compressor = compressor
        self.names = tuple(names)
        self.feedback = feedback
        self.residual = feedback and residual

    def init(self) -> Mapping[str, str]:
        return {RESIDUAL + name: ZERO for name in self.names} if self.residual else {}

    def update(self, upload: Upload, mine: Keep, senders: Senders) -> tuple[Upload, Keep]:
        sent, residuals = {}, {}
        for name, vectors in upload.items():
            wanted = vectors + getattr(mine, RESIDUAL + name) if self.residual else vectors
            keys = senders.keys(purpose_of(name), shared=self.compressor.additive)
            found = self.compressor.approximate(rows_of(wanted), keys, damped=self.feedback)
            sent[name] = found.reshape(wanted.shape)
            residuals[RESIDUAL + name] = wanted - sent[name]
        return Upload(**sent), Keep(**residuals) if self.residual else Keep()

    def encoded_bytes(self, size: int, dtype: torch.dtype) -> int:
        return self.compressor.encoded_bytes(size, dtype)

    def __repr__(self) -> str:
        return (
            f"CompressUploads({self.compressor!r}, {self.names}, {self.feedback}, {self.residual})"
        )


class MakeRepresentable(UploadTransform):
    """Moves clipped uploads to the nearest vectors that the compressor can encode.

    Clipping scales a compressed vector. For quantised vectors the result differs from an encodable
    one in the last bit; with this as the last transform, what a client's state advances by and what
    the server decodes are the same bits.
    """

    def __init__(self, compressor: Compressor):
        self.compressor = compressor

    def update(self, upload: Upload, mine: Keep, senders: Senders) -> tuple[Upload, Keep]:
        def moved(vectors: Tensor) -> Tensor:
            return self.compressor.representable(rows_of(vectors)).reshape(vectors.shape)

        return Upload(**{name: moved(vectors) for name, vectors in upload.items()}), Keep()
