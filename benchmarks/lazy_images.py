"""Images from disk: memory and speed of lazy data, beside a DataLoader loop on the same files.

    python benchmarks/lazy_images.py                 40 000 files of 64 × 64, 20 clients
    python benchmarks/lazy_images.py --files 4000    a quick look
    python benchmarks/lazy_images.py --folder DIR    keeps the files in DIR for the next time

It writes the files into a folder, then measures in separate processes: the peak memory
of training over that of the model and its libraries, the samples per second of undrift and of a
plain loop over a DataLoader with the same workers, batches and augmentation, and whether 0, 1 and
2 workers train to the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from multiprocessing import active_children
from pathlib import Path
from threading import Thread

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, Dataset

import undrift as ud

SIDE, CLASSES, CLIENTS, BATCH = 64, 10, 20, 32
KILOBYTE = 1024
POLL_SECONDS = 0.1


class Images(Dataset):
    """Image files with random crops, flips and brightness when they are read."""

    def __init__(self, files: list[Path]):
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[row]) as file:
            pixels = np.asarray(file.convert("RGB"))
        top, left = random.randrange(9), random.randrange(9)
        pixels = np.pad(pixels, ((4, 4), (4, 4), (0, 0)))[top : top + SIDE, left : left + SIDE]
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        image = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).float() / 255
        return image * (0.8 + 0.4 * torch.rand(())), int(self.files[row].stem) % CLASSES


def model() -> nn.Module:
    """A small convolutional network, so that reading takes a fair share of the time."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, CLASSES),
    )


def write_files(folder: Path, number: int) -> None:
    """Write images of smooth noise, which compress about as photographs do, unless they exist."""
    if len(list(folder.glob("*.jpg"))) == number:
        return
    rng = np.random.default_rng(0)
    for k in range(number):
        coarse = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BILINEAR).save(
            folder / f"{k:06d}.jpg", quality=90
        )


def clients(folder: Path) -> list[list[Path]]:
    """The files of every client."""
    files = sorted(folder.glob("*.jpg"))
    return [files[k::CLIENTS] for k in range(CLIENTS)]


def anonymous_megabytes(process: int | str = "self") -> float:
    """A process' share of the memory that is not backed by files; 0 once it has ended.

    Pages that forked workers share with this process are counted once in all.
    """
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon"):
                return int(line.split()[1]) * KILOBYTE / 1e6
    except OSError:
        pass
    return 0.0


class PeakMemory(Thread):
    """Looks every so often how much memory this process and its workers hold, for the maximum."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.megabytes = 0.0

    def run(self) -> None:
        """Look until the process ends."""
        while True:
            own = anonymous_megabytes()
            workers = [anonymous_megabytes(each.pid or 0) for each in active_children()]
            self.megabytes = max(self.megabytes, own + sum(workers))
            time.sleep(POLL_SECONDS)


def measure_undrift(folder: Path, workers: int, engine: str) -> dict[str, object]:
    """Three rounds over all clients: the second one's speed, memory, a hash of the parameters."""
    lazy = ud.data.Lazy(workers=workers)
    data = ud.data.FederatedData.from_clients([Images(own) for own in clients(folder)], lazy=lazy)
    start, peak = anonymous_megabytes(), PeakMemory()
    peak.start()
    began: list[float] = []
    seconds: list[float] = []

    def watch(run: object, record: object) -> None:
        now = time.perf_counter()
        if began:
            seconds.append(now - began[-1])
        began.append(now)

    result = ud.train(
        ud.FedAvg(),
        model=model(),
        data=data,
        local=ud.SGD(0.05, batch_size=BATCH),
        rounds=3,
        engine=engine,
        evaluate=ud.Evaluation(every=100, train_clients=1),
        callbacks=[watch],
        progress=False,
    )
    trained = parameters_to_vector(result.model().parameters()).detach().numpy()
    return {
        "samples_per_second": len(data.train) / seconds[1],
        "megabytes_over_start": peak.megabytes - start,
        "bits": hashlib.blake2b(trained.tobytes(), digest_size=8).hexdigest(),
        "strategy": result.run.engine.strategy,
    }


def measure_loader(folder: Path, workers: int) -> dict[str, object]:
    """An epoch of every client in a plain loop over DataLoaders that keep their workers."""
    torch.set_num_threads(1)
    net = model().train()
    everything = Images([file for own in clients(folder) for file in own])
    loader = DataLoader(
        everything,
        BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=2 if workers else None,
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        seconds.append(time.perf_counter() - began)
    return {"samples_per_second": len(everything) / seconds[-1]}


def in_process(folder: Path, *arguments: str) -> dict[str, object]:
    """Measure in a process of its own, whose peak memory is that of the measurement."""
    command = [sys.executable, __file__, "--folder", str(folder), *arguments]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(found.splitlines()[-1])


def main() -> None:
    """Write the files, measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=40_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--undrift", type=int)
    parser.add_argument("--loader", type=int)
    parser.add_argument("--engine", default="serial")
    chosen = parser.parse_args()
    if chosen.undrift is not None:
        print(json.dumps(measure_undrift(chosen.folder, chosen.undrift, chosen.engine)))
        return
    if chosen.loader is not None:
        print(json.dumps(measure_loader(chosen.folder, chosen.loader)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = chosen.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        write_files(folder, chosen.files)
        for workers in chosen.workers:
            compare(folder, workers, chosen.engine)


def compare(folder: Path, workers: int, engine: str) -> None:
    """Measure both loops with so many workers, and print a line."""
    loop = in_process(folder, "--loader", str(workers))
    ours = in_process(folder, "--undrift", str(workers), "--engine", engine)
    speeds = [float(str(each["samples_per_second"])) for each in (ours, loop)]
    print(
        f"{workers} workers: {speeds[0]:7.0f} samples/s, DataLoader {speeds[1]:7.0f} "
        f"({speeds[0] / speeds[1]:.0%}), memory "
        f"+{ours['megabytes_over_start']:.0f} MB with workers, "
        f"bits {ours['bits']}, {ours['strategy']}",
        flush=True,
    )


if __name__ == "__main__":
    main()
