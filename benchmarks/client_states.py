"""Measure the memory and the size of the store of a run with many client states.

FedDyn keeps a 178 110-parameter state for each of 100 000 clients; FedAvg keeps none:

    python benchmarks/client_states.py [--clients 100000] [--cohort 100] [--rounds 200]

Prints the growth of anonymous memory (RssAnon) of both, their difference, and the size of the store
relative to the states of the clients seen. The full size needs about 13 GB of disk.
"""

import argparse
import multiprocessing
import shutil
import tempfile
from pathlib import Path

import torch

import undrift as ud
from undrift.nets.module_losses import ModuleLosses
from undrift.runs.driver import execute
from undrift.runs.plan import Plan
from undrift.runs.storage import FolderStorage


def anonymous_mb() -> float:
    """Return the anonymous memory of this process (not backed by files) in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1000
    raise RuntimeError("/proc/self/status has no RssAnon")


def measure(method, arguments, folder, results):
    """Run a method in this process and report its memory after the first record and at its peak."""
    n = 2 * arguments.clients
    y = torch.arange(n) % 10
    x = torch.zeros(n, 784)  # zero pages are shared: the data take almost no memory
    data = ud.data.FederatedData.from_arrays(x, y, clients=arguments.clients)
    seen = []

    class Look:
        def begin(self, label, seed, round):
            pass

        def show(self, label, seed, record):
            seen.append(anonymous_mb())

        def end(self, label, seed, status, reason):
            pass

    plan = Plan(
        losses=lambda seed: ModuleLosses(ud.models.mlp(784, 200, 100, classes=10, seed=seed), data),
        methods={method.name: method},
        local={method.name: ud.SGD(lr=0.01, batch_size=2, steps=1)},
        rounds=arguments.rounds,
        cohort=arguments.cohort,
        evaluation=ud.Evaluation(every=arguments.rounds + 1),
    )
    execute(plan, FolderStorage(folder, durability="process"), Look())
    results.put((method.name, seen[0], max(seen)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    context = multiprocessing.get_context("spawn")
    grown = {}
    for method in (ud.FedAvg(), ud.FedDyn()):
        results = context.Queue()
        own = folder / method.name
        process = context.Process(target=measure, args=(method, arguments, own, results))
        process.start()
        name, first, peak = results.get()
        process.join()
        grown[name] = peak - first
        print(f"{name}: RssAnon grew by {grown[name]:.0f} MB over {arguments.rounds} rounds")
    store = folder / "FedDyn" / "FedDyn" / "seed-0" / "store"
    from undrift.runs.store import Store

    opened = Store(store, {"label": "FedDyn", "seed": 0})
    clients = sum(1 for _ in opened.clients())
    opened.close()
    states = clients * 178_110 * 4
    size = (store / "data.mdb").stat().st_size
    print(f"difference: {grown['FedDyn'] - grown['FedAvg']:.0f} MB (at most 300)")
    print(f"store: {size / 1e9:.2f} GB for the states of {clients} clients, {states / 1e9:.2f} GB")
    print(f"ratio: {size / states:.3f} (at most 1.2)")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
