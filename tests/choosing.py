"""Small models for the tests of how an engine is chosen, and runs of them."""

import json

import torch
from torch import nn

import undrift as ud
from looping import synchronous
from undrift.engines.strategies import Strategy
from undrift.nets.module_losses import ModuleLosses

DATA = ud.data.synthetic(1, 1, clients=7, seed=0, most=60)
PICTURES = ud.data.FederatedData.from_clients(
    {k: (x.view(-1, 1, 6, 10), y) for k in DATA.ids for x, y in [DATA.train.client(k)]}
)
LOCAL = ud.SGD(lr=0.05, batch_size=10, epochs=1)
TWO = ud.EngineOptions(threads=2)
TUNED = ud.EngineOptions("tuned", threads=2)


class Odd(nn.Module):
    """Its forward pass depends on the values of its inputs, so clients cannot train at once."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(60, 10)

    def forward(self, x):
        return self.layer(x) if float(x.sum()) > 0 else self.layer(-x)


class Gate(nn.Module):
    """A layer without a stacked version."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 60))

    def forward(self, x):
        return x * torch.sin(self.weight)


def mlp():
    return ud.models.mlp(60, 8, classes=10, seed=1)


def gated():
    torch.manual_seed(0)
    return nn.Sequential(Gate(), nn.Linear(60, 10))


def cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(2 * 2 * 6, 10)
    )


def odd():
    torch.manual_seed(0)
    return Odd()


MODELS = {"mlp": (mlp, DATA), "gated": (gated, DATA), "cnn": (cnn, PICTURES)}


def losses_of(name="mlp", dtype=torch.float64):
    make, data = MODELS[name]
    return ModuleLosses(make().to(dtype), data)


def trained(losses, engine=TWO, method=None, rounds=3, local=LOCAL, **options):
    method = method or ud.FedDyn(0.5)
    loop = synchronous(method, losses, local, ud.All(), rounds, engine=engine, **options)
    return loop, list(loop.rounds())


def described(strategy, losses):
    """A strategy as the records name it."""
    job = synchronous(ud.FedAvg(), losses, LOCAL, ud.All(), 1).job
    return strategy.engine(losses, job).strategy


def written(folder):
    """The only stored choice in a folder: its file and its strategy."""
    (file,) = folder.iterdir()
    return file, Strategy.from_dict(json.loads(file.read_text()))
