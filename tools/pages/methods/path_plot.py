"""Draws the paths of the server's model over the contour lines of F."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tools.pages.methods.two_clients import LR, MINIMA, NAMES, SIZES, START
from tools.pages.methods.walks import PERIOD, Walked
from undrift.theory import fixed_points
from undrift.utils.files import written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d00")
"""One per path: colour-blind readers can tell them apart, and each path has its own mark."""
MARKS = ("o", "s", "^", "D", "v")
CLIENTS = "#555555"
SPAN = ((-1.6, 1.8), (-1.5, 1.05))


def draw(page: str, walks: Sequence[Walked], path: Path) -> Path:
    """Draw the runs of a page to a file and return its path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 5.6), layout="constrained")
    axes = figure.subplots()
    _contours(axes, walks[0])
    for number, each in enumerate(walks):
        _path(axes, each, COLOURS[number], MARKS[number])
    _landmarks(axes, page, walks)
    axes.set(xlim=SPAN[0], ylim=SPAN[1], aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_color("#bbbbbb")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=10)
    with written_whole(path) as partial:
        _with_few_colours(figure).save(partial, optimize=True)
    return path


def _with_few_colours(figure: Figure) -> Image:
    """Return a figure as an image with few colours, which takes a third of the bytes."""
    from PIL import Image

    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=140)
    return Image.open(content).convert("RGB").quantize(96)


def _contours(axes: Axes, found: Walked) -> None:
    """Draw lines of equal F, without g."""
    sides = [torch.linspace(*span, 120, dtype=torch.float64) for span in SPAN]
    across, up = torch.meshgrid(*sides, indexing="xy")
    points = torch.stack([across, up], -1).reshape(-1, 2)
    problem, q = found.problem, found.q
    quadratic = torch.einsum("pi,kij,pj->pk", points, problem.H, points) / 2
    values = (quadratic - points @ problem.b.T + problem.constants) @ q
    least = values.min()
    levels = [float(least) + 0.06 * n**2 for n in range(1, 9)]
    axes.contour(
        across.numpy(),
        up.numpy(),
        values.reshape(across.shape).numpy(),
        levels,
        colors="#dddddd",
        linewidths=0.9,
        zorder=0,
    )


def _path(axes: Axes, found: Walked, colour: str, mark: str) -> None:
    """Draw a run, and the point where theory predicts its end."""
    xs, ys = found.path.T.tolist()
    axes.plot(
        xs,
        ys,
        color=colour,
        marker=mark,
        markersize=3.5,
        linewidth=1.4,
        alpha=0.85,
        label=found.walk.label,
        zorder=3,
    )
    last = found.path[-PERIOD:] if found.arrivals else found.path[-1:]
    axes.plot(*last.T.tolist(), color=colour, marker=mark, markersize=6, linestyle="", zorder=4)
    for model in found.own:
        way = torch.stack([found.path[-1], model])
        axes.plot(*way.T.tolist(), color=colour, linestyle=":", linewidth=1.0, zorder=2)
        axes.plot(*model.tolist(), marker="D", markersize=9, mfc="white", mec=colour, zorder=5)
    goal = found.goal.tolist()
    axes.plot(*goal, marker="o", markersize=15, mfc="none", mec=colour, mew=1.8, zorder=5)


def _landmarks(axes: Axes, page: str, walks: Sequence[Walked]) -> None:
    """Draw the optimum, the clients' minima, the start, and the point where FedAvg ends."""
    first = walks[0]
    for k, (name, point) in enumerate(zip(NAMES, MINIMA, strict=True)):
        axes.plot(*point, marker="P", markersize=9, color=CLIENTS, linestyle="", zorder=2)
        axes.annotate(
            f"{name}'s minimum\n{_about(walks, k)}",
            point,
            xytext=(0, 9),
            textcoords="offset points",
            ha="center",
            va="bottom",
            color=CLIENTS,
            fontsize=9,
        )
    if first.own:
        axes.plot(
            [],
            [],
            marker="D",
            markersize=9,
            mfc="white",
            mec=CLIENTS,
            linestyle="",
            label="the clients' own models at the end",
        )
    for k, way in enumerate(first.drift if not first.own else ()):
        if float((way[-1] - way[0]).norm()) > 1e-6:
            axes.plot(
                *way.T.tolist(),
                color=CLIENTS,
                linestyle=":",
                linewidth=1.6,
                zorder=2,
                label="local steps of the clients at the end of the blue path" if k == 0 else None,
            )
    axes.plot(*START, marker="x", markersize=8, color="black", linestyle="", zorder=2)
    axes.annotate("start", START, xytext=(8, -3), textcoords="offset points", fontsize=9)
    axes.plot(
        [],
        [],
        marker="o",
        markersize=11,
        mfc="none",
        mec=CLIENTS,
        linestyle="",
        mew=1.6,
        label="end predicted by theory" if first.walk.settles else "models stay around it",
    )
    plain = first.problem.optimum(first.q)
    axes.plot(
        *plain.tolist(),
        marker="*",
        markersize=15,
        color="black",
        markeredgecolor="white",
        linestyle="",
        label="the optimum of F",
        zorder=6,
    )
    if page not in ("FedAvg", "servers", "FedLGA"):
        q, steps = first.q, first.walk.planned
        averaged = fixed_points.fedavg(first.problem.H, first.problem.b, q, LR, steps)
        axes.plot(
            *averaged.tolist(),
            marker="X",
            markersize=8,
            color="#999999",
            linestyle="",
            label="where FedAvg ends",
            zorder=2,
        )


def _about(walks: Sequence[Walked], k: int) -> str:
    """Return a client's samples, and its steps per round if they are equal in all runs."""
    if walks[0].arrivals:
        return f"{SIZES[k]} samples, {('slow', 'twice as fast')[k]}"
    steps = {each.walk.done[k] for each in walks}
    return f"{SIZES[k]} samples" + (f", {plural(steps.pop())}" if len(steps) == 1 else "")


def plural(steps: int) -> str:
    """Return "1 step" or "n steps"."""
    return f"{steps} step{'s' * (steps != 1)}"
