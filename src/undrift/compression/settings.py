"""`Compression`: which directions of a run are compressed, and how."""

from __future__ import annotations

from dataclasses import dataclass

from undrift.compression.compressor import Compressor
from undrift.compression.uploads import CompressUploads, MakeRepresentable
from undrift.core.method import Method
from undrift.core.uploads import UploadTransform
from undrift.methods.traffic import traffic_of
from undrift.utils.errors import require, require_type

EXAMPLE = "a compressor such as ud.compression.TopK(0.01)"


@dataclass(frozen=True)
class Compression:
    """Compress what clients upload, what they download, or both.

    Downloads are compressed as differences: the server remembers the vectors that its clients have,
    and sends C(new − theirs); what that leaves out stays in the next difference. A client that
    missed rounds gets what it missed, or the whole vectors if they are smaller.

    Parameters
    ----------
    up
        the compressor of uploads, or None
    down
        the compressor of downloads, or None
    feedback
        whether the next upload of a client makes up for what compression left out of this one: by
        a residual that the client keeps, or by the state that methods such as SCAFFOLD keep anyway
    """

    up: Compressor | None = None
    down: Compressor | None = None
    feedback: bool = True

    def __post_init__(self) -> None:
        for name in ("up", "down"):
            if getattr(self, name) is not None:
                require_type(f"compression {name}", getattr(self, name), Compressor, EXAMPLE)
        require(
            self.up is not None or self.down is not None,
            "compression needs a compressor for uploads (up), downloads (down) or both.",
        )
        require_type("compression feedback", self.feedback, bool, "True or False")

    def transforms(
        self, method: Method, after: tuple[UploadTransform, ...] = ()
    ) -> list[UploadTransform]:
        """The upload transforms of a run, with those that follow compression (clipping).

        A compressor that changes nothing is left out, so that it changes no bit of any engine.
        """
        if self.up is None or self.up.lossless:
            return [*after]
        residual = not traffic_of(method).mirrored
        first = CompressUploads(self.up, list(method.sums()), self.feedback, residual)
        exact = type(self.up).representable is Compressor.representable
        return [first, *after, *([] if exact or not after else [MakeRepresentable(self.up)])]


def as_compression(value: Compression | Compressor | None) -> Compression | None:
    """The argument `compression=`: a compressor alone compresses uploads."""
    if value is None or isinstance(value, Compression):
        return value
    require_type("compression", value, Compressor, EXAMPLE)
    return Compression(up=value)
