"""The upload transforms of a run, in the one order in which they compose.

Compress, then clip, then noise or mask: what is clipped is what is really sent, and noise comes
last. Loops and sites call this, so that both have the same chain.
"""

from __future__ import annotations

from collections.abc import Sequence

from undrift.compression import Compression
from undrift.core.method import Method
from undrift.core.uploads import UploadTransform
from undrift.local.base import Local
from undrift.privacy.clipping import JointClip
from undrift.privacy.gaussian import AdaptiveClip, Gaussian
from undrift.privacy.scales import upload_scales


def transforms_of(
    method: Method,
    local: Local,
    *,
    own: Sequence[UploadTransform] = (),
    compression: Compression | None = None,
    privacy: Gaussian | None = None,
) -> tuple[UploadTransform, ...]:
    """All transforms of a run: the user's own, compression, then the clipping of `privacy`."""
    clipping = _clipping(method, local, privacy)
    if compression is None:
        return (*own, *clipping)
    return (*own, *compression.transforms(method, clipping))


def _clipping(method: Method, local: Local, privacy: Gaussian | None) -> tuple[JointClip, ...]:
    if privacy is None or privacy.clip is None:
        return ()
    norm = None if isinstance(privacy.clip, AdaptiveClip) else privacy.clip
    return (JointClip(norm, upload_scales(method, local, privacy.steps)),)
