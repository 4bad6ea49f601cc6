"""Curves: told apart without colours, both seen where they are equal, bands explained."""

import io
from itertools import pairwise
from statistics import fmean, stdev

import matplotlib.colors
import numpy as np
import pytest
from matplotlib.figure import Figure

import undrift as ud
from undrift.report.figures import curve
from undrift.report.plots import plot_histories
from undrift.report.recorded_runs import of_results
from undrift.report.seed_curves import band_title
from undrift.reproduce.figure import Panel, draw, line_over_seeds
from undrift.utils.plot_style import COLOURS, line_style


def test_neighbours_differ_without_colours_and_48_curves_are_all_different():
    styles = [line_style(number) for number in range(48)]
    assert all(a["linestyle"] != b["linestyle"] for a, b in pairwise(styles))
    assert len({(style["color"], style["linestyle"]) for style in styles}) == 48


@pytest.mark.parametrize("numbers", [(0, 1), (1, 4), (3, 8), (8, 9)])
def test_two_equal_curves_are_both_seen(numbers):
    figure = Figure(figsize=(4, 3), dpi=100)
    axes = figure.subplots()
    for number in numbers:
        axes.plot(range(50), [1.0] * 50, linewidth=3, **line_style(number))
    content = io.BytesIO()
    figure.savefig(content, format="rgba")
    pixels = np.frombuffer(content.getvalue(), np.uint8).reshape(-1, 4)[:, :3]
    for number in numbers:
        colour = np.round(255 * np.array(matplotlib.colors.to_rgb(COLOURS[number])))
        assert (np.abs(pixels - colour).max(1) <= 3).sum() > 100


@pytest.mark.parametrize(
    ("seeds", "title"),
    [
        ([1, 1], None),
        ([3, 3], "mean ± standard deviation of 3 seeds"),
        ([3, 1], "mean ± standard deviation of 3 seeds"),
        ([3, 2], "mean ± standard deviation over seeds"),
    ],
)
def test_the_band_is_explained(seeds, title):
    assert band_title(seeds) == title


@pytest.fixture(scope="module")
def results():
    return ud.compare(
        [ud.FedAvg(), ud.FedProx(mu=0.1)],
        model=ud.models.logistic(60, 10),
        data=ud.data.synthetic(clients=4, seed=0, most=40),
        local=ud.SGD(lr=0.1, batch_size=10, steps=2),
        rounds=2,
        seeds=[0, 1, 2],
        progress=False,
    )


def test_a_plot_and_a_figure_show_the_same_band_and_label_their_axes(results):
    picture = plot_histories(results, metrics=["objective"], width="column")
    (panel,) = picture.axes
    assert panel.get_ylabel() == "objective" and panel.get_xlabel() == "rounds"
    (legend,) = picture.legends
    assert legend.get_title().get_text() == "mean ± standard deviation of 3 seeds"
    assert [line.get_linestyle() for line in panel.lines] == ["-", "--"]
    group = of_results(results).groups[0]
    x, mean, low, high = curve(group, "objective", "rounds")
    last = [run.records[-1].metrics["objective"] for run in group.runs]
    assert (mean[-1], high[-1]) == pytest.approx((fmean(last), fmean(last) + stdev(last)))
    assert low[-1] == pytest.approx(fmean(last) - stdev(last))
    assert list(panel.lines[0].get_ydata()) == mean and list(panel.lines[0].get_xdata()) == x
    corners = panel.collections[0].get_paths()[0].vertices
    assert [x[-1], high[-1]] in corners.tolist() and [x[-1], low[-1]] in corners.tolist()


def test_a_reproduction_draws_the_same_curves_as_result_plot(results, tmp_path, monkeypatch):
    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda own, *args, **kw: drawn.append(own) or save(own, *args, **kw)
    )
    found = {}
    for result in results:
        found.setdefault(result.label, []).append(result)
    lines = [
        line_over_seeds(
            label,
            [record.round for record in own[0].records],
            list(
                zip(*([r.metrics["objective"] for r in each.records] for each in own), strict=True)
            ),
        )
        for label, own in found.items()
    ]
    panel = Panel("a title", "rounds", "objective", lines, log_y=True)
    draw([panel], tmp_path / "figure.png")
    figures = [drawn[0], plot_histories(results, metrics=["objective"])]
    first, second = (figure.axes[0] for figure in figures)
    for one, other in zip(first.lines, second.lines, strict=True):
        assert one.get_color() == other.get_color()
        assert one.get_linestyle() == other.get_linestyle()
        assert one.get_zorder() == other.get_zorder()
        assert np.array_equal(one.get_xydata(), other.get_xydata())
    for one, other in zip(first.collections, second.collections, strict=True):
        assert np.array_equal(one.get_paths()[0].vertices, other.get_paths()[0].vertices)
        assert np.array_equal(one.get_facecolor(), other.get_facecolor())
    assert first.get_ylabel() == second.get_ylabel() == "objective"
    titles = {figure.legends[0].get_title().get_text() for figure in figures}
    assert titles == {"mean ± standard deviation of 3 seeds"}
