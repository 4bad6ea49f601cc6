"""`undrift audit`: measures the facts of `undrift verify` on implementations of other libraries.

An adapter is a function: it gets a `Task` and returns a function that runs one round of a cohort
and returns the server's next model.
"""

from collections.abc import Iterable, Iterator

from undrift.audit.facts import FACTS, RUNS, measured
from undrift.audit.implementations import Adapter, Implementation, implementation, load
from undrift.audit.task import Task
from undrift.utils.threads import one_thread
from undrift.verify.table import Verdict


def audit(implementations: Iterable[Implementation]) -> Iterator[Verdict]:
    """Measure every fact for every implementation, one verdict at a time.

    An implementation that fails in its first round gets that as its only measured fact.
    """
    for each in implementations:
        with one_thread():
            first = measured(RUNS, each)
        broken = first is not None and first.error > 0
        for fact in FACTS:
            with one_thread():
                yield Verdict(each.label, fact, None if broken else measured(fact, each))
        if broken:
            yield Verdict(each.label, RUNS, first)
        each.host.close()


__all__ = ["FACTS", "Adapter", "Implementation", "Task", "audit", "implementation", "load"]
