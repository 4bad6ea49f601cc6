"""`DownloadMemory`: the vectors that a site has, to which it applies compressed changes."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from undrift.compression import Compressor, InvalidEncoding
from undrift.compression.downloads import download_key
from undrift.core.problem import Download
from undrift.deploy.orders import VectorChanges, WorkOrder, split
from undrift.deploy.state_files import checksum
from undrift.deploy.wire_format import InvalidMessage, TensorSpec, check_tensors

KEPT = 2
"""How many versions of a vector a site keeps: if its answer is lost, the server counts from the
one before."""


class LacksVector(InvalidMessage):
    """The site does not have the vector that an order changes; the server is to send it whole."""


class DownloadMemory:
    """The latest downloaded vectors of a site, by their checksums.

    They are in memory only: a site that was restarted gets whole vectors.
    """

    def __init__(self) -> None:
        self._run = ""
        self._known: dict[str, dict[str, Tensor]] = {}
        """by name, then by checksum"""

    def with_vectors(
        self, order: WorkOrder, compressor: Compressor | None, seed: int, like: Tensor
    ) -> WorkOrder:
        """The order with whole vectors in its download; `InvalidMessage` if that is impossible."""
        if compressor is None:
            if order.changes:
                raise InvalidMessage("The experiment does not compress downloads.")
            return order
        if order.terms.key != self._run:
            self._run, self._known = order.terms.key, {}
        _, vectors = split(order.download)
        formed = {
            name: self._formed(name, changes, order, compressor, seed, like)
            for name, changes in order.changes.items()
        }
        for name, vector in (vectors | formed).items():
            digest = order.changes[name].result if name in formed else checksum({name: vector})
            kept = self._known.setdefault(name, {})
            kept.pop(digest, None)  # so that it is the newest
            kept[digest] = vector
            while len(kept) > KEPT:
                del kept[next(iter(kept))]
        whole = Download(**dict(order.download.items()), **formed)
        return replace(order, download=whole, changes={})

    def _formed(
        self,
        name: str,
        changes: VectorChanges,
        order: WorkOrder,
        compressor: Compressor,
        seed: int,
        like: Tensor,
    ) -> Tensor:
        vector = self._known.get(name, {}).get(changes.base)
        if vector is None:
            raise LacksVector(f"The site has not got the vector {name!r} that the order changes.")
        if changes.rounds and changes.rounds[-1] > order.round:
            raise InvalidMessage(f"The changes of {name!r} are not those of earlier rounds.")
        size, dtype = len(like), like.dtype
        layout = {part: TensorSpec(*each) for part, each in compressor.layout(size, dtype).items()}
        for round, parts in zip(changes.rounds, changes.parts, strict=True):
            check_tensors(parts, layout)
            try:
                number = download_key(seed, name, round)
                vector = vector + compressor.decode(parts, size, dtype, number)
            except InvalidEncoding as error:
                raise InvalidMessage(f"A change of {name!r} is no encoding: {error}.") from None
        if checksum({name: vector}) != changes.result:
            raise InvalidMessage(f"The changes of {name!r} give another vector than the server's.")
        return vector
