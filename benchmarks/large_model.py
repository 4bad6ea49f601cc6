"""Measure how many copies of a large model a round with a cohort of 20 holds in memory.

A synthetic model of 100 million parameters, 20 clients with two samples each, one step:

    python -m benchmarks.large_model [FedAvg SCAFFOLD …] [--parameters 100000000] [--cohort 20]

Every method has a process of its own, which runs two rounds into a temporary run folder: in the
second, stateful methods read the states that the first one wrote. Prints the peak of anonymous
memory (RssAnon) beyond Python and torch, in copies of the model, and fails above `--most` copies.
SCAFFOLD and FedDyn at full size need about 20 GB of disk.
"""

import argparse
import multiprocessing
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from torch import nn

import undrift as ud
from undrift.nets.module_losses import ModuleLosses
from undrift.runs.driver import SilentObserver, execute
from undrift.runs.plan import Plan
from undrift.runs.storage import FolderStorage

METHODS = {
    "FedAvg": ud.FedAvg,
    "FedProx": lambda: ud.FedProx(mu=0.1),
    "SCAFFOLD": ud.SCAFFOLD,
    "FedDyn": lambda: ud.FedDyn(alpha=0.1),
    "FedDR": lambda: ud.FedDR(eta=1.0),
    "FedNova": ud.FedNova,
}
FEATURES, CLASSES = 1000, 10
POLL_SECONDS = 0.01
"""How often the memory is read: a copy of 100 million parameters takes longer to make."""


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process (not backed by files) in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


class Peak(threading.Thread):
    """Follows the largest anonymous memory of this process."""

    def __init__(self):
        super().__init__(daemon=True)
        self.bytes = 0
        self.running = True

    def run(self):
        while self.running:
            self.bytes = max(self.bytes, anonymous_bytes())
            time.sleep(POLL_SECONDS)


def measure(name: str, arguments: argparse.Namespace, results: multiprocessing.Queue) -> None:
    """Run two rounds of a method in this process and report its peak in copies of the model."""
    torch.set_num_threads(2)
    width = (arguments.parameters - CLASSES) // (FEATURES + 1 + CLASSES)
    n = 2 * arguments.cohort
    data = ud.data.FederatedData.from_arrays(
        torch.zeros(n, FEATURES), torch.arange(n) % CLASSES, clients=arguments.cohort
    )
    before = anonymous_bytes()
    peak = Peak()
    peak.start()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="undrift-large-", dir=arguments.folder) as folder:
        plan = Plan(
            losses=lambda seed: ModuleLosses(
                nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES)),
                data,
            ),
            methods={name: METHODS[name]()},
            local={name: ud.SGD(lr=0.01, batch_size=2, steps=1)},
            rounds=2,
            cohort=arguments.cohort,
            evaluation=ud.Evaluation(every=3),
            engine=ud.EngineOptions(arguments.engine, threads=arguments.threads),
        )
        size = 4 * (width * (FEATURES + 1 + CLASSES) + CLASSES)
        execute(plan, FolderStorage(Path(folder), durability="process"), SilentObserver())
    peak.running = False
    results.put((size, (peak.bytes - before) / size, time.perf_counter() - began))


def main() -> int:
    """Measure the methods that the command line names, one after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", default=["FedAvg", "SCAFFOLD"], choices=[*METHODS])
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--cohort", type=int, default=20)
    parser.add_argument("--most", type=float, default=16.0, help="largest allowed copies")
    parser.add_argument("--engine", default="auto", help="name of the engine")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="where the run folder is made")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    worst = 0.0
    for name in arguments.methods:
        results = context.Queue()
        process = context.Process(target=measure, args=(name, arguments, results))
        process.start()
        size, copies, seconds = results.get()
        process.join()
        worst = max(worst, copies)
        print(
            f"{name}: {size / 1e6:.0f} MB a model, peak {copies:.1f} copies with a cohort of "
            f"{arguments.cohort}, {seconds:.0f} s",
            flush=True,
        )
    return int(worst > arguments.most)


if __name__ == "__main__":
    sys.exit(main())
