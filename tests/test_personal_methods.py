"""Ditto, pFedMe and clients that train alone, against plain loops and closed forms."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import undrift as ud
from commands import called
from undrift.experiments.experiment import Experiment

CLIENTS = 4


def federation():
    g = torch.Generator().manual_seed(0)

    def samples(n):
        return torch.randn(n, 5, generator=g), torch.randint(0, 3, (n,), generator=g)

    return ud.data.FederatedData.from_clients([samples(n) for n in (12, 17, 9, 14)])


def model():
    torch.manual_seed(0)
    return nn.Linear(5, 3)


def trained(method, **options):
    setting = dict(
        model=model(),
        data=federation(),
        local=ud.GD(lr=0.2, steps=3),
        rounds=3,
        engine="serial",
        evaluate=ud.Evaluation(models=("server", "own")),
    )
    return ud.train(method, **{**setting, **options})


def flat(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def gradient(x, k, data=None):
    """∇f_k at a flat vector."""
    net = model()
    nn.utils.vector_to_parameters(x, net.parameters())
    inputs, targets = (data or federation()).train.client(k)
    F.cross_entropy(net(inputs), targets).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


def descent(start, k, center, weight, lr=0.2, steps=3):
    x = start.clone()
    for _ in range(steps):
        x = x - lr * (gradient(x, k) + weight * (x - center))
    return x


WEIGHTS = torch.tensor([12, 17, 9, 14]) / 52


def ditto(lam, rounds):
    w, v = flat(model()), [flat(model())] * CLIENTS
    for _ in range(rounds):
        v = [descent(v[k], k, w, lam) for k in range(CLIENTS)]
        local = [descent(w, k, w, 0.0) for k in range(CLIENTS)]
        w = sum(q * x for q, x in zip(WEIGHTS, local, strict=True))
    return w, v


def pfedme(lam, eta, R, beta, rounds):
    w, theta = flat(model()), [None] * CLIENTS
    for _ in range(rounds):
        local = []
        for k in range(CLIENTS):
            own = w
            for _ in range(R):
                theta[k] = descent(own, k, own, lam)
                own = own - eta * lam * (own - theta[k])
            local.append(own)
        w = (1 - beta) * w + beta * sum(q * x for q, x in zip(WEIGHTS, local, strict=True))
    return w, theta


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_ditto_is_the_plain_loop(engine):
    result = trained(ud.Ditto(lam=0.7), engine=engine)
    w, v = ditto(0.7, 3)
    assert torch.allclose(result.x, w, atol=1e-6)
    for k in range(CLIENTS):
        assert torch.allclose(flat(result.client_model(k)), v[k], atol=1e-6)
    assert result.records[1].gradients == 2 * 3 * 52
    assert result.bytes_up == trained(ud.FedAvg()).bytes_up


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_pfedme_is_the_plain_loop(engine):
    result = trained(ud.PFedMe(lam=2.0, eta=0.1, R=3, beta=0.8), engine=engine)
    w, theta = pfedme(2.0, 0.1, 3, 0.8, 3)
    assert torch.allclose(result.x, w, atol=1e-6)
    for k in range(CLIENTS):
        assert torch.allclose(flat(result.client_model(k)), theta[k], atol=1e-6)
    assert result.records[1].gradients == 3 * 3 * 52


@pytest.mark.parametrize("method", [ud.Ditto(lam=0.3), ud.PFedMe(lam=2.0, eta=0.1, R=2)], ids=repr)
def test_engines_agree_and_runs_resume_to_the_bit(tmp_path, method):
    options = dict(local=ud.SGD(lr=0.1, batch_size=4, epochs=2, momentum=0.5), cohort=2)
    one, two = trained(method, **options), trained(method, engine="vectorised", **options)
    assert torch.allclose(one.x, two.x, atol=1e-6)
    assert two.records[1].gradients == one.records[1].gradients
    for k in range(CLIENTS):
        assert torch.allclose(one.run.last_of(k), two.run.last_of(k), atol=1e-6)
    setting = dict(
        model=model(),
        data=federation(),
        engine="serial",
        evaluate=ud.Evaluation(models=("server", "own")),
        **options,
    )
    ud.train(method, out=tmp_path / "cut", rounds=1, **setting)
    resumed = ud.resume(tmp_path / "cut", method, rounds=3, **setting)
    assert torch.equal(resumed.x, one.x) and resumed.metrics == one.metrics


def test_ditto_without_a_pull_is_training_alone():
    local = ud.SGD(lr=0.1, batch_size=4)
    ours = trained(ud.Ditto(lam=0.0), local=local)
    alone = ud.alone(model=model(), data=federation(), local=local, rounds=3, engine="serial")
    for k in range(CLIENTS):
        assert torch.equal(ours.run.last_of(k), alone.run.last_of(k))
    own = {name: value for name, value in ours.metrics.items() if name.startswith("own/")}
    assert own == alone.metrics
    fedavg = trained(ud.FedAvg(), local=local)
    assert torch.equal(ours.x, fedavg.x)  # the server's model does not know of the personal ones


QUADRATICS = ud.theory.random_quadratics(5, 3, seed=1)


def test_ditto_with_a_large_pull_is_the_servers_model():
    for lam, near in ((1e2, 0.1), (1e6, 1e-5)):
        result = ud.train(ud.Ditto(lam=lam), problem=QUADRATICS, local=ud.Exact(), rounds=4)
        before = result.run.server.x
        distances = [float((result.run.last_of(k) - before).norm()) for k in range(len(QUADRATICS))]
        assert max(distances) < near * float(before.norm())
    assert max(distances) > 0


def test_pfedme_minimises_the_mean_of_the_moreau_envelopes():
    lam = 2.0
    H, b = QUADRATICS.H.double().numpy(), QUADRATICS.b.double().numpy()
    q = QUADRATICS.weights().numpy()
    # θ_k(w) = (H_k + λI)⁻¹(b_k + λw), and ∇F_k(w) = λ(w − θ_k(w)).
    inverse = np.linalg.inv(H + lam * np.eye(3))
    A = sum(w * lam * (np.eye(3) - lam * M) for w, M in zip(q, inverse, strict=True))
    c = sum(w * lam * M @ v for w, M, v in zip(q, inverse, b, strict=True))
    method = ud.PFedMe(lam=lam, eta=0.05, R=1)
    result = ud.train(method, problem=QUADRATICS, local=ud.Exact(), rounds=3000)
    w = np.linalg.solve(A, c)
    assert np.allclose(result.x.numpy(), w, atol=1e-9)
    for k in range(len(QUADRATICS)):
        assert np.allclose(result.run.last_of(k).numpy(), inverse[k] @ (b[k] + lam * w), atol=1e-9)


def test_alone_nothing_travels_and_every_client_descends_by_itself():
    result = ud.alone(
        model=model(), data=federation(), local=ud.GD(lr=0.2, steps=3), rounds=3, cohort=2
    )
    assert result.bytes_up == result.bytes_down == 0
    for k in range(CLIENTS):
        expected = descent(flat(model()), k, 0, 0.0, steps=9)
        assert torch.allclose(flat(result.client_model(k)), expected, atol=1e-6)
    assert set(result.metrics) >= {"own/train_loss", "own/train_accuracy"}


def test_devices_need_time_for_every_problem():
    options = dict(devices=ud.Devices(speed=100), rounds=1)
    once, twice = trained(ud.FedAvg(), **options), trained(ud.Ditto(), **options)
    assert twice.records[1].busy_seconds == pytest.approx(2 * once.records[1].busy_seconds)


WRONG = [
    (lambda: ud.Ditto(lam=-1), "Ditto's lam is -1"),
    (lambda: ud.PFedMe(lam=10, eta=0.2), "PFedMe's eta is 0.2, but must be above 0 and at most"),
    (lambda: ud.PFedMe(R=0), "PFedMe's R is 0"),
    (lambda: trained(ud.Ditto(), personal=["bias"]), "personal models of its own"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=[said for _, said in WRONG])
def test_mistakes_get_one_sentence(wrong, said):
    with pytest.raises(ud.UndriftError, match=said):
        wrong()


# Fine-tuning before evaluation


def test_the_tuned_model_is_the_servers_after_local_work():
    tune = ud.GD(lr=0.1, steps=2)
    evaluate = ud.Evaluation(models=("server", "tuned"), tune=tune, clients=True)
    result = trained(ud.FedAvg(), evaluate=evaluate)
    plain = trained(ud.FedAvg(), evaluate=ud.Evaluation())
    assert torch.equal(result.x, plain.x)
    assert result.metrics["train_loss"] == plain.metrics["train_loss"]
    rows = {row["client"]: row for row in result.clients() if row["model"] == "tuned"}
    total = 0.0
    for k in range(CLIENTS):
        x = descent(result.x, k, 0, 0.0, lr=0.1, steps=2)
        net = model()
        nn.utils.vector_to_parameters(x, net.parameters())
        inputs, targets = federation().train.client(k)
        loss = float(F.cross_entropy(net(inputs), targets).detach())
        assert rows[k]["train_loss"] == pytest.approx(loss, rel=1e-5)
        total += len(targets) / 52 * loss
    assert result.metrics["tuned/train_loss"] == pytest.approx(total, rel=1e-5)
    assert result.metrics["tuned/train_loss"] < result.metrics["train_loss"]


def test_tuning_in_files_and_mistakes():
    table = {
        "data": {"source": "synthetic", "clients": 4},
        "model": {"name": "logistic"},
        "local": {"lr": 0.1},
        "method": [{"name": "FedAvg"}],
        "evaluation": {"models": ["server", "tuned"], "tune": {"lr": 0.05, "epochs": 2}},
    }
    experiment = Experiment.from_dict(table)
    tune = Experiment.from_dict(experiment.resolved()).evaluation_settings().tune
    assert (tune.lr, tune.epochs) == (0.05, 2)
    for wrong in ({"models": ["tuned"]}, {"tune": {"lr": 0.1}}):
        with pytest.raises(ud.UndriftError, match="belong together"):
            Experiment.from_dict({**table, "evaluation": wrong})
    with pytest.raises(ud.UndriftError, match=r"evaluation\.tune\.lr"):
        Experiment.from_dict({**table, "evaluation": {"models": ["tuned"], "tune": {"lr": -1}}})
    with pytest.raises(ud.UndriftError, match="evaluation tune is 3"):
        trained(ud.FedAvg(), evaluate=ud.Evaluation(models=("tuned",), tune=3))


def test_all_facts_of_verify_hold_for_clients_that_train_alone(tmp_path):
    done = called("verify", "undrift.methods:Alone", cwd=tmp_path)
    assert done.returncode == 0 and "10 of 10 facts hold" in done.stdout
