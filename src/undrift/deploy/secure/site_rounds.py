"""A site's part in secure aggregation: it takes the stages of a round, and masks its upload.

The site derives the cohort and the threshold from its own experiment. Its long-lived key signs its
keys of a round, and it knows the public keys of the other sites, so that the server cannot take
their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from undrift.core.messages import Reply
from undrift.core.problem import Client
from undrift.deploy.orders import RunTerms, WorkOrder
from undrift.deploy.policy.agreed_run import AgreedRun
from undrift.deploy.policy.ledger import Ledger
from undrift.deploy.secure.messages import (
    StageOrder,
    advert_in,
    advert_values,
    by_site,
    bytes_in,
    hex_by_site,
    names_in,
)
from undrift.deploy.secure.site_noise import NoiseShare
from undrift.deploy.secure.sums import as_tensors, words_of
from undrift.deploy.signing.keys import PEERS, SigningKey, SiteKeys
from undrift.deploy.wire_format import InvalidMessage
from undrift.privacy.secure.attempt import Attempt, SecureError
from undrift.privacy.secure.settings import SecureAggregation
from undrift.privacy.secure.site import ADVERTISE, AGREE, MASK, SHARE, SecureSite, Sign, Verify
from undrift.utils.errors import UndriftError


@dataclass(frozen=True)
class SiteIdentity:
    """A site's long-lived key, and the public keys of the other sites."""

    sign: Sign
    verify: Verify

    @staticmethod
    def of(certs: Path) -> SiteIdentity:
        """The identity in a site's folder of certificates."""
        return SiteIdentity(SigningKey(certs / "key").sign, SiteKeys(certs / PEERS).verify)


class SecureRounds:
    """Takes part in one attempt of secure aggregation at a time.

    Parameters
    ----------
    name
        the site
    settings
        the settings of its own experiment
    identity
        its keys
    ledger
        its memory of accepted orders, which has the rounds that were unmasked
    """

    def __init__(
        self, name: str, settings: SecureAggregation, identity: SiteIdentity, ledger: Ledger
    ):
        self._name = name
        self._settings = settings
        self._identity = identity
        self._ledger = ledger
        self._site: SecureSite | None = None

    def answer(self, order: StageOrder, run: AgreedRun) -> dict[str, Any]:
        """The answer to the request of a stage; `InvalidMessage` if the site refuses it."""
        try:
            return self._answer(order, run)
        except SecureError as error:
            self._site = None  # an attempt in which something was wrong is over for this site
            raise InvalidMessage(str(error)) from error

    def _answer(self, order: StageOrder, run: AgreedRun) -> dict[str, Any]:
        content = order.content
        attempt = self._attempt(order.terms, order.round, order.available, run)
        if order.stage == ADVERTISE:
            return {"advert": advert_values(self._begin(order.terms, attempt).advertise())}
        site = self._of(attempt)
        if order.stage == SHARE:
            adverts = by_site(content.get("adverts"), advert_in)
            return {"sealed": hex_by_site(site.share(adverts))}
        if order.stage == AGREE:
            return {"signature": site.agree(names_in(content.get("survivors"))).hex()}
        signatures = by_site(content.get("signatures"), bytes_in)
        revealed = site.unmask(signatures)
        self._site = None
        return {"shares": hex_by_site(revealed)}

    def require_ready(self, order: WorkOrder, run: AgreedRun) -> None:
        """Refuse an order to train whose upload could not be masked."""
        attempt = self._attempt(order.terms, order.round, order.available, run)
        if order.sealed is None or self._of(attempt).stage != MASK:
            raise InvalidMessage(
                f"The site {self._name!r} sends masked uploads only: the server must take the "
                f"stages of secure aggregation in their order."
            )

    def masked(
        self, order: WorkOrder, run: AgreedRun, client: Client, reply: Reply
    ) -> dict[str, Tensor]:
        """The vectors of a reply, weighted, encoded and masked."""
        attempt = self._attempt(order.terms, order.round, order.available, run)
        sums = run.method.sums() | run.job.tracked_sums(diagnose=False)
        coding = self._settings.coding(len(run.roster))
        try:
            noise = None
            if run.privacy is not None and self._settings.site_noise:
                full = len(run.cohort(order.round, None))
                noise = NoiseShare(run, order.round, self._settings.noise_shares(full))
            words = words_of(reply.upload, client, sums, coding, order.round, noise, run.coder)
            sealed = by_site(order.sealed, bytes_in)
            return as_tensors(self._of(attempt).mask(sealed, words), coding)
        except (SecureError, UndriftError) as error:
            self._site = None
            raise InvalidMessage(str(error)) from error

    def _begin(self, terms: RunTerms, attempt: Attempt) -> SecureSite:
        """A new attempt, with keys of its own."""
        unmasked = self._ledger.history(terms).unmasked
        if attempt.round in unmasked:
            raise SecureError(
                f"The sum of round {attempt.round + 1} was unmasked before: a second sum of it "
                f"could reveal one site's upload."
            )
        if self._site is not None and self._site.attempt == attempt:
            raise SecureError("The keys of this attempt were advertised before.")

        def may_unmask(attempt: Attempt) -> bool:
            # On disk before any mask is revealed, so that no crash makes the site reveal others.
            if attempt.round in self._ledger.history(terms).unmasked:
                return False
            self._ledger.add_unmasking(terms, attempt.round)
            return True

        identity = self._identity
        self._site = SecureSite(self._name, attempt, identity.sign, identity.verify, may_unmask)
        return self._site

    def _of(self, attempt: Attempt) -> SecureSite:
        if self._site is None or self._site.attempt != attempt:
            raise InvalidMessage(
                f"The site {self._name!r} has no keys for this attempt of secure aggregation."
            )
        return self._site

    def _attempt(
        self,
        terms: RunTerms,
        round: int,
        available: tuple[str, ...] | None,
        run: AgreedRun,
    ) -> Attempt:
        """The attempt as this site derives it: the server decides neither cohort nor threshold."""
        if not 0 <= round < run.rounds or run.asynchronous:
            raise InvalidMessage(f"The experiment has no synchronous round {round + 1}.")
        drawn = run.cohort(round, available)
        cohort = [str(id) for id in run.roster.ids if id in drawn]
        try:
            full = len(run.cohort(round, None))
            return self._settings.attempt(terms.key, round, terms.attempt, cohort, full)
        except SecureError as error:
            raise InvalidMessage(str(error)) from error
