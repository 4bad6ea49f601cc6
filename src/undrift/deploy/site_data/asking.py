"""The server's part in an agreement: it asks all sites for statistics before a run begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, TypeVar

from undrift.deploy.agreement import facts
from undrift.deploy.orders import STATISTICS
from undrift.deploy.protocol import OVERHEAD_BYTES
from undrift.deploy.remote import Waiting
from undrift.deploy.site_data.agreed import Agreed, agreement, wanted
from undrift.deploy.transport import Transport
from undrift.deploy.wire_format import InvalidMessage, decode, encode
from undrift.experiments.experiment import Experiment
from undrift.utils.errors import UndriftError, require
from undrift.utils.plain_text import plain_text

ANSWER_SECONDS = 60.0
"""How long a site may take to describe itself, or to answer a question for statistics."""
POLL_SECONDS = 0.2
"""How often the server checks which sites are connected."""

T = TypeVar("T")
Parse = Callable[[str, bytes], T]
"""The value in a site's answer, from the site's name and the bytes."""


def ask_all(
    sites: Sequence[str],
    request: bytes,
    parse: Parse[T],
    transport: Transport,
    waiting: Waiting,
    expelled: Callable[[], Collection[str]] = frozenset,
) -> dict[str, T]:
    """The answers of all sites in their order; it waits for them without a limit."""
    found: dict[str, T] = {}
    failures: dict[str, str] = {}
    while missing := [site for site in sites if site not in found]:
        for site in expelled():
            require(
                site not in sites,
                f"The site {site!r} is expelled, but the run has not begun: remove it from "
                f"data.sites, or take it back with undrift deploy expel --undo.",
            )
        waiting([f"{s} ({failures[s]})" if s in failures else s for s in missing])
        connected = [site for site in missing if site in transport.sites()]
        open_requests = {
            transport.send(site, request, ANSWER_SECONDS, OVERHEAD_BYTES): site
            for site in connected
        }
        while open_requests:
            answer = transport.next(ANSWER_SECONDS)
            if answer is None:
                break
            asked = open_requests.pop(answer.ticket, None)
            if asked is not None and answer.failure is None:
                found[asked] = parse(asked, answer.data)
            elif asked is not None:
                failures[asked] = plain_text(answer.failure)
        if not connected:
            time.sleep(POLL_SECONDS)
    waiting([])
    return {site: found[site] for site in sites}


def agree_with_sites(
    experiment: Experiment,
    run: str,
    sites: Sequence[str],
    transport: Transport,
    waiting: Waiting,
    expelled: Callable[[], Collection[str]],
) -> Agreed:
    """What the sites agree on for a new run, from sums and counts of their training samples."""
    asking = agreement(wanted(experiment))
    answers: dict[Hashable, Any] | None = None
    while True:
        try:
            question = next(asking) if answers is None else asking.send(answers)
        except StopIteration as done:
            agreed: Agreed = done.value
            return agreed
        values = {"kind": STATISTICS, "experiment": facts(experiment), "run": run}
        request = encode({**values, "question": question}, {})
        found = ask_all(sites, request, _statistics_in, transport, waiting, expelled)
        answers = dict(found.items())


def _statistics_in(site: str, data: bytes) -> Any:
    try:
        values, _ = decode(data, OVERHEAD_BYTES)
    except InvalidMessage as error:
        why = plain_text(error)
        raise UndriftError(f"The site {site!r} sent invalid statistics: {why}") from None
    if "error" in values:
        raise UndriftError(f"Site {site!r}: {plain_text(values['error'], 1000)}")
    return values.get("statistics")
