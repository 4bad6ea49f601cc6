"""What the numbers mean, in the papers' terms, and what no number here can tell."""

from __future__ import annotations

import math
from collections.abc import Iterator

from undrift.advice.facts import DISSIMILAR, FEW, SKEWED, UNEQUAL, Facts
from undrift.utils.formatting import duration


def meaning(facts: Facts) -> list[str]:
    """Plain sentences with numbers, the weightiest facts first."""
    parts = (_work, _labels, _gradients, _rate, _participation, _sizes, _time, _objective, _state)
    return [sentence for part in parts for sentence in part(facts)]


def _work(facts: Facts) -> Iterator[str]:
    work = facts.work
    if work is None:
        yield (
            "Clients solve their problem exactly, so there are no steps to be unequal; averaging "
            "exact solutions does not end at the optimum where clients differ."
        )
        return
    steps = _between(work.steps_least, work.steps_most)
    sampled = (
        "" if work.clients + work.never == facts.clients else f" ({work.clients} of them looked at)"
    )
    often = ", changing from round to round" if work.varies else ""
    if facts.single_steps:
        yield f"Every client takes one step a round{sampled}: nobody drifts."
    elif facts.unequal:
        (most, over), (least, under) = work.over, work.under
        yield (
            f"Clients take {steps} steps a round{sampled}{often}. Plain averaging (FedAvg, "
            f"FedProx) then minimises Σ w_k f_k with w_k ∝ q_k τ_k, which differs from the wanted "
            f"q_k by χ² = {work.chi_square:.3g}: client {most!r} counts {over:.3g} times as much "
            f"as it should and client {least!r} only {under:.2g} times. FedNova or SCAFFOLD "
            f"removes that."
        )
        floor = 2 * work.chi_square * facts.gradients.variance
        if facts.dissimilar and math.isfinite(floor) and facts.gradients.square_mean > 0:
            first = facts.gradients.square_mean
            empty = ", so that it promises nothing" if floor >= first else ""
            yield (
                f"FedNova's Theorem 2 leaves plain averaging a floor of 2χ²σ_g² = {floor:.3g} for "
                f"|∇F|², which is {first:.3g} at the start{empty}."
            )
    else:
        yield (
            f"Clients take {steps} steps a round{sampled}{often}: the weights that averaging uses "
            f"differ from the wanted q_k by χ² = {work.chi_square:.2g}, which is next to nothing "
            f"(below {UNEQUAL:g})."
        )
    if not facts.single_steps:
        yield (
            f"A round of averaging is worth τ_eff = {work.tau_eff:.3g} steps of SGD on the average "
            f"client."
        )
    if work.unfinished > 0:
        yield f"{work.unfinished:.0%} of the replies come with less work than was asked for."
    if work.never:
        yield (
            f"{_clients(work.never)} never manage{'s' * (work.never == 1)} a step in time: no "
            f"method learns from data that never contribute."
        )


def _labels(facts: Facts) -> Iterator[str]:
    labels = facts.labels
    if labels is None or facts.clients == 1:
        return
    strong = f"strong skew (from {SKEWED:g} on)" if facts.skewed else "no strong skew"
    yield (
        f"A client's labels differ from everybody's by a total variation of {labels.distance:.2f}, "
        f"of which chance alone would explain {labels.chance:.2f}: {strong}. The median client "
        f"has {labels.classes_per_client:.3g} of {labels.classes} classes."
    )


def _gradients(facts: Facts) -> Iterator[str]:
    found = facts.gradients
    if facts.clients == 1:
        return
    where = "" if found.everything else f", on {found.samples} samples of {found.clients} clients"
    if found.beyond_chance >= DISSIMILAR:
        verdict = (
            "clients disagree more than they agree, so that local steps drift apart and FedAvg "
            "ends at a biased point, the farther from the optimum the larger ητ"
        )
    elif found.beyond_chance > 1.05:
        verdict = "clients mostly agree on where to go"
    else:
        verdict = "no more than random samples of the same population would differ"
    yield (
        f"Gradients at the initial model: B² = {_number(found.ratio)}, σ_g² = "
        f"{found.variance:.3g}{where}; without what chance explains B² = "
        f"{_number(found.beyond_chance)}: {verdict}."
    )


def _rate(facts: Facts) -> Iterator[str]:
    L = facts.curvature.L
    where = f"the largest curvature of {_clients(facts.curvature.clients)} at the initial model"
    if facts.rate is None or L == 0:
        yield f"The smoothness is L ≈ {L:.3g}, {where}."
    elif facts.rate_proposed:
        yield (
            f"The smoothness is L ≈ {L:.3g}, {where}. No learning rate was given: lr = "
            f"{facts.rate:g} is 1/L (times 1 − ρ with momentum ρ), a cautious step; networks often "
            f"allow ten times as much."
        )
    elif facts.rate > facts.rate_limit:
        yield (
            f"The smoothness is L ≈ {L:.3g}, {where}: with lr = {facts.rate:g} a step goes beyond "
            f"2/L = {facts.rate_limit:.2g}, where gradient descent on a quadratic diverges. "
            f"Networks often bear it; if the first rounds do not, try {1 / L:.2g}."
        )
    else:
        yield (
            f"The smoothness is L ≈ {L:.3g}, {where}: with lr = {facts.rate:g} ηL is "
            f"{facts.rate * L:.2g}, a stable step (below 2)."
        )


def _participation(facts: Facts) -> Iterator[str]:
    part = facts.participation
    if facts.delays is not None:
        yield (
            f"{facts.delays.concurrency} of {facts.clients} clients are at work at once; a reply "
            f"is {facts.delays.mean:.3g} updates old on average and {facts.delays.most} at most, "
            f"and the client that replies most often does so {part.most_often:.2g} times as often "
            f"as the mean. AsyncFedDR's end does not depend on that; FedBuff's and FedAsync's do."
        )
    elif part.share < 1:
        few = f"few (at most {FEW:.0%})" if facts.few else "many"
        yield (
            f"A round uses the replies of {part.replies:.3g} of {facts.clients} clients, "
            f"{part.share:.2g} of them: {few}. In {part.rounds} rounds a client replies "
            f"{part.visits:.3g} times on average."
        )
    else:
        yield "All clients take part in every round."
    if part.never or part.rarely:
        parts = [f"{part.never} never reply"] * bool(part.never)
        parts += [f"{part.rarely} rarely do"] * bool(part.rarely)
        yield (
            f"Of {facts.clients} clients {' and '.join(parts)}: a uniform cohort is not what the "
            f"server gets, and averaging favours the others."
        )


def _sizes(facts: Facts) -> Iterator[str]:
    if facts.heaviest >= 3 and facts.participation.share < 1 and facts.objective == "samples":
        yield (
            f"The heaviest client counts {facts.heaviest:.3g} times as much as the mean one "
            f"(objective = samples): rounds with it and without it differ much. Drawing clients by "
            f"size (sampling kind weighted, FedAvg scheme I) evens that out."
        )


def _time(facts: Facts) -> Iterator[str]:
    if facts.clock is None:
        return
    yield (
        f"A round takes {duration(facts.clock.seconds)} of the virtual clock, and clients spend "
        f"{facts.clock.idle:.0%} of their time waiting for others."
    )
    if facts.waiting:
        yield "Asynchronous training would use that time, at the price of old replies."


def _objective(facts: Facts) -> Iterator[str]:
    if facts.composite:
        yield (
            f"The objective has the regulariser g = {facts.regularizer}: a composite problem, for "
            f"methods with a prox."
        )


def _state(facts: Facts) -> Iterator[str]:
    if facts.stateless:
        yield "Clients keep nothing from round to round, which leaves out all methods with state."
    elif facts.hardly_seen_again:
        yield (
            f"A client is seen {facts.participation.visits:.2g} times in the whole run: what it "
            f"keeps would hardly ever be used again, which leaves out all methods with state. A "
            f"longer run, or more clients in a round, may change that."
        )


def unknown(facts: Facts) -> list[str]:
    """What advice without training cannot know."""
    found = [
        "How hard the problem is away from the initial model: B², σ_g² and L are those at the "
        "start, and a network's loss is not convex.",
        "Test accuracy: the theory is about the training objective F.",
        "The best hyper-parameters: those given are to start from; `undrift sweep` tunes them.",
    ]
    if facts.clock is None:
        found.append("How fast devices are: none are described, so everyone is taken to finish.")
    else:
        found.append("Whether real devices are as the file says: the clock is virtual.")
    if not facts.gradients.everything:
        found.append(
            "All clients' gradients: they were measured on a sample, and rare clients may differ."
        )
    return found


def _between(low: float, high: float) -> str:
    if low == high:
        return f"{low:g}"
    return f"{low:.3g} to {high:.3g}"


def _clients(count: int) -> str:
    return f"{count} client{'s' * (count != 1)}"


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}"
