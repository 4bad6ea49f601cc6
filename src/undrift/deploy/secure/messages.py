"""The messages of secure aggregation: requests of a stage, and the answers to them.

Everything that arrives is checked for its form here, before the protocol looks at its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, TypeVar

from undrift.deploy.orders import (
    SECURE,
    TERMS,
    RunTerms,
    available_in,
    require_fields,
    terms_in,
    text_in,
    whole_in,
)
from undrift.deploy.wire_format import InvalidMessage, encode
from undrift.privacy.secure.site import ADVERTISE, AGREE, SHARE, UNMASK, Advert

STAGES = (ADVERTISE, SHARE, AGREE, UNMASK)
"""The stages with requests of their own; masked uploads are answers to work orders."""
FIELDS = {"kind", *TERMS, "round", "available", "stage", "content"}
MAX_PART_BYTES = 1000
"""The longest key, signature or sealed share."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class StageOrder:
    """The request to take a stage of the protocol in a round."""

    terms: RunTerms
    round: int
    available: tuple[str, ...] | None
    """the sites among which the cohort was drawn; None for all of them"""
    stage: str
    content: Mapping[str, Any]

    def encoded(self) -> bytes:
        """The request as bytes; `parse_stage_order` is the inverse."""
        values = {
            "kind": SECURE,
            **self.terms.values(),
            "round": self.round,
            "available": None if self.available is None else list(self.available),
            "stage": self.stage,
            "content": dict(self.content),
        }
        return encode(values, {})


def parse_stage_order(values: Mapping[str, Any], tensors: Mapping[str, Any]) -> StageOrder:
    """The request with these decoded values; `InvalidMessage` if it is malformed."""
    require_fields(values, FIELDS)
    stage, content = text_in(values, "stage"), values["content"]
    if stage not in STAGES or tensors or not isinstance(content, dict):
        raise InvalidMessage("The order is not a stage of secure aggregation.")
    return StageOrder(
        terms_in(values), whole_in(values, "round"), available_in(values), stage, content
    )


def advert_values(advert: Advert) -> list[str]:
    """A site's public keys as texts; `advert_in` is the inverse."""
    return [part.hex() for part in astuple(advert)]


def advert_in(value: Any) -> Advert:
    """A site's public keys in an answer or a request."""
    if not isinstance(value, list) or len(value) != 4:
        raise InvalidMessage("A site's keys for secure aggregation are malformed.")
    return Advert(*(bytes_in(part) for part in value))


def bytes_in(value: Any) -> bytes:
    """Bytes in a message, where they are hexadecimal text."""
    short = isinstance(value, str) and len(value) <= 2 * MAX_PART_BYTES
    if not short or not re.fullmatch("(?:[0-9a-f]{2})*", value):
        raise InvalidMessage("A part of a message of secure aggregation is malformed.")
    return bytes.fromhex(value)


def by_site(value: Any, read: Callable[[Any], Value]) -> dict[str, Value]:
    """Values by site in a message."""
    if not isinstance(value, dict):
        raise InvalidMessage("A part of a message of secure aggregation is malformed.")
    return {site: read(each) for site, each in value.items()}


def names_in(value: Any) -> Sequence[str]:
    """A list of sites in a message."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidMessage("A list of sites in a message of secure aggregation is malformed.")
    return value


def hex_by_site(parts: Mapping[str, bytes]) -> dict[str, str]:
    """Bytes by site as texts."""
    return {site: part.hex() for site, part in parts.items()}
