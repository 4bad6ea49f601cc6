"""How heterogeneous federated data are: sizes, labels and gradients, in numbers."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress import track
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from undrift.core.losses import objective_weights
from undrift.data.federated import FederatedData
from undrift.data.part import Part
from undrift.utils.display import as_html, redraws
from undrift.utils.errors import UndriftError, require, require_type
from undrift.utils.threads import one_thread

if TYPE_CHECKING:
    from undrift.nets.module_losses import ModuleLosses

SHARES = (40, 60, 80)
"""The per cents of a client's data in Figure 3 of FedDyn (Acar et al., ICLR 2021)."""
BINS = 20
"""Bars of the histogram of sizes, at most."""
SKEWED = 20
"""The ratio of the largest to the smallest size above which the bars are logarithmic."""
FEW = 8
"""So many clients are named one by one, instead of in a histogram."""
SHOWN = 40
"""Clients in a picture, at most."""
ITERATIONS = 1000
"""Steps of L-BFGS for each minimum that Γ needs, at most."""
MOST_CLASSES = 100_000
"""Whole numbers above this are not the numbers of classes."""


@dataclass(frozen=True)
class Spread:
    """A number per client, summarised."""

    mean: float
    std: float
    """of the population: divided by N"""
    min: float
    median: float
    max: float

    @staticmethod
    def over(values: np.ndarray) -> Spread:
        """The summary of one number per client."""
        return Spread(
            float(values.mean()),
            float(values.std()),
            float(values.min()),
            float(np.median(values)),
            float(values.max()),
        )


@dataclass(frozen=True)
class Histogram:
    """How many clients have a number between one edge and the next."""

    counts: tuple[int, ...]
    edges: tuple[float, ...]
    logarithmic: bool


@dataclass(frozen=True)
class Needed:
    """How many of its classes, the most frequent first, make up a share of a client's data."""

    spread: Spread
    clients: tuple[int, ...]
    """how many clients need 1, 2, … classes"""


@dataclass(frozen=True)
class Labels:
    """How the clients' labels differ."""

    classes: int
    counts: tuple[int, ...]
    """training samples of each class, over all clients"""
    per_client: Spread
    """distinct classes of a client"""
    needed: dict[str, Needed]
    """for "40", "60" and "80" per cent of a client's data (Figure 3 of FedDyn)"""
    distance: Spread
    """total variation ½ Σ_c |p_k(c) − p(c)| between a client's labels and all clients' labels"""
    distance_weighted: float
    """its mean by samples, Σ (n_k/n) · ½ Σ_c |p_k(c) − p(c)|"""


@dataclass(frozen=True)
class Gradients:
    """How the clients' gradients differ at a model's weights (`theory.heterogeneity`)."""

    objective: str
    """the q_k: "samples" for n_k/n, "clients" for 1/N"""
    ratio: float
    """B² = Σ q_k|∇f_k|² / |∇F|², FedProx's"""
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
    """Γ; of the minima found, if the model is not convex"""
    weight_decay: float
    tolerance: float
    """the norm of the gradient at which a minimisation stops"""
    gradient_norm: float
    """the largest that remained"""
    converged: bool
    """whether every minimisation reached the tolerance"""


@dataclass(frozen=True)
class Picked:
    """The clients that a picture shows, and their samples of each class."""

    ids: tuple[str, ...]
    sizes: tuple[int, ...]
    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Description:
    """How heterogeneous a federated data set is.

    Print it for a table, or take `table()`, `to_json()` or `plot("picture.png")`.
    """

    name: str
    clients: int
    samples: dict[str, int]
    """of the "train", "validation" and "test" parts"""
    sizes: Spread
    """training samples per client, n_k"""
    histogram: Histogram
    """of the n_k"""
    labels: Labels | None
    """None for regression and for targets with more than one dimension"""
    gradients: Gradients | None
    gamma: MinimaGap | None
    notes: tuple[str, ...]
    """how the data were divided"""
    picked: Picked
    """what a picture shows of single clients; not in the JSON"""

    def as_dict(self) -> dict[str, Any]:
        """All numbers, as JSON has them: what is infinite or not a number is None."""
        found = asdict(self)
        del found["picked"]
        return plain(found)

    def to_json(self) -> str:
        """All numbers, as JSON."""
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
        """Draw the clients' labels and sizes, as .png, .svg or .pdf.

        Gives the path, or without one a picture that a notebook shows.
        """
        from undrift.data.picture import plot_description

        return plot_description(self, path)

    def svg(self) -> bytes:
        """The same picture as SVG."""
        from undrift.data.picture import draw
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
    """How heterogeneous federated data are.

    Parameters
    ----------
    model
        measure the gradients' dissimilarity at this module's weights
    gamma
        find Γ = F* − Σ q_k F_k* for the model, by minimising F and every f_k in double precision
        where the model allows it: exact for convex models such as logistic regression, otherwise
        of the minima found
    objective
        the q_k of gradients and Γ: n_k/n for "samples", 1/N for "clients"
    weight_decay
        adds (weight_decay/2)|x|² to every loss that Γ minimises
    loss
        the user's own, (outputs, targets) → number
    tolerance
        the norm of the gradient at which a minimisation stops; for a convex model Γ is then
        within tolerance²/(2 · weight_decay). After 1000 steps it stops all the same, and says so
    device
        where the model works
    """
    require_type("data", data, FederatedData, "a FederatedData")
    require(model is not None or not gamma, "Γ belongs to a model, so it needs one: model=….")
    sizes = data.train.sizes.cpu().numpy().astype(np.int64)
    notes = tuple(data.notes)
    count = _classes(data)
    if count == 0 and _whole(data.train):
        notes += ("The labels are not the numbers 0, 1, … of classes: they are not described.",)
    gradients = gap = None
    if model is not None:
        with one_thread():
            gradients, gap = _of_model(
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
        picked=_picked(data, count),
    )


def label_counts(part: Part, classes: int) -> np.ndarray:
    """How many samples of each class every client has, `[N, classes]`."""
    owner, labels = _owned(part, classes)
    clients = len(part.sizes)
    cells = np.bincount(owner * classes + labels, minlength=clients * classes)
    return cells.reshape(clients, classes)


def _owned(part: Part, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The client and the label of every sample that a client holds."""
    sizes = part.sizes.cpu().numpy()
    owner = np.repeat(np.arange(len(sizes)), sizes)
    labels = part.y[part.rows].cpu().numpy().astype(np.int64)
    low, high = (labels.min(), labels.max()) if len(labels) else (0, 0)
    require(
        low >= 0 and high < classes,
        f"The labels go from {low} to {high}, but there are classes 0 … {classes - 1}.",
    )
    return owner, labels


def _whole(part: Part) -> bool:
    """Whether the targets are one whole number per sample."""
    return part.y.ndim == 1 and not part.y.is_floating_point() and not part.y.is_complex()


def _classes(data: FederatedData) -> int:
    """The number of classes; 0 where targets are not classes."""
    if not _whole(data.train):
        return 0
    if data.classes is not None:
        return len(data.classes)
    found = [part.y[part.rows] for part in data.parts().values() if len(part)]
    low, high = min(int(y.min()) for y in found), max(int(y.max()) for y in found)
    return high + 1 if low >= 0 and high < MOST_CLASSES else 0


def _histogram(sizes: np.ndarray) -> Histogram:
    """Bars whose edges lie between whole numbers: every bar is of sizes that can occur."""
    low, high = int(sizes.min()), int(sizes.max())
    logarithmic = high / low > SKEWED
    if logarithmic:
        # A bar of one size beside a bar of two would look like a jump: small sizes get wide bars.
        ratio = max(((high + 1) / low) ** (1 / BINS), min(2.0, 1 + 3 / low))
        bars = math.ceil(math.log((high + 1) / low, ratio) - 1e-9)
        starts = np.ceil(low * ratio ** np.arange(bars + 1) - 1e-6)
        starts[-1] = max(starts[-1], high + 1)
    else:
        width = math.ceil((high - low + 1) / BINS)
        starts = np.arange(low, high + width + 1, width, dtype=float)
    edges = starts - 0.5
    counts, _ = np.histogram(sizes, edges)
    return Histogram(tuple(counts.tolist()), tuple(edges.tolist()), logarithmic)


def _labels(part: Part, classes: int) -> Labels:
    """The measures of label skew, from the (client, class) pairs that occur.

    There are no more of those than samples, whatever the numbers of clients and classes.
    """
    owner, labels = _owned(part, classes)
    everyone = np.bincount(labels, minlength=classes)
    share = everyone / everyone.sum()  # p(c)
    pairs, count = np.unique(owner * classes + labels, return_counts=True)
    order = np.lexsort((-count, pairs // classes))  # by client, the most frequent first
    client, label, count = pairs[order] // classes, pairs[order] % classes, count[order]
    per_client = np.bincount(client)
    sizes = part.sizes.cpu().numpy()  # n_k

    running = np.cumsum(count) - (np.cumsum(sizes) - sizes)[client]  # within the client
    needed = {}
    for percent in SHARES:
        missing = 100 * running < percent * sizes[client]
        needed[percent] = 1 + np.bincount(client, missing, minlength=len(sizes)).astype(np.int64)
    most = max(int(number.max()) for number in needed.values())

    own = count / sizes[client]  # p_k(c)
    absent = 1 - np.bincount(client, share[label])  # Σ p(c) over the classes it does not have
    distance = (np.bincount(client, np.abs(own - share[label])) + absent) / 2
    distance = distance.clip(0, 1)
    return Labels(
        classes=classes,
        counts=tuple(everyone.tolist()),
        per_client=Spread.over(per_client),
        needed={
            str(percent): Needed(
                Spread.over(number), tuple(np.bincount(number, minlength=most + 1)[1:].tolist())
            )
            for percent, number in needed.items()
        },
        distance=Spread.over(distance),
        distance_weighted=float(sizes @ distance / sizes.sum()),
    )


def _picked(data: FederatedData, classes: int) -> Picked:
    """An evenly spread choice of clients, for a picture."""
    every = np.arange(len(data))
    if len(every) > SHOWN:
        every = np.linspace(0, len(data) - 1, SHOWN).round().astype(np.int64)
    ids = tuple(str(data.ids[k]) for k in every)
    sizes = tuple(data.train.sizes[torch.from_numpy(every)].tolist())
    if not classes:
        return Picked(ids, sizes, (), ())
    rows = [data.train.of(int(k)) for k in every]
    bounds = torch.tensor([0, *(len(own) for own in rows)]).cumsum(0)
    part = Part(data.train.x, data.train.y, torch.cat(rows), bounds)
    counts = label_counts(part, classes)
    names = data.classes if data.classes is not None else range(classes)
    rows_of_counts = tuple(tuple(row) for row in counts.tolist())
    return Picked(ids, sizes, tuple(map(str, names)), rows_of_counts)


def _of_model(
    data: FederatedData,
    model: nn.Module,
    gamma: bool,
    objective: str,
    loss: Callable[[Tensor, Tensor], Tensor] | None,
    weight_decay: float,
    tolerance: float,
    device: str | torch.device,
) -> tuple[Gradients, MinimaGap | None]:
    from undrift.theory.heterogeneity import dissimilarity
    from undrift.theory.minima import find_gamma

    q = objective_weights(data.train.sizes, objective)
    losses = _losses(data, model, gamma, loss, device)
    start = losses.initial()
    found = dissimilarity(losses, q, start)
    gradients = Gradients(
        objective, found.ratio, found.variance, found.square_mean, found.mean_square
    )
    if not gamma:
        return gradients, None
    gap = find_gamma(losses, q, start, weight_decay, tolerance, ITERATIONS, _watched)
    return gradients, MinimaGap(
        objective, gap.value, weight_decay, tolerance, gap.gradient_norm, gap.converged
    )


def _losses(
    data: FederatedData,
    model: nn.Module,
    double: bool,
    loss: Callable[[Tensor, Tensor], Tensor] | None,
    device: str | torch.device,
) -> ModuleLosses:
    from undrift.nets.module_losses import ModuleLosses

    with warnings.catch_warnings():
        # Nothing is trained here, so it does not matter that training would change buffers.
        warnings.filterwarnings("ignore", message="The model has buffers")
        if double and isinstance(model, nn.Module):
            with suppress(UndriftError):  # not every model works in double precision
                return ModuleLosses(deepcopy(model).double(), data, loss, device=device)
        return ModuleLosses(model, data, loss, device=device)


def _watched(clients: list[int]) -> Iterable[int]:
    """The clients, with a progress bar if there is someone to see it."""
    console = Console(stderr=True)
    hidden = not redraws(console)
    return track(clients, "minimising", console=console, transient=True, disable=hidden)


def plain(value: Any) -> Any:
    """A value in JSON's types."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _table(described: Description) -> RenderableType:
    """The title, a row per measure, and what is said in sentences."""
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
    if described.clients <= FEW:
        named = zip(described.picked.ids, described.picked.sizes, strict=True)
        lines.insert(0, "Samples: " + ", ".join(f"{id} {size:,}" for id, size in named) + ".")
    lines.extend(described.notes)
    title = Text(described.name, style="bold")
    title.append(f": {_inventory(described)}", style="not bold")
    below = [
        Padding(Text(line), (1 if number == 0 else 0, 0, 0, 0)) for number, line in enumerate(lines)
    ]
    return Group(title, Text(), table, *below)


def _inventory(described: Description) -> str:
    """Clients, classes and samples, in words."""
    parts = [f"{described.clients:,} client{'s' * (described.clients != 1)}"]
    if described.labels is not None:
        parts.append(f"{described.labels.classes:,} classes")
    words = {"train": "training", "validation": "validation", "test": "test"}
    parts += [f"{n:,} {words[name]}" for name, n in described.samples.items() if n]
    return ", ".join(parts) + " samples"


def _number(value: float) -> str:
    """A number in at most six characters, if it is not tiny."""
    size = abs(value)
    if size < 1e-14:  # rounding
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


def _bars(counts: Sequence[int], width: int = BINS) -> str:
    """A histogram as one line of bars, of neighbours together where there are too many."""
    group = math.ceil(len(counts) / width)
    sums = [sum(counts[first : first + group]) for first in range(0, len(counts), group)]
    most = max(sums)
    return "".join("·▁▂▃▄▅▆▇█"[math.ceil(8 * value / most)] for value in sums)
