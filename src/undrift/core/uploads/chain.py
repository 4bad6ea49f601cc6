"""Upload transforms: clipping, noise, compression, … between a method's `finish` and its `fold`.

Every engine, and every site of a deployment, calls `UploadChain.finish` and nothing else. It calls
the method's `finish`, passes the upload through the transforms, and calls the method's `settle`
with the difference.

Why a method must settle: a client's copy of something the server accumulates (SCAFFOLD's c_k,
FedDyn's h_k, FedDR's x̂_k) must advance by what was *sent*. If it advanced by the untransformed
upload, the server's sum would permanently differ from Σ q_k·(kept), and the method would converge
to another point.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from undrift.core.messages import bytes_of
from undrift.core.method import Method
from undrift.core.problem import Client, Download, Keep, LocalResult, Upload, Work
from undrift.core.validation import check_declared
from undrift.utils.errors import UndriftError, require
from undrift.utils.keys import key


@dataclass(frozen=True)
class Senders:
    """Who sends an upload: one client, or the rows of a stacked upload."""

    seed: int
    works: Sequence[Work]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """what the server sends to transforms in this round, by names that start with "@\""""
    client: Client | None = None
    """the client, or several stacked as one; `UploadChain.finish` adds it"""

    def keys(self, purpose: str, shared: bool = False) -> list[int]:
        """One key per client for random numbers, from (seed, purpose, round, client id).

        With `shared`, all clients of a round have the same key. In asynchronous training the number
        of the launch takes the place of the round.
        """
        if shared:
            return [key(self.seed, purpose, work.turn) for work in self.works]
        return [key(self.seed, purpose, work.turn, work.client) for work in self.works]


class UploadTransform(ABC):
    """One transform of the chain, in the style of optax: `init` declares state, `update` applies.

    A transform works on flat vectors, `[P]` for one client and `[C, P]` for several, so that the
    same code serves every engine.
    """

    def init(self) -> Mapping[str, str]:
        """The state of a client for this transform, as `Method.keeps`; names start with "@"."""
        return {}

    def numbers(self) -> tuple[str, ...]:
        """The names of numbers that `update` adds to an upload; they start with "@"."""
        return ()

    def settings(self) -> tuple[str, ...]:
        """The names of numbers that the server sends for it in each round; they start with "@"."""
        return ()

    def fault(self, upload: Upload, senders: Senders) -> str | None:
        """Why an upload of one client cannot have passed this transform, or None.

        The server of a deployment asks, since a site may send anything.
        """
        return None

    @abstractmethod
    def update(self, upload: Upload, mine: Keep, senders: Senders) -> tuple[Upload, Keep]:
        """The upload to send in place of `upload`, and the client's new state of this transform.

        `mine` is the client's whole state, with the method's part of it.
        """

    def encoded_bytes(self, size: int, dtype: torch.dtype) -> int | None:
        """The bytes of an uploaded vector of `size` numbers as it travels; None: as it is."""
        return None

    def norm_bound(
        self, names: Sequence[str], dtype: torch.dtype, senders: Senders
    ) -> float | None:
        """The norm to which `update` cuts longer vectors, if that is all it does with uploads of
        the single vector in `names`; None if it does more.

        It then also takes `UnformedRows` in the place of a vector.
        """
        return None


class UploadChain:
    """The upload transforms of a run, in the order in which they are applied; usually none."""

    def __init__(self, transforms: Sequence[UploadTransform] = ()):
        self.transforms = tuple(transforms)

    def init(self) -> dict[str, str]:
        """The state of a client for all transforms, as `Method.keeps`."""
        kinds: dict[str, str] = {}
        for each in self.transforms:
            for name, kind in each.init().items():
                require(
                    name.startswith("@"),
                    f"The upload transform {each!r} keeps {name!r}, but the name of its state must "
                    f"start with '@', so that it differs from those of methods.",
                )
                require(name not in kinds, f"Two upload transforms keep a state {name!r}.")
                kinds[name] = kind
        return kinds

    def vector_bytes(self, size: int, dtype: torch.dtype) -> int:
        """The bytes of an uploaded vector of `size` numbers as it travels."""
        plain = size * dtype.itemsize
        if size == 1:  # counted and sent as a number
            return 8
        found = (each.encoded_bytes(size, dtype) for each in self.transforms)
        return next((each for each in found if each is not None), plain)

    def sent_bytes(self, method: Method, upload: Upload) -> dict[str, int]:
        """The bytes of one client's upload on the way, by name."""
        found = bytes_of(upload)
        if not self.transforms:
            return found
        for name in method.sums():
            if name in upload:
                value = getattr(upload, name)
                found[name] = self.vector_bytes(value.shape[-1], value.dtype)
        return found

    def numbers(self) -> set[str]:
        """The names of all numbers that transforms add to an upload."""
        return {name for each in self.transforms for name in each.numbers()}

    def settings(self) -> set[str]:
        """The names of all numbers that the server sends for transforms."""
        return {name for each in self.transforms for name in each.settings()}

    def norm_bound(
        self, method: Method, down: Download, dtype: torch.dtype, senders: Senders
    ) -> float | None:
        """The norm to which uploads are cut, if nothing else is done with them; None otherwise."""
        if len(self.transforms) != 1:
            return None
        senders = replace(senders, settings=_settings(down))
        return self.transforms[0].norm_bound(list(method.sums()), dtype, senders)

    def fault(self, upload: Upload, down: Download, senders: Senders) -> str | None:
        """Why an upload of one client cannot have passed the transforms, or None."""
        senders = replace(senders, settings=_settings(down))
        return next(filter(None, (each.fault(upload, senders) for each in self.transforms)), None)

    def finish(
        self,
        method: Method,
        down: Download,
        mine: Keep,
        result: LocalResult,
        client: Client,
        senders: Senders,
    ) -> tuple[Upload, Keep]:
        """The upload that is sent, and the client's new state."""
        finished = method.finish(down, mine, result, client)
        check_declared(method, finished, result.x)
        upload, keep = finished
        if not self.transforms:
            return upload, keep
        # Transforms see the declared vectors only: numbers look different in every engine.
        senders = replace(senders, settings=_settings(down), client=client)
        names = method.sums()
        vectors = Upload(**{name: value for name, value in upload.items() if name in names})
        sent = vectors
        added: dict[str, Tensor] = {}
        states: dict[str, Tensor] = {}
        for each in self.transforms:
            found, state = self._updated(each, sent, mine, senders)
            states |= dict(state.items())
            added |= {name: getattr(found, name) for name in each.numbers()}
            sent = Upload(**{name: getattr(found, name) for name, _ in sent.items()})
        if method.kept():
            keep = method.settle(keep, _difference(sent, vectors), result, client)
        return upload.replace(**dict(sent.items()), **added), keep.replace(**states)

    def _updated(
        self, transform: UploadTransform, upload: Upload, mine: Keep, senders: Senders
    ) -> tuple[Upload, Keep]:
        """What a transform returns, checked: the same vectors, and the state it declares."""
        name = type(transform).__name__
        found = transform.update(upload, mine, senders)
        pair = found if isinstance(found, tuple) and len(found) == 2 else (None, None)
        sent, state = pair
        if not isinstance(sent, Upload) or not isinstance(state, Keep):
            raise UndriftError(f"{name}.update must return an Upload and a Keep, not {found!r}.")
        added = set(transform.numbers())
        shapes = {each: value.shape for each, value in upload.items()}
        require(
            {each: value.shape for each, value in sent.items() if each not in added} == shapes
            and added == {each for each, _ in sent.items()} - shapes.keys(),
            f"{name}.update must return the vectors it got, in their shapes: {', '.join(shapes)}.",
        )
        kept = {each for each, _ in state.items()}
        require(
            kept == set(transform.init()),
            f"{name}.init declares {sorted(transform.init())}, but update returned {sorted(kept)}.",
        )
        return sent, state


def _settings(down: Download) -> dict[str, Any]:
    """What the server sends for transforms."""
    return {name: value for name, value in down.items() if name.startswith("@")}


def _difference(sent: Upload, formed: Upload) -> Upload:
    """sent − formed, for every vector that the method uploads."""
    return Upload(**{name: getattr(sent, name) - value for name, value in formed.items()})
