"""Client states are read from the store in bulk, one round in advance."""

import pytest
import torch

import undrift as ud
from looping import synchronous
from undrift.core.problem import Keep
from undrift.nets.module_losses import ModuleLosses
from undrift.runs.states import StoredStates
from undrift.runs.storage import commit
from undrift.runs.store import Store

X0 = torch.zeros(3)
KINDS = {"c": "zero", "n": "number"}


class Counted(Store):
    """A store that records which clients are read in one transaction."""

    def __init__(self, *args):
        super().__init__(*args)
        self.reads = []

    def client_states(self, ids, device):
        ids = list(ids)
        if ids:
            self.reads.append(ids)
        return super().client_states(ids, device)


@pytest.fixture
def store(tmp_path):
    store = Counted(tmp_path / "store", {})
    yield store
    store.close()


def filled(store, memory=0, clients=range(6)):
    """States of some clients, all in the store and none in memory."""
    before = StoredStates(KINDS, X0, store, memory=0)
    for k in clients:
        before.put(k, Keep(c=torch.full((3,), float(k)), n=float(k)))
    store.commit(1, {}, before.changed(), "{}")
    before.committed()
    return StoredStates(KINDS, X0, store, memory)


def test_a_cohort_is_read_in_one_transaction(store):
    states = filled(store)
    together = Keep.stack(states.gather([4, 1, 9]))
    assert store.reads == [[4, 1]]  # client 9 has not taken part
    assert together.c.tolist() == [[4.0] * 3, [1.0] * 3, [0.0] * 3]
    assert together.n.tolist() == [[4.0], [1.0], [0.0]]


def test_prefetched_states_are_not_read_again(store):
    states = filled(store, memory=1000)
    states.prefetch([1, 2, 9])
    states.prefetch([3])  # the next round has begun
    assert Keep.stack(states.gather([1, 2])).c[:, 0].tolist() == [1.0, 2.0]
    states.changed()  # waits for the reader
    assert store.reads == [[1, 2], [3]]


def test_a_new_state_replaces_a_prefetched_one(store):
    states = filled(store, memory=1000)
    states.prefetch([1, 2])
    states.prefetch([])
    states.put(1, Keep(c=torch.full((3,), 7.0), n=7.0))
    assert Keep.stack(states.gather([1, 2])).n.tolist() == [[7.0], [2.0]]
    store.commit(2, {}, states.changed(), "{}")
    states.committed()
    assert Keep.stack(states.gather([1, 2])).n.tolist() == [[7.0], [2.0]]


def test_prefetching_respects_the_memory_limit(store):
    states = filled(store, memory=40)  # a state has 16 bytes
    states.prefetch([0, 1, 2, 3, 4])
    states.changed()
    assert store.reads == [[0, 1]]


def test_a_store_can_be_closed_while_it_is_read(store):
    states = filled(store, memory=1000)
    states.prefetch(range(6))
    store.close()


def test_a_run_prefetches_the_next_cohorts(store):
    data = ud.data.synthetic(1, 1, clients=12, seed=0)
    losses = ModuleLosses(ud.models.logistic(60, 10), data)
    local = ud.SGD(lr=0.01, batch_size=10, epochs=1)

    def run(**options):
        return synchronous(ud.SCAFFOLD(), losses, local, ud.Uniform(4), 8, **options)

    size = 2 * 4 * losses.dimension
    kept = run(states=lambda kinds, x0: StoredStates(kinds, x0, store, memory=4 * size))
    cohorts = []
    for record in kept.rounds():
        commit(kept, store, record)
        cohorts.append(record.cohort)
    seen = set()
    for read in store.reads:  # only clients of a cohort that took part before
        assert any(set(read) <= set(cohort) for cohort in cohorts)
        seen |= set(read)
    assert seen
    plain = run()
    list(plain.rounds())
    assert torch.equal(plain.server.x, kept.server.x)
