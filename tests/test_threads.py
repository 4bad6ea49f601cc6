"""Thread settings: subnormal numbers, with which products are slow, are treated as zero."""

import sys

import pytest
import torch

import undrift as ud
from undrift.engines.thread_pool import ThreadPool
from undrift.utils.threads import one_thread

TINY = sys.float_info.min


def half():
    return TINY * 0.5


def test_subnormal_numbers_are_zero_while_something_is_computed_and_not_afterwards():
    before = torch.get_num_threads()
    with one_thread():
        assert half() == 0 and torch.get_num_threads() == 1
        with one_thread():
            pass
        assert half() == 0
    assert half() > 0 and torch.get_num_threads() == before


def test_in_other_threads_too():
    pool = ThreadPool(2)
    assert {pool.submit(half).result() for _ in range(4)} == {0}
    assert half() > 0


@pytest.mark.parametrize("engine", ["serial", "auto"])
def test_clients_that_fit_their_data_have_gradients_of_zero(engine):
    """A model whose gradients are subnormal does not change."""
    data = ud.data.FederatedData.from_clients({k: (torch.ones(4, 1), torch.zeros(4)) for k in "ab"})
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(-88.0)  # the gradient is e^-88, close to the smallest normal number
    result = ud.train(
        ud.FedAvg(),
        model=model,
        data=data,
        loss=lambda out, y: torch.nn.functional.softplus(out[:, 0]).mean(),
        local=ud.SGD(lr=1e38, batch_size=4, steps=1),
        rounds=1,
        engine=engine,
        progress=False,
    )
    assert float(result.x) == -88.0
