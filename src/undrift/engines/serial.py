"""The serial engine: one client after another.

It is the reference: every other engine must give the same results, to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch import Tensor

from undrift.core.clients import ClientStates
from undrift.core.diagnostics import A_NORM, MOVED, SQUARE
from undrift.core.losses import Federation, require_losses
from undrift.core.messages import (
    CHANGE,
    COHORT,
    LAST,
    PERSONAL,
    Assignment,
    Reply,
    buffer_bytes,
    bytes_of,
    damaged,
)
from undrift.core.method import Method
from undrift.core.problem import Keep, LocalProblem, LocalResult, Upload
from undrift.core.uploads import Senders
from undrift.core.validation import buffer_fault, fault
from undrift.engines.base import Job, SimulationEngine
from undrift.engines.personal_work import solve_with_personal
from undrift.nets.client_losses import ModuleLoss, OneSampleBatch
from undrift.nets.module_losses import ModuleLosses
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
            result, buffers, own = self._solve(assignment, problem, mine)
            result = self._solve_later(method, assignment, mine, result)
            senders = Senders(self.job.seed, [assignment.work])
            upload, keep = self.job.uploads.finish(method, download, mine, result, client, senders)
            keep = keep.replace(**result.state)
            if assignment.work.damaged:
                upload = damaged(upload)
            wrong = fault(method, upload, keep, result.x) or buffer_fault(buffers)
            if own is not None:
                wrong = wrong or buffer_fault({"of personal parameters": own})
                keep = keep.replace(**{PERSONAL: own})
            # Bytes are counted before tracked models and diagnostics are added: in a real
            # federation these would not travel.
            buffers_sent = buffer_bytes(assignment.buffers)
            down = bytes_of(download) | buffers_sent
            up = self.job.uploads.sent_bytes(method, upload) | buffers_sent
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
        self, assignment: Assignment, problem: LocalProblem, mine: Keep
    ) -> tuple[LocalResult, dict[str, Tensor], Tensor | None]:
        """The result of a client's work, its buffers, and its personal parameters if it has any.

        Errors of the user's model are named.
        """
        client, work, buffers = assignment.client, assignment.work, assignment.buffers
        personal = getattr(mine, PERSONAL) if PERSONAL in mine else None
        roster = self.job.roster
        k = roster.place[roster.position[client.id]]
        number = key(self.job.seed, "model", work.turn, client.id)
        try:
            with self.losses.training(k, buffers, number) as loss:
                solver = self.job.local.of(client.id)
                if personal is None:
                    # A solver of the user's own need not know of states.
                    known = (mine,) if solver.keeps else ()
                    result, own = solver.run(loss, problem, work, *known), None
                else:
                    assert isinstance(loss, ModuleLoss)
                    assert isinstance(self.losses, ModuleLosses)
                    assert self.losses.personal is not None
                    result, own = solve_with_personal(
                        loss, solver, problem, work, personal, self.losses.personal
                    )
                return result, loss.buffers(), own
        except UndriftError:
            raise
        except OneSampleBatch as error:
            # Nothing is wrong in the user's model: its lines would only hide the cure.
            raise UndriftError(
                f"The model cannot train on client {client.id!r} in round {work.round + 1}: "
                f"{error}."
            ) from None
        except Exception as error:
            raise UndriftError(
                f"The model failed on client {client.id!r} in round {work.round + 1}: "
                f"{first_line(error)}."
            ) from error

    def _solve_later(
        self, method: Method, assignment: Assignment, mine: Keep, result: LocalResult
    ) -> LocalResult:
        """The result with the solutions of the method's further problems."""
        later: list[Tensor] = []
        evaluations = result.evaluations
        for _ in range(1, method.problems):
            solved = [result.x, *later]
            problem = method.next_problem(assignment.download, mine, solved, assignment.client)
            found, _, _ = self._solve(assignment, problem, mine)
            later.append(found.x)
            evaluations += found.evaluations
        return replace(result, later=tuple(later), evaluations=evaluations) if later else result

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
