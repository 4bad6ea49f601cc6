"""Metrics by name, streaming metrics, and functions that see chunks of the outputs."""

import math
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import nn

import undrift as ud
from experiments import refused
from undrift.experiments.building import build_data, build_losses
from undrift.experiments.experiment import Experiment
from undrift.nets import passes
from undrift.nets.metrics import (
    AUC,
    F1,
    METRICS,
    BalancedAccuracy,
    Dice,
    MeanOverSamples,
    Perplexity,
    StreamingMetric,
)
from undrift.nets.module_losses import ModuleLosses

ROOT = Path(__file__).parents[1]


def streamed(metric, outputs, targets, sizes=(5, 1, 17)):
    """The metric from chunks of the given sizes, the last as large as necessary."""
    metric.reset()
    first = 0
    for size in (*sizes, len(targets)):
        if first < len(targets):
            metric.update(outputs[first : first + size], targets[first : first + size])
        first += size
    return metric.compute()


def drawn(n=60, classes=4, seed=0):
    g = torch.Generator().manual_seed(seed)
    # Rounded, so that there are ties; class 3 is rare.
    outputs = (torch.randn(n, classes, generator=g) * 2).round() / 2
    targets = torch.randint(0, classes, (n,), generator=g)
    return outputs, torch.where(targets == 3, (torch.arange(n) % 3).clamp(max=2), targets)


# By hand and by scikit-learn


@pytest.mark.parametrize("seed", range(3))
def test_auc_of_two_classes(seed):
    outputs, targets = drawn(classes=2, seed=seed)
    targets = targets % 2
    expected = sk.roc_auc_score(targets, outputs[:, 1] - outputs[:, 0])
    assert streamed(AUC(), outputs, targets) == pytest.approx(expected, rel=1e-12)
    single = outputs[:, 1] - outputs[:, 0]
    assert streamed(AUC(), single, targets.float()) == pytest.approx(expected, rel=1e-12)
    assert streamed(AUC(), single[:, None], targets.float()) == pytest.approx(expected, rel=1e-12)
    assert streamed(AUC(), -single, targets) == pytest.approx(1 - expected, rel=1e-12)


def test_auc_of_several_classes_and_labels():
    outputs, targets = drawn(classes=3)
    scores = outputs.softmax(1)
    expected = sk.roc_auc_score(targets, scores.double(), multi_class="ovr", average="macro")
    assert streamed(AUC(), outputs, targets) == pytest.approx(expected, rel=1e-9)
    labels = (torch.rand(60, 3, generator=torch.Generator().manual_seed(1)) < 0.4).float()
    expected = sk.roc_auc_score(labels, outputs, average="macro")
    assert streamed(AUC(), outputs, labels) == pytest.approx(expected, rel=1e-12)


def test_a_metric_of_one_class_or_no_sample_is_nan():
    outputs, targets = drawn(classes=2)
    assert math.isnan(streamed(AUC(), outputs, torch.zeros_like(targets)))
    assert all(math.isnan(kind().compute()) for kind in METRICS.values())


@pytest.mark.parametrize("classes", [2, 4])
def test_f1_and_balanced_accuracy(classes):
    outputs, targets = drawn(classes=classes)
    targets = targets % classes
    predicted = outputs.argmax(1)
    for average in ("macro", "micro"):
        expected = sk.f1_score(targets, predicted, average=average)
        assert streamed(F1(average), outputs, targets) == pytest.approx(expected, rel=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class is predicted that does not occur
        expected = sk.balanced_accuracy_score(targets, predicted)
    assert streamed(BalancedAccuracy(), outputs, targets) == pytest.approx(expected, rel=1e-12)
    if classes == 2:
        expected = sk.f1_score(targets, predicted)
        assert streamed(F1("binary"), outputs, targets) == pytest.approx(expected, rel=1e-12)
        logits = outputs[:, 1] - outputs[:, 0]
        expected = sk.f1_score(targets, logits > 0)
        assert streamed(F1("binary"), logits, targets) == pytest.approx(expected, rel=1e-12)


def test_perplexity_leaves_padding_out():
    g = torch.Generator().manual_seed(0)
    outputs = torch.randn(30, 7, 5, generator=g)
    targets = torch.randint(0, 7, (30, 5), generator=g)
    targets[::3, 2:] = -100
    p = outputs.softmax(1)
    each = [
        math.log(float(p[i, targets[i, t], t]))
        for i in range(30)
        for t in range(5)
        if targets[i, t] >= 0
    ]
    expected = math.exp(-np.mean(each))
    assert streamed(Perplexity(), outputs, targets) == pytest.approx(expected, rel=1e-5)
    assert len(each) == 120


def test_dice_of_masks_and_of_classes():
    g = torch.Generator().manual_seed(0)
    logits, mask = torch.randn(30, 6, 6, generator=g), torch.rand(30, 6, 6, generator=g) < 0.3
    found = logits > 0
    expected = 2 * (found & mask).sum() / (found.sum() + mask.sum())
    assert streamed(Dice(), logits, mask.float()) == pytest.approx(float(expected), rel=1e-6)
    scores, classes = torch.randn(30, 3, 6, 6, generator=g), torch.randint(0, 3, (30, 6, 6))
    each = [
        float(2 * ((scores.argmax(1) == c) & (classes == c)).sum())
        / float((scores.argmax(1) == c).sum() + (classes == c).sum())
        for c in range(3)
    ]
    assert streamed(Dice(), scores, classes) == pytest.approx(np.mean(each[1:]), rel=1e-6)
    assert streamed(Dice(True), scores, classes) == pytest.approx(np.mean(each), rel=1e-6)


# In evaluation


def federation(n=(7, 12, 0, 6, 5), classes=3):
    g = torch.Generator().manual_seed(0)

    def samples(k):
        return torch.randn(k, 4, generator=g), torch.randint(0, classes, (k,), generator=g)

    return ud.data.FederatedData.from_clients([samples(k) for k in n if k], samples(9))


def evaluated(metrics, data=None, **options):
    torch.manual_seed(0)
    losses = ModuleLosses(nn.Linear(4, 3), data or federation(), metrics=metrics, **options)
    return losses, losses.evaluate(losses.initial(), losses.weights(), {})


def largest(outputs, targets):
    return outputs.max()


def margin(outputs, targets):
    return (outputs.max(1).values - outputs.mean(1)).mean().item()


def root_mean_square(outputs, targets):
    return outputs.square().mean().sqrt()


def test_means_over_samples_see_chunks_and_other_functions_all_samples(monkeypatch):
    monkeypatch.setattr(passes, "PIECE_SAMPLES", 4)
    own = {"largest": largest, "margin": margin, "rms": root_mean_square}
    losses, found = evaluated(own)
    assert set(losses.criterion.chunked) == {"margin"}
    assert set(losses.criterion.metrics) == {"largest", "rms"}
    for part, name in ((losses.data.train, "train"), (losses.data.test, "test")):
        with torch.no_grad():
            outputs, targets = losses.flat.module(part.x), part.y
        for metric, function in own.items():
            expected = float(function(outputs, targets))
            assert found[f"{name}_{metric}"] == pytest.approx(expected, rel=1e-6)
    seen = []
    chunks = {"margin": lambda outputs, targets: seen.append(len(targets)) or margin(outputs, None)}
    losses, _ = evaluated(chunks)
    del seen[:]
    losses.evaluate(losses.initial(), losses.weights(), {})
    assert max(seen) == 4 and sum(seen) == 30 + 9


@pytest.mark.parametrize("threads", [1, 3])
def test_streaming_metrics_get_the_samples_in_order_whatever_the_threads(monkeypatch, threads):
    monkeypatch.setattr(passes, "PIECE_SAMPLES", 4)

    class Seen:
        """Not derived from anything: update, compute and reset are enough."""

        def reset(self):
            self.targets = []

        def update(self, outputs, targets):
            assert outputs.shape == (len(targets), 3)
            self.targets += targets.tolist()

        def compute(self):
            return sum(number * target for number, target in enumerate(self.targets))

    users = Seen()
    users.targets = ["the user's own"]
    torch.manual_seed(0)
    losses = ModuleLosses(nn.Linear(4, 3), federation(), metrics={"seen": users})
    losses._threads = threads
    for _ in range(2):
        found = losses.evaluate(losses.initial(), losses.weights(), {})
        expected = sum(k * y for k, y in enumerate(losses.data.train.y.tolist()))
        assert found["train_seen"] == expected
    assert users.targets == ["the user's own"]  # a copy was used
    assert not losses.evaluates_in_pieces


def test_an_error_in_one_thread_ends_the_others(monkeypatch):
    monkeypatch.setattr(passes, "PIECE_SAMPLES", 2)

    class Failing(StreamingMetric):
        def reset(self):
            self.n = 0

        def update(self, outputs, targets):
            self.n += len(targets)
            if self.n > 9:
                raise RuntimeError("enough")

        def compute(self):
            return 0.0

    losses = ModuleLosses(nn.Linear(4, 3), federation(), metrics={"mine": Failing()})
    losses._threads = 3
    with pytest.raises(ud.UndriftError, match="The metric 'mine' failed: RuntimeError: enough"):
        losses.evaluate(losses.initial(), losses.weights(), {})


def test_names_in_python():
    data = federation(classes=2)
    torch.manual_seed(0)
    options = dict(model=nn.Linear(4, 2), data=data, local=ud.SGD(lr=0.1), rounds=1)
    listed = ud.train(ud.FedAvg(), metrics=["auc", "f1"], **options)
    mapped = ud.train(
        ud.FedAvg(),
        metrics={"auc": ud.metrics.AUC(), "f1": "f1"},
        target={"test_auc": 1.1},
        **options,
    )
    assert listed.metrics == mapped.metrics
    with torch.no_grad():
        outputs = listed.model()(data.test.x)
    expected = sk.roc_auc_score(data.test.y, outputs[:, 1] - outputs[:, 0])
    assert listed.metrics["test_auc"] == pytest.approx(expected)
    with pytest.raises(ud.UndriftError, match="A metric is 'ac', but must be one of 'auc'"):
        ud.train(ud.FedAvg(), metrics=["ac"], **options)
    with pytest.raises(ud.UndriftError, match=r"must be an object: write AUC\(\)"):
        ud.train(ud.FedAvg(), metrics={"auc": ud.metrics.AUC}, **options)
    with pytest.raises(ud.UndriftError, match="an object with update, compute and reset"):
        ud.train(ud.FedAvg(), metrics={"auc": 3}, **options)
    mean = MeanOverSamples(lambda outputs, targets: (outputs.argmax(1) == targets).double())
    counted = ud.train(ud.FedAvg(), metrics={"right": mean}, **options).metrics
    assert counted["test_right"] == counted["test_accuracy"]


def test_names_in_files(tmp_path):
    (tmp_path / "mine.py").write_text(
        "class Share:\n"
        "    def __init__(self, of=0): self.of = of\n"
        "    def reset(self): self.n = self.k = 0\n"
        "    def update(self, outputs, targets):\n"
        "        self.n += len(targets); self.k += int((targets == self.of).sum())\n"
        "    def compute(self): return self.k / self.n\n"
    )
    table = {
        "data": {"source": "synthetic", "clients": 4},
        "model": {"name": "logistic"},
        "local": {"lr": 0.1},
        "method": [{"name": "FedAvg"}],
        "metrics": {
            "auc": "auc",
            "micro": {"name": "f1", "average": "micro"},
            "share": {"name": "mine.py:Share", "of": 1},
        },
    }
    experiment = Experiment.from_dict(table, folder=tmp_path)
    again = Experiment.from_dict(experiment.resolved())
    assert again.resolved()["metrics"]["micro"] == {"name": "f1", "average": "micro"}
    data = build_data(again)
    losses = build_losses(again, data, 0)
    found = losses.evaluate(losses.initial(), losses.weights(), {})
    assert found["test_micro"] == pytest.approx(found["test_accuracy"])  # one label a sample
    assert found["train_share"] == pytest.approx(float((data.train.y == 1).double().mean()))
    assert 0 <= found["test_auc"] <= 1
    said = refused({**table, "metrics": {"a": "acu"}})
    assert "metrics.a" in said and '"auc"' in said
    assert "metrics.a.average" in refused(
        {**table, "metrics": {"a": {"name": "f1", "average": "x"}}}
    )


def test_a_metric_of_ones_own_does_not_hold_all_outputs():
    code = "from benchmarks.metric_memory import growth; print(*growth(400).values())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    _, function, streaming = map(float, done.stdout.split())
    assert function < 160 and streaming < 160  # all outputs are 400 MB
