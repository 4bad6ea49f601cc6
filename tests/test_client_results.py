"""Results per client: from the same pass as all others, in records, tables, frames and reports."""

import csv

import pytest
import torch
from pyarrow import parquet
from sklearn.metrics import roc_auc_score
from torch import nn

import undrift as ud
from undrift.core.client_metrics import ClientMetrics, spread
from undrift.nets import passes
from undrift.nets.module_losses import ModuleLosses
from undrift.report import read_runs, write_csv

SIZES = {"a": 12, "b": 30, "c": 5, "d": 21}


def federation(tested=True):
    g = torch.Generator().manual_seed(0)

    def samples(n):
        return torch.randn(n, 4, generator=g), torch.randint(0, 2, (n,), generator=g)

    clients = {name: samples(n) for name, n in SIZES.items()}
    data = ud.data.FederatedData.from_clients(clients)
    return data.with_test(0.3, seed=1) if tested else data


def largest(outputs, targets):
    return outputs.max()


def margin(outputs, targets):
    return (outputs[:, 1] - outputs[:, 0]).mean()


METRICS = {"auc": ud.metrics.AUC(), "largest": largest, "margin": margin}


def by_hand(model, data):
    """Metrics of every client, each from a forward pass over its own samples."""
    found = {}
    for k, client in enumerate(data.ids):
        for name, part in (("train", data.train), ("test", data.test)):
            x, y = part.client(k)
            if not len(y):
                continue
            with torch.no_grad():
                out = model(x)
            own = {
                "loss": nn.functional.cross_entropy(out, y),
                "accuracy": (out.argmax(1) == y).double().mean(),
                "largest": out.max(),
                "margin": margin(out, y),
            }
            if 0 < y.sum() < len(y):
                own["auc"] = roc_auc_score(y, out[:, 1] - out[:, 0])
            found |= {(client, f"{name}_{m}"): float(v) for m, v in own.items()}
    return found


@pytest.mark.parametrize("piece", [3, 8, 4096])
@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(weight=torch.ones(2))])
def test_the_metrics_of_a_client_are_those_of_its_own_samples(monkeypatch, piece, loss):
    monkeypatch.setattr(passes, "PIECE_SAMPLES", piece)
    torch.manual_seed(0)
    data, model = federation(), nn.Linear(4, 2)
    losses = ModuleLosses(model, data, loss, METRICS)
    clients, x, q = ClientMetrics(), losses.initial(), losses.weights()
    parts = ("train", "validation", "test")
    found = losses.evaluate_clients(x, q, {}, parts, clients)
    assert found == pytest.approx(losses.evaluate(x, q, {}, parts), rel=1e-6)
    given = {(c, m): v for m, each in clients.values.items() for c, v in each.items()}
    expected = by_hand(model, data)
    assert given == pytest.approx(expected, rel=1e-5)
    assert given.keys() == expected.keys()


def test_one_pass_serves_clients_and_all_samples():
    seen = []

    class Counting(nn.Linear):
        def forward(self, x):
            seen.append(len(x))
            return super().forward(x)

    losses = ModuleLosses(Counting(4, 2), federation())
    arguments = losses.initial(), losses.weights(), {}, ("train", "test")
    del seen[:]
    losses.evaluate(*arguments)
    plain = list(seen)
    del seen[:]
    losses.evaluate_clients(*arguments, ClientMetrics())
    assert seen == plain


def test_clients_that_do_not_estimate_training_metrics_have_none():
    losses = ModuleLosses(nn.Linear(4, 2), federation())
    weights = torch.tensor([0.0, 0.5, 0.0, 0.5], dtype=torch.float64)
    clients = ClientMetrics()
    losses.evaluate_clients(losses.initial(), weights, {}, ("train", "test"), clients)
    assert set(clients.values["train_loss"]) == {"b", "d"}
    assert set(clients.values["test_loss"]) == {"a", "b", "c", "d"}


def test_the_spread_over_clients():
    assert spread("test_accuracy", [0.2, 0.4, 0.6]) == pytest.approx(
        {"mean": 0.4, "std": (0.08 / 3) ** 0.5, "worst_tenth": 0.2, "jain": 1.44 / (3 * 0.56)}
    )
    assert spread("test_loss", [0.2, 0.4, 0.6])["worst_tenth"] == 0.6
    assert spread("own/test_auc", range(1, 41))["worst_tenth"] == 2.5
    assert spread("test_auc", [0.7] * 5)["jain"] == pytest.approx(1)


def trained(method=None, **options):
    torch.manual_seed(0)
    setting = dict(
        model=nn.Linear(4, 2),
        data=federation(),
        local=ud.SGD(lr=0.5, batch_size=4),
        rounds=3,
        metrics=METRICS,
        evaluate=ud.Evaluation(clients=True, models=("server", "own")),
        engine="vectorised",
    )
    return ud.train(method or ud.FedAvg(), **{**setting, **options})


def test_records_frames_and_rows(tmp_path):
    result = trained(out=tmp_path / "run")
    rows = result.clients()
    assert [(row["model"], row["client"]) for row in rows] == [
        (model, client) for model in ("server", "own") for client in SIZES
    ]
    expected = by_hand(result.model(), federation())
    server = [row for row in rows if row["model"] == "server"]
    for row in server:
        own = {m: v for (client, m), v in expected.items() if client == row["client"]}
        assert {m: v for m, v in row.items() if m in own} == pytest.approx(own, rel=1e-5)
    values = [row["test_accuracy"] for row in server]
    for statistic, value in spread("test_accuracy", values).items():
        assert result.metrics[f"test_client_accuracy_{statistic}"] == pytest.approx(value)
    own = [row["test_loss"] for row in rows if row["model"] == "own"]
    assert result.metrics["own/test_client_loss_worst_tenth"] == pytest.approx(max(own))
    frame = result.frame("clients")
    assert list(frame["test_loss"]) == [row["test_loss"] for row in rows]
    assert set(frame["method"]) == {"FedAvg"} and len(result.frame()) == 4
    with pytest.raises(ud.UndriftError, match="must be one of 'records', 'clients'"):
        result.frame("rounds")
    # The same table on disk.
    place = tmp_path / "run" / "FedAvg" / "seed-0"
    with (place / "clients.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [float(row["test_loss"]) for row in written] == [row["test_loss"] for row in rows]
    table = parquet.read_table(place / "clients.parquet").to_pylist()
    assert [row["test_loss"] for row in table] == [row["test_loss"] for row in rows]


def test_without_results_per_client_records_stay_as_they_are_and_rows_are_measured_on_demand():
    asked, plain = trained(), trained(evaluate=ud.Evaluation(models=("server", "own")))
    assert torch.equal(asked.x, plain.x)
    assert {k: asked.metrics[k] for k in plain.metrics} == pytest.approx(plain.metrics, rel=1e-6)
    assert not any("_jain" in name for name in plain.metrics)
    assert plain.clients() == asked.clients()


def test_a_client_has_the_model_it_trained_last():
    data = federation()
    result = trained()
    rows = {r["client"]: r for r in result.clients() if r["model"] == "own"}
    for k, client in enumerate(data.ids):
        x, y = data.test.client(k)
        with torch.no_grad():
            loss = nn.functional.cross_entropy(result.client_model(client)(x), y)
        assert float(loss) == pytest.approx(rows[client]["test_loss"], rel=1e-5)
    assert not torch.equal(result.client_model("a").weight, result.client_model("b").weight)
    with pytest.raises(ud.UndriftError, match="There is no client 'z'"):
        result.client_model("z")
    with pytest.raises(ud.UndriftError, match="keeps no models of clients: run it with"):
        trained(evaluate=ud.Evaluation()).client_model("a")


def test_the_report_has_the_clients(tmp_path):
    result = trained(out=tmp_path / "run")
    page = result.report(tmp_path / "page.html").read_text()
    section = page.partition('<section id="clients">')[2].partition("</section>")[0]
    worst = min(
        (r for r in result.clients() if r["model"] == "server"), key=lambda r: r["test_accuracy"]
    )
    assert f"{worst['client']} ({worst['test_accuracy']:.3g})" in section
    assert f"{result.metrics['test_client_accuracy_jain']:.4g}" in section
    assert "histogram" in section
    paths = {path.stem: path for path in write_csv(tmp_path / "run", tmp_path / "tables")}
    assert len(paths["clients"].read_text().splitlines()) == 1 + 2 * len(SIZES)
    assert read_runs(tmp_path / "run")[0].clients[0]["client"] == "a"
    plain = trained(evaluate=ud.Evaluation()).report(tmp_path / "plain.html").read_text()
    assert '<section id="clients">' not in plain


def test_analytic_problems_have_results_per_client_too():
    problem = ud.theory.random_quadratics(4, 3, seed=0)
    result = ud.train(
        ud.FedAvg(),
        problem=problem,
        local=ud.GD(lr=0.01, steps=2),
        rounds=2,
        evaluate=ud.Evaluation(clients=True),
    )
    for k, row in enumerate(result.clients()):
        assert row["train_loss"] == pytest.approx(problem.value(k, result.x))
