"""Measure the cost of committing a round, as a share of the round, on the MNIST MLP.

A 784-200-100-10 network, 100 clients of 600 samples, 10 in a round, one epoch with batches of 50:

    python benchmarks/commits.py [--rounds 12]
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import torch

import undrift as ud
from undrift.nets.module_losses import ModuleLosses
from undrift.runs import storage
from undrift.runs.driver import execute
from undrift.runs.plan import Plan
from undrift.runs.storage import FolderStorage


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60_000, 784, generator=g), torch.randint(0, 10, (60_000,), generator=g)
    data = ud.data.FederatedData.from_arrays(x, y, clients=100)
    commit = storage.commit
    print("method     durability   commit   round    share (best of the rounds)")
    for durability in ("power", "process"):
        for method in (ud.FedAvg(), ud.SCAFFOLD(), ud.FedDyn(), ud.FedDR()):
            spent, whole = [], []

            def timed(run, store, record, spent=spent, whole=whole):
                began = time.perf_counter()
                commit(run, store, record)
                spent.append(time.perf_counter() - began)
                whole.append(record.seconds)

            storage.commit = timed
            folder = Path(tempfile.mkdtemp())
            plan = Plan(
                losses=lambda seed: ModuleLosses(
                    ud.models.mlp(784, 200, 100, classes=10, seed=seed), data
                ),
                methods={method.name: method},
                local={method.name: ud.SGD(lr=0.05, batch_size=50, epochs=1)},
                rounds=arguments.rounds,
                cohort=10,
                evaluation=ud.Evaluation(every=arguments.rounds + 1),
            )
            execute(plan, FolderStorage(folder, durability=durability))
            shutil.rmtree(folder)
            cost, base = min(spent[1:]), min(whole[1:])
            print(
                f"{method.name:10} {durability:10} {1e3 * cost:6.1f} ms {1e3 * base:6.1f} ms "
                f"{cost / base:7.1%}"
            )


if __name__ == "__main__":
    main()
