"""Checks of a comparison's methods: distinct labels, one objective, one sampler.

Python calls, run folders and cost forecasts use these functions, so that all of them accept the
same comparisons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from undrift.core.clients import Roster
from undrift.core.losses import Federation
from undrift.core.method import Method
from undrift.core.sampling import Sampler, as_sampler
from undrift.utils.errors import require, require_type


def labels(methods: Sequence[Method]) -> list[str]:
    """A label for each method: its name, or its repr where several methods have that name."""
    require_type("methods", methods, (list, tuple), "a list of methods, or {label: method}")
    for method in methods:
        require_type("A method", method, Method, "a method such as ud.FedAvg()")
    names = Counter(method.name for method in methods)
    found = [m.name if names[m.name] == 1 else repr(m) for m in methods]
    require(
        len(set(found)) == len(found),
        "Two methods of the comparison have the same name and parameters: give them labels, "
        "{label: method}.",
    )
    return found


def shared_sampler(
    cohort: int | Sampler | None, methods: Iterable[Method], losses: Federation, objective: str
) -> Sampler:
    """The sampler that all methods of a comparison share.

    Parameters
    ----------
    cohort
        a number of clients, a sampler, or None for all clients. A number is drawn by q_k if all
        methods are defined for that, and uniformly otherwise
    methods
        the methods to compare
    losses
        only the clients' ids and sizes are used
    objective
        "samples" or "clients", which decides the weights q_k
    """
    by_weight = {method.draws_by_weight for method in methods}
    if not isinstance(cohort, Sampler) and cohort is not None and len(by_weight) == 2:
        # With equal q_k, uniform cohorts are right for both kinds of methods.
        require(
            Roster(losses.ids, losses.sizes, objective, losses.counted).equal,
            "Some of these methods are defined for cohorts drawn by q_k and some for uniform "
            "cohorts, so they cannot share cohorts: use objective='clients', or name a sampler.",
        )
    return as_sampler(cohort, by_weight == {True})


def same_regularizer(methods: Mapping[str, Method]) -> None:
    """Raise if methods have different regularisers: they would not minimise the same F."""
    found = {label: method.g for label, method in methods.items()}
    (first, g), *others = found.items()
    for label, other in others:
        require(
            other == g,
            f"{first} has the regulariser g = {g} and {label} has g = {other}, so they minimise "
            f"different objectives: only FedDR takes a g.",
        )
