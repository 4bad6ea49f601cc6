"""The engine of a deployment with secure aggregation: the server sees masked uploads and sums.

A round takes the stages one after another. A site that fails in one is left out of the next; the
sum of the others is decoded as long as a threshold of them remains. Otherwise the round comes to
nothing, and the next one begins.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from undrift.core.clients import ClientStates
from undrift.core.messages import Assignment, Reply
from undrift.core.method import Method
from undrift.core.problem import Upload
from undrift.core.round_result import RoundResult
from undrift.core.uploads.norm_bounds import NormLimits
from undrift.deploy.orders import split
from undrift.deploy.protocol import (
    OVERHEAD_BYTES,
    ExpectedAnswer,
    WorkRequest,
    raise_site_error,
)
from undrift.deploy.remote import EXPELLED, EXPULSION_SECONDS, NO_ANSWER, RemoteEngine
from undrift.deploy.secure.messages import (
    StageOrder,
    advert_in,
    advert_values,
    by_site,
    bytes_in,
    hex_by_site,
)
from undrift.deploy.secure.sums import (
    as_words,
    decoded,
    require_summed,
    sum_names,
    words_spec,
)
from undrift.deploy.transport import REFUSED, Answer
from undrift.deploy.wire_format import InvalidMessage, TensorSpec, decode
from undrift.privacy.secure.attempt import SecureError
from undrift.privacy.secure.fixed_point import FixedPoint
from undrift.privacy.secure.server import SecureServer
from undrift.privacy.secure.settings import SecureAggregation
from undrift.privacy.secure.site import ADVERTISE, AGREE, SHARE, UNMASK
from undrift.utils.plain_text import plain_text

Contents = Mapping[str, Mapping[str, Any]]
"""The content of a request, or an answer, by site."""


class SecureEngine(RemoteEngine):
    """Has the clients' work done at their sites, and decodes the sums of their masked uploads."""

    secure: SecureAggregation
    _server: SecureServer | None = None
    _reasons: dict[str, str]
    """why sites of the current round are left out"""

    def run(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
        limits: NormLimits | None = None,
    ) -> RoundResult:
        # Diagnostics and bounds on norms need single uploads.
        result = self.job.result(method, round, diagnose=False)
        self._reasons = {}
        replies: dict[str, Reply] = {}
        try:
            replies = self._aggregated(method, list(assignments), states, round, result)
        except SecureError as error:
            left = f"secure aggregation: {plain_text(str(error))}"
            for site in self.cohort:
                self._reasons.setdefault(site, left)
        finally:
            self._server = None
        for site, why in self._reasons.items():
            if site not in replies:
                (result.rejected if why.startswith(REFUSED) else result.lost)[site] = why
        return result

    def _aggregated(
        self,
        method: Method,
        assignments: Sequence[Assignment],
        states: ClientStates,
        round: int,
        result: RoundResult,
    ) -> dict[str, Reply]:
        """Take all stages and add the sums to the result; the replies are the survivors'."""
        sums = method.sums() | self.job.tracked_sums(diagnose=False)
        require_summed(sums, self._terms.label)
        key, number = self._terms.key, self._terms.attempt
        attempt = self.secure.attempt(key, round, number, self.cohort, self.full_cohort)
        server = self._server = SecureServer(attempt)
        asked = [str(assignment.client.id) for assignment in assignments]

        found = self._ask(ADVERTISE, round, {site: {} for site in asked})
        server.advertised(self._read(found, lambda values: advert_in(values.get("advert"))))

        adverts = {site: advert_values(advert) for site, advert in server.adverts.items()}
        found = self._ask(SHARE, round, {site: {"adverts": adverts} for site in adverts})
        server.shared(self._read(found, lambda values: by_site(values.get("sealed"), bytes_in)))

        senders = set(server.senders)
        work = [each for each in assignments if str(each.client.id) in senders]
        replies, lost = self._work_of_round(method, work, states, diagnose=False)
        self._reasons |= {str(client): why for client, why in lost.items()}
        wrong = {client: reply.wrong for client, reply in replies.items() if reply.wrong}
        self._reasons |= {str(client): why for client, why in wrong.items()}
        usable = {str(client): reply for client, reply in replies.items() if client not in wrong}
        coding = self._coding
        server.masked({site: as_words(split(r.upload)[1], coding) for site, r in usable.items()})

        survivors = list(server.survivors)
        found = self._ask(AGREE, round, {site: {"survivors": survivors} for site in survivors})
        server.agreed(self._read(found, lambda values: bytes_in(values.get("signature"))))

        signatures = hex_by_site(server.signatures)
        content = {"signatures": signatures}
        found = self._ask(UNMASK, round, dict.fromkeys(signatures, content))
        revealed = self._read(found, lambda values: by_site(values.get("shares"), bytes_in))
        totals = server.unmasked(revealed)

        like = self.losses.initial()
        taken = {site: _without_vectors(usable[site]) for site in survivors}
        found_sums = decoded(totals, sums, coding, like, round, self._coder)
        result.take_summed(list(taken.values()), found_sums, like.dtype)
        return taken

    @property
    def _coding(self) -> FixedPoint:
        return self.secure.coding(len(self.job.roster))

    # Requests of the stages

    def _ask(self, stage: str, round: int, contents: Contents) -> dict[str, bytes]:
        """The answers of the sites to the request of a stage; why others failed is noted."""
        waiting = {}
        for site, content in contents.items():
            order = StageOrder(self._terms, round, self.available, stage, content)
            ticket = self.transport.send(site, order.encoded(), self._timeout, OVERHEAD_BYTES)
            waiting[ticket] = site
        found: dict[str, bytes] = {}
        ends = time.monotonic() + self._timeout
        while waiting and (left := ends - time.monotonic()) > 0:
            asked, seconds = time.monotonic(), min(left, EXPULSION_SECONDS)
            answer = self.next_answer(seconds)
            if answer is None and time.monotonic() - asked < seconds / 2:
                break  # None this early: no answer can arrive any more
            self._drop_expelled(waiting)
            if answer is not None and answer.ticket in waiting:
                self._take(waiting.pop(answer.ticket), answer, found)
        for ticket, site in waiting.items():
            self.transport.forget(ticket)
            self._reasons.setdefault(site, f"{NO_ANSWER} to the stage {stage!r}")
        return found

    def _take(self, site: str, answer: Answer, found: dict[str, bytes]) -> None:
        if answer.failure is not None:
            self._reasons[site] = plain_text(answer.failure)
        else:
            found[site] = answer.data

    def _drop_expelled(self, waiting: dict[str, str]) -> None:
        expelled = self.expelled_sites()
        for ticket in [ticket for ticket, site in waiting.items() if site in expelled]:
            self._reasons[waiting.pop(ticket)] = EXPELLED
            self.transport.forget(ticket)

    def _read(self, answers: Mapping[str, bytes], read: Any) -> dict[str, Any]:
        """What the answers say; a malformed one leaves its site out of the round."""
        found = {}
        for site, data in answers.items():
            try:
                values, tensors = decode(data, OVERHEAD_BYTES)
                raise_site_error(values)
                if tensors:
                    raise InvalidMessage("it has tensors that were not asked for")
                found[site] = read(values)
            except InvalidMessage as error:
                self._reasons[site] = f"{REFUSED}: {str(error).rstrip('.')}"
        return found

    # Work orders

    def _sealed(self, site: str) -> Mapping[str, str] | None:
        assert self._server is not None
        return hex_by_site(self._server.sealed_for(site))

    def _require_transformed(self, request: WorkRequest, reply: Reply) -> None:
        # Nobody can tell from a masked upload whether it was clipped: the sites do it.
        pass

    def _expected(self, method: Method, request: WorkRequest) -> ExpectedAnswer:
        """As without secure aggregation, but with a masked vector of words for every sum."""
        plain = super()._expected(method, request)
        coder, x = self._coder, self.losses.initial()
        compressed = () if coder is None else coder.names
        sums = method.sums() | self.job.tracked_sums(diagnose=False)
        vectors: dict[str, TensorSpec] = {}
        for name, weights in sums.items():
            if name in plain.vectors or name in compressed:
                size = len(x) if coder is None else coder.added_size(name, len(x), x.dtype)
                words = words_spec(self._coding, size)
                vectors |= dict.fromkeys(sum_names({name: weights}), words)
        return replace(plain, vectors=vectors, coder=None)


def _without_vectors(reply: Reply) -> Reply:
    """A reply with the numbers of its upload only."""
    return replace(reply, upload=Upload(**split(reply.upload)[0]))
