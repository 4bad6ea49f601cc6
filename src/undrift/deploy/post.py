"""How requests get to sites and answers come back, whatever carries them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass

REFUSED = "refused"
"""How the reason begins for which an answer is not taken in."""


@dataclass(frozen=True)
class Arrival:
    """What came of a request."""

    ticket: str
    """of the request"""
    data: bytes = b""
    trouble: str | None = None
    """why there is no answer, in a word or two"""


class Post(ABC):
    """Carries requests and answers between a server and its sites."""

    @abstractmethod
    def sites(self) -> Collection[str]:
        """The names of the sites that are there now."""

    @abstractmethod
    def send(self, site: str, request: bytes, seconds: float, most: int) -> str:
        """Send a request that is worth answering for so many seconds; gives its ticket.

        An answer of more than `most` bytes is not taken in.
        """

    @abstractmethod
    def next(self, seconds: float) -> Arrival | None:
        """The next answer, or trouble, within so many seconds; None if nothing comes."""

    @abstractmethod
    def forget(self, ticket: str) -> None:
        """Nobody waits for an answer any more: it will not be given by `next`."""
