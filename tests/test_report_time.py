"""Reports of runs with a virtual clock: numbers computed by hand, timelines, and the page."""

import copy
import csv
import io
import json
import math
import re
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console

import undrift as ud
from browser import chromium, wait_for, watched
from test_report import P, write_folder, write_run
from undrift.core.clients import Roster
from undrift.core.records import LOST, Record, Span
from undrift.report import of_results, read_runs, write_csv, write_figures, write_page, write_report
from undrift.report.html.chart_data import chart_data
from undrift.report.html.html_page import page
from undrift.report.reply_counts import count_replies
from undrift.report.result import Comparison, Result
from undrift.report.tables import OverSeeds, format_cost, target_table
from undrift.report.terminal_table import final_metrics_table
from undrift.report.timeline import PHASES, UNUSED, draw_timeline, shown_clients
from undrift.report.virtual_time import percent, virtual_time_table
from undrift.utils.errors import UndriftError
from undrift.utils.formatting import duration, time_unit

MODEL = 4 * P  # bytes


def in_rounds(scale=1.0):
    """Return three rounds of five clients: one late, one failed, one skipped, one not asked."""
    return [
        Record(round=0, metrics={"test_accuracy": 0.1}, updates=0),
        Record(
            round=1,
            metrics={"test_accuracy": 0.5},
            cohort=[0, 1, 2],
            lost=[(2, "late")],
            partial=1,
            bytes_down={"x": 3 * MODEL},
            bytes_up={"moved": 2 * MODEL},
            gradients=200,
            wasted_gradients=100,
            busy_seconds=20.0,
            idle_seconds=4.0,
            virtual_seconds=10.0 * scale,
            spans=[
                Span(0, 0.0, 1.0, 6.0, 8.0, "replied"),
                Span(1, 0.0, 2.0, 9.0, 10.0, "replied"),
                Span(2, 0.0, 2.0, 10.0, 10.0, "late"),
            ],
        ),
        Record(
            round=2,
            metrics={"test_accuracy": 0.5},
            cohort=[0, 2, 3],
            lost=[(2, "failed"), (0, "skipped"), (3, "skipped")],
            updates=0,
            bytes_down={"x": 2 * MODEL},  # one client failed before it received the model
            bytes_up={"moved": 2 * MODEL},
            wasted_gradients=300,
            busy_seconds=20.0,
            idle_seconds=6.0,
            virtual_seconds=30.0 * scale,
            spans=[
                Span(0, 10.0, 11.0, 18.0, 20.0, "skipped"),
                Span(2, 10.0, 11.0, 11.0, 11.0, "failed"),
                Span(3, 10.0, 12.0, 28.0, 30.0, "skipped"),
            ],
        ),
        Record(
            round=3,
            metrics={"test_accuracy": 0.9},
            cohort=[0, 1, 3],
            bytes_down={"x": 3 * MODEL},
            bytes_up={"moved": 3 * MODEL},
            gradients=300,
            busy_seconds=30.0,
            idle_seconds=10.0,
            virtual_seconds=42.0 * scale,
        ),
    ]


def at_any_time():
    """Return two records of four replies each in the order of arrival, one of them too stale."""
    return [
        Record(round=0, metrics={"test_accuracy": 0.1}, updates=0),
        Record(
            round=1,
            metrics={"test_accuracy": 0.6},
            cohort=[0, 1, 0, 2],
            lost=[(2, "stale")],
            staleness={0: 2, 1: 1},
            bytes_down={"x": 4 * MODEL},
            bytes_up={"moved": 4 * MODEL},
            gradients=300,
            wasted_gradients=100,
            busy_seconds=30.0,
            virtual_seconds=8.0,
            spans=[
                Span(0, 0.0, 1.0, 2.0, 3.0, "replied"),
                Span(1, 0.0, 1.0, 4.0, 5.0, "replied"),
                Span(0, 3.0, 4.0, 5.0, 6.0, "replied"),
                Span(2, 0.0, 1.0, 7.0, 8.0, "stale"),
            ],
        ),
        Record(
            round=2,
            metrics={"test_accuracy": 0.9},
            cohort=[1, 0, 1, 3],
            updates=0,
            staleness={1: 1, 3: 3},
            bytes_down={"x": 4 * MODEL},
            bytes_up={"moved": 4 * MODEL},
            gradients=400,
            busy_seconds=30.0,
            virtual_seconds=15.0,
        ),
    ]


def without_clock(records):
    for record in records:
        record.virtual_seconds = record.busy_seconds = record.idle_seconds = 0.0
        record.spans = []
    return records


@pytest.fixture
def folder(tmp_path):
    """A folder with FedAvg and FedProx, equal records and two seeds, and FedBuff with one seed."""
    folder = write_folder(tmp_path / "run", ["FedAvg", "FedProx", "FedBuff"], clients=5)
    for label in ("FedAvg", "FedProx"):
        write_run(folder, label, 0, in_rounds())
        write_run(folder, label, 1, in_rounds(scale=2.0))
    write_run(folder, "FedBuff", 0, at_any_time())
    return folder


def result(records, label="FedAvg", clients=5):
    """Return a result with made-up records."""
    ids = list(range(clients))
    run = SimpleNamespace(
        client_metrics=None,
        method=ud.FedAvg(),
        losses=None,
        records=records,
        server=SimpleNamespace(x=torch.zeros(P)),
        stopped=None,
        diverged=False,
        target={},
        roster=Roster(ids, torch.ones(clients)),
        states=SimpleNamespace(seen=lambda: ids),
        evaluation=ud.Evaluation(),
        seed=0,
        total=len(records) - 1,
    )
    return Result(label, run)


# Numbers


def test_the_time_table_of_rounds(folder):
    row = virtual_time_table(read_runs(folder))[0]
    assert row.method == "FedAvg"
    assert row.clock.values == (42.0, 84.0)
    assert row.updates.values == (2, 2)
    assert row.skipped.values == (1, 1)
    assert row.replies.values == (5, 5)
    assert row.partial.values == (1, 1)
    counts = {"failed": 1, "left": 0, "late": 1, "stale": 0, "skipped": 2}
    assert {why: over.mean for why, over in row.lost.items()} == counts
    assert row.wasted.mean == pytest.approx(400 / 900)
    assert row.idle.mean == pytest.approx(20 / 90)
    assert row.stale.values == () and not row.staleness
    assert row.never.values == (
        2,
        2,
    )  # client 2 without a used reply, and one that was in no cohort


def test_the_time_table_of_asynchronous_training(folder):
    row = virtual_time_table(read_runs(folder))[2]
    assert row.method == "FedBuff"
    assert row.clock.values == (15.0,)
    assert row.updates.values == (1,)
    assert row.skipped.values == ()  # a round without an update was not skipped
    assert row.replies.values == (7,)
    assert row.lost["stale"].values == (1,)
    assert row.wasted.mean == pytest.approx(100 / 800)
    assert row.idle.mean == 0
    assert row.stale.mean == pytest.approx((1 * 1 + 1 * 1 + 3 * 3) / 7)
    assert row.staleness == Counter({0: 2, 1: 2, 3: 3})
    assert row.never.values == (2,)


def test_participation_counts_the_replies_that_were_used(folder):
    rounds, any_time = count_replies(read_runs(folder))
    assert rounds.methods == ("FedAvg", "FedProx") and any_time.methods == ("FedBuff",)
    # Clients 0 and 1 twice, 3 once, 2 and 4 never, with each of two seeds.
    assert rounds.times == Counter({2: 4, 1: 2, 0: 4})
    assert rounds.summary == (0, 1.0, 2)
    assert rounds.never == (2, 2) and rounds.clients == 5
    assert rounds.most_asked == (2, 4)  # client 2, twice with each seed
    assert rounds.lost == {"FedAvg": 8, "FedProx": 8}
    assert any_time.times == Counter({3: 2, 1: 1, 0: 2})
    assert any_time.most_asked == (2, 1)


def test_methods_with_equal_cohorts_and_other_replies_are_apart(folder):
    lines = in_rounds()
    lines[3].lost = [(0, "late")]
    write_run(folder, "FedDyn", 0, lines)
    write_run(folder, "FedDyn", 1, lines)
    methods = [each.methods for each in count_replies(read_runs(folder))]
    assert methods == [("FedAvg", "FedProx"), ("FedBuff",), ("FedDyn",)]


def test_models_sent_are_counted_in_the_replies_of_rounds(folder, tmp_path):
    runs = read_runs(folder)
    # The rounds that were not skipped had two and three replies.
    assert {group.fedavg_round_bytes for group in runs.groups} == {2 * MODEL * 2.5}
    spent = runs.groups[2].totals(runs.groups[2].runs[0])["models"]
    assert spent == pytest.approx([0, 8 / 5, 16 / 5])
    alone = write_folder(tmp_path / "alone", ["FedBuff"], clients=5)
    write_run(alone, "FedBuff", 0, at_any_time())
    (group,) = read_runs(alone).groups
    assert group.fedavg_round_bytes == 2 * MODEL * 3.5  # three and four arrived in time


def test_targets_cost_virtual_time(folder):
    rows = target_table(read_runs(folder), {"test_accuracy": 0.9})
    costs = [format_cost(row.costs["virtual_seconds"], "virtual_seconds") for row in rows]
    assert costs == ["63.0 ± 29.7 s", "63.0 ± 29.7 s", "15.0 s"]
    assert rows[2].savings["virtual_seconds"] == "4.2×"


def test_formatted_times_and_shares():
    assert time_unit(0.0) == (1.0, "s") and time_unit(0.02) == (1e-3, "ms")
    assert [duration(s) for s in (0.0, 0.0123, 90, 7200, 2e5)] == [
        "0 s",
        "12.3 ms",
        "90 s",
        "2 h",
        "2.31 d",
    ]
    assert duration(86400 * 5000) == "5,000 d"
    assert format_cost(OverSeeds((0.05,)), "virtual_seconds") == "50.0 ms"
    assert percent(OverSeeds((0.2, 0.3))) == "25.0 ± 7.1 %"
    assert percent(OverSeeds(())) == "–"


def test_the_csv_has_the_time(folder, tmp_path):
    paths = {path.stem: path for path in write_csv(folder, tmp_path / "tables")}
    rows = list(csv.DictReader(io.StringIO(paths["time"].read_text())))
    assert [row["method"] for row in rows] == ["FedAvg", "FedProx", "FedBuff"]
    assert float(rows[0]["virtual_seconds_mean"]) == 63 and rows[0]["seeds"] == "2"
    assert float(rows[0]["wasted_share_mean"]) == pytest.approx(4 / 9)
    assert rows[0]["staleness_mean"] == rows[0]["staleness_largest"] == ""
    assert rows[2]["rounds_skipped_mean"] == "" and rows[2]["staleness_largest"] == "3"
    assert {f"lost_{why}_mean" for why in LOST} <= rows[0].keys()
    part = list(csv.DictReader(io.StringIO(paths["participation"].read_text())))
    assert [(r["replies"], r["clients"]) for r in part[:3]] == [("0", "4"), ("1", "2"), ("2", "4")]


# The page as a text


def test_the_page_shows_virtual_time_and_clients_that_never_replied(folder):
    text = page(read_runs(folder))
    time = re.search(r'<section id="time">(.*?)</section>', text, re.DOTALL)[1]
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in time.split("<tr>")]
    first = ["63.0 ± 29.7 s", "2", "1", "5", "1", "44.4 %", "22.2 %", "–", "–", "2"]
    last = ["15.0 s", "1", "–", "7", "0", "12.5 %", "0.0 %", "1.57", "3", "2"]
    assert first in rows and last in rows
    assert ["1", "1", "0", "2"] in rows  # failed, late, stale, skipped; no client left
    assert '<th scope="col">stale</th>' in time and '<th scope="col">left</th>' not in time
    assert "FedBuff: staleness of replies" in time and "FedAvg: staleness" not in time
    assert "3 replies were 3 updates old" in time
    assert time.count("data:image/svg+xml;base64,") == 2  # equal timelines share one figure
    assert 'download="time.csv"' in time
    sentence = (
        "FedAvg, FedProx: 2 of 5 clients never replied; client 2, for example, was asked 4 times"
    )
    assert f'<p class="warning">{sentence} without a used reply.</p>' in text
    assert page(read_runs(folder)) == text


def test_the_page_says_that_every_client_replied(tmp_path):
    folder = write_folder(tmp_path / "run", ["FedAvg"], clients=3)
    lines = in_rounds()
    del lines[1:3]
    lines[1].round = 1
    write_run(folder, "FedAvg", 0, lines)
    text = page(read_runs(folder))
    assert "Every client replied at least once." in text and "No work was lost." in text
    (folder / "data.json").write_text(json.dumps({"clients": 7}))
    assert "4 of 7 clients never replied because they were in no cohort." in page(read_runs(folder))


def test_without_a_clock_there_is_no_time(folder, tmp_path):
    plain = write_folder(tmp_path / "plain", ["FedAvg"], clients=5)
    write_run(plain, "FedAvg", 0, without_clock(in_rounds()))
    text = page(read_runs(plain))
    assert 'id="time"' not in text and "time.csv" not in text
    assert "time.csv" not in {path.name for path in write_csv(plain, tmp_path / "tables")}
    assert not list((tmp_path / "tables").glob("time*"))
    assert 'value="virtual_seconds"' not in text
    both = page(read_runs([plain, folder]))  # only those with a clock are in the section
    time = re.search(r'<section id="time">(.*?)</section>', both, re.DOTALL)[1]
    assert time.count("<tr>") == 2 * (1 + 3)


def test_records_are_thinned_with_their_sums_and_without_spans(tmp_path):
    folder = write_folder(tmp_path / "run", ["FedAvg"], clients=5)
    lines = [Record(round=0, updates=0)]
    for t in range(1, 4501):
        record = copy.copy(in_rounds()[1])
        record.round, record.virtual_seconds = t, 10.0 * t
        record.idle_seconds, record.spans = t / 7, in_rounds()[1].spans if t < 5 else []
        lines.append(record)
    write_run(folder, "FedAvg", 0, lines)
    (run,) = chart_data(read_runs(folder))[0]["runs"]
    columns = {name: unpacked(column) for name, column in run["columns"].items()}
    assert "spans" not in columns and "staleness" not in columns
    assert len(columns["round"]) <= 2001
    assert columns["virtual_seconds"][-1] == 45000
    for name, total in {"updates": 4500, "lost": 4500, "partial": 4500}.items():
        assert sum(columns[name]) == total
    assert sum(columns["wasted_gradients"]) == 450_000
    assert sum(columns["idle_seconds"]) == pytest.approx(sum(r.idle_seconds for r in lines))
    assert math.isclose(sum(columns["busy_seconds"]), 90_000)


def unpacked(column):
    if isinstance(column, list):
        return column
    return [v for n, v in zip(column["n"], column["v"], strict=True) for _ in range(n)]


# Timelines


def bars(records, **options):
    """Return the bars of a timeline by their label: (row of the client, from, to)."""
    axes = Figure(layout="constrained").subplots()
    draw_timeline(axes, records, **options)
    found = {}
    for collection in axes.collections:
        boxes = [path.get_extents() for path in collection.get_paths()]
        found[collection.get_label()] = [
            (round((box.y0 + box.y1) / 2), box.x0, box.x1) for box in boxes
        ]
    return found, axes


def test_a_timeline_has_a_bar_per_phase(tmp_path):
    found, axes = bars(in_rounds())
    assert found["reading the model"] == [(0, 0, 1), (1, 0, 2)]
    assert found["computing"] == [(0, 1, 6), (1, 2, 9)]
    assert found["sending"] == [(0, 6, 8), (1, 9, 10)]
    assert found[UNUSED] == [(2, 0, 10), (0, 10, 20), (2, 10, 11), (3, 10, 30)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2", "3"]
    (lines,) = (c for c in axes.collections if c.get_label() not in (*PHASES, UNUSED))
    assert [path.vertices[0][0] for path in lines.get_paths()] == [10, 30]  # round 3 is later


def test_a_client_that_worked_twice_has_one_row():
    found, _ = bars(at_any_time())
    assert found["computing"] == [(0, 1, 2), (1, 1, 4), (0, 4, 5)]
    assert found[UNUSED] == [(2, 0, 8)]


def test_of_many_clients_the_busiest_are_shown():
    spans = [Span(k, 0.0, 0.0, 1.0 + k % 50, 1.0 + k % 50, "replied") for k in range(100)]
    records = [Record(round=1, virtual_seconds=50.0, spans=spans)]
    clients, at_work = shown_clients(records)
    assert at_work == 100 and clients == [k for k in range(100) if k % 50 >= 30]
    found, axes = bars(records)
    assert len(found["computing"]) == 40 and not found["sending"]
    assert axes.get_ylabel() == "the busiest 40 of 100 clients"
    assert axes.get_xlabel() == "virtual time, s"


def test_timelines_are_files_too(folder, tmp_path):
    paths = write_figures(folder, tmp_path / "figures", [])
    names = {path.name for path in paths if path.name.startswith("timeline")}
    methods = ("FedAvg", "FedProx", "FedBuff")
    assert names == {f"timeline-{m}.{kind}" for m in methods for kind in ("svg", "png", "pdf")}
    made = result(in_rounds())
    for kind in ("png", "svg", "pdf"):
        path = made.timeline(tmp_path / f"timeline.{kind}")
        assert path.stat().st_size > 1000
    with pytest.raises(UndriftError, match=r"The kind of picture is '.gif'"):
        made.timeline(tmp_path / "timeline.gif")


def test_no_timeline_without_a_clock(tmp_path):
    with pytest.raises(UndriftError, match="FedAvg has no timeline because it ran without"):
        result(without_clock(in_rounds())).timeline(tmp_path / "timeline.png")
    idle = [Record(round=1, virtual_seconds=5.0)]
    with pytest.raises(UndriftError, match="because no client worked in its first rounds"):
        result(idle).timeline(tmp_path / "timeline.png")
    assert not list(tmp_path.iterdir())


# Results and the terminal


def test_remarks_on_devices():
    assert result(in_rounds(), clients=30).remarks() == [
        "27 of 30 clients never replied, for example client 2",
        "1 round was skipped because too few clients replied",
        "44 % of the work was wasted",
    ]
    assert result(at_any_time(), clients=4).remarks() == [
        "1 of 4 clients never replied, for example client 2",
        "12 % of the work was wasted",
    ]
    assert result(without_clock(in_rounds())).remarks() == []


def test_summaries_have_the_virtual_time_where_there_is_one(folder):
    found = Comparison([result(in_rounds(30.0)), result(at_any_time(), "FedBuff")]).summary()
    head, first, second = found.splitlines()[:3]
    assert head.endswith("virtual time") and first.endswith("21 min") and second.endswith("15 s")
    assert "virtual time" not in result(without_clock(in_rounds())).summary()
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(final_metrics_table(read_runs(folder)))
    lines = capture.get().splitlines()
    assert lines[0].endswith("virtual") and lines[1].endswith("63 s") and lines[3].endswith("15 s")
    assert "test acc" in lines[0] and max(map(len, lines)) <= 80


def test_results_without_a_folder_know_their_clients(tmp_path):
    runs = of_results([result(in_rounds()), result(at_any_time(), "FedBuff")])
    assert [each.never for each in count_replies(runs)] == [(2,), (2,)]
    text = write_page(runs, tmp_path / "page.html").read_text()
    assert 'id="time"' in text and 'id="data"' not in text
    assert "2 methods, 1 seed, up to 3 rounds, 5 clients" in text


# The page in Chromium


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_of_a_clock_in_a_browser(browser, folder, width, scheme):
    view = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    troubles = watched(view)
    view.goto(write_report(folder, folder / "page.html").as_uri())
    wait_for(view, "report.charts[0].plot")
    view.get_by_role("radio", name="virtual time").first.check()
    assert view.evaluate("report.charts[0].plot.data[0].at(-1)") == 63
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    images = "[...document.querySelectorAll('#time img')].map((i) => i.naturalWidth)"
    assert len(view.evaluate(images)) == 2 and min(view.evaluate(images)) > 300
    assert view.locator("#time .histogram rect").count() == 4  # staleness 0 to 3
    last = view.locator("#time table").first.locator("tbody tr").last.locator("td")
    assert last.all_inner_texts()[:3] == ["15.0 s", "1", "–"]
    view.get_by_role("radio", name="virtual time").nth(1).check()
    assert view.locator('[data-cost="virtual_seconds"]').is_visible()
    assert troubles == []
    view.close()
