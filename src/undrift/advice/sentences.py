"""Sentences that explain the measurements in the papers' terms, and their limits."""

from __future__ import annotations

import math
from collections.abc import Iterator

from undrift.advice.facts import DISSIMILAR, FEW, SKEWED, UNEQUAL, Facts
from undrift.utils.formatting import duration, size

LARGE_MODEL = 1_000_000
"""From this number of parameters on, compression is worth a sentence."""


def meaning(facts: Facts) -> list[str]:
    """Sentences that explain the facts, the most important first."""
    parts = (
        *(_work, _labels, _gradients, _personal, _rate, _participation, _sizes),
        *(_time, _objective, _state, _traffic),
    )
    return [sentence for part in parts for sentence in part(facts)]


def _work(facts: Facts) -> Iterator[str]:
    work = facts.work
    if work is None:
        yield (
            "Clients solve their local problems exactly, so that numbers of steps do not matter; "
            "averaging exact solutions does not converge to the optimum if clients differ."
        )
        return
    steps = _between(work.steps_least, work.steps_most)
    sampled = (
        "" if work.clients + work.never == facts.clients else f" ({work.clients} of them examined)"
    )
    often = ", changing from round to round" if work.varies else ""
    if facts.single_steps:
        yield f"Every client takes one step per round{sampled}: none drifts."
    elif facts.unequal:
        (most, over), (least, under) = work.over, work.under
        yield (
            f"Clients take {steps} steps per round{sampled}{often}. Plain averaging (FedAvg, "
            f"FedProx) then minimises Σ w_k f_k with w_k ∝ q_k τ_k, which differs from the "
            f"objective's q_k by χ² = {work.chi_square:.3g}: client {most!r} counts {over:.3g} "
            f"times as much as it should and client {least!r} {under:.2g} times. FedNova and "
            f"SCAFFOLD correct that."
        )
        floor = 2 * work.chi_square * facts.gradients.variance
        if facts.dissimilar and math.isfinite(floor) and facts.gradients.square_mean > 0:
            first = facts.gradients.square_mean
            empty = ", so that the theorem guarantees nothing" if floor >= first else ""
            yield (
                f"By FedNova's Theorem 2, plain averaging may not bring |∇F|² below 2χ²σ_g² = "
                f"{floor:.3g}; it is {first:.3g} at the start{empty}."
            )
    else:
        yield (
            f"Clients take {steps} steps per round{sampled}{often}: the weights of plain averaging "
            f"differ from the objective's q_k by χ² = {work.chi_square:.2g}, which is negligible "
            f"(below {UNEQUAL:g})."
        )
    if not facts.single_steps:
        yield (f"A round of averaging advances by τ_eff = {work.tau_eff:.3g} steps of SGD.")
    if work.unfinished > 0:
        yield f"{work.unfinished:.0%} of the replies have less work than the client was asked for."
    if work.never:
        yield (
            f"{_clients(work.never)} never finish{'es' * (work.never == 1)} a step in time: no "
            f"method can learn from their data."
        )


def _labels(facts: Facts) -> Iterator[str]:
    labels = facts.labels
    if labels is None or facts.clients == 1:
        return
    strong = f"strong skew (from {SKEWED:g} on)" if facts.skewed else "no strong skew"
    yield (
        f"A client's labels differ from all labels by a total variation of {labels.distance:.2f} "
        f"on average, of which chance explains {labels.chance:.2f}: {strong}. The median client "
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
            "converges to a biased point, which is farther from the optimum for larger ητ"
        )
    elif found.beyond_chance > 1.05:
        verdict = "clients mostly agree on the direction"
    else:
        verdict = "clients differ no more than random samples of one population"
    yield (
        f"Gradients at the initial model: B² = {_number(found.ratio)}, σ_g² = "
        f"{found.variance:.3g}{where}; corrected for chance, B² = "
        f"{_number(found.beyond_chance)}: {verdict}."
    )


def _personal(facts: Facts) -> Iterator[str]:
    if facts.dissimilar and facts.keeps_state:
        yield (
            "If each client may have a model of its own, Ditto or personal parameters can serve "
            "clients that differ so much better than one model for all."
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
            f"allow a rate ten times as large."
        )
    elif facts.rate > facts.rate_limit:
        yield (
            f"The smoothness is L ≈ {L:.3g}, {where}: lr = {facts.rate:g} is above 2/L = "
            f"{facts.rate_limit:.2g}, from where gradient descent on a quadratic diverges. "
            f"Networks often tolerate that; if training diverges, try {1 / L:.2g}."
        )
    else:
        yield (
            f"The smoothness is L ≈ {L:.3g}, {where}: lr = {facts.rate:g} gives ηL = "
            f"{facts.rate * L:.2g}, a stable step (below 2)."
        )


def _participation(facts: Facts) -> Iterator[str]:
    part = facts.participation
    if facts.delays is not None:
        yield (
            f"{facts.delays.concurrency} of {facts.clients} clients work at once; a reply is "
            f"{facts.delays.mean:.3g} updates old on average and {facts.delays.most} at most, and "
            f"the most frequent client replies {part.most_often:.2g} times as often as the mean. "
            f"The solution of AsyncFedDR does not depend on that, those of FedBuff and FedAsync do."
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
        parts += [f"{part.rarely} rarely reply"] * bool(part.rarely)
        yield (
            f"Of {facts.clients} clients, {' and '.join(parts)}: the replies are not a uniform "
            f"cohort, and averaging favours the other clients."
        )


def _sizes(facts: Facts) -> Iterator[str]:
    if facts.heaviest >= 3 and facts.participation.share < 1 and facts.objective == "samples":
        yield (
            f"The heaviest client counts {facts.heaviest:.3g} times as much as the mean client "
            f"(objective = samples), so that rounds with and without it differ much. Drawing "
            f"clients by their size (sampling kind weighted, FedAvg scheme I) avoids that."
        )


def _time(facts: Facts) -> Iterator[str]:
    if facts.clock is None:
        return
    yield (
        f"A round takes {duration(facts.clock.seconds)} on the virtual clock, and clients wait for "
        f"others {facts.clock.idle:.0%} of their time."
    )
    if facts.waiting:
        yield "Asynchronous training would use that time, but with old replies."


def _objective(facts: Facts) -> Iterator[str]:
    if facts.composite:
        yield (
            f"The objective has the regulariser g = {facts.regularizer}: a composite problem, "
            f"which needs a method with a prox."
        )


def _state(facts: Facts) -> Iterator[str]:
    if facts.stateless:
        yield "Clients keep no state between rounds, which excludes all methods with state."
    elif facts.hardly_seen_again:
        yield (
            f"A client takes part {facts.participation.visits:.2g} times in the whole run, so that "
            f"its state would hardly be used, which excludes all methods with state. More rounds "
            f"or more clients per round may change that."
        )


def _traffic(facts: Facts) -> Iterator[str]:
    if facts.parameters >= LARGE_MODEL:
        whole = facts.parameters * facts.bytes_per_number
        yield (
            f"A vector of the model has {size(whole)}: if links are slow, [compression] up = "
            f'{{name = "top-k", ratio = 0.01}} uploads about a fiftieth of it, with error feedback.'
        )


def unknown(facts: Facts) -> list[str]:
    """Sentences on what cannot be known without training."""
    found = [
        "How the problem changes away from the initial model: B², σ_g² and L are measured there, "
        "and a network's loss is not convex.",
        "Test accuracy: the theory is about the training objective F.",
        "The best hyper-parameters: these are values to start from; `undrift sweep` tunes them.",
    ]
    if facts.clock is None:
        found.append(
            "How fast devices are: none are described, so all clients are assumed to finish."
        )
    else:
        found.append("Whether real devices behave as described: the clock is virtual.")
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
