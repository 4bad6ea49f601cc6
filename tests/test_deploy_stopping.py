"""A site ends within five seconds of SIGTERM or a second Ctrl-C, and says what it left undone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deployments import SITE, InProcess, app
from test_deploy import deployed
from undrift.deploy.site import Site
from undrift.deploy.wire_format import decode
from undrift.experiments.experiment import Experiment

MAX_SECONDS = 5.0
STUCK = """

import time
from pathlib import Path

FLAG = Path(__file__).with_name("stuck")


def stuck():
    FLAG.touch()
    {how}
"""
HOW = {
    "sleep": "time.sleep(300)",
    "python": "while True:\n        pass",
    "torch": "torch.linalg.eigvals(torch.randn(6000, 6000))",
    "locked": "sum(range(10**11))",  # one call into C, which keeps Python's lock
}
PROGRAM = """
import sys, time
from pathlib import Path
from undrift.deploy.site import Site
from undrift.deploy.ending.stopping import Stopping
from undrift.experiments.experiment import Experiment

experiment, state, request = sys.argv[1:]
with Stopping("a") as stopping:
    site = Site(Experiment.load(experiment), "a", Path(state))
    stopping.doing = lambda: site.doing
    stopping.last_acts.append(site.audit.stopped)
    if request != "none":
        site.answer(Path(request).read_bytes())
    Path(state, "waiting").touch()
    while not stopping.stopped():
        time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def order(tmp_path_factory):
    """An honest order to train for site a of a run whose sites have not answered it."""
    folder = tmp_path_factory.mktemp("order")
    file = app(folder / "app")
    transport = InProcess(file, folder / "state")
    deployed(file, folder / "out", transport)
    works = [
        request
        for site, request, _ in transport.exchanged
        if site == "a" and decode(request, 10**9)[0]["kind"] == "work"
    ]
    path = folder / "order"
    path.write_bytes(works[0])
    return path


def stuck_app(folder, how, where):
    """An app whose code does not return, in the model while it trains or while data are read."""
    file = app(folder)
    code = SITE + STUCK.format(how=HOW[how])
    if where == "data":
        code = code.replace("def data(site):\n", "def data(site):\n    stuck()\n")
    else:
        code = code.replace("nn.Sequential(", "nn.Sequential(Stuck(), ")
        code += "\n\nclass Stuck(nn.Module):\n    def forward(self, x):\n"
        code += "        if self.training:\n            stuck()\n        return x\n"
    file.with_name("site.py").write_text(code)
    return file


def started(file, state, request):
    arguments = [sys.executable, "-c", PROGRAM, str(file), str(state), str(request)]
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)


def wait_for(path, process):
    until = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.05)


def stopped(process, *signals):
    """Send signals, and return the exit status, the seconds it took, and what the site said."""
    began = time.monotonic()
    try:
        for number in signals:
            process.send_signal(number)
            time.sleep(0.3)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, time.monotonic() - began, said


@pytest.mark.parametrize(
    ("how", "signals"),
    [
        ("sleep", [signal.SIGTERM]),
        ("python", [signal.SIGINT, signal.SIGINT]),
        ("torch", [signal.SIGTERM]),
    ],
)
def test_a_site_ends_in_the_middle_of_its_work(tmp_path, order, how, signals):
    file = stuck_app(tmp_path / "app", how, "model")
    process = started(file, tmp_path / "state", order)
    wait_for(file.with_name("stuck"), process)
    status, seconds, said = stopped(process, *signals)
    assert seconds < MAX_SECONDS
    assert status == 128 + signals[-1]
    assert "the work of round 1 of FedAvg is left undone, and nothing of it was sent" in said
    log = (tmp_path / "state" / "a" / "audit.jsonl").read_text().splitlines()
    last = json.loads(log[-1])
    assert (last["decision"], last["reason"]) == ("stopped", signals[-1].name)
    assert last["undone"] == "the work of round 1 of FedAvg"
    if len(signals) == 2:
        assert "stops after the work of round 1 of FedAvg; Ctrl-C again stops it at once" in said
    # The site is started again, and its server repeats the order.
    file.with_name("site.py").write_text(SITE)
    site = Site(Experiment.load(file), "a", tmp_path / "state")
    values, tensors = decode(site.answer(order.read_bytes()), 10**9)
    assert "error" not in values and "up moved" in tensors


def test_a_site_ends_while_it_reads_its_data(tmp_path):
    file = stuck_app(tmp_path / "app", "sleep", "data")
    process = started(file, tmp_path / "state", "none")
    wait_for(file.with_name("stuck"), process)
    status, seconds, said = stopped(process, signal.SIGTERM)
    assert seconds < MAX_SECONDS and status == 128 + signal.SIGTERM
    assert "its start is left undone" in said


def test_a_site_ends_when_none_of_its_threads_can_run(tmp_path, order):
    file = stuck_app(tmp_path / "app", "locked", "model")
    process = started(file, tmp_path / "state", order)
    wait_for(file.with_name("stuck"), process)
    time.sleep(0.5)  # until the call has begun
    status, seconds, said = stopped(process, signal.SIGTERM)
    assert seconds < MAX_SECONDS and status == -signal.SIGKILL
    assert (
        "Site 'a' did not react to SIGTERM and is killed: what it was doing is left undone" in said
    )


@pytest.mark.skipif(sys.platform != "linux", reason="children are listed in /proc")
def test_a_site_whose_watchdog_was_killed_still_ends(tmp_path, order):
    file = stuck_app(tmp_path / "app", "sleep", "model")
    process = started(file, tmp_path / "state", order)
    wait_for(file.with_name("stuck"), process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for each in children:
        if b"watchdog.py" in Path(f"/proc/{each}/cmdline").read_bytes():
            os.kill(int(each), signal.SIGKILL)
    status, seconds, said = stopped(process, signal.SIGTERM)
    assert seconds < MAX_SECONDS and status == 128 + signal.SIGTERM
    assert "is left undone" in said


def test_a_site_that_waits_ends_at_once_and_left_nothing_undone(tmp_path, order):
    file = app(tmp_path / "app")
    process = started(file, tmp_path / "state", order)
    wait_for(tmp_path / "state" / "waiting", process)
    status, seconds, said = stopped(process, signal.SIGTERM)
    assert status == 0 and seconds < MAX_SECONDS
    assert "is left undone" not in said
