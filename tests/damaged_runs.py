"""Small killed runs and ways to damage their folders, for tests of damaged run folders."""

import os
import shutil

import torch

import undrift as ud
from undrift.experiments.experiment import Experiment
from undrift.runs.driver import SilentObserver, execute
from undrift.runs.experiment_runs import resumed, run_experiment
from undrift.runs.plan import Plan
from undrift.runs.storage import FolderStorage

ROUNDS, KILLED_AFTER = 7, 5
PROBLEM = ud.theory.distances(torch.randn(6, 300, generator=torch.Generator().manual_seed(0)))
"""300 coordinates: vectors of this size take pages of their own in the store."""
EXPERIMENT = {
    "rounds": ROUNDS,
    "data": {"source": "synthetic", "clients": 6, "most": 12},
    "model": {"name": "logistic"},
    "local": {"lr": 0.05, "batch_size": 10, "epochs": 1},
    "sampling": {"cohort": 3},
    "engine": {"name": "serial"},
    "evaluation": {"every": 5},
    "method": [{"name": "SCAFFOLD"}],
    "output": {"durability": "process"},
}


class Killed(BaseException):
    """Ends a run without giving it a chance to write anything."""


class KillAfter(SilentObserver):
    """Ends the run like a killed process, right after the commit of a round."""

    def show(self, label, seed, record):
        if record.round == KILLED_AFTER:
            raise Killed


def plan(**changed):
    """SCAFFOLD on a quadratic problem, whose clients keep states."""
    methods = {"SCAFFOLD": ud.SCAFFOLD()}
    setting = dict(
        methods=methods,
        losses=lambda seed: PROBLEM,
        local=dict.fromkeys(methods, ud.GD(lr=0.05, steps=2)),
        rounds=ROUNDS,
        cohort=3,
        engine=ud.EngineOptions("serial"),
        evaluation=ud.Evaluation(every=5),
    )
    return Plan(**{**setting, **changed})


def kill(folder, run):
    """Call `run(observer)`, which ends after a round as if its process was killed."""
    try:
        run(KillAfter())
    except Killed:
        return folder
    raise AssertionError("the run was not killed")


def killed_plan(folder, **changed):
    """Write the folder of a plan that was killed after a round."""
    storage = FolderStorage(folder, "process", keep_rounds=2)
    return kill(folder, lambda observer: execute(plan(**changed), storage, observer))


def resume_plan(folder):
    """Resume the plan in this process."""
    (outcome,) = execute(plan(), FolderStorage(folder, "process"), read_ended=True)
    return everything(outcome.run)


def killed_experiment(folder):
    """Write the folder of an experiment that was killed after a round."""
    experiment = Experiment.from_dict(EXPERIMENT)
    return kill(folder, lambda observer: run_experiment(experiment, folder, observer=observer))


def resume_experiment(folder, data):
    """Resume the experiment in this process."""
    (outcome,) = run_experiment(resumed(folder), folder, data, extend=True, read_ended=True)
    return everything(outcome.run)


def everything(run):
    """Everything that a run computed, to be compared bit by bit."""
    for record in run.records:
        record.seconds, record.strategy = 0.0, ""
    states = {id: dict(run.states.get(id).items()) for id in sorted(run.states.seen())}
    return run.records, dict(run.server.items()), states


def same(a, b):
    """Whether two nested values are equal to the bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def damaged(content, rng):
    """The content with damaged bytes or bits, a damaged block, or without its end."""
    found = bytearray(content)
    kind = rng.choice(("bytes", "bit", "block", "zeros", "page", "cut"))
    place = rng.randrange(len(found))
    length = min(rng.choice((16, 100, 512, 4096)), len(found) - place)
    if kind == "bytes":
        for _ in range(rng.choice((1, 1, 5, 50))):
            found[rng.randrange(len(found))] = rng.randrange(256)
    elif kind == "bit":
        found[place] ^= 1 << rng.randrange(8)
    elif kind == "block":
        found[place : place + length] = rng.randbytes(length)
    elif kind == "zeros":
        found[place : place + length] = bytes(length)
    elif kind == "page":  # the content of another page, such as an older version of this one
        page = 4096 if len(found) > 8192 else 64
        a, b = (rng.randrange(len(found) // page + 1) * page for _ in range(2))
        found[a : a + page] = found[b : b + page].ljust(len(found[a : a + page]), b"\0")
    else:
        del found[place:]
    return bytes(found)


def copy_of(folder, place):
    """A fresh copy of a run folder."""
    shutil.rmtree(place, ignore_errors=True)
    return shutil.copytree(folder, place)


def outcome_of(resume, folder, *arguments):
    """What resuming gives: the result, or the sentence that refuses it."""
    try:
        return resume(folder, *arguments)
    except ud.UndriftError as error:
        return str(error)


def without_syncing(monkeypatch):
    """Leave out waiting for the disk: nothing here loses power."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
