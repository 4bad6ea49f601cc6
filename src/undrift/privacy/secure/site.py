"""A site's side of the protocol: it masks its upload, and helps to recover the sum of all uploads.

A site protects itself: it checks what the server says against the signatures of the other sites,
takes every stage once, and reveals either the self mask or the pair masks of a site, never both.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from undrift.privacy.secure.attempt import Attempt, SecureError, names_digest
from undrift.privacy.secure.fixed_point import Words
from undrift.privacy.secure.keys import (
    KEY_BYTES,
    SEED_BYTES,
    KeyPair,
    add_mask,
    agreed_seed,
    derived_seed,
    opened,
    seal,
)
from undrift.privacy.secure.shares import SHARE_BYTES, split

ADVERTISE, SHARE, MASK, AGREE, UNMASK = "advertise", "share", "mask", "agree", "unmask"
STAGES = (ADVERTISE, SHARE, MASK, AGREE, UNMASK)
"""The stages of the protocol, in their order."""

Sign = Callable[[bytes], bytes]
"""Signs with the site's own long-lived key."""
Verify = Callable[[str, bytes, bytes], str | None]
"""(site, content, signature) → None, or why the signature is not that site's."""


@dataclass(frozen=True)
class Advert:
    """The public keys of a site for one attempt, which it signed."""

    mask_key: bytes
    """agrees on pair masks; its private key is shared among the sites"""
    share_key: bytes
    """agrees on the encryption of shares; its private key is shared with nobody"""
    seed_hash: bytes
    """a hash of the seed of the self mask"""
    signature: bytes

    def content(self, attempt: Attempt, site: str) -> bytes:
        """What the signature covers."""
        return attempt.content(
            ADVERTISE, site.encode(), self.mask_key, self.share_key, self.seed_hash
        )


class SecureSite:
    """One site in one attempt.

    Parameters
    ----------
    name
        the site
    attempt
        the attempt
    sign, verify
        sign with the site's own key, and check the signatures of the other sites
    may_unmask
        is asked before masks are revealed; it writes to disk that this round was unmasked, and
        returns False if it had been before
    """

    def __init__(
        self,
        name: str,
        attempt: Attempt,
        sign: Sign,
        verify: Verify,
        may_unmask: Callable[[Attempt], bool],
    ):
        if name not in attempt.cohort:
            raise SecureError(f"The site {name!r} is not in the cohort.")
        self.name, self.attempt = name, attempt
        self._sign, self._verify, self._may_unmask = sign, verify, may_unmask
        self._mask_keys, self._share_keys = KeyPair(), KeyPair()
        self._seed = os.urandom(SEED_BYTES)
        self._advert = Advert(b"", b"", b"", b"")
        """its own"""
        self._adverts: dict[str, Advert] = {}
        self._shares: dict[str, bytes] = {}
        """the shares of every site that this site holds: of its private mask key, then its seed"""
        self._survivors: tuple[str, ...] = ()
        self._next = 0

    @property
    def stage(self) -> str:
        """The stage that the site takes next; empty after the last."""
        return STAGES[self._next] if self._next < len(STAGES) else ""

    def advertise(self) -> Advert:
        """Public keys of this attempt."""
        self._enter(ADVERTISE)
        unsigned = Advert(
            self._mask_keys.public, self._share_keys.public, seed_hash(self._seed), b""
        )
        signature = self._sign(unsigned.content(self.attempt, self.name))
        self._advert = replace(unsigned, signature=signature)
        return self._advert

    def share(self, adverts: Mapping[str, Advert]) -> dict[str, bytes]:
        """Shares of this site's secrets, sealed for every site that advertised its keys."""
        attempt = self.attempt
        self._enter(SHARE)
        attempt.require_members(adverts, SHARE)
        attempt.require_enough(adverts, ADVERTISE)
        self._check(adverts)
        self._adverts = dict(adverts)
        count, threshold = len(attempt.cohort), attempt.threshold
        keys = split(self._mask_keys.private, threshold, count)
        seeds = split(self._seed, threshold, count)
        sealed = {}
        for site in adverts:
            content = keys[attempt.index(site)] + seeds[attempt.index(site)]
            if site == self.name:
                self._shares[site] = content
            else:
                sealed[site] = seal(
                    self._share_key(self.name, site), content, self._about(self.name, site)
                )
        return sealed

    def mask(self, sealed: Mapping[str, bytes], uploads: Mapping[str, Words]) -> dict[str, Words]:
        """The uploads with all masks; `sealed` are the other sites' shares for this site."""
        self._enter(MASK)
        self.attempt.require_members(sealed, MASK)
        if not sealed.keys() <= self._adverts.keys() - {self.name}:
            raise SecureError("A site sent shares without having advertised its keys.")
        self.attempt.require_enough({*sealed, self.name}, SHARE)
        for site, content in sealed.items():
            found = opened(self._share_key(site, self.name), content, self._about(site, self.name))
            if len(found) != 2 * SHARE_BYTES:
                raise SecureError(f"The shares of site {site!r} have a wrong length.")
            self._shares[site] = found
        masked = {}
        for name, words in uploads.items():
            total = np.array(words)
            add_mask(total, self_mask(self.attempt, self.name, self._seed, name), 1)
            for site in sealed:
                seed = pair_mask(
                    self.attempt,
                    (self.name, self._mask_keys.private),
                    (site, self._adverts[site].mask_key),
                    name,
                )
                add_mask(total, seed, pair_sign(self.attempt, self.name, site))
            masked[name] = total
        return masked

    def agree(self, survivors: Sequence[str]) -> bytes:
        """A signature on the list of the sites whose masked uploads arrived."""
        self._enter(AGREE)
        self.attempt.require_members(survivors, AGREE)
        self.attempt.require_enough(survivors, MASK)
        if not set(survivors) <= self._shares.keys():
            raise SecureError("The list of survivors names a site that shared no masks.")
        self._survivors = tuple(survivors)
        return self._sign(self._agreed())

    def unmask(self, signatures: Mapping[str, bytes]) -> dict[str, bytes]:
        """One share of every site: of the self mask of a survivor, of the mask key of others.

        Only if enough survivors signed the same list: otherwise the server could tell some sites
        that a site survived and others that it did not, and obtain both of its masks.
        """
        self._enter(UNMASK)
        self.attempt.require_enough(signatures, AGREE)
        content = self._agreed()
        for site, signature in signatures.items():
            if site not in self._survivors:
                raise SecureError("A site agreed that is not among the survivors.")
            fault = self._verify(site, content, signature)
            if fault is not None:
                raise SecureError(f"The list of survivors is not agreed: {fault}.")
        if not self._may_unmask(self.attempt):
            raise SecureError(
                f"Round {self.attempt.round + 1} was unmasked before, and a second sum of it could "
                f"reveal one site's upload."
            )
        survivors = set(self._survivors)
        revealed = {
            site: shares[SHARE_BYTES:] if site in survivors else shares[:SHARE_BYTES]
            for site, shares in self._shares.items()
        }
        self._shares, self._seed = {}, b""
        self._mask_keys = self._share_keys = KeyPair()
        return revealed

    def _enter(self, stage: str) -> None:
        """Go on to the next stage; every stage can be taken once."""
        if self.stage != stage:
            wanted = f"the stage {self.stage!r}" if self.stage else "no stage"
            raise SecureError(f"The stage {stage!r} is not due: {wanted} is next.")
        self._next += 1

    def _check(self, adverts: Mapping[str, Advert]) -> None:
        if adverts.get(self.name) != self._advert:
            raise SecureError(f"The keys of site {self.name!r} were exchanged.")
        keys = [key for each in adverts.values() for key in (each.mask_key, each.share_key)]
        if len(set(keys)) != len(keys) or any(len(key) != KEY_BYTES for key in keys):
            raise SecureError("Two sites have the same key, or a key has a wrong length.")
        for site, advert in adverts.items():
            content = advert.content(self.attempt, site)
            fault = None if site == self.name else self._verify(site, content, advert.signature)
            if fault is not None:
                raise SecureError(f"The keys of site {site!r} are not its own: {fault}.")

    def _share_key(self, sender: str, receiver: str) -> bytes:
        other = receiver if sender == self.name else sender
        info = self.attempt.content("key of shares", sender.encode(), receiver.encode())
        return agreed_seed(self._share_keys.private, self._adverts[other].share_key, info)

    def _about(self, sender: str, receiver: str) -> bytes:
        return self.attempt.content("shares", sender.encode(), receiver.encode())

    def _agreed(self) -> bytes:
        """The list of survivors, with that of the sites that shared their secrets."""
        senders = [site for site in self.attempt.cohort if site in self._shares]
        return agreed_content(self.attempt, senders, self._survivors)


def agreed_content(attempt: Attempt, senders: Sequence[str], survivors: Sequence[str]) -> bytes:
    """What the survivors sign: who shared secrets, and whose masked uploads arrived."""
    return attempt.content(AGREE, names_digest(senders), names_digest(survivors))


def seed_hash(seed: bytes) -> bytes:
    """The hash of a self mask's seed, by which its recovery is checked."""
    return hashlib.sha256(b"undrift self mask 1" + seed).digest()


def self_mask(attempt: Attempt, site: str, seed: bytes, name: str) -> bytes:
    """The seed of a site's self mask of one vector."""
    return derived_seed(seed, attempt.content("self mask", site.encode(), name.encode()))


def pair_mask(
    attempt: Attempt, own: tuple[str, bytes], other: tuple[str, bytes], name: str
) -> bytes:
    """The seed of the mask of two sites for one vector: (site, private key), (site, public key)."""
    pair = sorted([own[0], other[0]], key=attempt.index)
    info = attempt.content("pair mask", *(site.encode() for site in pair), name.encode())
    return agreed_seed(own[1], other[1], info)


def pair_sign(attempt: Attempt, site: str, other: str) -> int:
    """The sign of a pair mask in the upload of `site`; it is the opposite in the other's."""
    return 1 if attempt.index(site) < attempt.index(other) else -1
