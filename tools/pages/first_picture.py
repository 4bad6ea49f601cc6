"""Draw the picture of the README: the distance to the optimum of five methods on unequal clients.

    python -m tools.pages.first_picture docs/assets

Writes optimum-light.svg and optimum-dark.svg, for light and dark pages; it takes ten seconds. Each
client has a linear regression, so the optimum is known: inputs, true coefficients, numbers of
samples and numbers of local steps all differ between clients.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import undrift as ud
from undrift.core.clients import Roster
from undrift.core.evaluation import Evaluation
from undrift.core.sampling import All
from undrift.local.solvers import GD
from undrift.loops import RunSpec, loop
from undrift.theory import Quadratics
from undrift.utils.files import written_whole
from undrift.utils.keys import generator
from undrift.utils.plot_style import svg_bytes

CLIENTS, FEATURES, ROUNDS, LR = 30, 20, 50, 0.05
SAMPLES = [20 + 20 * k // 3 for k in range(CLIENTS)]
"""From 20 to 213 samples."""
STEPS: dict[Hashable, int] = {k: 2 + 10 * k // (CLIENTS - 1) for k in range(CLIENTS)}
"""From 2 to 12 steps of gradient descent per round."""
METHODS = {
    "FedAvg": ud.FedAvg(),
    "FedProx": ud.FedProx(mu=1.0),
    "FedDR": ud.FedDR(eta=0.3),
    "FedDyn": ud.FedDyn(alpha=1.5),
    "SCAFFOLD": ud.SCAFFOLD(),
}
STOP_SHORT = ("FedAvg", "FedProx")


@dataclass(frozen=True)
class Theme:
    """The colours of a picture: of text and axes, of the grid, and of the two groups of curves."""

    text: str
    grid: str
    biased: tuple[str, str]
    exact: tuple[str, str, str]


THEMES = {
    "light": Theme("#1f2328", "#d8dee4", ("#c4320a", "#d9541e"), ("#1a7f37", "#0a5fb4", "#6639ba")),
    "dark": Theme("#e6edf3", "#30363d", ("#ff8a65", "#ffb199"), ("#56d364", "#79c0ff", "#d2a8ff")),
}


def problem() -> Quadratics:
    """Return the clients' mean squared errors as quadratics."""
    rng = generator(0, "first picture")
    H, b = [], []
    for samples in SAMPLES:
        scale = 0.5 + rng.random(FEATURES)
        inputs = rng.standard_normal((samples, FEATURES)) * scale
        coefficients = 1 + rng.standard_normal(FEATURES)
        targets = inputs @ coefficients + 0.1 * rng.standard_normal(samples)
        H.append(inputs.T @ inputs / samples)
        b.append(inputs.T @ targets / samples)
    return Quadratics(torch.as_tensor(np.stack(H)), torch.as_tensor(np.stack(b)), SAMPLES)


def distances(method: ud.Method, losses: Quadratics) -> list[float]:
    """Return |x − x*| / |x⁰ − x*| before the first round and after each."""
    q = Roster(losses.ids, losses.sizes, "samples").weights
    optimum, first = losses.optimum(q), losses.initial()
    local, never = GD(lr=LR, steps=STEPS), Evaluation(every=10**9)
    run = loop(RunSpec(method, losses, local, All(), ROUNDS, "samples", evaluation=never))
    found = [1.0]
    for _ in range(ROUNDS):
        run.step()
        found.append(float((run.server.x - optimum).norm() / (first - optimum).norm()))
    return found


def draw(curves: dict[str, list[float]], theme: Theme) -> Figure:
    """Return the picture: a curve per method with its name at the end, on a transparent ground."""
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    colours = {"biased": iter(theme.biased), "exact": iter(theme.exact)}
    for label, values in curves.items():
        biased = label in STOP_SHORT
        colour = next(colours["biased" if biased else "exact"])
        axes.semilogy(range(len(values)), values, color=colour, linewidth=2.4)
        above = 7 if label == "FedAvg" else -7 if label == "FedProx" else 0  # their ends are close
        axes.annotate(
            f"{label} stops here" if biased else f"{label} goes on",
            (ROUNDS, values[-1]),
            (8, above),
            textcoords="offset points",
            color=colour,
            fontsize=12,
            fontweight="bold",
            va="center",
            annotation_clip=False,
        )
    axes.set_xlim(0, ROUNDS)
    axes.set_ylim(min(values[-1] for values in curves.values()) / 3, 1.5)
    axes.set_yticks([1, 1e-2, 1e-4, 1e-6, 1e-8], ["1", "0.01", "0.0001", "10⁻⁶", "10⁻⁸"])
    axes.minorticks_off()
    axes.set_xlabel("rounds of communication", color=theme.text, fontsize=12)
    axes.set_title(
        "Distance to the best model: 30 clients with unequal data and work",
        color=theme.text,
        fontsize=13,
        loc="left",
        pad=10,
    )
    axes.tick_params(colors=theme.text, labelsize=11, length=0)
    axes.grid(color=theme.grid, linewidth=0.8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(theme.text)
    return figure


def main(folder: str) -> None:
    """Run the methods, print where they end, and write both pictures."""
    losses = problem()
    curves = {label: distances(method, losses) for label, method in METHODS.items()}
    for label, values in curves.items():
        print(f"{METHODS[label]!r}: {values[-1]:.1e}")
    for name, theme in THEMES.items():
        with written_whole(Path(folder) / f"optimum-{name}.svg") as partial:
            partial.write_bytes(svg_bytes(draw(curves, theme)))


if __name__ == "__main__":
    main(sys.argv[1])
