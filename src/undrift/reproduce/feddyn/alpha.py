"""Figure 1 of FedDyn: how much the accuracy depends on α."""

from __future__ import annotations

from undrift.reproduce.curves import best, final, line
from undrift.reproduce.feddyn.models_sent import DIGITS, NO_IMAGES, REPORTED
from undrift.reproduce.figure import Line, Panel
from undrift.reproduce.findings import Claim, Findings, Number
from undrift.reproduce.lab import Lab
from undrift.reproduce.reproduction import Reproduction

ALPHAS = ("1", "0.1", "0.01", "0.001")
"""Labels of the experiment file, from the strongest to the weakest regularization."""
LAST_EVALUATIONS = 10
"""Evaluations at the end of a run whose mean is its final accuracy."""
MAX_DROP = 0.05
"""A curve has converged if its final accuracy is at most this much below its best."""


def _reproduce(lab: Lab) -> Findings:
    runs = lab.run("alpha")
    reached = {alpha: best(runs, alpha, REPORTED) for alpha in ALPHAS}
    ends = {alpha: final(runs, alpha, REPORTED, LAST_EVALUATIONS) for alpha in ALPHAS}
    shown = ", ".join(f"α = {alpha}: {over.mean:.3f}" for alpha, over in reached.items())
    falls = {alpha: reached[alpha].mean - ends[alpha].mean for alpha in ALPHAS}
    winner = max(ALPHAS, key=lambda alpha: reached[alpha].mean)
    claims = [
        Claim(
            f"Every α converges: its last {LAST_EVALUATIONS} evaluations are within {MAX_DROP} of "
            "its best.",
            all(abs(fall) <= MAX_DROP for fall in falls.values()),
            ", ".join(f"α = {alpha}: {fall:.3f} below" for alpha, fall in falls.items()),
        ),
        Claim("The best α is in the middle of the range.", winner in ALPHAS[1:-1], shown),
        Claim("The best α is 0.1.", None if lab.quick else winner == "0.1", shown),
    ]
    return Findings(
        [Number("best test accuracy", f"α = {alpha}", None, reached[alpha]) for alpha in ALPHAS],
        claims,
        [
            Panel(
                "convergence",
                "rounds",
                "test accuracy",
                [line(runs, alpha, REPORTED, name=f"α = {alpha}") for alpha in ALPHAS],
            ),
            Panel(
                "best accuracy",
                "α",
                "test accuracy",
                [
                    Line(
                        "best", [*map(float, ALPHAS)], [reached[a].mean for a in ALPHAS], marker="o"
                    )
                ],
                log_x=True,
            ),
        ],
        [NO_IMAGES] if lab.quick else (),
    )


REPRODUCTION = Reproduction(
    name="feddyn-alpha",
    paper="FedDyn",
    shows="Figure 1",
    about="FedDyn with different α on CIFAR-10, IID, with 10 of 100 devices in a round.",
    cost="about 60 hours, estimated",
    reproduce=_reproduce,
    needs=("cifar10",),
    left_open=(
        "Values of α: only the figure's axis shows them, and the text names only the best, .1; "
        "here 1, .1, .01 and .001.",
        "Learning rate: the paper chose the decay among .992, .998 and 1 and does not say which; "
        "here .998.",
        "Convergence: the paper has no criterion for it; ours is in the claim.",
    ),
    quick={**DIGITS, "data.partition": "iid", "rounds": 40},
    quick_is="digits of 8 × 8 with a small network in place of CIFAR-10, 20 clients with 4 in a "
    "round, 40 rounds.",
)
