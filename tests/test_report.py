"""The report: its numbers compared with the records, its HTML, and its figures."""

import json
import math
import re
import statistics
from collections import Counter

import numpy as np
import pytest
from rich.console import Console

import undrift as ud
from commands import called
from made_up_runs import (
    EVIL,
    METHODS,
    SVG,
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
from undrift.core.records import Record
from undrift.report import (
    as_target,
    frame,
    of_results,
    read_runs,
    write_csv,
    write_figures,
    write_latex,
    write_page,
    write_report,
)
from undrift.report.latex_files import latex_text
from undrift.report.naming import main_metrics
from undrift.report.paired import PairedTest, paired_table, two_sided_p
from undrift.report.tables import OverSeeds, final_table, format_cost, saving, target_table
from undrift.report.terminal_table import final_metrics_table
from undrift.utils.errors import UndriftError


@pytest.fixture
def folder(tmp_path):
    return make(tmp_path / "run")


# Reading


def test_runs_are_read_as_they_were_written(folder):
    runs = read_runs([folder])
    assert [group.label for group in runs.groups] == list(METHODS)  # in the order of the experiment
    assert [run.seed for run in runs.groups[1].runs] == [0, 1, 2]
    assert runs[0].records == records(np.random.default_rng(0), 60, *METHODS["FedAvg"])
    assert runs[0].status == "finished" and runs[0].done == 60


@pytest.mark.parametrize("cut", [1, 2, 40, 300])
def test_a_truncated_last_record_is_left_out(folder, cut):
    path = folder / "FedDyn" / "seed-1" / "records.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    run = next(r for r in read_runs(folder) if (r.label, r.seed) == ("FedDyn", 1))
    assert run.done == (60 if cut == 1 else 59)  # only the newline is missing


def test_a_damaged_record_in_the_middle_is_named(folder):
    path = folder / "FedDyn" / "seed-1" / "records.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:6], lines[6][:30], *lines[7:]]) + "\n")
    with pytest.raises(UndriftError, match=r"Line 7 of .*records.jsonl is not a record"):
        read_runs(folder)


def test_wrong_folders_are_rejected_with_one_sentence(folder, tmp_path):
    with pytest.raises(UndriftError, match="There is no run folder"):
        read_runs(tmp_path / "nowhere")
    with pytest.raises(UndriftError, match=r"has no experiment.toml; did you mean .*run\?"):
        read_runs(tmp_path)
    with pytest.raises(UndriftError, match=r"has no experiment.toml; did you mean .*run\?"):
        read_runs(folder / "FedDyn" / "seed-0")
    with pytest.raises(UndriftError, match="There is no folder to report"):
        read_runs([])
    (folder / "FedDyn" / "seed-0" / "records.jsonl").unlink()
    with pytest.raises(UndriftError, match=r"records.jsonl cannot be read: FileNotFoundError"):
        read_runs(folder)
    (folder / "FedDyn" / "seed-0" / "run.json").write_text('{"label": "FedDyn"}')
    with pytest.raises(UndriftError, match=r"run.json has no 'seed'"):
        read_runs(folder)
    (folder / "FedDyn" / "seed-0" / "run.json").write_text("{")
    with pytest.raises(UndriftError, match=r"run.json is damaged"):
        read_runs(folder)


def test_a_run_that_has_not_begun_has_no_records(folder):
    place = folder / "FedDyn" / "seed-0"
    (place / "records.jsonl").unlink()
    state = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps(state | {"status": "running"}))
    runs = read_runs(folder)
    assert runs.groups[2].runs[0].records == []
    assert "still running" in write_page(runs, folder / "page.html").read_text()


def test_equal_labels_of_several_folders_are_told_apart(tmp_path):
    one, two = make(tmp_path / "a" / "run"), make(tmp_path / "b" / "run")
    labels = [group.label for group in read_runs([one, two]).groups]
    assert len(set(labels)) == 6
    assert labels[0] == f"FedAvg ({one})"
    assert len(read_runs([one, one]).groups) == 3  # the same folder twice is one


def test_the_frame_has_a_row_per_method_seed_and_round(folder):
    pytest.importorskip("pandas")
    table = frame(folder)
    assert len(table) == 3 * 3 * 61
    row = table[(table.method == "FedDyn") & (table.seed == 2) & (table["round"] == 17)].iloc[0]
    record = read_runs(folder).groups[2].runs[2].records[17]
    assert row.test_accuracy == record.metrics["test_accuracy"]
    assert row.bytes_up == 4 * P * 10


# Tables


@pytest.mark.parametrize("level", [0.6, 0.85, 0.955, 2.0])
def test_the_cost_of_a_target_equals_the_records(folder, level):
    rows = target_table(read_runs(folder), {"test_accuracy": level})
    assert [row.method for row in rows] == list(METHODS)
    of_baseline = by_hand(folder, "FedAvg", level)
    for row in rows:
        expected = by_hand(folder, row.method, level)
        rounds, sent = [r for r, _, _ in expected], [b for _, b, _ in expected]
        assert row.costs["rounds"].values == tuple(rounds)
        assert row.costs["bytes"].mean == pytest.approx(statistics.fmean(sent))
        assert row.costs["bytes"].std == pytest.approx(statistics.stdev(sent))
        # One round of FedAvg: the model to ten clients and back.
        assert row.costs["models"].mean == pytest.approx(statistics.fmean(sent) / (80 * P))
        missed = sum(not reached for _, _, reached in expected)
        assert row.costs["rounds"].missed == missed
        base_missed = any(not reached for _, _, reached in of_baseline)
        ratio = statistics.fmean(b for _, b, _ in of_baseline) / statistics.fmean(sent)
        sign = ">" if base_missed else "<" if missed else ""
        both = base_missed and missed
        assert row.savings["bytes"] == ("–" if both else f"{sign}{ratio:.1f}×")


def test_scaffold_sends_two_models_a_round(folder):
    row = target_table(read_runs(folder), {"test_accuracy": 0.8})[1]
    assert row.costs["models"].mean == 2 * row.costs["rounds"].mean


def test_a_first_round_with_everyone_costs_more_models(tmp_path):
    folder = write_folder(tmp_path / "run", ["FedDR"])
    lines = records(np.random.default_rng(0), 20, 5)
    lines[1].cohort = list(range(100))
    lines[1].bytes_down, lines[1].bytes_up = {"x": 400 * P}, {"change": 400 * P}
    write_run(folder, "FedDR", 0, lines)
    assert final_table(read_runs(folder))[0].costs["models"].mean == pytest.approx(29)


def test_formatted_costs_and_savings():
    assert format_cost(OverSeeds((38.0,)), "rounds") == "38"
    assert format_cost(OverSeeds((36.0, 40.0)), "rounds") == "38.0 ± 2.8"
    assert format_cost(OverSeeds((1000.0,), 1), "rounds") == "> 1,000"
    assert format_cost(OverSeeds((10.0, 20.0), 1), "rounds") == "> 15 (1 of 2 seeds)"
    assert format_cost(OverSeeds((2.5e9,)), "bytes") == "2.50 GB"
    assert format_cost(OverSeeds((90.0,)), "seconds") == "90.0 s"
    assert format_cost(OverSeeds((7200.0,)), "virtual_seconds") == "2.00 h"
    assert saving(OverSeeds((400.0,)), OverSeeds((100.0,))) == "4.0×"
    assert saving(OverSeeds((400.0,), 1), OverSeeds((100.0,))) == ">4.0×"
    assert saving(OverSeeds((100.0,)), OverSeeds((400.0,), 1)) == "<0.2×"
    assert saving(OverSeeds((100.0,), 1), OverSeeds((400.0,), 1)) == "–"


def test_targets_are_found_where_none_are_given(tmp_path, folder):
    best = max(r.metrics["test_accuracy"] for run in read_runs(folder) for r in run.records)
    levels = sorted({row.target for row in target_table(read_runs(folder))})
    assert levels == pytest.approx([0.9 * best, 0.95 * best, 0.99 * best], abs=1e-3)
    asked = make(tmp_path / "asked", target={"test_loss": 0.3})
    assert {(r.metric, r.target) for r in target_table(read_runs(asked))} == {("test_loss", 0.3)}


def test_targets_and_baselines_that_do_not_exist(folder):
    runs = read_runs(folder)
    with pytest.raises(UndriftError, match="did you mean 'test_accuracy'"):
        target_table(runs, {"test_acuracy": 0.9})
    with pytest.raises(UndriftError, match=r"The baseline is 'fedavg'.*did you mean 'FedAvg'"):
        target_table(runs, baseline="fedavg")
    assert as_target("test_accuracy=0.9") == ("test_accuracy", 0.9)
    assert as_target("mine <= 3") == ("mine", ("below", 3.0))
    for wrong in ("test_accuracy", "=3", "a=b", "a=nan", "a=1=2"):
        with pytest.raises(UndriftError, match="must be metric=value"):
            as_target(wrong)


def test_final_metrics_leave_out_what_diverged(tmp_path):
    folder = write_folder(tmp_path / "run", ["FedAvg"])
    for seed in range(3):
        lines = records(np.random.default_rng(seed), 10, 5)
        write_run(folder, "FedAvg", seed, lines, "diverged" if seed == 1 else "finished")
    row = final_table(read_runs(folder))[0]
    ends = [records(np.random.default_rng(s), 10, 5)[-1].metrics["test_loss"] for s in (0, 2)]
    assert row.metrics["test_loss"].values == tuple(ends)
    assert row.metrics["test_loss"].missed == 1


@pytest.mark.parametrize(
    ("width", "metrics"),
    [(60, "test acc"), (80, "objective test acc"), (120, "objective test loss test acc")],
)
def test_the_final_table_drops_accuracy_last(folder, width, metrics):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:  # three seeds, and a virtual clock
        console.print(final_metrics_table(read_runs(folder), width))
    head, *rows = capture.get().splitlines()
    assert " ".join(head.split()) == f"method seeds rounds {metrics} sent virtual"
    assert len(rows) == 3 and not any("…" in row for row in rows)


def test_csv_files_have_every_record_and_table(folder, tmp_path):
    paths = write_csv(folder, tmp_path / "tables")
    names = ["records", "targets", "final", "runs", "participation", "paired", "time"]
    assert [path.stem for path in paths] == names
    table = csv_rows(paths[0].read_text())
    assert len(table) == 9 * 61
    record = read_runs(folder).groups[0].runs[0].records[5]
    assert float(table[5]["train_loss"]) == record.metrics["train_loss"]
    part = csv_rows(paths[4].read_text())
    times = Counter()
    for seed in range(3):
        one = Counter(c for r in read_runs(folder).groups[0].runs[seed].records for c in r.cohort)
        times.update(one[client] for client in range(100))
    assert {int(r["replies"]): int(r["clients"]) for r in part} == dict(times)
    assert part[0]["methods"] == "FedAvg; SCAFFOLD; FedDyn"  # which had the same cohorts


def test_csv_files_of_the_command_have_its_targets_and_baseline(folder, tmp_path):
    options = ("--target", "test_accuracy=0.5", "--baseline", "FedDyn", "--csv", "tables")
    done = called("report", str(folder), *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = csv_rows((tmp_path / "tables" / "targets.csv").read_text())
    assert {(row["metric"], float(row["target"])) for row in rows} == {("test_accuracy", 0.5)}
    assert [row["rounds_saving"] for row in rows if row["method"] == "FedDyn"] == ["1.0×"]
    paired = csv_rows((tmp_path / "tables" / "paired.csv").read_text())
    assert {row["baseline"] for row in paired} == {"FedDyn"}


def test_the_frame_of_results_is_that_of_their_records(folder):
    problem = ud.theory.random_quadratics(4, 3, seed=0)
    options = dict(problem=problem, local=ud.GD(lr=0.01, steps=2), rounds=3)
    result = ud.train(ud.FedAvg(), **options)
    table = frame(result)
    assert list(table["round"]) == [0, 1, 2, 3] and set(table["method"]) == {"FedAvg"}
    assert list(table["objective"]) == [r.metrics["objective"] for r in result.records]
    several = frame(ud.compare([ud.FedAvg(), ud.SCAFFOLD()], seeds=[0, 1], **options))
    assert len(several) == 2 * 2 * 4
    assert len(frame(read_runs(folder))) == len(frame([folder])) == 9 * 61
    for wrong in (3, None, [3]):
        with pytest.raises(UndriftError, match=r"must be run folders, or what ud\.train"):
            frame(wrong)


def test_the_paired_test_is_that_of_scipy(tmp_path):
    from scipy.stats import ttest_rel

    write_folder(tmp_path / "run")
    for number, (label, speed) in enumerate(METHODS.items()):
        for seed in range(4):
            rng = np.random.default_rng([number, seed])
            write_run(tmp_path / "run", label, seed, records(rng, 5, *speed))
    runs = read_runs(tmp_path / "run")
    table = {(each.method, each.metric): each for each in paired_table(runs)}
    assert {method for method, _ in table} == {"SCAFFOLD", "FedDyn"}
    values = {g.label: [run.metrics["test_loss"] for run in g.runs] for g in runs.groups}
    for method in ("SCAFFOLD", "FedDyn"):
        found = table[method, "test_loss"]
        expected = ttest_rel(values[method], values["FedAvg"])
        assert (found.t, found.p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-9)
    assert paired_table(runs, "SCAFFOLD")[0].baseline == "SCAFFOLD"


@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 50, 400])
@pytest.mark.parametrize("t", [0.0, 1e-6, 0.3, -1.0, 2.5, 12.0, 1e5])
def test_p_values_are_those_of_scipy(t, freedom):
    from scipy.stats import t as student

    assert two_sided_p(t, freedom) == pytest.approx(2 * student.sf(abs(t), freedom), rel=1e-8)


def test_paired_tests_of_equal_differences_and_single_seeds(tmp_path):
    same = PairedTest("a", "b", "loss", (0.0, 0.0, 0.0))
    assert (same.t, same.p) == (0.0, 1.0)
    shifted = PairedTest("a", "b", "loss", (0.5, 0.5))
    assert (shifted.t, shifted.p) == (math.inf, 0.0)
    write_folder(tmp_path / "one")
    for label, speed in METHODS.items():
        write_run(tmp_path / "one", label, 0, records(np.random.default_rng(0), 4, *speed))
    assert paired_table(read_runs(tmp_path / "one")) == []
    page = write_report(tmp_path / "one", tmp_path / "page.html").read_text()
    assert '<section id="paired-test">' not in page


def test_latex_tables_have_the_numbers_and_escape_labels(folder, tmp_path):
    done = called("report", str(folder), "--latex", "tex", "--baseline", "FedDyn", cwd=tmp_path)
    assert done.returncode == 0 and "3 LaTeX tables are in tex" in done.stdout
    final = (tmp_path / "tex" / "final.tex").read_text()
    for row in final_table(read_runs(folder)):
        value = row.metrics["test_accuracy"]
        assert rf"{value.mean:.4g} $\pm$ {value.std:.2g}" in final
    best = max(row.metrics["test_accuracy"].mean for row in final_table(read_runs(folder)))
    assert rf"\textbf{{{best:.4g}" in final
    rows = [line for line in final.splitlines() if line.endswith(r"\\")]
    columns = re.search(r"\{l(r+)\}", final)[1]
    assert len(rows) == 4 and all(row.count("&") == len(columns) for row in rows)
    assert "SCAFFOLD $-$ FedDyn" in (tmp_path / "tex" / "paired.tex").read_text()
    assert r"(1.0$\times$)" in (tmp_path / "tex" / "targets.tex").read_text()
    wild = "a_b & 50% {x}"
    write_folder(tmp_path / "wild", [wild])
    write_run(tmp_path / "wild", wild, 0, records(np.random.default_rng(0), 4, 5))
    (path, *_) = write_latex(tmp_path / "wild", tmp_path / "wild-tex")
    assert r"a\_b \& 50\% \{x\}" in path.read_text()


# The page as a text


def test_everything_is_escaped(tmp_path):
    text = write_report(evil(tmp_path), tmp_path / "page.html").read_text()
    assert "<b>\"'" not in text and EVIL not in text
    assert text.count("</script>") == 3
    embedded = re.search(r'<script id="records"[^>]*>(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(embedded)["methods"][0]["label"] == EVIL


def test_the_same_runs_give_the_same_page(folder, tmp_path):
    one = write_report(folder, tmp_path / "one.html").read_bytes()
    assert write_report(folder, tmp_path / "two.html").read_bytes() == one


def test_the_page_shows_how_runs_ended(folder):
    lines = records(np.random.default_rng(9), 7, 5)
    lines[-1].metrics["test_loss"] = math.nan
    lines[-1].metrics["train_loss"] = math.inf
    reason = "In round 8 no client of the cohort sent a usable update."
    write_run(folder, "FedLGA", 0, lines, "diverged", reason, rounds=60)
    write_run(folder, "FedPD", 0, lines[:3], "interrupted", rounds=60)
    text = write_report(folder, folder / "page.html").read_text()
    assert reason in text and "7 of 60" in text
    assert "FedPD (seed 0): interrupted" in text
    assert SVG not in text and "data:image/svg+xml;base64," in text


def test_several_folders_have_one_page(tmp_path):
    folders = [make(tmp_path / name / "run", seeds=(0,)) for name in "ab"]
    text = write_report(folders, tmp_path / "page.html").read_text()
    assert text.count("experiment.toml</summary>") == 2
    assert text.count("data:image/svg+xml") == 1  # one picture for equal data


def test_a_page_without_metrics_or_rounds(tmp_path):
    folder = write_folder(tmp_path / "run", ["FedAvg"])
    write_run(folder, "FedAvg", 0, [Record(round=0)], "running")
    text = write_report(folder, tmp_path / "page.html").read_text()
    assert "No metric has been measured yet" in text
    assert write_figures(folder, tmp_path / "figures")


def test_results_without_a_folder(tmp_path):
    problem = dict(
        model=ud.models.logistic(60, 10),
        data=ud.data.synthetic(1, 1, clients=5, seed=0),
        local=ud.SGD(lr=0.03, batch_size=10, steps=2),
        rounds=3,
    )
    results = ud.compare([ud.FedAvg(), ud.SCAFFOLD()], **problem)
    runs = of_results(results)
    assert final_table(runs)[0].costs["models"].mean == pytest.approx(3)
    assert final_table(runs)[1].costs["models"].mean == pytest.approx(6)
    assert "SCAFFOLD" in write_page(runs, tmp_path / "page.html").read_text()


def test_long_runs_are_thinned_and_totals_stay(tmp_path):
    folder = write_folder(tmp_path / "run", ["FedAvg"])
    lines = records(np.random.default_rng(0), 4500, 500)
    write_run(folder, "FedAvg", 0, lines)
    text = write_report(folder, tmp_path / "page.html").read_text()
    columns = json.loads(re.search(r'"records"[^>]*>(.*?)</script>', text, re.DOTALL)[1])
    columns = columns["runs"][0]["columns"]
    assert len(columns["test_accuracy"]) <= 2001
    assert columns["round"][0] == 0 and columns["round"][-1] == 4500
    assert sum(columns["gradients"]) == sum(record.gradients for record in lines)
    assert "Charts show one of 3 evaluated rounds" in text


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = ten_methods(tmp_path_factory.mktemp("large") / "run")
    return write_report(folder, folder / "page.html")


def test_ten_methods_with_a_thousand_rounds_are_small(large):
    print(f"{large.stat().st_size / 1e6:.2f} MB")
    assert large.stat().st_size < 6e6


def test_many_seeds_are_small_too(tmp_path):
    methods = {f"Method {k}": (20 + 30 * k, 1, 1) for k in range(4)}
    folder = make(tmp_path / "run", methods, seeds=range(20), rounds=200, cohort=2)
    assert write_report(folder, tmp_path / "page.html").stat().st_size < 6e6


# Figures


def test_figures_for_a_paper(folder, tmp_path):
    assert main_metrics(read_runs(folder)) == ["test_accuracy", "objective"]
    paths = write_figures(folder, tmp_path / "figures", ["test_loss"], kinds=("svg",))
    names = {path.name for path in paths}
    assert {"test_loss-rounds.svg", "test_loss-virtual-seconds.svg", "diagnostics.svg"} <= names
    assert all(path.read_text().rstrip().endswith("</svg>") for path in paths)
    again = write_figures(folder, tmp_path / "again", [], kinds=("svg",))
    for path in again:
        assert path.read_bytes() == (tmp_path / "figures" / path.name).read_bytes()
    with pytest.raises(UndriftError, match="did you mean 'test_loss'"):
        write_figures(folder, tmp_path / "figures", ["test_los"])


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
def test_a_value_that_is_not_finite_has_no_spread(wrong):
    assert math.isnan(OverSeeds((1.0, wrong, 2.0)).std)
    assert OverSeeds((1.0, 3.0)).std == pytest.approx(math.sqrt(2))


def test_latex_writes_powers_of_ten_and_greek_letters():
    assert latex_text("−1.758e-06 ± 2e+03") == (r"$-$$1.758\times 10^{-6}$ $\pm$ $2\times 10^{3}$")
    assert latex_text("α = 0.5, model1e5") == r"$\alpha$ = 0.5, model1e5"
