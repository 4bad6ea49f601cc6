"""The one place between `finish` and `fold`: what a client really sends, and what it keeps then.

Every engine, and every site of a deployment, calls `UploadChain.finish`. It lets the method finish,
passes the upload through the chain of upload transforms (clipping, noise, compression), and lets
the method settle what the client keeps.

Why a method must settle: a client's copy of something the server accumulates (SCAFFOLD's c_k,
FedDyn's h_k, FedDR's x̂_k) must advance by what was *sent*. If it advanced by the untransformed
upload, the server's sum would differ from Σ q_k·(kept) for ever, and the method would converge to
another point.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from undrift.core.method import Method
from undrift.core.problem import Client, Download, Keep, LocalResult, Upload, Work
from undrift.core.validation import check_declared
from undrift.utils.errors import require
from undrift.utils.keys import key


@dataclass(frozen=True)
class Senders:
    """Who sends an upload: one client, or the rows of a stacked upload."""

    seed: int
    works: Sequence[Work]

    def keys(self, purpose: str) -> list[int]:
        """A key per client for random numbers, from (seed, purpose, round, client id)."""
        return [key(self.seed, purpose, work.turn, work.client) for work in self.works]


class UploadTransform(ABC):
    """One step of the chain, as in optax: declared state (`init`), and `update`.

    A transform works on flat vectors, `[P]` for one client and `[C, P]` for several, so that it
    serves every engine.
    """

    def init(self) -> Mapping[str, str]:
        """What a client keeps for this transform, as `Method.keeps`; names start with "@"."""
        return {}

    @abstractmethod
    def update(self, upload: Upload, mine: Keep, senders: Senders) -> tuple[Upload, Keep]:
        """What is sent in the place of `upload`, and what the client keeps for this transform."""


class UploadChain:
    """The upload transforms of a run, in their order; usually none."""

    def __init__(self, transforms: Sequence[UploadTransform] = ()):
        self.transforms = tuple(transforms)

    def init(self) -> dict[str, str]:
        """What clients keep for all transforms."""
        kinds: dict[str, str] = {}
        for each in self.transforms:
            for name, kind in each.init().items():
                require(
                    name.startswith("@"), f"{each!r} keeps {name!r}: its name must start with @."
                )
                require(name not in kinds, f"Two upload transforms keep {name!r}.")
                kinds[name] = kind
        return kinds

    def finish(
        self,
        method: Method,
        down: Download,
        mine: Keep,
        result: LocalResult,
        client: Client,
        senders: Senders,
    ) -> tuple[Upload, Keep]:
        """What the client sends and what it keeps."""
        finished = method.finish(down, mine, result, client)
        check_declared(method, finished, result.x)
        upload, keep = finished
        if not self.transforms:
            return upload, keep
        sent = upload
        states: dict[str, Tensor] = {}
        for each in self.transforms:
            sent, state = each.update(sent, mine, senders)
            states |= dict(state.items())
        if method.kept():
            keep = method.settle(keep, _difference(sent, upload), result, client)
        return sent, keep.replace(**states)


def _difference(sent: Upload, formed: Upload) -> Upload:
    """sent − formed, for every vector that the method uploads."""
    return Upload(
        **{
            name: getattr(sent, name) - value
            for name, value in formed.items()
            if isinstance(value, Tensor)
        }
    )
