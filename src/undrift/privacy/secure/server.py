"""The server's side of the protocol: it passes messages on, and decodes the sum of masked uploads.

It never holds an upload without its masks. Sites may fail to answer at any stage: as long as a
threshold of them remains, the sum of the survivors' uploads is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from undrift.privacy.secure.attempt import Attempt
from undrift.privacy.secure.fixed_point import Words
from undrift.privacy.secure.keys import add_mask, public_key
from undrift.privacy.secure.shares import recovered
from undrift.privacy.secure.site import (
    ADVERTISE,
    AGREE,
    MASK,
    SHARE,
    UNMASK,
    Advert,
    pair_mask,
    pair_sign,
    seed_hash,
    self_mask,
)


class SecureServer:
    """The server in one attempt. Its methods take what the sites answered, stage by stage.

    Parameters
    ----------
    attempt
        the attempt
    """

    def __init__(self, attempt: Attempt):
        self.attempt = attempt
        self.adverts: dict[str, Advert] = {}
        """the keys of the sites that advertised them"""
        self._sealed: dict[str, Mapping[str, bytes]] = {}
        self._total: dict[str, Words] = {}
        self.survivors: tuple[str, ...] = ()
        """the sites whose masked uploads are in the sum, in the order of the cohort"""
        self.signatures: dict[str, bytes] = {}

    def advertised(self, adverts: Mapping[str, Advert]) -> None:
        """Take the sites' public keys."""
        self.adverts = dict(adverts)
        self.attempt.require_enough(self.adverts, ADVERTISE)

    def shared(self, sealed: Mapping[str, Mapping[str, bytes]]) -> None:
        """Take the sealed shares: by sender, then by receiver."""
        self._sealed = {
            sender: shares
            for sender, shares in sealed.items()
            if shares.keys() == self.adverts.keys() - {sender}
        }
        self.attempt.require_enough(self._sealed, SHARE)

    @property
    def senders(self) -> list[str]:
        """The sites that shared their secrets, in the order of the cohort."""
        return [site for site in self.attempt.cohort if site in self._sealed]

    def sealed_for(self, site: str) -> dict[str, bytes]:
        """The shares of the other sites for one site."""
        return {sender: self._sealed[sender][site] for sender in self.senders if sender != site}

    def masked(self, uploads: Mapping[str, Mapping[str, Words]]) -> None:
        """Take the masked uploads, by site and name, and add them up."""
        self.survivors = tuple(site for site in self.senders if site in uploads)
        self.attempt.require_enough(self.survivors, MASK)
        for site in self.survivors:
            for name, words in uploads[site].items():
                if name in self._total:
                    self._total[name] += words
                else:
                    self._total[name] = np.array(words)

    def agreed(self, signatures: Mapping[str, bytes]) -> None:
        """Take the survivors' signatures on the list of survivors."""
        self.signatures = {s: signatures[s] for s in self.survivors if s in signatures}
        self.attempt.require_enough(self.signatures, AGREE)

    def unmasked(self, revealed: Mapping[str, Mapping[str, bytes]]) -> dict[str, Words]:
        """The sums of the survivors' uploads, from the shares that each site revealed."""
        attempt, survivors = self.attempt, set(self.survivors)
        attempt.require_enough(revealed, UNMASK)
        for site in self.senders:
            shares = {
                attempt.index(holder): found[site]
                for holder, found in revealed.items()
                if site in found
            }
            advert = self.adverts[site]
            if site in survivors:
                seed = recovered(shares, attempt.threshold, seed_hash, advert.seed_hash)
                for name, total in self._total.items():
                    add_mask(total, self_mask(attempt, site, seed, name), -1)
            else:
                private = recovered(shares, attempt.threshold, public_key, advert.mask_key)
                self._remove_pairs(site, private, self.survivors)
        return self._total

    def _remove_pairs(self, site: str, private: bytes, survivors: Sequence[str]) -> None:
        """Remove the masks that the survivors had with a site whose upload did not arrive."""
        for other in survivors:
            for name, total in self._total.items():
                seed = pair_mask(
                    self.attempt, (site, private), (other, self.adverts[other].mask_key), name
                )
                add_mask(total, seed, -pair_sign(self.attempt, other, site))
