"""The serial engine: one client after another.

It is the reference: every other engine must give the same results, to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from undrift.core.clients import ClientStates
from undrift.core.diagnostics import A_NORM, MOVED, SQUARE
from undrift.core.losses import Federation, require_losses
from undrift.core.messages import (
    CHANGE,
    COHORT,
    LAST,
    Assignment,
    Reply,
    buffer_bytes,
    bytes_of,
    damaged,
)
from undrift.core.method import Method
from undrift.core.problem import Client, Keep, LocalProblem, LocalResult, Upload, Work
from undrift.core.uploads import Senders
from undrift.core.validation import buffer_fault, fault
from undrift.engines.base import Job, SimulationEngine
from undrift.utils.errors import UndriftError, first_line
from undrift.utils.keys import key


class SerialEngine(SimulationEngine):
    """Trains clients one after another."""

    def __init__(self, losses: Federation, job: Job):
        self.losses = require_losses(losses)
        self.job = job

    def replies(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        diagnose: bool = True,
    ) -> Iterator[Reply]:
        for assignment in assignments:
            client, download = assignment.client, assignment.download
            mine = states.get(client.id)
            problem = method.problem(download, mine, client)
            result, buffers = self._solve(client, problem, assignment.work, assignment.buffers)
            senders = Senders(self.job.seed, [assignment.work])
            upload, keep = self.job.uploads.finish(method, download, mine, result, client, senders)
            if assignment.work.damaged:
                upload = damaged(upload)
            wrong = fault(method, upload, keep, result.x) or buffer_fault(buffers)
            # Bytes are counted before tracked models and diagnostics are added: in a real
            # federation these would not travel.
            buffers_sent = buffer_bytes(assignment.buffers)
            down, up = bytes_of(download) | buffers_sent, bytes_of(upload) | buffers_sent
            if wrong is None:
                upload, keep = self._with_tracked_models(upload, keep, mine, result.x)
                if diagnose:
                    # A round may send no model (FedPD): measure from the client's start then.
                    center = download.x if "x" in download else problem.start
                    upload = _with_diagnostics(upload, result, center)
            yield Reply(
                client=client,
                upload=upload,
                keep=keep,
                buffers=buffers,
                steps=int(result.steps),
                evaluations=result.evaluations,
                complete=bool(result.complete),
                down=down,
                up=up,
                wrong=wrong,
            )

    def _solve(
        self, client: Client, problem: LocalProblem, work: Work, buffers: Mapping[str, Tensor]
    ) -> tuple[LocalResult, dict[str, Tensor]]:
        """The result of a client's work, and its buffers; errors of the user's model are named."""
        roster = self.job.roster
        k = roster.place[roster.position[client.id]]
        number = key(self.job.seed, "model", work.turn, client.id)
        try:
            with self.losses.training(k, buffers, number) as loss:
                result = self.job.local.of(client.id).run(loss, problem, work)
                return result, loss.buffers()
        except UndriftError:
            raise
        except Exception as error:
            raise UndriftError(
                f"The model failed on client {client.id!r} in round {work.round + 1}: "
                f"{first_line(error)}."
            ) from error

    def _with_tracked_models(
        self, upload: Upload, keep: Keep, mine: Keep, x: Tensor
    ) -> tuple[Upload, Keep]:
        """The upload and the state with what tracked models need."""
        tracked = self.job.tracked
        if tracked.cohort:
            upload = upload.replace(**{COHORT: x})
        if tracked.last:
            upload = upload.replace(**{CHANGE: x - getattr(mine, LAST)})
            keep = keep.replace(**{LAST: x})
        return upload, keep


def _with_diagnostics(upload: Upload, result: LocalResult, center: Tensor) -> Upload:
    """The upload with what `undrift.core.diagnostics` needs."""
    moved = result.x - center
    numbers = {SQUARE: float(moved.double().square().sum()), A_NORM: float(result.a_norm)}
    return upload.replace(**{MOVED: moved}, **numbers)
