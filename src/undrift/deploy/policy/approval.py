"""Asks a person at the site before it takes part in a run."""

from __future__ import annotations

import sys
from collections.abc import Callable

from undrift.deploy.orders import RunTerms, StatisticsTerms
from undrift.deploy.policy.agreed_run import AgreedRun
from undrift.deploy.policy.gate import Approve
from undrift.experiments.experiment import Experiment
from undrift.methods.traffic import traffic_of
from undrift.utils.errors import require
from undrift.utils.plain_text import plain_text

QUESTION = "Take part in this run? [y/N] "
STATISTICS_QUESTION = "Send these statistics? [y/N] "


def require_terminal() -> None:
    """Raise an error unless there is a terminal to ask at."""
    require(
        sys.stdin is not None and sys.stdin.isatty(),
        "--approve asks a person, but there is no terminal: start the site in one, or leave out "
        "--approve.",
    )


def asking(
    experiment: Experiment,
    name: str,
    show: Callable[[str], None],
    ask: Callable[[str], str] = input,
) -> Approve:
    """A function that shows what a run would do, and asks a person; anything but yes declines."""

    def approve(terms: RunTerms | StatisticsTerms) -> bool:
        if isinstance(terms, RunTerms):
            lines, question = summary(experiment, name, terms), QUESTION
        else:
            lines, question = questions(name, terms), STATISTICS_QUESTION
        for line in lines:
            show(line)
        try:
            answer = ask(question)
        except EOFError:
            return False
        return answer.strip().lower() in ("y", "yes")

    return approve


def questions(name: str, terms: StatisticsTerms) -> list[str]:
    """What statistics before a run would tell the server, in lines."""
    first = f"The server asks site {name!r} for statistics before run {terms.run}:"
    return [first, *(f"  {each}" for each in terms.revealed)]


def summary(experiment: Experiment, name: str, terms: RunTerms) -> list[str]:
    """What a run would do at a site, in lines."""
    samples, weight = terms.roster[name]
    seeds = ", ".join(map(str, experiment.seeds))
    lines = [
        # The server chose this name, and could otherwise rewrite the lines that follow.
        f"The server asks site {name!r} to take part in run {plain_text(terms.run)}:",
        f"  sites: {', '.join(terms.roster)}; this one counts as {samples:g} samples, weight "
        f"{weight:.4g}",
        f"  rounds: {experiment.rounds} for every method and seed; seeds: {seeds}",
    ]
    spacings: set[int] = set()
    for label in experiment.labels:
        run = AgreedRun(experiment, label, experiment.seeds[0], name, terms.roster)
        solver = run.job.local.of(name)
        steps = solver.steps_of(solver.amount(name, 0, run.seed), int(samples))
        sent = ", ".join(_uploads(run))
        lines.append(f"  {label}: {steps} steps in round 1 ({solver!r}); sends {sent}")
        spacings.add(run.schedule.every)
    evaluation = experiment.evaluation_settings()
    lines.append(
        f"  metrics: of {', '.join(evaluation.models)} on {', '.join(evaluation.parts)}, every "
        f"{' or '.join(map(str, sorted(spacings)))} rounds"
    )
    return lines


def _uploads(run: AgreedRun) -> list[str]:
    """What travels from the site in a round, by name."""
    up = traffic_of(run.method).up
    coder = run.coder
    vectors = "all parameters" if coder is None else f"compressed by {coder.compressor!r}"
    found = [f"{name} ({vectors if vector else 'a number'})" for name, vector in up.items()]
    if run.tracked.cohort or run.tracked.last:
        found.append("its model")
    if coder is not None:
        return found
    return [*found, "its change of the model in evaluated rounds"]
