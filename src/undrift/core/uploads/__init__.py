"""What happens to uploads between `finish` and `fold`: transforms, bounds, statistics."""

from undrift.core.uploads.chain import Senders, UploadChain, UploadTransform
from undrift.core.uploads.statistic import Statistic

__all__ = ["Senders", "Statistic", "UploadChain", "UploadTransform"]
