"""Facts about a method in private runs: public denominators, and how far one client can reach."""

from __future__ import annotations

from undrift.core.messages import Assignment
from undrift.core.method import Method
from undrift.core.sampling import All
from undrift.loops import Synchronous
from undrift.loops.cohorts import draw_cohort
from undrift.privacy.clipping import joint_norm
from undrift.privacy.gaussian import Gaussian
from undrift.privacy.refusals import check_method
from undrift.privacy.scales import upload_scales
from undrift.utils.errors import UndriftError
from undrift.verify import problems
from undrift.verify.runs import Finding, allows, between, path, run_of, steps
from undrift.verify.subjects import Subject

ROUNDS = 4
CLIP_NORM = 0.05
PUBLIC_STEPS = 3
"""τ, by which uploads are put on one scale."""


def denominators(subject: Subject) -> Finding | None:
    """The distance of a run without noise and clipping from the run without privacy."""
    if not _private(subject):
        return None
    made = [_run(subject, None), _run(subject, Gaussian(noise=0.0, clip=None))]
    plain, private = (path(run, ROUNDS) for run in made)
    return between(plain, private)


def sensitivity(subject: Subject) -> Finding | None:
    """By how much the largest scaled upload of a client exceeds the clipping norm."""
    if not _private(subject):
        return None
    run = _run(subject, Gaussian(noise=0.0, clip=CLIP_NORM, steps=PUBLIC_STEPS))
    method = subject.method
    scales = upload_scales(method, run.local, PUBLIC_STEPS)(run.local.rate(0))
    largest = 0.0
    for _ in range(ROUNDS):
        cohort = draw_cohort(run.sampler, run.roster, run.seed, run.round)
        down = method.download(run.server)
        work = run.planner.work(method, cohort, run.round)
        assignments = [Assignment(client, own, down, {}) for client, own in work.items()]
        for reply in run.engine.replies(method, assignments, run.states, False):  # type: ignore[attr-defined]
            sent = {name: getattr(reply.upload, name) for name in method.sums()}
            largest = max(largest, float(joint_norm(sent, scales)))
        run.step()
    return Finding(f"at most {CLIP_NORM}", largest, max(0.0, largest - CLIP_NORM))


def _private(subject: Subject) -> bool:
    """Whether a private run of the method is defined on the quadratics with everyone."""
    method = subject.method
    try:
        check_method(method)
    except UndriftError:
        return False
    settles = not method.kept() or type(method).settle is not Method.settle
    defined = allows(method, All(), problems.SIZES, "clients") and not method.meant_asynchronous
    return settles and defined


def _run(subject: Subject, privacy: Gaussian | None) -> Synchronous:
    problem = problems.quadratics()
    return run_of(subject.method, problem, steps(subject), All(), "clients", privacy=privacy)
