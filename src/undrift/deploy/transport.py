"""The transport interface: how requests reach the sites and answers come back.

`undrift.deploy.flower.transport` implements it with Flower; the server knows only this interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass

REFUSED = "refused"
"""The first word of the reason why an answer is rejected, in records and in `Answer.failure`."""


@dataclass(frozen=True)
class Answer:
    """The answer to a request, or why there is none."""

    ticket: str
    """identifies the request, as `Transport.send` returned it"""
    data: bytes = b""
    failure: str | None = None
    """why there is no answer, in a few words; None if `data` is the answer"""


class Transport(ABC):
    """Carries requests and answers between a server and its sites."""

    @abstractmethod
    def sites(self) -> Collection[str]:
        """The names of the sites that are connected now."""

    @abstractmethod
    def send(self, site: str, request: bytes, seconds: float, max_bytes: int) -> str:
        """Send a request to a site, and return its ticket.

        The answer counts as failed after `seconds`, and if it has more than `max_bytes`. A request
        that cannot be sent fails in the same way: `next` returns an answer with a failure.
        """

    @abstractmethod
    def next(self, seconds: float) -> Answer | None:
        """The next answer or failure; None if there is none within `seconds`.

        It may return None earlier only if no answer can arrive any more.
        """

    @abstractmethod
    def forget(self, ticket: str) -> None:
        """Drop a request: `next` will not return its answer."""

    def revoke(self, site: str) -> None:
        """Refuse the key of a site from now on; without keys there is nothing to do."""
