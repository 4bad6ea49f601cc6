"""`Gaussian`, the settings of client-level differential privacy as users write them."""

from __future__ import annotations

from dataclasses import dataclass

from undrift.utils.errors import require, require_choice, require_range, require_whole
from undrift.utils.reprs import short_repr

ACCOUNTANTS = ("pld", "rdp")
"""Privacy loss distributions, which are tight, and Rényi differential privacy."""


@dataclass(frozen=True)
class AdaptiveClip:
    """A clipping norm that follows a quantile of the uploads' norms (Andrew et al., NeurIPS 2021).

    Each client adds one bit to its upload, whether its norm is within C. Their sum is noised too,
    and C_{t+1} = C_t·exp(−rate·(b̄ − quantile)) with b̄, the noisy share of norms within C_t.

    Parameters
    ----------
    initial
        C_0, the norm of the first round
    quantile
        γ, the share of uploads that is not clipped
    rate
        η_C, how fast the norm moves
    noise
        σ_b, the standard deviation of the noise in the sum of the bits; None for qN/20, a
        twentieth of the mean cohort, or z if that is at most z/2
    """

    initial: float = 0.1
    quantile: float = 0.5
    rate: float = 0.2
    noise: float | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_range("AdaptiveClip's initial", self.initial, above=0)
        require_range("AdaptiveClip's quantile", self.quantile, at_least=0, at_most=1)
        require_range("AdaptiveClip's rate", self.rate, above=0)
        if self.noise is not None:
            require_range("AdaptiveClip's noise", self.noise, above=0)


PUBLIC, EXACT = "public", "exact"
METRICS = (PUBLIC, EXACT)
"""Which metrics a private run measures: those of data that belong to no client, or all."""


@dataclass(frozen=True)
class NoisyMetrics:
    """Metrics of the clients' own data, as noisy means over all clients.

    In an evaluated round every client adds its loss and its accuracy on each measured part, cut to
    [0, largest_loss] and [0, 1]. Their sum is noised, and each evaluation is accounted. A client
    that measures nothing counts as the middle of the range.

    Parameters
    ----------
    noise
        the standard deviation of the noise, in units of the most by which one client can move the
        sums: 5 costs little beside a hundred rounds, and suits a thousand clients
    every
        the number of rounds between evaluations; the initial model and the last round are
        evaluated, too
    largest_loss
        losses of a client above this number count as this number
    """

    noise: float
    every: int
    largest_loss: float = 5.0

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_range("NoisyMetrics' noise", self.noise, above=0)
        require_whole("NoisyMetrics' every", self.every, at_least=1)
        require_range("NoisyMetrics' largest_loss", self.largest_loss, above=0)

    def evaluations(self, rounds: int) -> int:
        """The number of evaluations in a run of some rounds: the initial model, and the last."""
        return 1 - (-rounds // self.every)


@dataclass(frozen=True)
class Gaussian:
    """Client-level differential privacy by the Gaussian mechanism.

    Every client clips its upload to norm C. The server adds N(0, (zC)²) once to each round's sum
    and divides by public constants, never by the number of replies. The neighbouring federations
    of the guarantee differ by one client with all its data.

    Parameters
    ----------
    noise
        z, the standard deviation of the noise in units of the clipping norm; None to compute it
        from `epsilon` and the number of rounds. 0 clips only, without any guarantee
    clip
        C, the largest norm of an upload; an `AdaptiveClip`; or None for no clipping, which needs
        noise=0
    epsilon
        ε, the budget: the run stops before it would be exceeded; None for no budget
    delta
        δ; None for min(1e-5, 1/(10N))
    max_samples
        with objective="samples": a public number ŵ. The weights are then q_k ∝ min(n_k, ŵ), whose
        sum counts as public
    steps
        τ, a public number of local steps, by which SCAFFOLD's and MimeLite's second upload is put
        on the scale of the move; None if the local work is given in steps
    accountant
        "pld" (tight) or "rdp"
    metrics
        "public": the run measures on data that belong to no client, such as a common test set;
        `NoisyMetrics`: also on the clients' data, as noisy means that ε includes; "exact": whatever
        is asked for, as without privacy, outside the guarantee
    """

    noise: float | None = None
    clip: float | AdaptiveClip | None = None
    epsilon: float | None = None
    delta: float | None = None
    max_samples: int | None = None
    steps: int | None = None
    accountant: str = "pld"
    metrics: str | NoisyMetrics = PUBLIC

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require(
            self.noise is not None or self.epsilon is not None,
            "ud.privacy.Gaussian needs noise or epsilon: give the noise multiplier z, or the "
            "budget ε that it is computed from.",
        )
        if self.noise is not None:
            require_range("privacy noise", self.noise, at_least=0)
        if self.epsilon is not None:
            require_range("privacy epsilon", self.epsilon, above=0)
        if self.delta is not None:
            require_range("privacy delta", self.delta, above=0, below=1)
        if self.clip is not None and not isinstance(self.clip, AdaptiveClip):
            require_range("privacy clip", self.clip, above=0)
        if self.max_samples is not None:
            require_whole("privacy max_samples", self.max_samples, at_least=1)
        if self.steps is not None:
            require_whole("privacy steps", self.steps, at_least=1)
        require_choice("privacy accountant", self.accountant, ACCOUNTANTS)
        if not isinstance(self.metrics, NoisyMetrics):
            require_choice("privacy metrics", self.metrics, METRICS)
        require(
            self.clip is not None or self.noise == 0,
            "privacy needs clip, the largest norm of an upload: noise protects nobody whose upload "
            "is unbounded.",
        )
        require(
            self.epsilon is None or self.noise != 0,
            "privacy noise is 0, so no epsilon is finite: leave out epsilon, or noise.",
        )

    @property
    def first_clip(self) -> float | None:
        """The clipping norm of the first round; None for no clipping."""
        return self.clip.initial if isinstance(self.clip, AdaptiveClip) else self.clip

    @property
    def noisy_metrics(self) -> NoisyMetrics | None:
        """The noisy metrics of the clients' data; None if there are none."""
        return self.metrics if isinstance(self.metrics, NoisyMetrics) else None
