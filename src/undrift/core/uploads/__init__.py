"""What happens to uploads between `finish` and `fold`: upload transforms, and norm bounds."""

from undrift.core.uploads.chain import Senders, UploadChain, UploadTransform

__all__ = ["Senders", "UploadChain", "UploadTransform"]
