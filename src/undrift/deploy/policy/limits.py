"""A site's own limits: a small file at the site that the server neither sees nor changes."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Annotated, Any

import tomlkit
from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo

from undrift.experiments.experiment import tables_in
from undrift.experiments.tables.fields import ClosedTable, Counting, Natural, Positive, Text
from undrift.utils.errors import (
    UndriftError,
    first_line,
    require,
    require_choice,
    require_type,
)
from undrift.utils.files import written_whole

LIMITS_FILE = "site.toml"
"""The name of the file beside the experiment file."""
MIN_SECRET_BYTES = 16


def _labels(value: Any, info: ValidationInfo) -> Any:
    require_type("methods", value, list, "a list of labels of methods")
    for each in value:
        require_type("One of methods", each, str, "the label of a method")
    return value


class Limits(ClosedTable):
    """What a site allows, whatever its server asks for."""

    methods: Annotated[list[str] | None, BeforeValidator(_labels)] = Field(
        default=None,
        description="Labels of the methods that the site takes part in; left out, all of the "
        "experiment.",
    )
    min_batch: Counting = Field(default=1, description="Smallest allowed batch, in samples.")
    min_samples: Counting = Field(
        default=5,
        description="Smallest allowed number of different samples that an update is computed from.",
    )
    max_steps: Counting = Field(
        default=1_000_000, description="Most steps of the work of one round."
    )
    max_seconds: Positive = Field(
        default=3600.0,
        description="Longest time that an order may take, in seconds; it is then ended without an "
        "answer.",
    )
    max_scale: Positive = Field(
        default=1000.0,
        description="Largest 1/(N·q_k), with which methods such as FedDyn scale the site's "
        "objective; the server announces the weight q_k.",
    )
    max_orders_per_hour: Counting = Field(
        default=10_000, description="Most orders, to train or to evaluate, within an hour."
    )
    max_orders_per_run: Counting | None = Field(
        default=None,
        description="Most orders of one run; left out, as many as the experiment has, and "
        "max_repeats for each method and seed.",
    )
    max_runs: Counting = Field(
        default=20, description="Most different runs that the site takes part in."
    )
    max_attempts: Natural = Field(
        default=20,
        description="How often a restarted server may go back and have rounds done again with "
        "another model, for each method and seed of a run.",
    )
    max_repeats: Natural = Field(
        default=100,
        description="Most rounds and evaluations that are done again with another model, for each "
        "method and seed of a run.",
    )
    require_privacy: bool = Field(
        default=False,
        description="Refuse runs without differential privacy: without clipping, which the site "
        "does itself, or without noise, which the server adds.",
    )
    max_clip: Positive | None = Field(
        default=None, description="Largest clipping norm of a private run; left out, any."
    )
    min_noise: Positive | None = Field(
        default=None, description="Smallest noise multiplier of a private run; left out, any."
    )
    max_epsilon: Positive | None = Field(
        default=None, description="Largest ε of a whole private run; left out, any."
    )
    evaluations: bool = Field(
        default=True,
        description="Whether the site answers orders to evaluate; its metrics are exact, outside "
        "the guarantee of a private run.",
    )
    secret: Text | None = Field(
        default=None,
        description="File with a secret of the site's own, of at least 16 bytes, that decides the "
        "order of its batches; left out, the seed decides, as in a simulation.",
    )

    @staticmethod
    def load(path: Path) -> Limits:
        """Read a file of limits; a relative path of the secret is relative to it."""
        try:
            found = Limits.model_validate(tables_in(path))
        except ValidationError as error:
            raise UndriftError(
                "\n".join(_sentence(path, each) for each in error.errors())
            ) from None
        if found.secret is not None:
            found.secret = str((path.parent / found.secret).resolve())
            found.secret_bytes()
        return found

    @staticmethod
    def beside(experiment: Path) -> Limits:
        """The limits in `site.toml` beside an experiment file, or the defaults."""
        path = experiment.parent / LIMITS_FILE
        return Limits.load(path) if path.is_file() else Limits()

    def write(self, path: Path) -> None:
        """Write the limits to a file."""
        with written_whole(path) as partial:
            partial.write_text(tomlkit.dumps(self.model_dump(exclude_none=True)), encoding="utf-8")

    def secret_bytes(self) -> bytes | None:
        """The site's secret; None if it has none."""
        if self.secret is None:
            return None
        try:
            found = Path(self.secret).read_bytes()
        except OSError as error:
            raise UndriftError(
                f"The secret {self.secret} cannot be read: {first_line(error)}."
            ) from None
        require(
            len(found) >= MIN_SECRET_BYTES,
            f"The secret {self.secret} has {len(found)} bytes, but must have at least "
            f"{MIN_SECRET_BYTES}.",
        )
        return found


def secret_key(secret: bytes, run: str, key: int) -> int:
    """A key for the order of batches that only those who have the secret can compute."""
    text = f"batches {run} {key}".encode()
    return int.from_bytes(hmac.new(secret, text, hashlib.sha256).digest()[:8], "little")


def _sentence(path: Path, error: Any) -> str:
    """One validation error as a sentence."""
    name = ".".join(map(str, error["loc"]))
    found = (error.get("ctx") or {}).get("error")
    if isinstance(found, UndriftError):
        return f"{path}: {found}"
    if error["type"] == "extra_forbidden":
        try:
            require_choice("A key", name, Limits.model_fields)
        except UndriftError as refused:
            return f"{path}: {refused}"
    return f"{path}: {name}: {error['msg']}."
