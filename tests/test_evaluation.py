"""Evaluation: on which parts, from how many clients, and in which pieces."""

import pytest
import torch
from torch import nn

import undrift as ud
from commands import called
from experiments import refused, tables
from undrift.core.clients import Roster
from undrift.experiments.experiment import Experiment
from undrift.nets import passes as measuring
from undrift.nets.criteria import correct, cross_entropies
from undrift.nets.module_losses import ModuleLosses
from undrift.nets.passes import EvaluationPass
from undrift.runs.sweeps.sweep import run_sweep


class Counting(nn.Module):
    """A linear model that counts the samples it sees outside training."""

    seen = 0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        if not self.training:
            Counting.seen += len(x)
        return self.layer(x)


def federation(n=(7, 12, 6, 5), seed=0, ids=None, order=None, tested=True):
    g = torch.Generator().manual_seed(seed)

    def samples(k):
        return torch.randn(k, 4, generator=g), torch.randint(0, 3, (k,), generator=g)

    clients = dict(zip(ids or range(len(n)), map(samples, n), strict=True))
    test = samples(9) if tested else None
    clients = {id: clients[id] for id in order or clients}
    return ud.data.FederatedData.from_clients(clients, test)


def train(evaluate=None, method=None, **options):
    torch.manual_seed(0)
    setting = {
        "model": nn.Linear(4, 3),
        "data": federation(),
        "local": ud.SGD(lr=0.1, batch_size=4, epochs=1),
        "rounds": 2,
        "engine": "vectorised",  # by a fixed rule: bits are compared
        **({} if evaluate is None else {"evaluate": evaluate}),
    }
    return ud.train(method or ud.FedAvg(), **{**setting, **options})


# Parts


def test_a_part_that_is_left_out_is_not_computed():
    Counting.seen = 0
    losses = ModuleLosses(Counting(), federation())
    x, q = losses.initial(), losses.weights()
    for parts, samples in ((("test",), 9), (("train",), 30), (("train", "test"), 39)):
        Counting.seen = 0
        found = losses.evaluate(x, q, {}, parts)
        assert Counting.seen == samples
        assert {name.split("_")[0] for name in found} == {*parts}


def test_without_the_training_part_the_rest_is_as_with_it():
    whole, tested = train(), train(ud.Evaluation(parts=("test",)))
    assert torch.equal(whole.x, tested.x)
    assert tested.metrics == {k: v for k, v in whole.metrics.items() if k.startswith("test_")}
    assert "objective" in whole.metrics
    assert {"train_loss", "objective"}.isdisjoint(tested.metrics)


def test_own_models_are_measured_on_the_chosen_part():
    data = federation((20, 30, 25), tested=False).with_test(0.3)
    models = ("server", "own", "all")
    whole = train(ud.Evaluation(models=models), data=data)
    tested = train(ud.Evaluation(models=models, parts="test"), data=data)
    assert {name.rpartition("/")[2].split("_")[0] for name in tested.metrics} == {"test"}
    assert tested.metrics == {k: v for k, v in whole.metrics.items() if k in tested.metrics}
    assert "own/test_loss" in tested.metrics


def test_summaries_pictures_and_reports_do_without_the_objective(tmp_path):
    data = federation((20, 30, 25)).with_validation(0.2)
    for parts in (("test",), ("validation",), ("validation", "test")):
        result = train(ud.Evaluation(parts=parts), data=data)
        assert "objective" not in result.summary()
        assert result.plot(tmp_path / "picture.png").stat().st_size > 1000
        page = result.report(tmp_path / "page.html").read_text()
        assert "train loss" not in page
    both = [train(), train(ud.Evaluation(parts=("test",)))]
    for result, label in zip(both, "ab", strict=True):
        result.label = label
    lines = ud.Comparison(both).summary().splitlines()
    heads = lines[0].split()
    assert "objective" in heads
    assert lines[2].split()[heads.index("objective")] == "–"
    ud.Comparison(both).report(tmp_path / "both.html")
    ud.Comparison(both).plot(tmp_path / "both.png")


ASKED = [
    (lambda: ud.Evaluation(parts=("tset",)), "did you mean 'test'?"),
    (lambda: ud.Evaluation(parts=()), "of 'train', 'validation', 'test'"),
    (lambda: ud.Evaluation(train_clients=0), "whole number of at least 1"),
    (lambda: ud.Evaluation(parts="test", train_clients=5), "parts must include 'train'"),
    (lambda: ud.Evaluation(parts="test", gradient_mapping=0.1), "parts must include 'train'"),
    (lambda: train(ud.Evaluation(parts="validation")), "the data only have 'train', 'test'"),
    (
        lambda: ud.train(
            ud.FedAvg(),
            problem=ud.theory.Quadratics(torch.eye(2)[None], torch.ones(1, 2)),
            local=ud.GD(lr=0.1, steps=1),
            evaluate=ud.Evaluation(parts="test"),
        ),
        "the data only have 'train'",
    ),
    (
        lambda: train(ud.Evaluation(parts="test"), target={"objective": 0.1}),
        "'objective' is never measured: it belongs to the train part",
    ),
    (
        lambda: train(ud.Evaluation(parts="train"), target={"test_accuracy": 0.1}),
        "'test_accuracy' is never measured: it belongs to the test part",
    ),
]


@pytest.mark.parametrize(("ask", "said"), ASKED)
def test_what_cannot_be_measured_is_refused_with_a_sentence(ask, said):
    with pytest.raises(ud.UndriftError) as caught:
        ask()
    assert said in str(caught.value)


# A sample of the clients


def roster(n, order=None):
    ids = [f"c{k}" for k in (order if order is not None else range(n))]
    return Roster(ids, torch.tensor([1 + int(id[1:]) % 5 for id in ids]))


def sampled(roster, weights):
    """The q_k by id."""
    place = dict(zip(roster.ids, roster.place, strict=True))
    return {id: float(weights[k]) for id, k in place.items() if weights[k] > 0}


def test_the_sample_of_clients_depends_on_seed_and_ids_alone():
    some = ud.Evaluation(train_clients=20)
    first, turned = roster(100), roster(100, list(range(99, -1, -1)))
    found = sampled(first, some.weights(first, 3))
    assert len(found) == 20
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    assert sampled(turned, some.weights(turned, 3)) == found
    assert {*sampled(first, some.weights(first, 4))} != {*found}
    whole = sampled(first, first.weights_in_data_order())
    ratios = [found[id] / whole[id] for id in found]
    assert ratios == pytest.approx([ratios[0]] * 20, rel=1e-12)
    more = sampled(first, ud.Evaluation(train_clients=50).weights(first, 3))
    assert {*found} < {*more}


def test_clients_are_drawn_equally_often():
    all_of_them = roster(30)
    weights = [ud.Evaluation(train_clients=10).weights(all_of_them, seed) for seed in range(600)]
    often = torch.stack([w > 0 for w in weights]).double().mean(0)
    assert (often - 1 / 3).abs().max() < 0.1  # five standard deviations


def test_training_metrics_are_those_of_the_sample():
    data, some = federation(ids=["a", "b", "c", "d"]), ud.Evaluation(train_clients=2)
    result = train(some, data=data)
    drawn = sampled(result.run.roster, result.run.weights)
    assert len(drawn) == 2
    losses = result.run.losses
    wanted = sum(q * losses.value("abcd".index(id), result.x) for id, q in drawn.items())
    assert result.metrics["train_loss"] == pytest.approx(wanted, rel=1e-6)
    x, y = zip(*(data.train.client("abcd".index(id)) for id in sorted(drawn)), strict=True)
    right = (result.model()(torch.cat(x)).argmax(1) == torch.cat(y)).double().mean()
    assert result.metrics["train_accuracy"] == pytest.approx(float(right))
    whole = train(data=data)
    assert torch.equal(whole.x, result.x)
    assert whole.metrics["test_loss"] == result.metrics["test_loss"]
    assert whole.metrics["train_loss"] != result.metrics["train_loss"]


def test_every_method_and_order_of_the_data_has_the_same_sample():
    some, ids = ud.Evaluation(train_clients=2), ["a", "b", "c", "d"]
    one = train(some, data=federation(ids=ids))
    other = train(some, ud.SCAFFOLD(), data=federation(ids=ids, order=["d", "b", "a", "c"]))
    assert sampled(one.run.roster, one.run.weights) == sampled(other.run.roster, other.run.weights)
    assert other.records[0].metrics == pytest.approx(one.records[0].metrics, rel=1e-6)


def test_a_sample_of_everybody_is_everybody():
    for many in (4, 1000):
        assert train(ud.Evaluation(train_clients=many)).metrics == train().metrics


def test_samples_that_do_not_lie_in_order_are_sampled_too():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 4, generator=g), torch.randint(0, 3, (60,), generator=g)
    data = ud.data.FederatedData.from_arrays(x, y, partition="dirichlet:0.5", clients=6, seed=1)
    assert not data.train.in_order
    result = train(ud.Evaluation(train_clients=3), data=data)
    weights, losses = result.run.weights.tolist(), result.run.losses
    wanted = sum(q * losses.value(k, result.x) for k, q in enumerate(weights) if q)
    assert result.metrics["train_loss"] == pytest.approx(wanted, rel=1e-6)


def test_the_sample_serves_own_models_and_the_gradient_mapping():
    models = ud.Evaluation(models=("server", "own"), gradient_mapping=0.5, train_clients=2)
    result = train(models)
    run, losses = result.run, result.run.losses
    drawn = [k for k, q in enumerate(run.weights.tolist()) if q]
    own = sum(float(run.weights[k]) * losses.value(k, run.last_of(k)) for k in drawn)
    assert result.metrics["own/train_loss"] == pytest.approx(own, rel=1e-6)
    gradient = sum(float(run.weights[k]) * losses.gradient(k, result.x) for k in drawn)
    assert result.metrics["gradient_mapping"] == pytest.approx(float(gradient.norm()), rel=1e-5)


# Pieces and threads


def test_the_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    monkeypatch.setattr(measuring, "PIECE_SAMPLES", 50)
    model = ud.models.mlp(4, 16, classes=3)
    losses = ModuleLosses(model, federation((301, 220, 97)), metrics={"mine": lambda o, t: o.sum()})
    x, q = losses.initial(), losses.weights()
    found = []
    for threads in (1, 2, 3, 50):
        losses._threads = threads
        found.append(losses.evaluate(x, q, {}))
    assert all(each == found[0] for each in found)


def test_a_model_that_draws_is_evaluated_in_order(monkeypatch):
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(nn.functional.dropout(x, 0.5))

    monkeypatch.setattr(measuring, "PIECE_SAMPLES", 3)
    losses = ModuleLosses(Noisy(4, 3), federation())
    x, q = losses.initial(), losses.weights()
    assert losses._threads == 1
    assert losses.evaluate(x, q, {}) == losses.evaluate(x, q, {})


def test_threads_have_models_of_their_own_that_share_their_weights(monkeypatch):
    class Noting(nn.Linear):
        def forward(self, x):
            self.last = super().forward(x)
            return self.last

    monkeypatch.setattr(measuring, "PIECE_SAMPLES", 3)
    losses = ModuleLosses(Noting(4, 3), federation())
    losses._threads = 4
    x, q = losses.initial(), losses.weights()
    first = losses.evaluate(x, q, {})
    with losses.training(0, {}, 0) as own:
        own.gradient(x)  # it has stored what cannot be copied
    assert losses.evaluate(x, q, {}) == first
    assert losses.evaluate(x + 1, q, {}) != first


def test_an_error_in_a_thread_is_heard(monkeypatch):
    class Failing(nn.Linear):
        def forward(self, x):
            if (x == 7).any():
                raise RuntimeError("seven")
            return super().forward(x)

    monkeypatch.setattr(measuring, "PIECE_SAMPLES", 3)
    data = federation()
    data.train.x[-1] = 7
    losses = ModuleLosses(Failing(4, 3), data)
    losses._threads = 4
    with pytest.raises(RuntimeError, match="seven"):
        losses.evaluate(losses.initial(), losses.weights(), {})


def test_outputs_are_kept_only_for_metrics_of_the_users_own():
    data = federation()
    for metrics, kept in (({}, False), ({"mine": lambda o, t: float(len(o))}, True)):
        losses = ModuleLosses(nn.Linear(4, 3), data, metrics=metrics)
        seen = EvaluationPass(losses.flat.module, losses.criterion).over(data.train)
        assert (seen.outputs is not None) == kept
    assert losses.evaluate(losses.initial(), losses.weights(), {})["train_mine"] == 30


def test_pieces_are_smaller_where_inputs_or_outputs_are_large():
    sizes = []

    class Looking(nn.Module):
        def forward(self, x):
            sizes.append(len(x))
            return x.flatten(1)[:, :3]

    part = ud.data.FederatedData.from_clients(
        [(torch.zeros(40, 3, 200, 200), torch.zeros(40, dtype=torch.int64))]
    ).train
    losses = ModuleLosses(nn.Linear(4, 3), federation())
    EvaluationPass(Looking(), losses.criterion).over(part)
    assert sum(sizes) == 40
    assert max(sizes) * 3 * 200 * 200 <= measuring.PIECE_NUMBERS
    sizes.clear()
    EvaluationPass(Looking(), losses.criterion, width=measuring.PIECE_NUMBERS // 7).over(part)
    assert max(sizes) == 7


@pytest.mark.parametrize("shape", [(3,), (3, 5)])
def test_cross_entropy_and_accuracy_of_classes_and_sequences(shape):
    g = torch.Generator().manual_seed(0)
    outputs = 30 * torch.randn(50, *shape, generator=g)
    targets = torch.randint(0, 3, (50, *shape[1:]), generator=g)
    wanted = nn.functional.cross_entropy(outputs.double(), targets, reduction="none")
    assert torch.allclose(cross_entropies(outputs, targets).double(), wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(correct(outputs, targets), (outputs.argmax(1) == targets).double())
    ties = torch.zeros(6, *shape)
    assert torch.equal(correct(ties, targets[:6]), (ties.argmax(1) == targets[:6]).double())
    sure = torch.tensor([[0.0, 40.0, 0.0]])  # a small loss is not lost in the scores' last digits
    tiny = cross_entropies(sure.double(), torch.tensor([1]))
    assert float(tiny) == pytest.approx(2 * torch.tensor(-40.0).double().exp().item(), abs=1e-16)


# Experiment files


def test_a_file_says_the_parts_and_the_number_of_clients():
    found = Experiment.from_dict(
        tables(evaluation={"parts": ["train", "test"], "train_clients": 3}, target={}, sweep={})
    )
    assert found.evaluation.build() == ud.Evaluation(parts=("train", "test"), train_clients=3)
    again = Experiment.from_dict(found.resolved())
    assert again.evaluation == found.evaluation
    plain = Experiment.from_dict(tables())
    assert plain.evaluation.build().parts == ("train", "validation", "test")
    assert plain.with_settings({"evaluation.train_clients": "none"}) == plain


REFUSED = [
    ({"evaluation.parts": ["tset"]}, "evaluation.parts", "did you mean 'test'?"),
    ({"evaluation.parts": []}, "evaluation.parts", "at least 1"),
    ({"evaluation.parts": ["test", "test"]}, "evaluation.parts", "the same word twice"),
    ({"evaluation.parts": 3}, "evaluation.parts", "a list of 'train', 'validation', 'test'"),
    ({"evaluation.train_clients": 0}, "evaluation.train_clients", "at least 1"),
    ({"evaluation.parts": ["test"]}, "target.cohort/train_loss", "belongs to the train part"),
    ({"evaluation.parts": ["train"]}, "target.test_accuracy", "belongs to the test part"),
    (
        {"target": {}, "evaluation.parts": ["test"], "evaluation.gradient_mapping": 0.1},
        "evaluation",
        "gradient_mapping is measured on the training data",
    ),
]


@pytest.mark.parametrize(("settings", "key", "said"), REFUSED)
def test_a_file_that_asks_for_what_is_not_measured_is_refused(settings, key, said):
    sentence = refused(settings=settings)
    assert key in sentence
    assert said in sentence


FILE = """
rounds = 2
[data]
source = "synthetic"
clients = 4
most = 40
validation = 0.2
[model]
name = "logistic"
[local]
lr = 0.01
batch_size = 10
[evaluation]
parts = ["PART"]
[[method]]
name = "FedAvg"
[sweep]
"local.lr" = [0.1]
"""


def test_a_run_without_the_training_part_goes_from_file_to_report(tmp_path):
    file = tmp_path / "test.toml"
    file.write_text(FILE.replace("PART", "test"))
    done = called("run", str(file), "--out", str(tmp_path / "out"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = called("report", str(tmp_path / "out"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_sweep_needs_the_part_it_chooses_by(tmp_path):
    file = tmp_path / "test.toml"
    file.write_text(FILE.replace("PART", "test"))
    with pytest.raises(ud.UndriftError, match="'validation_accuracy' is never measured"):
        run_sweep(file, tmp_path / "sweep", progress=False)
    file.write_text(FILE.replace("PART", "validation"))
    outcome = run_sweep(file, tmp_path / "sweep", progress=False)
    assert len(outcome.best()) == 1
