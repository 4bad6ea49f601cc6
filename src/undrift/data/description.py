"""How heterogeneous federated data are: sizes, labels and gradients, in numbers.

`FederatedData.describe` and `undrift inspect` show a `Description`; run folders store it as JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from undrift.data.federated import FederatedData
from undrift.data.labels import MAX_CLASSES, label_range, unused_zero
from undrift.data.part import Part
from undrift.utils.display import as_html
from undrift.utils.errors import require, require_type
from undrift.utils.threads import one_thread

PERCENTS = (40, 60, 80)
"""Shares of a client's data, in per cent, as in Figure 3 of FedDyn (Acar et al., ICLR 2021)."""
MAX_BARS = 20
"""The largest number of bars in the histogram of sizes."""
LOGARITHMIC_RATIO = 20
"""The bars are logarithmic if the largest size is more than this many times the smallest."""
NAMED_CLIENTS = 8
"""Up to this number of clients, each one's size is listed instead of a histogram."""
PLOTTED_CLIENTS = 40
"""The largest number of clients in a plot; of more clients an evenly spaced selection is shown."""


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation, minimum, median and maximum of a number per client."""

    mean: float
    std: float
    """standard deviation of the population: divided by N, not N − 1"""
    min: float
    median: float
    max: float

    @staticmethod
    def over(values: np.ndarray) -> Spread:
        """Summarise an array with one number per client."""
        return Spread(
            float(values.mean()),
            float(values.std()),
            float(values.min()),
            float(np.median(values)),
            float(values.max()),
        )


@dataclass(frozen=True)
class Histogram:
    """How many clients lie between each pair of neighbouring edges."""

    counts: tuple[int, ...]
    edges: tuple[float, ...]
    logarithmic: bool


@dataclass(frozen=True)
class ClassesNeeded:
    """How many classes, the most frequent first, make up a share of a client's data."""

    spread: Spread
    clients: tuple[int, ...]
    """number of clients that need 1, 2, … classes"""


@dataclass(frozen=True)
class Labels:
    """How the clients' labels differ."""

    classes: int
    counts: tuple[int, ...]
    """number of training samples of each class, over all clients"""
    per_client: Spread
    """number of distinct classes of a client"""
    needed: dict[str, ClassesNeeded]
    """classes needed for "40", "60" and "80" per cent of a client's data (Figure 3 of FedDyn)"""
    distance: Spread
    """total variation ½ Σ_c |p_k(c) − p(c)| between a client's labels and those of all clients"""
    distance_weighted: float
    """mean of the distance weighted by samples, Σ (n_k/n) · ½ Σ_c |p_k(c) − p(c)|"""


@dataclass(frozen=True)
class Gradients:
    """How the clients' gradients differ at a model's weights (`theory.heterogeneity`)."""

    objective: str
    """the q_k: "samples" for n_k/n, "clients" for 1/N"""
    ratio: float
    """B² = Σ q_k|∇f_k|² / |∇F|², as in FedProx"""
    variance: float
    """σ_g² = Σ q_k|∇f_k − ∇F|²"""
    square_mean: float
    """|∇F|²"""
    mean_square: float
    """Σ q_k|∇f_k|²"""


@dataclass(frozen=True)
class MinimaGap:
    """Γ = F* − Σ q_k F_k* (FedAvg-nonIID, section 3.1), every loss with (weight_decay/2)|x|²."""

    objective: str
    value: float
    """Γ; for a model that is not convex, computed from the local minima found"""
    weight_decay: float
    tolerance: float
    """gradient norm at which a minimisation stops"""
    gradient_norm: float
    """largest gradient norm at the end of any minimisation"""
    converged: bool
    """whether every minimisation reached the tolerance"""


@dataclass(frozen=True)
class PlottedClients:
    """The clients that a plot shows, and how many samples of each class they have."""

    ids: tuple[str, ...]
    sizes: tuple[int, ...]
    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Description:
    """How heterogeneous a federated data set is.

    Print it to see a table, or use `table()`, `to_json()` or `plot("picture.png")`.
    """

    name: str
    clients: int
    samples: dict[str, int]
    """number of samples of the "train", "validation" and "test" parts"""
    sizes: Spread
    """number of training samples per client, n_k"""
    histogram: Histogram
    """histogram of the n_k"""
    labels: Labels | None
    """None for regression and for targets with more than one number per sample"""
    gradients: Gradients | None
    gamma: MinimaGap | None
    notes: tuple[str, ...]
    """what the partition and the source say about how the data were made"""
    plotted: PlottedClients
    """the clients that a plot shows one by one; not part of the JSON"""

    def as_dict(self) -> dict[str, Any]:
        """All numbers in JSON's types; infinity and NaN become None."""
        found = asdict(self)
        del found["plotted"]
        return plain(found)

    def to_json(self) -> str:
        """All numbers as JSON text."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False, ensure_ascii=False)

    def table(self) -> RenderableType:
        """A table for the terminal, 80 columns wide."""
        return _table(self)

    def __str__(self) -> str:
        text = StringIO()
        console = Console(file=text, width=80, color_system=None, force_jupyter=False)
        console.print(self.table())
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def __repr__(self) -> str:
        skew = "" if self.labels is None else f", {self.labels.classes} classes"
        parts = ", ".join(f"{n:,} {name}" for name, n in self.samples.items())
        return f"Description({self.name}: {self.clients} clients{skew}; {parts} samples)"

    def _repr_html_(self) -> str:
        return as_html([self.table()], 80)

    def plot(self, path: str | Path | None = None) -> Any:
        """Plot the clients' labels and sizes.

        With a path (.png, .svg or .pdf) the plot is written there and the path returned. Without
        one the figure is returned; a notebook shows it.
        """
        from undrift.data.plotting import plot_description

        return plot_description(self, path)

    def svg(self) -> bytes:
        """The plot of `plot` as SVG."""
        from undrift.data.plotting import draw
        from undrift.utils.plot_style import svg_bytes

        return svg_bytes(draw(self))


def describe(
    data: FederatedData,
    model: nn.Module | None = None,
    gamma: bool = False,
    objective: str = "samples",
    weight_decay: float = 1e-4,
    *,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    tolerance: float = 1e-5,
    device: str | torch.device = "cpu",
) -> Description:
    """Measure how heterogeneous federated data are.

    Parameters
    ----------
    data
        the federated data
    model
        a module at whose weights the dissimilarity of the clients' gradients is measured
    gamma
        whether to find Γ = F* − Σ q_k F_k* for the model, by minimising F and every f_k, in double
        precision if the model allows it. Γ is exact for convex models such as logistic regression;
        for others it is computed from the local minima found
    objective
        the weights q_k in gradients and Γ: "samples" for n_k/n, "clients" for 1/N
    weight_decay
        adds (weight_decay/2)|x|² to every loss that is minimised for Γ
    loss
        a loss function (outputs, targets) → number, instead of the one chosen by the targets
    tolerance
        gradient norm at which a minimisation stops; for a convex model the error of Γ is then at
        most tolerance²/(2 · weight_decay). After 1000 iterations a minimisation stops anyway, and
        the result says so
    device
        the device on which gradients are computed
    """
    require_type("data", data, FederatedData, "a FederatedData")
    require(
        model is not None or not gamma,
        "gamma=True needs a model, because Γ is a property of its losses: add model=….",
    )
    sizes = data.train.sizes.cpu().numpy().astype(np.int64)
    notes = tuple(data.notes)
    count = _class_count(data)
    if count == 0 and _has_integer_targets(data.train):
        notes += ("The targets are not class numbers 0, 1, …, so labels are not described.",)
    elif count and data.classes is None and label_range(data)[0] > 0:
        notes += (f"{unused_zero(*label_range(data))}.",)
    gradients = gap = None
    if model is not None:
        from undrift.nets.heterogeneity import measure_model

        with one_thread():
            gradients, gap = measure_model(
                data, model, gamma, objective, loss, weight_decay, tolerance, device
            )
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    return Description(
        name=data.name,
        clients=len(data),
        samples={name: 0 if part is None else len(part) for name, part in parts.items()},
        sizes=Spread.over(sizes),
        histogram=_histogram(sizes),
        labels=_labels(data.train, count) if count else None,
        gradients=gradients,
        gamma=gap,
        notes=notes,
        plotted=_plotted_clients(data, count),
    )


def label_counts(part: Part, classes: int) -> np.ndarray:
    """The number of samples of each class of every client, `[N, classes]`."""
    owner, labels = _owner_and_label(part, classes)
    clients = len(part.sizes)
    cells = np.bincount(owner * classes + labels, minlength=clients * classes)
    return cells.reshape(clients, classes)


def _owner_and_label(part: Part, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """For every sample that a client holds: the client's index and the label."""
    sizes = part.sizes.cpu().numpy()
    owner = np.repeat(np.arange(len(sizes)), sizes)
    labels = part.y[part.rows].cpu().numpy().astype(np.int64)
    low, high = (labels.min(), labels.max()) if len(labels) else (0, 0)
    require(
        low >= 0 and high < classes,
        f"The labels range from {low} to {high}, but the classes are 0 … {classes - 1}.",
    )
    return owner, labels


def _has_integer_targets(part: Part) -> bool:
    """Whether the targets are one integer per sample."""
    y = part.y
    if not isinstance(y, Tensor):
        return False
    return y.ndim == 1 and not y.is_floating_point() and not y.is_complex()


def _class_count(data: FederatedData) -> int:
    """The number of classes, or 0 if the targets are not class labels."""
    if not _has_integer_targets(data.train):
        return 0
    if data.classes is not None:
        return len(data.classes)
    parts = [part for part in data.parts().values() if len(part) and _has_integer_targets(part)]
    found = [part.y[part.rows] for part in parts]
    low, high = min(int(y.min()) for y in found), max(int(y.max()) for y in found)
    return high + 1 if low >= 0 and high < MAX_CLASSES else 0


def _histogram(sizes: np.ndarray) -> Histogram:
    """A histogram whose edges lie between integers, so every bar covers sizes that can occur."""
    low, high = int(sizes.min()), int(sizes.max())
    logarithmic = high / low > LOGARITHMIC_RATIO
    if logarithmic:
        # Each bar covers a similar number of sizes: a bar of one size beside a bar of two would
        # look like a jump in the distribution. So small sizes get a larger ratio.
        ratio = max(((high + 1) / low) ** (1 / MAX_BARS), min(2.0, 1 + 3 / low))
        bars = math.ceil(math.log((high + 1) / low, ratio) - 1e-9)
        starts = np.ceil(low * ratio ** np.arange(bars + 1) - 1e-6)
        starts[-1] = max(starts[-1], high + 1)
    else:
        width = math.ceil((high - low + 1) / MAX_BARS)
        starts = np.arange(low, high + width + 1, width, dtype=float)
    edges = starts - 0.5
    counts, _ = np.histogram(sizes, edges)
    return Histogram(tuple(counts.tolist()), tuple(edges.tolist()), logarithmic)


def _labels(part: Part, classes: int) -> Labels:
    """The measures of label skew, computed from the (client, class) pairs that occur.

    There are at most as many pairs as samples, whereas a table of clients × classes may not fit
    into memory.
    """
    owner, labels = _owner_and_label(part, classes)
    everyone = np.bincount(labels, minlength=classes)
    share = everyone / everyone.sum()  # p(c)
    pairs, count = np.unique(owner * classes + labels, return_counts=True)
    order = np.lexsort((-count, pairs // classes))  # by client, the most frequent first
    client, label, count = pairs[order] // classes, pairs[order] % classes, count[order]
    per_client = np.bincount(client)
    sizes = part.sizes.cpu().numpy()  # n_k

    running = np.cumsum(count) - (np.cumsum(sizes) - sizes)[client]  # within the client
    needed = {}
    for percent in PERCENTS:
        missing = 100 * running < percent * sizes[client]
        needed[percent] = 1 + np.bincount(client, missing, minlength=len(sizes)).astype(np.int64)
    most = max(int(number.max()) for number in needed.values())

    own = count / sizes[client]  # p_k(c)
    absent = 1 - np.bincount(client, share[label])  # Σ p(c) over the classes that the client lacks
    distance = (np.bincount(client, np.abs(own - share[label])) + absent) / 2
    distance = distance.clip(0, 1)
    return Labels(
        classes=classes,
        counts=tuple(everyone.tolist()),
        per_client=Spread.over(per_client),
        needed={
            str(percent): ClassesNeeded(
                Spread.over(number), tuple(np.bincount(number, minlength=most + 1)[1:].tolist())
            )
            for percent, number in needed.items()
        },
        distance=Spread.over(distance),
        distance_weighted=float(sizes @ distance / sizes.sum()),
    )


def _plotted_clients(data: FederatedData, classes: int) -> PlottedClients:
    """At most `PLOTTED_CLIENTS` clients, evenly spaced in the roster."""
    every = np.arange(len(data))
    if len(every) > PLOTTED_CLIENTS:
        every = np.linspace(0, len(data) - 1, PLOTTED_CLIENTS).round().astype(np.int64)
    ids = tuple(str(data.ids[k]) for k in every)
    sizes = tuple(data.train.sizes[torch.from_numpy(every)].tolist())
    if not classes:
        return PlottedClients(ids, sizes, (), ())
    rows = [data.train.of(int(k)) for k in every]
    bounds = torch.tensor([0, *(len(own) for own in rows)]).cumsum(0)
    part = Part(data.train.x, data.train.y, torch.cat(rows), bounds)
    counts = label_counts(part, classes)
    names = data.classes if data.classes is not None else range(classes)
    rows_of_counts = tuple(tuple(row) for row in counts.tolist())
    return PlottedClients(ids, sizes, tuple(map(str, names)), rows_of_counts)


def plain(value: Any) -> Any:
    """A value in JSON's types; infinity and NaN become None."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _table(described: Description) -> RenderableType:
    """The title, a table with a row per measure, and sentences below it."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("per client", no_wrap=True)
    for name in ("mean", "std", "min", "median", "max"):
        table.add_column(name, justify="right", no_wrap=True, min_width=6)
    table.add_column("how many clients", no_wrap=True)

    def add(name: str, spread: Spread, bars: str = "") -> None:
        values = (spread.mean, spread.std, spread.min, spread.median, spread.max)
        table.add_row(name, *map(_number, values), Text(bars, style="cyan"))

    histogram = described.histogram
    axis = "samples, log bars" if histogram.logarithmic else "samples"
    add(axis, described.sizes, _bars(histogram.counts))
    lines = []
    if (labels := described.labels) is not None:
        add("classes", labels.per_client)
        for percent, needed in labels.needed.items():
            add(f"  for {percent} % of its data", needed.spread, _bars(needed.clients))
        add("label distance (TV)", labels.distance)
        table.add_row("  mean by samples", _number(labels.distance_weighted))
    if (found := described.gradients) is not None:
        lines.append(
            f"Gradients: B² = {_number(found.ratio)}, σ_g² = {_number(found.variance)}, "
            f"|∇F|² = {_number(found.square_mean)}, Σ q|∇f|² = {_number(found.mean_square)} "
            f"(q by {found.objective})."
        )
    if (gap := described.gamma) is not None:
        reached = "all minima found to" if gap.converged else "not all minima found to"
        left = "" if gap.converged else f", but only {gap.gradient_norm:.1e}"
        lines.append(
            f"Γ = {_number(gap.value)} (weight decay {gap.weight_decay:g}; {reached} gradient "
            f"norm {gap.tolerance:g}{left})."
        )
    if described.clients <= NAMED_CLIENTS:
        named = zip(described.plotted.ids, described.plotted.sizes, strict=True)
        lines.insert(0, "Samples: " + ", ".join(f"{id} {size:,}" for id, size in named) + ".")
    lines.extend(described.notes)
    title = Text(described.name, style="bold")
    title.append(f": {_inventory(described)}", style="not bold")
    below = [
        Padding(Text(line), (1 if number == 0 else 0, 0, 0, 0)) for number, line in enumerate(lines)
    ]
    return Group(title, Text(), table, *below)


def _inventory(described: Description) -> str:
    """The numbers of clients, classes and samples as text."""
    parts = [f"{described.clients:,} client{'s' * (described.clients != 1)}"]
    if described.labels is not None:
        parts.append(f"{described.labels.classes:,} classes")
    words = {"train": "training", "validation": "validation", "test": "test"}
    parts += [f"{n:,} {words[name]}" for name, n in described.samples.items() if n]
    return ", ".join(parts) + " samples"


def _number(value: float) -> str:
    """A number with at most six characters, unless it is tiny."""
    size = abs(value)
    if size < 1e-14:  # a rounding error
        return "0"
    if not math.isfinite(value):
        return "∞" if value > 0 else "–"
    if size >= 999_500:
        return f"{value / 1e6:.3g}M" if size < 999.5e6 else f"{value:.2g}"
    if size >= 99_999.5:
        return f"{value / 1e3:.0f}k"
    if size >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _bars(counts: Sequence[int], width: int = MAX_BARS) -> str:
    """A histogram as one line of block characters; neighbours are summed to fit the width."""
    group = math.ceil(len(counts) / width)
    sums = [sum(counts[first : first + group]) for first in range(0, len(counts), group)]
    most = max(sums)
    return "".join("·▁▂▃▄▅▆▇█"[math.ceil(8 * value / most)] for value in sums)
