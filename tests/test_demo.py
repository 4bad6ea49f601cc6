"""`undrift demo`: what it shows while it trains, and where its time goes."""

import io
import re
from html import escape, unescape
from statistics import median

import pytest
from rich.console import Console
from tools import demo_settings

from commands import called
from undrift.bench.stopwatch import Stopwatch, seconds_since_start
from undrift.cli.demo import demo_run as demo


@pytest.fixture
def tables(monkeypatch):
    """The demonstration without its report; gives the tables that were drawn."""
    drawn, draw = [], demo.live_table

    def live_table(results, entries):
        drawn.append([len(result.records) for result in results])
        return draw(results, entries)

    monkeypatch.setattr(demo, "live_table", live_table)
    monkeypatch.setattr(demo, "_runs", lambda *of: None)
    monkeypatch.setattr(demo, "demo_result", lambda runs, samples: "")
    monkeypatch.setattr(demo, "write_page", lambda runs, out, result: None)
    return drawn


def test_where_nobody_watches_only_the_last_table_is_drawn(tables):
    console = Console(file=io.StringIO(), width=80)
    results = demo.run_demo(console, rounds=2)
    assert tables == [[3] * len(results)]  # with that of the initial model
    assert console.file.getvalue().count("FedAvgMin") == 1
    assert "2/2" not in console.file.getvalue()  # a bar that does not move says nothing


@pytest.mark.parametrize(("refresh", "often"), [(0.0, True), (1e9, False)])
def test_on_a_terminal_the_table_is_drawn_now_and_then(refresh, often, tables, monkeypatch):
    monkeypatch.setattr(demo, "TABLE_SECONDS", refresh)
    file = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    file.isatty = lambda: True
    demo.run_demo(Console(file=file, width=80, force_terminal=True), rounds=1)
    assert len(tables) == (1 + 2 * len(tables[0]) if often else 1)
    assert set(tables[-1]) == {2}


def test_a_stopwatch_learns_what_each_part_took(tables):
    watch = Stopwatch()
    demo.run_demo(Console(file=io.StringIO()), rounds=1, watch=watch)
    found = watch.lap()
    assert set(found) == set(demo.PARTS)
    assert found[demo.EVALUATION] > 0
    assert sum(found.values()) <= seconds_since_start()


def test_the_command_says_where_its_time_went(tmp_path):
    done = called("demo", "--rounds", "1", "--profile", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = done.stdout[done.stdout.index("seconds") :]
    rows = dict(re.findall(r"^([a-z-]+) +[\d.]+ +([\d.]+)%$", table, flags=re.MULTILINE))
    assert list(rows) == [*demo.PARTS, "start-up", "total"]
    shares = [float(share) for share in rows.values()]
    assert sum(shares[:-1]) == pytest.approx(100, abs=1)
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_a_page_of_another_name_is_refused_before_the_work(tmp_path):
    done = called("demo", "--report", "page", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "The page page must end in .html." in done.stderr


def test_every_method_has_settings_of_the_grid_that_chose_them():
    grid = demo_settings.grid()
    assert list(grid) == list(demo.demo_entries())
    for label, entry in demo.demo_entries().items():
        assert entry.lr in demo_settings.RATES, label
        assert repr(entry.method) in map(repr, grid[label]), label
        assert len(grid[label]) == 1 or entry.option, f"{label} does not say its option"


def test_the_table_and_the_report_state_the_settings(tmp_path):
    done = called("demo", "--rounds", "1", cwd=tmp_path)
    rows = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    page = (tmp_path / "undrift-demo.html").read_text(encoding="utf-8")
    for label, entry in demo.demo_entries().items():
        assert f" {entry.lr:g} " in rows[label] and entry.option in rows[label]
        assert escape(f"{entry.method!r}, {entry.local!r}") in page
    assert max(map(len, done.stdout.splitlines())) <= 80

    # The headline is what the settings were chosen by, and warns of differences that are chance.
    (head,) = re.findall('<p class="result">(.*?)</p>', page, re.DOTALL)
    assert unescape(head) in " ".join(done.stdout.split())
    assert re.match(r".* ha(s|ve) the lowest objective, ", head)
    samples = len(demo.demo_data(0).test)
    middle = median(float(rows[label].split()[-4]) for label in demo.demo_entries())
    (told,) = re.findall(rf"from {samples} samples: differences below (0\.\d\d) may", head)
    assert float(told) == pytest.approx(2 * (middle * (1 - middle) / samples) ** 0.5, abs=0.006)
