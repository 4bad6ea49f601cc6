"""Measure how many sites one server can serve: rounds per minute, latency and memory.

Real SuperLink, real transport, TLS, and scripted sites that do no training: each receives a model,
and answers at once with as many bytes. The sites are threads of one process that speak Flower's own
protocol over loopback with a key each, and ask for requests as often as a real site does:

    python -m benchmarks.load --sites 10 50 200 --bytes 1000 1000000 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from undrift.deploy.flower.certificates import make_certificates
from undrift.deploy.flower.environment import configure_flower, poll_objects_often
from undrift.deploy.flower.processes import die_with_parent, free_port, last_lines, stop
from undrift.deploy.flower.superlink import SuperLink
from undrift.deploy.flower.supernode import sleep_seconds
from undrift.deploy.protocol import OVERHEAD_BYTES
from undrift.deploy.wire_format import decode, encode

CONNECT_SECONDS = 900.0
"""How long all sites may take to connect."""
ANSWER_SECONDS = 1800.0
"""How long a site may take to answer before its answer counts as lost."""
CHUNK_BYTES = 2**20
"""Flower stores equal chunks once: at least one number in every so many bytes must be new."""
START_GAP_SECONDS = 0.05
"""The pause between the starts of two sites."""


@dataclass
class Measured:
    """What the rounds of one number of sites and one size of model took."""

    rounds: list[float] = field(default_factory=list)
    """seconds of each round"""
    latencies: list[float] = field(default_factory=list)
    """seconds from each request to its answer"""
    lost: int = 0
    superlink_cpu: list[float] = field(default_factory=list)
    """processor seconds of the SuperLink in each round; what other processes do does not count"""
    superlink_bytes: int = 0
    """the most memory that the SuperLink held"""
    server_bytes: int = 0
    """the most memory that the server held"""


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--bytes", type=int, nargs="+", default=[1000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--poll", type=float, help="seconds between two questions of a site")
    parser.add_argument("--fleet", metavar="HOST:PORT", help=argparse.SUPPRESS)
    parser.add_argument("--certs", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    configure_flower()
    if given.fleet is not None:
        run_fleet(given.fleet, given.certs, given.sites[0], given.poll)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that started processes are stopped
    print(
        "| sites | model | rounds/min, best (median) | latency: median, 95 %, longest "
        "| SuperLink's CPU per round | SuperLink | server | lost |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for size in given.bytes:
        for sites in given.sites:
            poll = sleep_seconds(sites) if given.poll is None else given.poll
            print(row(sites, size, measure(sites, size, given.rounds, poll)), flush=True)


def row(sites: int, size: int, found: Measured) -> str:
    """A line of the table."""
    fast, typical = min(found.rounds), statistics.median(found.rounds)
    late = np.quantile(found.latencies, [0.5, 0.95, 1.0])
    latency = ", ".join(f"{each:.2f} s" for each in late)
    cells = [
        str(sites),
        amount(size),
        f"{60 / fast:.1f} ({60 / typical:.1f})",
        latency,
        f"{min(found.superlink_cpu):.2g} s",
        amount(found.superlink_bytes),
        amount(found.server_bytes),
        str(found.lost),
    ]
    return f"| {' | '.join(cells)} |"


def amount(size: int) -> str:
    """A number of bytes in words."""
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB"


def measure(
    sites: int,
    size: int,
    rounds: int,
    poll: float,
    before_round: Callable[[Path], None] = lambda database: None,
) -> Measured:
    """Start a SuperLink and the sites, and time the rounds; the first one is not counted.

    `before_round` is given the SuperLink's database at the beginning of every counted round.
    """
    from undrift.deploy.flower.transport import FlowerTransport

    names = [site_name(number) for number in range(sites)]
    model = torch.zeros(max(1, size // 4))
    found = Measured()
    with (
        certificates(names) as certs,
        tempfile.TemporaryDirectory() as folder,
        SuperLink(Path(folder), "127.0.0.1", free_port(), certs / "server") as link,
        fleet(link.address, certs, sites, poll),
        link.grid() as grid,
        FlowerTransport(grid) as transport,
    ):
        wait_for(transport, names)
        assert link._process is not None
        for number in range(rounds + 1):
            if number == 1:
                found = Measured()
                reset_peak()
            if number:
                before_round(Path(folder) / "superlink.db")
            began, busy = time.monotonic(), cpu_seconds(link._process.pid)
            sent = {}
            for name in names:
                request = encode({"kind": "echo", "site": name, "round": number}, {"x": model})
                sent[transport.send(name, request, ANSWER_SECONDS, size + OVERHEAD_BYTES)] = (
                    time.monotonic()
                )
            while sent:
                answer = transport.next(ANSWER_SECONDS)
                if answer is None:
                    found.lost += len(sent)
                    break
                found.lost += answer.failure is not None
                found.latencies.append(time.monotonic() - sent.pop(answer.ticket))
            found.rounds.append(time.monotonic() - began)
            found.superlink_cpu.append(cpu_seconds(link._process.pid) - busy)
        if found.lost:
            print(f"The SuperLink's log ends with: {last_lines(link.log)}", file=sys.stderr)
        found.superlink_bytes = peak_bytes(link._process.pid)
        found.server_bytes = peak_bytes("self")
    return found


def site_name(number: int) -> str:
    """The name of a scripted site."""
    return f"site-{number}"


@contextmanager
def certificates(names: list[str]) -> Iterator[Path]:
    """A folder with the certificates of a deployment with these sites."""
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(Path(folder), ["127.0.0.1"], names)
        yield Path(folder)


def wait_for(transport, names: list[str]) -> None:
    """Wait until all sites are connected."""
    until = time.monotonic() + CONNECT_SECONDS
    while len(missing := set(names) - set(transport.sites())) > 0:
        if time.monotonic() > until:
            raise SystemExit(f"{len(missing)} of {len(names)} sites did not connect.")
        time.sleep(0.5)


def cpu_seconds(process: int) -> float:
    """The processor time that a process has used (Linux)."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(process: int | str) -> int:
    """The most memory that a process held since its start or the last `reset_peak` (Linux)."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def reset_peak() -> None:
    """Measure the peak of this process's memory from now on."""
    Path("/proc/self/clear_refs").write_text("5")


# The sites


@contextmanager
def fleet(address: str, certs: Path, sites: int, poll: float) -> Iterator[None]:
    """A process with all sites, which ends with the context."""
    arguments = [
        "--fleet",
        address,
        "--certs",
        str(certs),
        "--sites",
        str(sites),
        "--poll",
        str(poll),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.load", *arguments],
        cwd=Path(__file__).parents[1],
        start_new_session=True,
    )
    try:
        yield
    finally:
        stop([process])


def run_fleet(address: str, certs: Path, sites: int, poll: float) -> None:
    """Run the sites until this process is terminated."""
    die_with_parent()
    poll_objects_often()
    for number in range(sites):
        work = partial(run_site, number, address, certs, poll)
        threading.Thread(target=work, daemon=True).start()
        time.sleep(START_GAP_SECONDS)
    signal.pause()


def run_site(number: int, address: str, certs: Path, poll: float) -> None:
    """Answer every request as Flower's SuperNode does, but without another process."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        iterate_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_utils import (
        inflate_object_from_contents,
        pull_objects,
        push_objects,
    )
    from flwr.supernode.fleet_http_connection import http_request_response

    from undrift.deploy.flower.messages import answer_message, payload

    name, noise = site_name(number), np.random.default_rng(number)
    own = certs / "sites" / name
    key: Any = load_ssh_private_key((own / "key").read_bytes(), None)
    ca = (own / "ca.crt").read_bytes()
    with http_request_response(address, False, ca, (key, key.public_key())) as connection:
        _, receive, send, _, _, pull, push, confirm = connection
        while True:
            received = receive()
            if received is None:
                time.sleep(poll)
                continue
            request, tree = received
            run, id = request.metadata.run_id, request.metadata.message_id
            ids = list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))
            contents = pull_objects(ids, partial(pull, run))
            confirm(run, id)
            data = payload(inflate_object_from_contents(id, contents))
            with no_object_id_recompute():
                answer = answer_message(reply(name, data, noise), request)
                answer.metadata.__dict__["_message_id"] = answer.object_id
                parts, tree = get_all_nested_objects(answer), get_object_tree(answer)
            wanted, session = send(answer, tree, 0.0)
            push_objects(parts, partial(push, run, session), object_ids_to_push=wanted)


def reply(name: str, request: bytes, noise: np.random.Generator) -> bytes:
    """The answer to a request: as many numbers as the model has, some of them new."""
    _, tensors = decode(request, len(request))
    x = tensors["x"].clone()
    x[:: CHUNK_BYTES // 4] = torch.from_numpy(noise.random(len(x[:: CHUNK_BYTES // 4]))).float()
    return encode({"site": name}, {"x": x})


if __name__ == "__main__":
    main()
