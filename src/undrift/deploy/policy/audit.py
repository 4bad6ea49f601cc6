"""The audit log of a site: one JSON line for every request, and for what the site did with it.

It has no values of the data or of the model: only names, shapes, norms, bytes and metrics. A flood
of refused requests does not fill the disk: beyond a number per hour they are only counted.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from undrift.deploy.orders import DESCRIBE, EVALUATE, IDENTIFY, SECURE, STATISTICS, WORK
from undrift.deploy.state_files import make_folder
from undrift.utils.errors import UndriftError, first_line

AUDIT_FILE = "audit.jsonl"
COUNTS_FILE = "audit-counts.json"
"""Counts all requests by kind and decision, also those that have no line."""
LINES_PER_HOUR = 200
"""The most lines per hour for requests without an accepted order; accepted orders always have one,
and the site's limits bound their number."""
HOUR_SECONDS = 3600.0
SHOWN_CHARACTERS = 300
"""The longest text in a line: the server may have sent it."""
DONE, REFUSED, FAILED, STOPPED = "done", "refused", "failed", "stopped"
"""What became of a request."""
LOGGED = {"run": "run", "label": "method", "seed": "seed", "attempt": "attempt", "round": "round"}
LOGGED |= {"stage": "stage"}
"""The fields of an order that the audit log has, with their names there."""


class AuditLog:
    """Appends to the audit log, and counts what is not written.

    Parameters
    ----------
    folder
        the site's state folder; it is created if it is missing
    """

    def __init__(self, folder: Path):
        make_folder(folder)
        self.path = folder / AUDIT_FILE
        self._counts_path = folder / COUNTS_FILE
        self._times: deque[float] = deque()
        """when lines were written within the last hour that the limit is about"""
        self._unwritten = 0
        """requests since the last line that have none"""
        self._counts = self._read_counts()

    def order(self, decision: str, what: Mapping[str, Any]) -> None:
        """Log an order that was accepted."""
        self._count(what.get("kind"), decision)
        self._append(decision, what)

    def request(self, decision: str, what: Mapping[str, Any]) -> bool:
        """Log a request without an accepted order; in a flood only count it, and return False."""
        self._count(what.get("kind"), decision)
        now = time.monotonic()
        while self._times and self._times[0] < now - HOUR_SECONDS:
            self._times.popleft()
        if len(self._times) >= LINES_PER_HOUR:
            self._unwritten += 1
            return False
        self._times.append(now)
        self._append(decision, what)
        return True

    def stopped(self, reason: str, undone: str | None) -> None:
        """Log that the site was ended, also while another thread is writing."""
        self._append(STOPPED, {"kind": "site", "reason": reason, "undone": undone})

    def counts(self) -> dict[str, int]:
        """The number of all requests so far, by kind and decision."""
        return dict(self._counts)

    def _append(self, decision: str, what: Mapping[str, Any]) -> None:
        line: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        line |= {**what, "decision": decision}
        if self._unwritten:
            line["unwritten_before"], self._unwritten = self._unwritten, 0
        text = json.dumps(_plain(line), ensure_ascii=True, allow_nan=False) + "\n"
        try:
            # One write to a file opened for appending: lines of two threads never mix.
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(file, text.encode())
            finally:
                os.close(file)
        except OSError as error:
            raise UndriftError(f"{self.path} cannot be written: {first_line(error)}.") from error

    def _count(self, kind: Any, decision: str) -> None:
        name = f"{kind} {decision}"
        self._counts[name] = self._counts.get(name, 0) + 1
        partial = self._counts_path.with_name(f".{COUNTS_FILE}.partial")
        try:
            # Replaced whole, but not synced: it survives the end of the process, and is cheap.
            partial.write_text(json.dumps(self._counts))
            partial.replace(self._counts_path)
        except OSError as error:
            raise UndriftError(f"{self._counts_path}: {first_line(error)}.") from error

    def _read_counts(self) -> dict[str, int]:
        try:
            found = json.loads(self._counts_path.read_text())
            return {str(name): int(count) for name, count in found.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}


def described(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Tensors in the words of the log: shape, type, bytes and norm of each."""
    return {
        name: {
            "shape": list(value.shape),
            "type": str(value.dtype).removeprefix("torch."),
            "bytes": value.numel() * value.element_size(),
            "norm": float(value.detach().cpu().double().norm()),
        }
        for name, value in tensors.items()
    }


def _plain(value: Any) -> Any:
    """A value that JSON can hold, with long texts cut and numbers that are not finite as text."""
    if isinstance(value, Mapping):
        return {str(key)[:SHOWN_CHARACTERS]: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return value[:SHOWN_CHARACTERS]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value


def logged_request(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the audit log has of a request; `round` is counted from 1, as in records."""
    kind = values.get("kind")
    known = (IDENTIFY, DESCRIBE, STATISTICS, WORK, EVALUATE, SECURE)
    found: dict[str, Any] = {"kind": kind if kind in known else "unknown"}
    for name, shown in LOGGED.items():
        value = values.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool):
            found[shown] = value
    if kind in (WORK, SECURE) and isinstance(found.get("round"), int):
        found["round"] += 1
    return found


def in_words(asked: Mapping[str, Any]) -> str:
    """A request, for the sentence about what a stopped site left undone."""
    place = f"round {asked.get('round')} of {asked.get('method')}"
    kinds = {WORK: f"the work of {place}", EVALUATE: f"the evaluation after {place}"}
    return kinds.get(asked["kind"], f"the request to {asked['kind']} itself")
