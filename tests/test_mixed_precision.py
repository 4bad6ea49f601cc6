"""`precision = "bf16"`: gradients in bfloat16, everything else in float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import undrift as ud
from undrift.core.clients import Roster
from undrift.deploy.agreement import facts
from undrift.engines import EngineOptions
from undrift.engines.base import Job
from undrift.experiments.experiment import Experiment
from undrift.nets.criteria import BF16
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.errors import UndriftError


class Seen(nn.Module):
    """A small CNN that notes the dtypes of its activations by mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 4, 3)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(4 * 6 * 6, 3)

    def forward(self, x):
        hidden = self.drop(self.conv(x).relu().flatten(1))
        found = self.out(hidden)
        SEEN.add((self.training, found.dtype))
        return found


SEEN: set[tuple[bool, torch.dtype]] = set()


def data(clients=4):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(clients * 12, 1, 8, 8, generator=g), torch.arange(clients * 12) % 3
    x += y[:, None, None, None]
    return ud.data.FederatedData.from_arrays(x, y, clients=clients, test=(x, y))


LOCAL = ud.SGD(lr=0.05, batch_size=4, epochs=2)


def trained(engine, method=None, **more):
    model = more.pop("model", None) or Seen()
    options = {"data": data(), "local": LOCAL, "rounds": 3, "progress": False} | more
    return ud.train(method or ud.FedAvg(), model=model, engine=engine, **options)


def vector(result):
    return torch.cat([p.detach().flatten() for p in result.model().parameters()])


def test_only_training_passes_are_in_bfloat16():
    SEEN.clear()
    result = trained(EngineOptions("serial", precision=BF16))
    assert (True, torch.bfloat16) in SEEN
    assert {dtype for training, dtype in SEEN if not training} == {torch.float32}
    assert vector(result).dtype == torch.float32
    assert result.records[-1].strategy.endswith("bf16")


@pytest.mark.parametrize("method", [ud.FedAvg(), ud.SCAFFOLD(), ud.FedDyn(alpha=0.1)])
def test_engines_agree_and_stay_near_float32(method):
    exact = vector(trained("serial", method))
    serial = vector(trained(EngineOptions("serial", precision=BF16), method))
    threads = vector(trained(EngineOptions("auto", threads=2, precision=BF16), method))
    one = vector(trained(EngineOptions("auto", threads=1, precision=BF16), method))
    moved = (exact - vector(trained("serial", method, rounds=0))).norm()
    assert torch.equal(threads, one)
    assert 0 < (serial - exact).norm() < 0.05 * moved
    # Channels last sums in another order, of numbers with eight bits.
    assert (serial - threads).norm() < 0.05 * moved


def test_the_loss_and_the_gradients_are_in_float32():
    losses = ModuleLosses(Seen(), data())
    mixed = losses.in_precision(BF16)
    x, y = losses.train_part.client(0)
    found = mixed.training_criterion.loss_of(mixed.flat.module, x, y)
    exact = losses.training_criterion.loss_of(losses.flat.module, x, y)
    assert found.dtype == torch.float32
    assert 0 < (found - exact).abs() < 0.01 * exact
    with mixed.training(0, {}, 0) as loss:
        assert loss.gradient(losses.initial()).dtype == torch.float32


def test_a_step_of_the_users_own_is_under_autocast():
    dtypes = []

    def step(model, batch):
        x, y = batch
        outputs = model(x)
        dtypes.append(outputs.dtype)
        return nn.functional.cross_entropy(outputs.float(), y)

    trained(EngineOptions("serial", precision=BF16), step=step, rounds=1)
    assert torch.bfloat16 in dtypes


@pytest.mark.parametrize(
    ("options", "more", "words"),
    [
        ({"precision": "fp16"}, {}, "precision is 'fp16'"),
        ({"precision": BF16, "chunk": 4}, {}, "one client at a time"),
        ({"precision": BF16}, {"model": Seen().double()}, "float32 parameters"),
        ({"precision": BF16}, {"local": ud.SGD(lr=0.1, epochs=1, tolerance=1e-3)}, "tolerance"),
    ],
)
def test_refused_where_it_is_not_defined(options, more, words):
    with pytest.raises(UndriftError, match=words):
        trained(EngineOptions(**options), **more)


def test_a_problem_without_a_model_is_refused():
    problem = ud.theory.random_quadratics(3, 2, seed=0)
    with pytest.raises(UndriftError, match="is for models"):
        ud.train(
            ud.FedAvg(),
            problem=problem,
            local=ud.GD(lr=0.1, steps=1),
            rounds=1,
            engine=EngineOptions(precision=BF16),
        )


def test_a_run_from_python_keeps_its_precision(tmp_path):
    mixed = EngineOptions("serial", precision=BF16)
    trained(mixed, out=tmp_path / "run", rounds=1)
    arguments = {"model": Seen(), "data": data(), "local": LOCAL, "rounds": 2, "progress": False}
    with pytest.raises(UndriftError, match="precision"):
        ud.resume(tmp_path / "run", ud.FedAvg(), engine="serial", **arguments)
    resumed = ud.resume(tmp_path / "run", ud.FedAvg(), engine=mixed, **arguments)
    assert torch.equal(vector(resumed), vector(trained(mixed, rounds=2)))


FILE = """
rounds = 2
[data]
source = "synthetic"
[model]
name = "logistic"
[local]
lr = 0.1
epochs = 1
[[method]]
name = "FedAvg"
[engine]
precision = "{}"
"""


def test_files_and_deployments_know_it(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(FILE.format("bf16"))
    mixed = Experiment.load(path)
    assert mixed.engine_options().precision == BF16
    assert facts(mixed)["precision"] == BF16
    path.write_text(FILE.format("fp32"))
    assert "precision" not in facts(Experiment.load(path))
    path.write_text(FILE.format("half"))
    with pytest.raises(UndriftError, match="precision"):
        Experiment.load(path)


def test_it_reaches_the_engine_of_a_roster():
    losses = ModuleLosses(Seen(), data())
    job = Job(Roster(losses.ids, losses.sizes), LOCAL, 0)
    engine = EngineOptions("vectorised", threads=1, precision=BF16)(losses, job)
    assert engine.losses.precision == BF16
    assert losses.precision == "fp32"
    assert "channels last" in engine.strategy
