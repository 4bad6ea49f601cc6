"""The serial engine: one client after another. Every other engine must agree with it."""

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
    bytes_of,
    damaged,
    statistics,
)
from undrift.core.method import Method
from undrift.core.problem import Client, Keep, LocalProblem, LocalResult, Upload, Work
from undrift.core.uploads import Senders
from undrift.core.validation import fault, fault_of_buffers
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
            wrong = fault(method, upload, keep, result.x) or fault_of_buffers(buffers)
            travels = statistics(assignment.buffers)
            down, up = bytes_of(download) | travels, bytes_of(upload) | travels
            if wrong is None:
                upload, keep = self._watched(upload, keep, mine, result.x)
                if diagnose:
                    # Where a round sends no model, as FedPD's may, the client's start stands in.
                    center = download.x if "x" in download else problem.start
                    upload = _diagnosed(upload, result, center)
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
        """A client's work; what goes wrong in the user's model is said in a sentence."""
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

    def _watched(self, upload: Upload, keep: Keep, mine: Keep, x: Tensor) -> tuple[Upload, Keep]:
        """Add the models that are followed; they are storage, not traffic."""
        tracked = self.job.tracked
        if tracked.cohort:
            upload = upload.replace(**{COHORT: x})
        if tracked.last:
            upload = upload.replace(**{CHANGE: x - getattr(mine, LAST)})
            keep = keep.replace(**{LAST: x})
        return upload, keep


def _diagnosed(upload: Upload, result: LocalResult, center: Tensor) -> Upload:
    """Add what diagnostics need; it is no traffic."""
    moved = result.x - center
    square = float(moved.double().square().sum())
    followed: dict[str, Tensor | float | None] = {MOVED: moved, SQUARE: square}
    return upload.replace(**followed, **{A_NORM: float(result.a_norm)})
