"""`DownloadHistory`: what the server has sent, so that each site gets the changes that it lacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.compression.downloads import DownloadCompressor
from undrift.core.problem import Download
from undrift.deploy.orders import MAX_CHANGES, VectorChanges
from undrift.deploy.state_files import checksum
from undrift.utils.errors import require


@dataclass(frozen=True)
class _Sent:
    """One change of a vector."""

    number: int
    """how many changes of this vector were sent with it"""
    round: int
    parts: Mapping[str, Tensor]
    """its encoding"""


class DownloadHistory:
    """The latest changes of the downloaded vectors, in their encodings.

    It is not part of a run's store: after a restart of the server each site gets whole vectors.

    Parameters
    ----------
    downloads
        what compresses the downloads of the run, and knows which changes each site has
    """

    def __init__(self, downloads: DownloadCompressor):
        self._downloads = downloads
        self._sent: dict[str, deque[_Sent]] = {}
        self._checksums: dict[str, dict[int, str]] = {}
        """by vector and number of changes: the checksum of the vector that sites then have"""

    def add(self, round: int) -> None:
        """Note the changes that `DownloadCompressor.compress` made for this round."""
        downloads = self._downloads
        for name, held in downloads.held.items():
            number, known = downloads.sent[name], self._checksums.setdefault(name, {})
            if number in known:  # this round did not send it
                continue
            changes = self._sent.setdefault(name, deque(maxlen=self._most(held)))
            if name in downloads.changes:
                change, drawn = downloads.changes[name]
                changes.append(_Sent(number, round, self._encoded(name, change, drawn)))
            known[number] = checksum({name: held})
            for old in [each for each in known if each < number - len(changes)]:
                del known[old]

    def lacked_by(self, site: str, download: Download) -> dict[str, VectorChanges]:
        """The vectors that a site can form from changes, with these; it gets the others whole."""
        found = {}
        seen = self._downloads.seen.get(site, {})
        for name, _ in download.items():
            known = self._checksums.get(name, {})
            base, now = seen.get(name), self._downloads.sent.get(name)
            if base is None or now is None or base not in known or now not in known:
                continue
            changes = [each for each in self._sent[name] if each.number > base]
            if len(changes) == now - base:
                found[name] = VectorChanges(
                    known[base],
                    known[now],
                    tuple(each.round for each in changes),
                    tuple(each.parts for each in changes),
                )
        return found

    def _most(self, vector: Tensor) -> int:
        """The most changes that are smaller together than the vector itself."""
        one = self._downloads.compressor.encoded_bytes(vector.numel(), vector.dtype)
        whole = vector.numel() * vector.element_size()
        return min(MAX_CHANGES, (whole - 1) // one)

    def _encoded(self, name: str, change: Tensor, number: int) -> dict[str, Tensor]:
        compressor, change = self._downloads.compressor, change.cpu()
        parts = compressor.encode(change, number)
        again = compressor.decode(parts, len(change), change.dtype, number)
        require(
            torch.equal(again, change),
            f"{compressor!r} decodes its encoding of a change of {name!r} to something else.",
        )
        return parts
