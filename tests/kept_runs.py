"""A small plan for tests of runs that are stored, killed and resumed."""

import os
import signal
from pathlib import Path

import undrift as ud
from undrift.nets.module_losses import ModuleLosses
from undrift.runs.driver import execute
from undrift.runs.plan import Plan
from undrift.runs.storage import FolderStorage
from undrift.runs.store import Store


def plan(rounds=8, seeds=(0,), methods=None, **changed):
    """Return a plan of methods with and without client state, synchronous and asynchronous."""
    methods = methods or {
        "FedAvg": ud.FedAvg(),
        "SCAFFOLD": ud.SCAFFOLD(),
        "FedDyn": ud.FedDyn(alpha=0.5),
        "FedDR": ud.FedDR(eta=0.5),
        "AsyncFedDR": ud.AsyncFedDR(eta=0.5, alpha=0.3),
        "FedBuff": ud.FedBuff(buffer=3),
    }
    if "FedBuff" in methods:  # the server waits for stale replies, so some are held back
        changed = {"paces": {"AsyncFedDR": ud.AsTheyArrive(max_delay=3)}, **changed}
    data = changed.pop("data", None) or ud.data.synthetic(1, 1, clients=12, seed=0, most=60)
    model = changed.pop("model", None) or (
        lambda seed: ud.models.mlp(60, 20, classes=10, seed=seed)
    )
    setting = dict(
        losses=lambda seed: ModuleLosses(model(seed), data),
        methods=methods,
        local=dict.fromkeys(methods, ud.SGD(lr=0.05, batch_size=10, epochs=1, momentum=0.5)),
        rounds=rounds,
        seeds=seeds,
        cohort=4,
        engine=ud.EngineOptions("vectorised"),  # by a fixed rule: bits are compared
        evaluation=ud.Evaluation(every=2, models=("server", "all")),
        devices=ud.Devices(
            speed=ud.devices.Ladder(10, 60),
            latency=0.05,
            jitter=0.3,
            dropout=0.1,
            availability=ud.devices.Duty(period=5, share=0.8),
        ),
    )
    return Plan(**{**setting, **changed})


def run(folder, rounds=8, kill=None, **changed):
    """Execute the plan here; `kill` = (n, moment) ends the process by SIGKILL at the n-th write."""
    if kill is not None:
        _kill_in_write(*kill)
    return execute(plan(rounds, **changed), FolderStorage(Path(folder), memory=0.05))


def _kill_in_write(number, moment):
    """SIGKILL this process in the middle of a transaction, or right after it."""
    count = 0
    write = Store._write

    def deadly(self, values, remove=(), *head):
        nonlocal count
        count += 1
        if count == number and moment == "during":
            with self._env.begin(write=True) as txn:
                for key in remove:
                    txn.delete(key)
                for key, value in list(values.items())[: len(values) // 2 + 1]:
                    txn.put(key, value())
                os.kill(os.getpid(), signal.SIGKILL)
        write(self, values, remove, *head)
        if count == number and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    Store._write = deadly
