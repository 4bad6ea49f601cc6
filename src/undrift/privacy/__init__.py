"""Client-level differential privacy: clipping at the clients, noise in the sums, accounting.

`Gaussian` is what users write. Its clipping is an upload transform; its noise and its public
denominators are in the sums that a method folds; its accountant says what a run spends. Any one of
`epsilon`, `noise` and `rounds` follows from the other two.
"""

from undrift.privacy.calibration import epsilon, noise, rounds
from undrift.privacy.gaussian import AdaptiveClip, Gaussian, NoisyMetrics

__all__ = ["AdaptiveClip", "Gaussian", "NoisyMetrics", "epsilon", "noise", "rounds"]
