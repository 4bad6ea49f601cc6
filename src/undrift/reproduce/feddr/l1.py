"""Figure 5 of FedDR: how the accuracy of the prox matters with an l1 norm in the objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from safetensors.torch import load_file

from undrift.report.recorded_runs import Runs
from undrift.report.tables import OverSeeds
from undrift.reproduce.curves import final, line, method_runs
from undrift.reproduce.feddr.four_methods import LOSS, OWN, TEST, shown
from undrift.reproduce.figure import Panel
from undrift.reproduce.findings import Claim, Findings, Number
from undrift.reproduce.lab import Lab
from undrift.reproduce.reproduction import Reproduction
from undrift.runs.folder import MODEL

SYNTHETIC: Mapping[str, Any] = {}
"""The settings of the experiment file."""
MNIST: Mapping[str, Any] = {
    "data": {
        "source": "mnist",
        "partition": {
            "kind": "dirichlet",
            "alpha": 0.3,
            "sizes": {"kind": "balanced", "samples": 100},
        },
        "clients": 50,
    },
    "model.hidden": [128],
    "sampling.cohort": 12,
    "rounds": 30,
}
QUICK = "synthetic(0,0), eta 1"
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "synthetic(0,0), eta 100": SYNTHETIC,
    QUICK: {**SYNTHETIC, "method.FedDR.eta": 1.0},
    "MNIST, eta 1000": {**MNIST, "method.FedDR.eta": 1000.0},
    "MNIST, eta 1": {**MNIST, "method.FedDR.eta": 1.0},
}
EPOCHS = (5, 10, 15, 20, 30)
RATES = {
    "synthetic(0,0)": (0.0025, 0.005, 0.0075, 0.01, 0.025),
    "MNIST": (0.001, 0.003, 0.005, 0.008, 0.01),
}
DEFAULT_RATES = {"synthetic(0,0)": 0.01, "MNIST": 0.003}
"""The learning rates without g; the numbers of epochs are compared at these."""
CURVES = {
    "objective": "F of the global model",
    "gradient_mapping": "gradient mapping of the global model",
    OWN + LOSS: "training loss of the own models",
}
SPARSE_SHARE = 0.5
"""A model is sparse if more than this share of its parameters are exactly zero."""


def _reproduce(lab: Lab) -> Findings:
    numbers: list[Number] = []
    claims: list[Claim] = []
    panels: list[Panel] = []
    for part in (QUICK,) if lab.quick else lab.parts:
        data, _, _ = part.partition(", eta")
        usual = DEFAULT_RATES[data]
        rates = lab.either(RATES[data], (RATES[data][0], usual))
        counts = lab.either(EPOCHS, (EPOCHS[0], EPOCHS[-1]))
        by_rate = {f"rate {rate:g}": _run(lab, part, rate, 20) for rate in rates}
        by_epochs = {f"{count} epochs": _run(lab, part, usual, count) for count in counts}
        claims += [_more_epochs(part, by_epochs, metric) for metric in CURVES]
        claims += [_smallest_rate(part, by_rate, metric) for metric in CURVES]
        claims.append(_sparse(part, by_epochs, lab.quick))
        numbers += [
            Number(f"{part}: share of zeros", name, None, zeros(runs))
            for name, runs in {**by_rate, **by_epochs}.items()
        ]
        panels += [
            Panel(
                part, "rounds", word, [line(r, "FedDR", metric, name=n) for n, r in sweep.items()]
            )
            for sweep in (by_rate, by_epochs)
            for metric, word in CURVES.items()
        ]
    return Findings(numbers, claims, panels)


def _run(lab: Lab, part: str, rate: float, epochs: int) -> Runs:
    """Run FedDR with one accuracy of the prox; runs that both sweeps share are done once."""
    settings = {**SETTINGS[part], "local.lr": rate, "local.epochs": epochs}
    return lab.run(f"{part}, rate {rate:g}, {epochs} epochs", settings)


def zeros(runs: Runs) -> OverSeeds:
    """Return the share of parameters of the last global model that are exactly zero."""
    shares = []
    for run in method_runs(runs, "FedDR").runs:
        assert run.folder is not None  # it was read from one
        parameters = load_file(run.folder / MODEL).values()
        zero = sum(int((each == 0).sum()) for each in parameters)
        shares.append(zero / sum(each.numel() for each in parameters))
    return OverSeeds(tuple(shares))


def _ends(sweep: Mapping[str, Runs], metric: str) -> dict[str, float]:
    return {name: final(runs, "FedDR", metric, last=3).mean for name, runs in sweep.items()}


def _more_epochs(part: str, sweep: Mapping[str, Runs], metric: str) -> Claim:
    """Claim that the most accurate prox ends lower than the least accurate."""
    ends = _ends(sweep, metric)
    least, *_, most = ends
    return Claim(
        f"{part}: the {CURVES[metric]} ends lower with {most} than with {least}.",
        ends[most] < ends[least] if improves(sweep, metric) else None,
        shown(ends),
    )


def _smallest_rate(part: str, sweep: Mapping[str, Runs], metric: str) -> Claim:
    """Claim that the smallest learning rate, whose prox is least accurate, ends highest."""
    ends = _ends(sweep, metric)
    smallest = next(iter(ends))
    return Claim(
        f"{part}: the {CURVES[metric]} ends highest with the smallest learning rate.",
        max(ends, key=lambda name: ends[name]) == smallest if improves(sweep, metric) else None,
        shown(ends),
    )


def improves(sweep: Mapping[str, Runs], metric: str) -> bool:
    """Whether any run ends clearly below its start; if none does, claims are undecided."""
    begins = method_runs(next(iter(sweep.values())), "FedDR").runs[0].records[0].metrics[metric]
    return min(_ends(sweep, metric).values()) < 0.99 * begins


def _sparse(part: str, sweep: Mapping[str, Runs], quick: bool) -> Claim:
    """Claim that most parameters of the global model are zero, with its test accuracy."""
    name, runs = list(sweep.items())[-1]
    share, accuracy = zeros(runs).mean, final(runs, "FedDR", TEST, last=3).mean
    return Claim(
        f"{part}: most parameters of the global model are exactly zero.",
        True
        if share > SPARSE_SHARE
        else None
        if quick
        else False,  # a quick run may be too short for zeros
        f"{100 * share:.1f} % of them after {name}, with a test accuracy of {accuracy:.3f}",
    )


REPRODUCTION = Reproduction(
    name="feddr-l1",
    paper="FedDR",
    shows="Figure 5",
    about="FedDR with g = 0.01·|x|₁ and proxes of different accuracy: five learning rates and five "
    "numbers of epochs. The paper uses FEMNIST; here the data are synthetic(0,0) and MNIST.",
    cost="10 min without MNIST, eta 1000",
    reproduce=_reproduce,
    needs=("mnist",),
    left_open=(
        "FEMNIST is not published as files: the paper's other data, synthetic(0,0), and MNIST (50 "
        "users with 100 images each, Dirichlet 0.3, 12 sampled) take its place, for 40 and 30 "
        "rounds.",
        "η is not printed: here those of the authors' released scripts, 100 for synthetic data "
        "and 1000 for FEMNIST. They set the server's soft threshold to 1 and 10, above nearly all "
        "parameters; the parts with η = 1 are nearer to the theorem's condition.",
        "The paper does not say which model's loss it shows; here both the global model's and the "
        "users' own, as in Figure 2.",
        "The best learning rate is known for FEMNIST only, 0.003: the claim here is that the "
        "smallest, whose prox is least accurate, ends worst.",
        "The paper does not say how sparse the models are: here zeros of the global model are "
        "counted.",
    ),
    quick={"rounds": 12, "data.most": 60},
    quick_is="synthetic(0,0) with η = 1 only, at most 60 samples a user, two learning rates, two "
    "numbers of epochs, 12 rounds.",
    parts=tuple(SETTINGS),
)
