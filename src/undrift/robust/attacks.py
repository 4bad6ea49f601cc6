"""Attacks of clients on a simulated run, to try robust statistics with.

Attackers do their honest work first; then the loop replaces what they send. Deployments refuse an
attack: it is an experiment, not a feature of a federation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import torch
from torch import Tensor

from undrift.core.clients import Roster
from undrift.core.messages import Reply
from undrift.core.method import Method
from undrift.core.replies import accumulator_dtype
from undrift.utils.errors import require, require_range, require_type
from undrift.utils.keys import generator, key


@dataclass(frozen=True)
class Attack(ABC):
    """What some clients send in place of their uploads. Subclass it with `forge` for your own.

    Parameters
    ----------
    share
        the share of all clients that attack, at least 0 and at most 1; who they are is drawn by
        the run's seed
    clients
        the ids of the attackers, in place of a share
    """

    share: float = 0.2
    clients: Sequence[Hashable] | None = None

    together = False
    """whether the attackers of a round must know each other's uploads"""
    forges = True
    """whether uploads are replaced; False if only the data are wrong"""

    def __post_init__(self) -> None:
        require_range(f"{type(self).__name__}'s share", self.share, at_least=0, at_most=1)
        if self.clients is not None:
            wanted = "a list of client ids"
            require_type(f"{type(self).__name__}'s clients", self.clients, (list, tuple), wanted)

    @abstractmethod
    def forge(self, vectors: Tensor, replies: int, keys: Sequence[int]) -> Tensor:
        """What the attackers send in place of their honest `vectors`, `[A, P]`.

        `replies` is the number of all replies of the round, and `keys` has a key for the random
        numbers of each attacker.
        """

    def attackers(self, roster: Roster, seed: int) -> frozenset[Hashable]:
        """The ids of the clients that attack in a run."""
        if self.clients is not None:
            for client in self.clients:
                require(
                    client in roster.position,
                    f"The attack names the client {client!r}, which is not one of the "
                    f"{len(roster)} clients.",
                )
            return frozenset(self.clients)
        number = int(self.share * len(roster) + 0.5)
        order = generator(seed, "attackers").permutation(len(roster))
        return frozenset(roster.ids[k] for k in order[:number])

    def forged(
        self, method: Method, held: Sequence[Reply], turns: Sequence[int], replies: int, seed: int
    ) -> list[Reply]:
        """The replies that the attackers send; `held` are their honest ones.

        `turns` are the rounds, or launches, that key their random numbers. Replies without a
        usable upload stay as they are.
        """
        usable = [place for place, reply in enumerate(held) if reply.wrong is None]
        found = list(held)
        if not usable:
            return found
        for name in method.sums():
            vectors = torch.stack([getattr(held[place].upload, name) for place in usable])
            keys = [
                key(seed, f"attack on {name}", turns[place], held[place].client.id)
                for place in usable
            ]
            sent = self.forge(vectors, replies, keys).to(vectors)
            require(
                sent.shape == vectors.shape,
                f"{type(self).__name__}.forge must return vectors of shape {list(vectors.shape)}, "
                f"not {list(sent.shape)}.",
            )
            for row, place in enumerate(usable):
                upload = found[place].upload.replace(**{name: sent[row]})
                found[place] = replace(found[place], upload=upload)
        return found


@dataclass(frozen=True)
class SignFlip(Attack):
    """Send −scale times the honest upload.

    Parameters
    ----------
    share
        the share of all clients that attack; who they are is drawn by the run's seed
    clients
        the ids of the attackers, in place of a share
    scale
        1 flips the sign; more is a scaled sign flip
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range("SignFlip's scale", self.scale, above=0)

    def forge(self, vectors: Tensor, replies: int, keys: Sequence[int]) -> Tensor:
        return -self.scale * vectors


@dataclass(frozen=True)
class Gaussian(Attack):
    """Send Gaussian noise, with about `scale` times the norm of the honest upload.

    Parameters
    ----------
    share
        the share of all clients that attack; who they are is drawn by the run's seed
    clients
        the ids of the attackers, in place of a share
    scale
        how many times the honest norm
    """

    scale: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range("Gaussian's scale", self.scale, above=0)

    def forge(self, vectors: Tensor, replies: int, keys: Sequence[int]) -> Tensor:
        width = vectors.shape[1]
        noise = [
            torch.randn(width, generator=torch.Generator().manual_seed(key % 2**63)) for key in keys
        ]
        norms = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        return self.scale * norms / width**0.5 * torch.stack(noise).to(vectors)


@dataclass(frozen=True)
class ALittle(Attack):
    """A little is enough (Baruch et al., NeurIPS 2019): all attackers send μ − zσ.

    μ and σ are the mean and the standard deviation of the attackers' own honest uploads, coordinate
    by coordinate, so that what they send looks like an upload of an honest client.

    Parameters
    ----------
    share
        the share of all clients that attack; who they are is drawn by the run's seed
    clients
        the ids of the attackers, in place of a share
    z
        how many standard deviations; None for the paper's choice, Φ⁻¹((n − m − s)/(n − m)) with
        s = ⌊n/2 + 1⌋ − m for m attackers among n replies
    """

    z: float | None = None
    together = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.z is not None:
            require_range("ALittle's z", self.z)

    def forge(self, vectors: Tensor, replies: int, keys: Sequence[int]) -> Tensor:
        own = vectors.to(accumulator_dtype(vectors))
        spread = own.std(0, correction=0)
        sent = own.mean(0) - self.deviations(replies, len(vectors)) * spread
        return sent.expand_as(own)

    def deviations(self, replies: int, attackers: int) -> float:
        """z for m attackers among n replies."""
        if self.z is not None:
            return self.z
        honest = replies - attackers
        needed = replies // 2 + 1 - attackers
        share = (honest - needed) / honest if honest > 0 else 0.5
        # Where the attackers are the majority, any deviation goes unnoticed.
        return NormalDist().inv_cdf(min(max(share, 1e-6), 1 - 1e-6))


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Train on wrong labels: class y becomes C − 1 − y in the attackers' training data.

    The uploads are those of this honest work. The test data stay as they are.

    Parameters
    ----------
    share
        the share of all clients that attack; who they are is drawn by the run's seed
    clients
        the ids of the attackers, in place of a share
    """

    forges = False

    def forge(self, vectors: Tensor, replies: int, keys: Sequence[int]) -> Tensor:
        return vectors


ATTACKS: dict[str, type[Attack]] = {
    "sign-flip": SignFlip,
    "gaussian": Gaussian,
    "a-little": ALittle,
    "label-flip": LabelFlip,
}
"""The attacks by their names in files."""
