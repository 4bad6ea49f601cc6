"""[privacy]: client-level differential privacy."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from undrift.experiments.components import InvalidValue
from undrift.experiments.tables.fields import (
    ClosedTable,
    Counting,
    Fraction,
    NotNegative,
    Positive,
    Share,
    allowed_words,
    one_of,
)
from undrift.privacy.gaussian import (
    ACCOUNTANTS,
    METRICS,
    PUBLIC,
    AdaptiveClip,
    Gaussian,
    NoisyMetrics,
)
from undrift.privacy.secure.settings import (
    DEFAULT_RANGE,
    FULL_BITS,
    NOISE_AT,
    SITES,
    SecureAggregation,
)
from undrift.utils.errors import UndriftError


class AdaptiveClipTable(ClosedTable):
    """A clipping norm that follows a quantile of the uploads' norms."""

    initial: Positive = Field(default=0.1, description="Clipping norm of the first round.")
    quantile: Share = Field(default=0.5, description="Share of uploads that is not clipped.")
    rate: Positive = Field(default=0.2, description="How fast the norm follows the quantile.")
    noise: Positive | None = Field(
        default=None,
        description="Standard deviation of the noise in the number of uploads within the norm; "
        "left out, a twentieth of the mean cohort.",
    )

    def build(self) -> AdaptiveClip:
        return AdaptiveClip(self.initial, self.quantile, self.rate, self.noise)


class NoisyMetricsTable(ClosedTable):
    """Noisy means of the clients' losses and accuracies on their own data."""

    noise: Positive = Field(
        description="Standard deviation of the noise, in units of the most by which one client "
        "can move the sums."
    )
    every: Counting = Field(description="Rounds between evaluations, each of which is accounted.")
    largest_loss: Positive = Field(
        default=5.0, description="Losses of a client above this number count as this number."
    )

    def build(self) -> NoisyMetrics:
        return NoisyMetrics(self.noise, self.every, self.largest_loss)


class PrivacyTable(ClosedTable):
    """Client-level differential privacy by clipped uploads and Gaussian noise in their sum."""

    noise: NotNegative | None = Field(
        default=None,
        description="Standard deviation of the noise in the sum, in units of clip; 0: none; left "
        "out, computed from epsilon and rounds.",
    )
    clip: Positive | None = Field(default=None, description="Largest norm of an upload.")
    adaptive_clip: AdaptiveClipTable | None = Field(
        default=None,
        description="In place of clip: a norm that follows a quantile of the uploads' norms.",
    )
    epsilon: Positive | None = Field(
        default=None, description="Budget: a run stops before it is exceeded; left out, none."
    )
    delta: Fraction | None = Field(
        default=None, description="δ of the guarantee; left out, min(1e-5, 1/(10 N))."
    )
    max_samples: Counting | None = Field(
        default=None,
        description='With objective = "samples": clients with more samples than this public number '
        "weigh as if they had so many.",
    )
    steps: Counting | None = Field(
        default=None,
        description="Public number of local steps that puts SCAFFOLD's and MimeLite's uploads on "
        "one scale; left out, that of [local] if it is given in steps.",
    )
    accountant: Annotated[str, BeforeValidator(one_of(ACCOUNTANTS)), allowed_words(ACCOUNTANTS)] = (
        Field(default="pld", description="How ε is computed: pld (tight) or rdp.")
    )
    metrics: Annotated[str, BeforeValidator(one_of(METRICS)), allowed_words(METRICS)] = Field(
        default="public",
        description="What is measured: public, data that belong to no client; exact, whatever "
        "[evaluation] says, outside the guarantee.",
    )
    noisy_metrics: NoisyMetricsTable | None = Field(
        default=None,
        description="Metrics of the clients' data as noisy means over all clients, which ε "
        "includes.",
    )
    secure: bool = Field(
        default=False,
        description="Secure aggregation in deployments: the server learns sums of uploads only. "
        "Simulations sum without masks.",
    )
    threshold: Counting | None = Field(
        default=None,
        description="Sites without which secure aggregation decodes no sum, above half of the "
        "cohort; left out, two thirds of it and one.",
    )
    range: Positive | None = Field(
        default=None,
        description="Largest absolute value in a weighted upload, for secure aggregation; left "
        "out, 1000. To be given with word_bits below 64.",
    )
    word_bits: Counting = Field(
        default=FULL_BITS,
        description="Bits of each coordinate of a masked upload: 16, 24, 32 or 64. Fewer make "
        "uploads smaller and round them more; simulations do not round.",
    )
    noise_at: Annotated[str, BeforeValidator(one_of(NOISE_AT)), allowed_words(NOISE_AT)] = Field(
        default="server",
        description="Who adds the noise: the server, or with secure aggregation the sites, which "
        "then need not trust it. Simulations add it once.",
    )
    colluding: NotNegative = Field(
        default=0,
        description="Sites that may collude with the server: their shares of the noise do not "
        "count, with noise_at = sites.",
    )

    @model_validator(mode="after")
    def _check(self) -> PrivacyTable:
        if self.clip is not None and self.adaptive_clip is not None:
            raise InvalidValue("Give either clip or adaptive_clip, not both.", "clip")
        if self.noisy_metrics is not None and self.metrics != PUBLIC:
            raise InvalidValue("Give either metrics or noisy_metrics, not both.", "metrics")
        if self.threshold is not None and not self.secure:
            raise InvalidValue("A threshold needs secure = true.", "threshold")
        if self.word_bits != FULL_BITS and not self.secure:
            raise InvalidValue("Words of masked uploads need secure = true.", "word_bits")
        if self.word_bits != FULL_BITS and self.range is None:
            raise InvalidValue(
                "Short words need a range as small as uploads allow, since it decides how much "
                "they round: set range.",
                "range",
            )
        if self.noise_at == SITES:
            if not self.secure:
                raise InvalidValue("Noise of the sites needs secure = true.", "noise_at")
            if self.noisy_metrics is not None:
                raise InvalidValue(
                    "With noise of the sites the server is not trusted, but noisy_metrics sends it "
                    "every site's metrics.",
                    "noise_at",
                )
            if self.adaptive_clip is not None:
                raise InvalidValue(
                    "Noise of the sites needs a fixed clip: adaptive_clip sends the server one bit "
                    "of every site.",
                    "noise_at",
                )
        try:
            self.build()
            self.build_secure()
        except UndriftError as error:
            raise InvalidValue(str(error)) from None
        return self

    def build_secure(self) -> SecureAggregation | None:
        """Secure aggregation; None without it."""
        if not self.secure:
            return None
        noise = self.noise_at == SITES
        return SecureAggregation(
            self.threshold,
            DEFAULT_RANGE if self.range is None else self.range,
            noise,
            int(self.colluding),
            self.word_bits,
        )

    def build(self) -> Gaussian | None:
        """The mechanism, as `train` takes it; None with secure aggregation alone."""
        given = (self.noise, self.clip, self.adaptive_clip, self.epsilon)
        if self.secure and given == (None,) * 4:
            return None
        adaptive: Any = None if self.adaptive_clip is None else self.adaptive_clip.build()
        return Gaussian(
            noise=self.noise,
            clip=self.clip if adaptive is None else adaptive,
            epsilon=self.epsilon,
            delta=self.delta,
            max_samples=self.max_samples,
            steps=self.steps,
            accountant=self.accountant,
            metrics=self.metrics if self.noisy_metrics is None else self.noisy_metrics.build(),
        )
