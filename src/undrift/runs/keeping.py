"""A run and its store: every round is committed, and a run goes on from the last one."""

from __future__ import annotations

from undrift.core.records import Record
from undrift.loops import Loop
from undrift.runs.states import StoredStates
from undrift.runs.store import Store
from undrift.utils.errors import UndriftError, first_line


def commit(run: Loop, store: Store, record: Record) -> None:
    """Write all that a round changed, in one transaction."""
    states = run.states
    assert isinstance(states, StoredStates)
    store.commit(record.round, run.saved(), states.changed(), record.to_json(), run.lasting())
    states.committed()


def restore(run: Loop, store: Store) -> bool:
    """Bring a new run to where its store is; whether there was anything."""
    round = store.round
    if round is None:
        return False
    device = run.x0.device
    try:
        records = [Record.from_json(line) for line in store.records()]
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, UndriftError):
            raise
        raise UndriftError(
            f"A record in {store.folder} is damaged: {first_line(error)}."
        ) from error
    if [record.round for record in records] != list(range(round + 1)):
        raise UndriftError(f"The store {store.folder} does not have a record of every round.")
    run.restore(lambda name: store.part(name, device), records)
    return True
