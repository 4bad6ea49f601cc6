"""`DownloadCompressor`: what the server sends to its clients, as compressed differences.

The server remembers the vectors that clients have, y. In every round it sends C(x − y), and both
sides add it to y, which clients then work with. What C leaves out stays in x − y, the server's
residual, and is sent later.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from torch import Tensor

from undrift.compression.compressor import Compressor
from undrift.core.messages import bytes_of
from undrift.core.problem import Download
from undrift.utils.keys import key

HELD, SENT, SEEN = "held ", "sent ", "seen"


class DownloadCompressor:
    """Compresses the downloads of a run.

    Parameters
    ----------
    compressor
        the operator C
    seed
        the run's seed, by which random numbers are keyed
    """

    def __init__(self, compressor: Compressor, seed: int):
        self.compressor = compressor
        self.seed = seed
        self.held: dict[str, Tensor] = {}
        """y, the vectors that clients have after the last round that sent them, by name"""
        self.sent: dict[str, int] = {}
        """how many differences of each vector were sent"""
        self.seen: dict[Hashable, dict[str, int]] = {}
        """by client, how many of these it has"""
        self.changes: dict[str, tuple[Tensor, int]] = {}
        """the differences of the last round, each with the key of its random numbers"""

    def compress(self, download: Download, round: int) -> Download:
        """What clients have after this round's download: the first is sent whole."""
        found: dict[str, Any] = {}
        self.changes = {}
        for name, value in download.items():
            if not _is_vector(value):
                found[name] = value
                continue
            if name in self.held:
                number = download_key(self.seed, name, round)
                wanted = (value - self.held[name])[None]
                change = self.compressor.approximate(wanted, [number], damped=True)[0]
                self.held[name] = self.held[name] + change
                self.changes[name] = change, number
                self.sent[name] += 1
            else:
                self.held[name], self.sent[name] = value, 0
            found[name] = self.held[name]
        return Download(**found)

    def bytes_for(self, client: Hashable, download: Download) -> dict[str, int]:
        """The bytes that a client receives: the differences it lacks, or the whole vectors."""
        found = bytes_of(download)
        has = self.seen.get(client, {})
        for name, value in download.items():
            if _is_vector(value) and name in has:
                missing = self.sent[name] - has[name]
                encoded = self.compressor.encoded_bytes(value.numel(), value.dtype)
                found[name] = min(found[name], missing * encoded)
        return found

    def received(self, clients: Iterable[Hashable], download: Download) -> None:
        """Note that clients have this round's download."""
        names = [name for name, value in download.items() if _is_vector(value)]
        now = {name: self.sent[name] for name in names}
        for client in clients:
            self.seen[client] = self.seen.get(client, {}) | now

    def saved(self) -> dict[str, Any]:
        """The state as plain values and tensors, for a run store."""
        return {
            **{HELD + name: value for name, value in self.held.items()},
            **{SENT + name: number for name, number in self.sent.items()},
            SEEN: [[client, numbers] for client, numbers in self.seen.items()],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue with what `saved` returned."""
        self.held = {n.removeprefix(HELD): v for n, v in saved.items() if n.startswith(HELD)}
        self.sent = {n.removeprefix(SENT): v for n, v in saved.items() if n.startswith(SENT)}
        self.seen = {client: dict(numbers) for client, numbers in saved[SEEN]}


def download_key(seed: int, name: str, round: int) -> int:
    """The key of the random numbers for a vector's difference in a round."""
    return key(seed, f"download of {name}", round)


def _is_vector(value: object) -> bool:
    return isinstance(value, Tensor) and value.numel() > 1
