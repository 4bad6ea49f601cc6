"""The page of the report in a real browser."""

import re
import statistics
import time
from urllib.parse import unquote

import numpy as np
import pytest

from browser import chromium, wait_for, watched
from made_up_runs import (
    EVIL,
    METHODS,
    P,
    by_hand,
    csv_rows,
    evil,
    make,
    records,
    ten_methods,
    write_folder,
    write_run,
)
from undrift.report import read_runs, write_report
from undrift.report.tables import target_table


@pytest.fixture
def folder(tmp_path):
    return make(tmp_path / "run")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = ten_methods(tmp_path_factory.mktemp("large") / "run")
    return write_report(folder, folder / "page.html")


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A folder that no test changes, with its page."""
    folder = make(tmp_path_factory.mktemp("shared") / "run")
    write_report(folder, folder / "page.html")
    return folder


@pytest.fixture
def opened(browser, shared):
    """The page of three methods and three seeds, at the size of a desktop."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    troubles = watched(page)
    page.goto((shared / "page.html").as_uri())
    wait_for(page, "report.charts[0].plot")
    yield page
    assert troubles == []
    page.close()


def test_the_axis_switch_changes_the_x_values(opened, shared):
    last = "report.charts[0].plot.data[0].at(-1)"
    assert opened.evaluate(last) == 60
    opened.get_by_role("radio", name="bytes sent").first.check()
    assert opened.evaluate(last) == 60 * 160 * P  # SCAFFOLD's
    opened.get_by_role("radio", name="virtual time").first.check()
    assert opened.evaluate(last) == 120
    opened.get_by_role("radio", name="gradient evaluations").first.check()
    runs = read_runs(shared)
    gradients = [sum(r.gradients for r in run.records) for run in runs.groups[0].runs]
    assert opened.evaluate(last) == pytest.approx(statistics.fmean(gradients))


def test_the_switches_work_with_the_keyboard(opened):
    opened.get_by_role("radio", name="rounds").first.focus()
    opened.keyboard.press("ArrowRight")
    assert opened.evaluate("report.state.axis") == "bytes"
    button = opened.locator(".legend button").first
    button.focus()
    opened.keyboard.press("Enter")
    assert opened.evaluate("[...report.state.hidden]") == [0]
    assert opened.evaluate("document.activeElement.dataset.method") == "0"


def test_curves_are_means_over_seeds_with_their_standard_deviation_or_range(opened, shared):
    runs = read_runs(shared)
    values = [run.records[30].metrics["test_accuracy"] for run in runs.groups[2].runs]
    data = opened.evaluate("report.charts[0].plot.data.map((column) => column[30])")
    assert data[0] == 30
    mean, std = statistics.fmean(values), statistics.stdev(values)
    assert data[-3:] == pytest.approx([mean, mean - std, mean + std], rel=1e-5)
    opened.locator("#spread").select_option("range")
    data = opened.evaluate("report.charts[0].plot.data.map((column) => column[30])")
    assert data[-3:] == pytest.approx([mean, min(values), max(values)], rel=1e-6)
    opened.locator("#spread").select_option("seeds")
    assert opened.evaluate("report.charts[0].plot.series.length") == 1 + 9


def test_the_legend_hides_a_method(opened):
    labels = (
        "report.charts[0].plot.series.filter((s) => s.method !== undefined).map((s) => s.label)"
    )
    assert opened.evaluate(labels) == list(METHODS)
    button = opened.locator(".legend button", has_text="SCAFFOLD").first
    button.click()
    assert opened.evaluate(labels) == ["FedAvg", "FedDyn"]
    assert (
        opened.locator(".legend button", has_text="SCAFFOLD").first.get_attribute("aria-pressed")
        == "false"
    )
    opened.locator(".legend button", has_text="SCAFFOLD").first.click()
    assert opened.evaluate(labels) == list(METHODS)


def test_the_log_scale_and_the_metric(opened):
    figure = opened.locator("figure[data-name]").first
    assert opened.evaluate("report.charts[0].plot.scales.y.distr") == 1
    figure.get_by_label("log scale").check()
    assert opened.evaluate("report.charts[0].plot.scales.y.distr") == 3
    figure.get_by_label("Metric of chart 1").select_option("test_loss")
    assert opened.evaluate("report.charts[0].plot.data[1][0]") > 2  # a loss, not an accuracy
    opened.locator("#log-x").check()
    assert opened.evaluate("report.charts[0].plot.data[0][0]") == 1  # log 0 has no place


@pytest.mark.parametrize("values", [(1e-300, 1e-34), (1e-34, 7.0), (1e-29, 1e29), (0.3, 0.3), (0,)])
def test_any_range_has_a_log_scale(browser, tmp_path, values):
    folder = write_folder(tmp_path / "run", ["FedAvg"])
    lines = records(np.random.default_rng(0), 9, 5)
    for record in lines:
        record.metrics = {"mine": values[record.round % len(values)]}
        record.diagnostics = {}
    write_run(folder, "FedAvg", 0, lines)
    page = browser.new_page()
    troubles = watched(page)
    page.goto(write_report(folder, tmp_path / "page.html").as_uri())
    wait_for(page, "document.querySelector('.plot').children.length")
    page.wait_for_timeout(50)
    assert troubles == []
    page.close()


def test_hovering_shows_the_values(opened, shared):
    box = opened.locator("figure[data-name] .u-over").first.bounding_box()
    opened.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = opened.locator(".tip").first
    assert "rounds: 30" in tip.inner_text()
    values = [r.records[30].metrics["test_accuracy"] for r in read_runs(shared).groups[2].runs]
    assert f"{statistics.fmean(values):.4g} (" in tip.inner_text()


def test_the_table_of_the_page_has_the_numbers_of_the_records(opened, shared):
    levels = [row.target for row in target_table(read_runs(shared))][::3]
    opened.get_by_role("radio", name="rounds").nth(1).check()
    table = opened.locator('[data-cost="rounds"] table')
    assert table.is_visible() and not opened.locator('[data-cost="models"]').is_visible()
    for label in METHODS:
        cells = table.locator("tr", has_text=label).locator("td").all_inner_texts()
        for level, cell in zip(levels, cells, strict=True):
            found = by_hand(shared, label, level)
            mean = statistics.fmean(r for r, _, _ in found)
            first = float(re.search(r"[\d.]+", cell)[0])
            assert first == pytest.approx(mean, abs=0.051)
            assert cell.startswith(">") == any(not reached for _, _, reached in found)


def test_csv_links_have_the_tables(opened, shared):
    links = opened.locator("a[download]").evaluate_all(
        "all => all.map((a) => [a.download, a.href])"
    )
    assert {name for name, _ in links} == {
        "targets.csv",
        "final.csv",
        "paired.csv",
        "runs.csv",
        "participation.csv",
        "time.csv",
    }
    for _, link in links:
        kind, _, content = link.partition(",")
        assert kind == "data:text/csv;charset=utf-8"
        assert csv_rows(unquote(content))
    with opened.expect_download() as download:
        opened.get_by_role("button", name="records.csv").click()
    rows = csv_rows(download.value.path().read_text())
    assert len(rows) == 9 * 61
    record = read_runs(shared).groups[2].runs[1].records[40]
    row = next(r for r in rows if (r["method"], r["seed"], r["round"]) == ("FedDyn", "1", "40"))
    assert float(row["test_loss"]) == pytest.approx(record.metrics["test_loss"], rel=1e-6)
    assert int(row["bytes_down"]) == sum(record.bytes_down.values())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_horizontal_scroll(browser, folder, scheme):
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    troubles = watched(page)
    long = "a_very_long_label_without_any_place_to_break_it_" * 3
    write_run(folder, long, 0, records(np.random.default_rng(0), 9, 5), reason=long)
    page.goto(write_report(folder, folder / "page.html").as_uri())
    page.locator("figure[data-name]").last.scroll_into_view_if_needed()
    wait_for(page, "report.charts.at(-1).plot")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert troubles == []
    page.close()


def test_evil_labels_are_shown_and_do_nothing(browser, tmp_path):
    page = browser.new_page()
    troubles = watched(page)
    page.goto(write_report(evil(tmp_path), tmp_path / "page.html").as_uri())
    wait_for(page, "report.charts[0].plot")
    assert page.locator("h1").inner_text() == EVIL
    assert page.locator(".legend button").first.inner_text() == EVIL
    assert page.locator("b").count() == page.locator("td b").count()  # only the best costs
    assert troubles == []
    page.close()


def test_a_large_page_opens_quickly(browser, large):
    page = browser.new_page()
    troubles = watched(page)
    began = time.perf_counter()
    page.goto(large.as_uri())
    wait_for(page, "report.charts[0].plot")
    took = time.perf_counter() - began
    print(f"opened in {took:.2f} s")
    assert took < 20  # a guard against quadratic work, not a measurement
    assert troubles == []
    page.close()
