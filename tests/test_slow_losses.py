"""Losses that are not means over samples: right in every engine, and slow only with a warning."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import undrift as ud
from agreement import assert_same
from choosing import DATA, LOCAL, TWO, losses_of, mlp, trained
from commands import command
from undrift.engines import SerialEngine
from undrift.engines.strategies import candidates, slow_loss_message
from undrift.nets.module_losses import GRADIENT_SAMPLES, ModuleLosses
from undrift.nets.per_sample import per_sample_form

pytestmark = pytest.mark.usefixtures("forgotten")

SETTING = {"model": mlp(), "data": DATA, "local": LOCAL, "rounds": 1, "progress": False}
WEIGHTS = torch.linspace(0.5, 3.0, 10, dtype=torch.float64)
SLOW = "The loss is not a mean of per-sample losses, so clients train one by one; "
WEIGHTED = '(w[targets] * F.cross_entropy(outputs, targets, reduction="none")).mean()'
GENERAL = "a loss of the form per_sample(outputs, targets).mean()"
FAST = " would train many clients at once."


def flooded(outputs, targets):
    return (F.cross_entropy(outputs, targets) - 0.5).abs() + 0.5


def random(outputs, targets):
    return F.cross_entropy(F.dropout(outputs, 0.3), targets)


def balanced(outputs, targets):
    share = outputs.softmax(1).mean(0)
    return F.cross_entropy(outputs, targets) + (share * share.log()).sum()


def with_control_flow(outputs, targets):
    loss = F.cross_entropy(outputs, targets)
    return loss if loss.item() < 1e9 else 2 * loss


LOSSES = {
    "class weights": nn.CrossEntropyLoss(weight=WEIGHTS),
    "class weights and smoothing": nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1),
    "log-likelihood": lambda o, t: F.nll_loss(o.log_softmax(1), t, weight=WEIGHTS),
    "an ignored class": nn.CrossEntropyLoss(ignore_index=99),
    "a sum": lambda o, t: 0.1 * F.cross_entropy(o, t, reduction="sum"),
    "a bound on the batch's mean": flooded,
    "a term in the batch's mean": balanced,
    "random numbers": random,
    "control flow": with_control_flow,
}


def losses_with(loss, data=DATA):
    return ModuleLosses(mlp().double(), data, loss)


def messages(caught):
    return [str(each.message) for each in caught]


# The same results in every engine


@pytest.mark.filterwarnings("ignore:The loss ")
@pytest.mark.parametrize("engine", ["vectorised", "auto"])
@pytest.mark.parametrize("name", LOSSES)
def test_every_engine_agrees_with_the_serial_one(name, engine, rigged):
    rigged("one by one")
    losses = losses_with(LOSSES[name])
    method = ud.SCAFFOLD()
    evaluation = ud.Evaluation(models=("server", "cohort", "own"))
    serial = trained(losses, SerialEngine, method, evaluation=evaluation)
    options = ud.EngineOptions(engine, threads=2)
    assert_same(serial, trained(losses, options, method, evaluation=evaluation))
    first, *_, last = serial[1]
    assert last.metrics["train_loss"] < first.metrics["train_loss"]


@pytest.mark.filterwarnings("ignore:The loss ")
@pytest.mark.parametrize("name", ["class weights", "a term in the batch's mean"])
def test_rays_workers_agree_with_the_serial_engine(name):
    pytest.importorskip("ray", reason="Ray is not installed")
    losses = losses_with(LOSSES[name])
    method, evaluation = ud.SCAFFOLD(), ud.Evaluation(models=("server", "own"))
    serial = trained(losses, SerialEngine, method, evaluation=evaluation)
    options = ud.EngineOptions("ray", workers=2, threads=1, inner="vectorised")
    found = trained(losses, options, method, evaluation=evaluation)
    assert_same(serial, found)
    reason = losses.criterion.not_per_sample
    assert found[0].engine.strategy == f"Ray, 2 workers: one by one, 1 thread (its loss {reason})"


def test_a_random_loss_is_evaluated_alike_and_leaves_the_generator_alone():
    losses = losses_with(random)
    q, x = losses.weights(), losses.initial()
    before = torch.get_rng_state()
    first = losses.evaluate(x, q, {}), losses.evaluate_own(0, x, {}), losses.value(0, x)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert (losses.evaluate(x, q, {}), losses.evaluate_own(0, x, {}), losses.value(0, x)) == first


def test_the_gradient_of_a_large_client_is_that_of_all_its_samples_together():
    g = torch.Generator().manual_seed(0)
    n = 2 * GRADIENT_SAMPLES + 300
    x = torch.randn(n, 60, generator=g, dtype=torch.float64)
    y = (torch.arange(n) * 10 // n).long()  # sorted: the pieces have different classes
    data = ud.data.FederatedData.from_clients([(x, y), (x[:7], y[:7])])
    losses = losses_with(LOSSES["class weights"], data)
    model = mlp().double()
    LOSSES["class weights"](model(x), y).backward()
    wanted = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.allclose(losses.gradient(0, losses.initial()), wanted, atol=1e-12, rtol=0)


# One line says so


def test_class_weights_are_named_with_the_fast_form():
    loss = nn.CrossEntropyLoss(weight=WEIGHTS.float())
    with pytest.warns(UserWarning, match="The loss ") as caught:
        result = ud.train(ud.FedAvg(), loss=loss, **SETTING)
    assert messages(caught) == [SLOW + WEIGHTED + FAST]
    assert caught[0].filename == __file__
    strategy = result.records[-1].strategy
    assert strategy.endswith("(its loss is not a mean of per-sample losses)")
    assert "at once" not in strategy


def test_the_named_form_is_fast_and_minimises_the_weighted_loss(rigged):
    rigged("vmap")
    w = WEIGHTS.float()

    def loss(outputs, targets):
        return (w[targets] * F.cross_entropy(outputs, targets, reduction="none")).mean()

    result = ud.train(ud.FedAvg(), loss=loss, engine=TWO, **SETTING)
    assert "clients at once" in result.records[-1].strategy


@pytest.mark.parametrize("engine", ["auto", "vectorised"])
def test_several_methods_and_seeds_are_told_once(engine):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        ud.compare(
            [ud.FedAvg(), ud.FedDyn(0.5)], loss=flooded, seeds=range(2), engine=engine, **SETTING
        )
    assert messages(caught) == [SLOW + GENERAL + FAST]


EXPERIMENT = """
rounds = 2
seeds = [0, 1]
loss = "mine.py:weighted"

[data]
source = "synthetic"
clients = 6
most = 40

[model]
name = "mlp"
hidden = [8]

[local]
lr = 0.05
batch_size = 10

[[method]]
name = "FedAvg"

[[method]]
name = "FedDyn"
"""


def test_a_command_says_it_once(tmp_path):
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    (tmp_path / "mine.py").write_text(
        "import torch\nweighted = torch.nn.CrossEntropyLoss(weight=torch.arange(1.0, 11.0))\n"
    )
    done = command("run", "exp.toml", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert said.count("The loss is") == said.count(SLOW + WEIGHTED + FAST) == 1
    again = command("run", "exp.toml", "--out", "serial", "--engine", "serial", cwd=tmp_path)
    assert again.returncode == 0 and "The loss is" not in again.stderr


def test_ray_says_it_in_the_calling_process_only(capfd):
    pytest.importorskip("ray", reason="Ray is not installed")
    engine = ud.EngineOptions("ray", workers=2, threads=1, inner="vectorised")
    with pytest.warns(UserWarning, match="The loss ") as caught:
        ud.train(ud.FedAvg(), loss=flooded, engine=engine, **SETTING)
    assert messages(caught) == [SLOW + GENERAL + FAST]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "engine",
    [
        ud.EngineOptions("serial"),
        ud.EngineOptions("auto", chunk=1),
        ud.EngineOptions("ray", workers=2, threads=1, inner="serial"),
    ],
    ids=repr,
)
def test_nothing_is_said_where_the_user_asked_for_one_by_one(engine):
    if engine.name == "ray":
        pytest.importorskip("ray", reason="Ray is not installed")
    ud.train(ud.FedAvg(), loss=flooded, engine=engine, **SETTING)


def test_nothing_is_said_of_solvers_that_work_alone():
    accurate = ud.SGD(lr=0.05, batch_size=10, steps=2, tolerance=1e-3)
    ud.train(ud.FedAvg(), loss=flooded, **{**SETTING, "local": accurate})


def test_what_cannot_be_mapped_or_has_state_is_named():
    class Counting(nn.Module):
        calls = 0

        def forward(self, outputs, targets):
            self.calls = self.calls + 1
            return F.cross_entropy(outputs, targets)

    mapped = slow_loss_message(losses_with(LOSSES["control flow"]))
    assert mapped.startswith("The loss cannot be mapped over samples by torch.func.vmap (Runtime")
    assert mapped.endswith(f"), so clients train one by one; {GENERAL}{FAST}")
    state = slow_loss_message(losses_with(Counting()))
    assert state == f"The loss changes its own state, so clients train one by one; {GENERAL}{FAST}"


def test_with_dropout_only_the_default_loss_is_fast():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(60, 6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 10))
    plain = "plain cross-entropy (without loss=…)"
    assert slow_loss_message(ModuleLosses(model, DATA, flooded)) == SLOW + plain + FAST
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
    known = "The loss is not the default cross-entropy or squared error, so clients train one by "
    said = slow_loss_message(ModuleLosses(model, DATA, smoothed))
    assert said == f"{known}one; {plain}{FAST}"
    for loss in (flooded, smoothed, None):  # what is said is so
        at_once = any(each.chunk > 1 for each in candidates_of(ModuleLosses(model, DATA, loss)))
        assert at_once == (loss is None)


def candidates_of(losses):
    return candidates(losses, LOCAL, 7, 2, TWO.memory).strategies


def test_nothing_is_said_where_another_loss_would_not_be_faster():
    pictures = losses_of("cnn")
    module, *_ = pictures.constructor_arguments()
    normalised = nn.Sequential(nn.BatchNorm1d(60), nn.Linear(60, 10))
    for losses in (
        losses_of(),
        losses_with(nn.CrossEntropyLoss(label_smoothing=0.1)),  # vmap trains many clients at once
        ModuleLosses(module, pictures.data, flooded),
        ModuleLosses(normalised, DATA, flooded),
        losses_with(flooded, DATA.pooled()),  # there is only one client
        ud.theory.random_quadratics(3, 2, seed=0),
    ):
        assert slow_loss_message(losses) is None


def test_the_fast_form_of_a_loss():
    w = torch.ones(3)
    assert per_sample_form(nn.CrossEntropyLoss(weight=w)) == WEIGHTED
    assert per_sample_form(nn.NLLLoss(weight=w)) == WEIGHTED.replace("cross_entropy", "nll_loss")
    for loss in (
        nn.CrossEntropyLoss(weight=w, label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=w, reduction="sum"),
        nn.CrossEntropyLoss(reduction="sum"),
        flooded,
    ):
        assert per_sample_form(loss) == GENERAL
