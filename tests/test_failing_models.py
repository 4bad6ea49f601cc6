"""An error names the client on which a model fails, and the engine stays usable."""

import pytest
import torch
from torch import nn

import undrift as ud
from choosing import TWO
from looping import synchronous
from undrift.engines.strategies import SERIAL, Strategy
from undrift.nets.module_losses import ModuleLosses

pytestmark = pytest.mark.usefixtures("forgotten")


BAD = 5


def with_a_bad_token():
    """Words of three letters; one client has a word outside of the embedding's table."""
    clients = {}
    for k, name in enumerate(("ann", "bob", "cleo", "dan", "eve")):
        g = torch.Generator().manual_seed(k)
        n = 6 + k
        clients[name] = torch.randint(0, BAD, (n, 3), generator=g), torch.arange(n) % BAD
    clients["cleo"][0][4, 1] = BAD
    data = ud.data.FederatedData.from_clients(clients)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(BAD, 2), nn.Flatten(), nn.Linear(6, BAD))
    return ModuleLosses(model.double(), data)


FAILING = [
    SERIAL,
    Strategy("module", 1, 1),
    Strategy("module", 1, 3),
    Strategy("stacked", 1, 2),
    Strategy("stacked", 2, 2),
    Strategy("stacked", 5, 1),
    Strategy("vmap", 2, 3),
    Strategy("vmap", 5, 1),
    None,
]


@pytest.mark.parametrize("strategy", FAILING, ids=str)
def test_a_model_that_fails_on_a_client_says_so_and_can_go_on(strategy):
    losses = with_a_bad_token()
    engine = TWO if strategy is None else strategy.engine
    local = ud.SGD(lr=0.1, batch_size=4, epochs=1)
    loop = synchronous(ud.SCAFFOLD(), losses, local, ud.All(), 4, engine=engine)
    for _ in range(2):
        with pytest.raises(ud.UndriftError) as caught:
            loop.step()
        assert str(caught.value).startswith("The model failed on client 'cleo' in round 1: ")
        assert len(str(caught.value).splitlines()) == 1
        assert not list(loop.states.seen())
    inputs = losses.train_part.x
    inputs[inputs == BAD] = 0
    serial = synchronous(ud.SCAFFOLD(), losses, local, ud.All(), 4)
    for each in (loop, serial):
        each.step()
    assert torch.allclose(loop.server.x, serial.server.x, atol=1e-10, rtol=0)
