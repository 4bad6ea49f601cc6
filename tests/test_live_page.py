"""The live page: what it shows while runs are going, and who can ask for it."""

import http.client
import socket
import time
from urllib.parse import urlsplit

import numpy as np
import pytest

from browser import chromium, wait_for, watched
from commands import called
from made_up_runs import records, write_run
from undrift.report.live import LiveRuns, serving
from undrift.report.live.live_server import MAX_CONNECTIONS
from undrift.runs.driver import SilentObserver

ROUNDS = 6


def lines(seed=0, rounds=ROUNDS, every=1):
    return records(np.random.default_rng(seed), rounds, 3, every=every)


@pytest.fixture
def live(tmp_path):
    return LiveRuns("unequal clients", ["FedAvg", "FedDyn"], [0, 1], ROUNDS, tmp_path / "run")


def ask(address, path="", host=None, method="GET"):
    """Status, headers and text of an answer; `path` is relative to the page unless it has a /."""
    found = urlsplit(address)
    connection = http.client.HTTPConnection(found.hostname, found.port, timeout=20)
    path = path if path.startswith("/") else found.path + path
    connection.request(method, path, headers={"Host": host or found.netloc})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


def test_a_browser_follows_the_runs(live):
    made = lines()
    with chromium() as browser, serving(live) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        troubles = watched(page, address)
        page.goto(address)
        status = page.locator("#live-state")
        assert page.locator("h1").inner_text() == "unequal clients"
        assert page.locator("figure").count() == 0
        live.begin("FedAvg", 0, 0)
        wait_for(page, "document.querySelector('[data-run] .status').textContent === 'running'")
        live.show("FedAvg", 0, made[0])
        page.locator("figure .u-over").first.wait_for()  # the first metrics bring the charts,
        live.show("FedAvg", 0, made[1])
        page.locator("input[value=bytes]").wait_for(state="attached")  # the first bytes their axis
        for record in made[2:4]:
            live.show("FedAvg", 0, record)
        wait_for(page, "report.charts[0].plot.data[0].length === 4")
        shown = page.evaluate("report.charts[0].plot.data[1]")
        expected = [record.metrics["test_accuracy"] for record in made[:4]]
        assert shown == pytest.approx(expected, rel=1e-6)
        assert page.evaluate("report.page.runs[0].axes.bytes.at(-1)") == sum(
            sum(r.bytes_down.values()) + sum(r.bytes_up.values()) for r in made[:4]
        )
        assert status.inner_text() == (
            "Running: FedAvg, seed 0, round 3 of 6; 0 of 4 runs are over."
        )
        row = page.locator("[data-run='0']")
        assert row.locator("td").all_inner_texts()[:3] == ["0", "running", "3 of 6"]
        assert page.locator("[data-run='2'] td").all_inner_texts()[1:3] == ["waiting", "0 of 6"]
        live.end("FedAvg", 0, "diverged", "a reason")
        live.begin("FedDyn", 1, 0)
        live.show("FedDyn", 1, made[0])
        wait_for(page, "report.page.runs.length === 2")
        assert row.locator(".status").inner_text() == "diverged"
        assert page.locator(".legend .status").all_inner_texts() == ["diverged"]
        live.end("FedDyn", 1, "finished", None)
        live.finish()
        wait_for(page, "document.querySelector('#live-state').textContent.includes('over:')")
        assert status.inner_text().endswith(f"undrift report {live.folder}")
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 844})
            wait_for(page, f"document.documentElement.scrollWidth <= {width}")
        assert troubles == []


def test_a_page_says_when_its_server_is_gone(live):
    with chromium() as browser:
        page = browser.new_page()
        with serving(live) as address:
            page.route("**/state*", lambda route: route.abort())
            page.goto(address)
            gone = "no longer updated"
            wait_for(page, f"document.querySelector('#live-state').textContent.includes('{gone}')")


def test_zooming_in_stays_when_rounds_are_added(live):
    made = lines()
    live.begin("FedAvg", 0, 0)
    for record in made[:5]:
        live.show("FedAvg", 0, record)
    with chromium() as browser, serving(live) as address:
        page = browser.new_page()
        page.goto(address)
        wait_for(page, "window.report?.charts[0]?.plot")
        page.evaluate("report.charts[0].plot.setScale('x', {min: 1, max: 2})")
        live.show("FedAvg", 0, made[5])
        wait_for(page, "report.charts[0].plot.data[0].length === 6")
        assert page.evaluate("report.charts[0].plot.scales.x.max") == 2


@pytest.mark.parametrize(
    ("path", "host", "method", "status"),
    [
        ("", "undrift.example", "GET", 403),
        ("state", "undrift.example:{port}", "GET", 403),
        ("", "127.0.0.1", "GET", 403),  # without the port
        ("", "localhost:{port}", "GET", 200),
        ("/", None, "GET", 404),
        ("/guess/", None, "GET", 404),
        ("../../etc/passwd", None, "GET", 404),
        ("%2e%2e/pyproject.toml", None, "GET", 404),
        ("page.js", None, "GET", 404),
        ("state?after=-1", None, "GET", 400),
        ("state?after=x", None, "GET", 400),
        ("", None, "POST", 501),
    ],
)
def test_only_the_page_is_served_and_only_here(live, path, host, method, status):
    with serving(live) as address:
        port = urlsplit(address).port
        found, headers, text = ask(address, path, host and host.format(port=port), method)
        assert found == status
        if status == 200:
            assert headers["X-Frame-Options"] == "DENY" and "unequal clients" in text
        else:
            assert "unequal clients" not in text and "FedAvg" not in text


def test_the_server_listens_on_loopback_and_ends_with_the_runs(live):
    with serving(live) as address:
        port = urlsplit(address).port
        other = socket.gethostbyname(socket.gethostname())
        if not other.startswith("127."):
            with pytest.raises(OSError):
                socket.create_connection((other, port), timeout=5)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_idle_connections_do_not_keep_the_runs(live):
    began = time.monotonic()
    with serving(live) as address:
        port = urlsplit(address).port
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(MAX_CONNECTIONS + 4)]
    assert time.monotonic() - began < 15  # far less than the timeout of an idle connection
    for each in idle:
        each.close()


def test_answers_have_the_new_rounds_with_all_their_costs(live):
    made = lines(every=3)  # rounds 0, 3 and 6 are evaluated
    live.begin("FedDyn", 1, 0)
    for record in made[:3]:
        live.show("FedDyn", 1, record)
    first = live.answer(0, 0, 0)
    for record in made[3:]:
        live.show("FedDyn", 1, record)
    second = live.answer(first["next"], first["version"], 0)
    pieces = first["pieces"] + second["pieces"]
    assert [(piece["method"], piece["seed"]) for piece in pieces] == [(1, 1)] * 2
    assert [piece["columns"]["round"] for piece in pieces] == [[0, 2], [3, 6]]
    gradients = sum(sum(piece["columns"]["gradients"]) for piece in pieces)
    assert gradients == sum(record.gradients for record in made)
    assert live.answer(second["next"], second["version"], 0)["pieces"] == []


def test_a_continued_run_shows_its_rounds_from_before(live):
    made = lines()
    write_run(live.folder, "FedAvg", 0, made[:4], status="interrupted")
    live.begin("FedAvg", 0, 2)  # a later round of the file was not committed
    live.show("FedAvg", 0, made[3])
    (run, *_) = live.snapshot().runs
    assert [record.round for record in run.records] == [0, 1, 2, 3]


def test_another_observer_is_told_the_same(live):
    told = []

    class Telling(SilentObserver):
        def begin(self, *values):
            told.append(values)

        show = end = note = begin

    live.before(Telling())
    record = lines()[0]
    calls = [
        (live.note, ("a fact", {})),
        (live.begin, ("FedAvg", 0, 0)),
        (live.show, ("FedAvg", 0, record)),
        (live.end, ("FedAvg", 0, "finished", None)),
    ]
    for call, values in calls:
        call(*values)
    assert told == [values for _, values in calls]


EXPERIMENT = """
name = "tiny"
rounds = 2
data = {source = "synthetic", clients = 3, most = 60}
model = {name = "logistic"}
local = {lr = 0.1, steps = 1}
output = {folder = "run"}
[[method]]
name = "FedAvg"
"""


def test_run_and_resume_serve_a_page_while_they_go(tmp_path):
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    done = called("run", "e.toml", "--live", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    address = done.stderr.removeprefix("Live page: ").strip()
    assert address.startswith("http://127.0.0.1:")
    with pytest.raises(OSError):
        ask(address)
    done = called("resume", "run", "--rounds", "3", "--live", cwd=tmp_path)
    assert done.returncode == 0 and "Live page: http://127.0.0.1:" in done.stderr
    done = called("resume", "run", "--live", "--quiet", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == "No live page: the runs have finished; undrift report run shows them.\n"
