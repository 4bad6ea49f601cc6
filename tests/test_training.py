"""train, compare, centralised: metrics, early stops, and errors."""

import math

import pytest
import torch
from torch import nn

import undrift as ud
from undrift.core.clients import Roster

QUADRATICS = ud.theory.random_quadratics(5, 3, seed=1)
GD = ud.GD(lr=0.1, steps=3)


def quadratic(method, **options):
    setting = {"problem": QUADRATICS, "local": GD, "rounds": 10, "cohort": 2, **options}
    return ud.train(method, **setting)


def network(**options):
    clients = ud.data.synthetic(clients=6, seed=1, most=80)
    setting = {
        "model": ud.models.logistic(60, 10),
        "data": clients,
        "local": ud.SGD(lr=0.05, batch_size=10, epochs=1),
        "rounds": 4,
        "cohort": 3,
        "engine": "vectorised",  # by a fixed rule: bits are compared
    }
    return setting | options


def test_the_same_seed_gives_the_same_bits_whatever_ran_before():
    a = ud.train(ud.FedDyn(0.1), **network())
    ud.train(ud.SCAFFOLD(), **network(seed=3, rounds=1))
    b = ud.train(ud.FedDyn(0.1), **network())
    assert torch.equal(a.x, b.x)
    assert [r.metrics for r in a.records] == [r.metrics for r in b.records]
    assert not torch.equal(a.x, ud.train(ud.FedDyn(0.1), **network(seed=1)).x)


def test_compared_methods_have_the_same_cohorts_and_batches():
    found = ud.compare([ud.FedAvg(), ud.SCAFFOLD(), ud.FedProx(0.0)], **network())
    cohorts = [[r.cohort for r in result.records] for result in found]
    assert cohorts[0] == cohorts[1] == cohorts[2]
    assert torch.equal(found["FedAvg"].x, found["FedProx"].x)  # the same batches too
    assert torch.equal(found["FedAvg"].x, ud.train(ud.FedAvg(), **network()).x)
    assert [r.label for r in found] == ["FedAvg", "SCAFFOLD", "FedProx"]
    assert "SCAFFOLD" in found.summary()
    with pytest.raises(ud.UndriftError, match="no method 'FedNova'"):
        found["FedNova"]


def test_labels_tell_methods_apart():
    found = ud.compare(
        [ud.FedDyn(0.1), ud.FedDyn(0.5), ud.FedAvg()], problem=QUADRATICS, local=GD, rounds=1
    )
    assert [r.label for r in found] == ["FedDyn(alpha=0.1)", "FedDyn(alpha=0.5)", "FedAvg"]
    named = ud.compare({"mine": ud.FedAvg()}, problem=QUADRATICS, local=GD, rounds=1)
    assert named["mine"].method.name == "FedAvg"
    with pytest.raises(ud.UndriftError, match="have the same name and parameters"):
        ud.compare([ud.FedAvg(), ud.FedAvg()], problem=QUADRATICS, local=GD, rounds=1)


def test_the_centralised_baseline_is_sgd_on_all_data():
    setting = network(rounds=2, model=ud.models.logistic(60, 10).double())
    found = ud.centralised(**setting)
    assert found.label == "centralised"
    train = setting["data"].train
    one = ud.data.FederatedData.from_clients({"all": (train.x, train.y)})
    alone = ud.train(ud.FedAvg(), **{**setting, "data": one, "cohort": None})
    assert torch.equal(found.x, alone.x)
    assert {"train_loss", "test_accuracy"} <= set(found.metrics)


def test_the_centralised_baseline_has_no_limit():
    setting = network(rounds=1)
    limited = ud.centralised(**setting, limit=lambda client, round: 0)
    assert torch.equal(limited.x, ud.centralised(**setting).x)
    assert limited.gradients == len(setting["data"].train)


def test_a_run_stops_at_a_target_or_when_a_callback_says_so():
    full = quadratic(ud.FedAvg())
    values = full.history("train_loss")[1]
    best = values.index(min(values))
    assert best > 0
    goal = values[best]
    stopped = quadratic(ud.FedAvg(), target={"train_loss": goal})
    assert stopped.records[-1].round == best
    assert stopped.stopped == f"train_loss reached {goal:g}"
    seen = []

    def callback(run, record):
        seen.append(record.round)
        return record.round == 3

    assert quadratic(ud.FedAvg(), callbacks=[callback]).records[-1].round == 3
    assert seen == [0, 1, 2, 3]


def test_zero_rounds_give_the_initial_model():
    result = quadratic(ud.FedAvg(), rounds=0)
    assert torch.equal(result.x, QUADRATICS.initial())
    assert len(result.records) == 1


def test_evaluation_happens_when_asked_and_at_the_end():
    result = quadratic(ud.FedAvg(), rounds=7, evaluate=ud.Evaluation(every=3))
    assert result.history("train_loss")[0] == [0, 3, 6, 7]


@pytest.mark.parametrize("objective", ["samples", "clients"])
@pytest.mark.parametrize("method", [ud.FedAvg(), ud.FedDyn(0.5), ud.FedDR(0.3)], ids=repr)
def test_three_models_can_be_reported_for_every_method(method, objective):
    """The server's, the cohort's mean, and the mean of every client's last model."""
    last = {k: QUADRATICS.initial() for k in QUADRATICS.ids}
    q = Roster(QUADRATICS.ids, QUADRATICS.sizes, objective).weights
    rows = []

    def note(run, record):
        for k in record.cohort:
            last[k] = run.last_of(k)
        if record.cohort:
            share = sum(q[k] for k in record.cohort)
            rows.append(
                (
                    run.server.x,
                    sum(q[k] * last[k] for k in record.cohort) / share,
                    sum(q[k] * last[k] for k in last),
                    sum(float(q[k]) * QUADRATICS.value(k, last[k]) for k in last),
                    record.metrics,
                )
            )

    models = ud.Evaluation(models=("server", "cohort", "all", "own"))
    quadratic(method, evaluate=models, callbacks=[note], objective=objective)
    assert len(rows) == 10
    for server, cohort, mean, own, metrics in rows:
        for name, x in (("", server), ("cohort/", cohort), ("all/", mean)):
            wanted = QUADRATICS.evaluate(x, q, {})["train_loss"]
            assert metrics[f"{name}train_loss"] == pytest.approx(wanted, abs=1e-12)
        assert metrics["own/train_loss"] == pytest.approx(own, abs=1e-12)


def test_tracked_models_do_not_count_as_traffic():
    plain = quadratic(ud.FedAvg())
    watched = quadratic(ud.FedAvg(), evaluate=ud.Evaluation(models=("server", "all", "own")))
    assert plain.bytes_up == watched.bytes_up
    assert torch.equal(plain.x, watched.x)


def test_clients_own_models_are_evaluated_on_their_own_data():
    models = ud.Evaluation(models=("server", "own"))
    result = ud.train(ud.FedDR(eta=10.0), **network(evaluate=models, objective="clients", rounds=8))
    own = {name for name in result.metrics if name.startswith("own/")}
    assert own == {"own/train_loss", "own/train_accuracy", "own/test_loss", "own/test_accuracy"}
    assert result.metrics["own/train_loss"] < result.metrics["train_loss"]


def test_the_gradient_mapping_vanishes_at_the_optimum_of_a_composite_objective():
    losses, g = ud.theory.random_composite(seed=2)
    watch = ud.Evaluation(every=50, gradient_mapping=0.3)
    result = ud.train(
        ud.FedDR(0.4, g=g), problem=losses, local=ud.Exact(), rounds=600, cohort=2, evaluate=watch
    )
    rounds, values = result.history("gradient_mapping")
    assert rounds[0] == 0
    assert values[0] > 0.1
    assert values[-1] < 1e-12
    assert result.metrics["objective"] == pytest.approx(
        result.metrics["train_loss"] + g.value(result.x)
    )


def test_the_gradient_mapping_of_a_network_without_g_is_its_gradient():
    watch = ud.Evaluation(gradient_mapping=0.1)
    setting = network(evaluate=watch, rounds=0, model=ud.models.logistic(60, 10).double())
    result = ud.train(ud.FedAvg(), **setting)
    train = setting["data"].train
    model = setting["model"]
    nn.functional.cross_entropy(model(train.x.double()), train.y).backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    assert result.metrics["gradient_mapping"] == pytest.approx(norm, rel=1e-9)


def poisoned(bad):
    """A problem whose gradients are NaN for some clients."""
    H, b = QUADRATICS.H.clone(), QUADRATICS.b.clone()
    b[bad] = math.nan
    return ud.theory.Quadratics(H, b, QUADRATICS.sizes.tolist())


@pytest.mark.parametrize("method", [ud.FedAvg(), ud.SCAFFOLD(), ud.FedDyn(0.5)], ids=repr)
def test_a_client_that_returns_nan_is_rejected_and_named(method):
    never = ud.Evaluation(every=10**6)
    result = quadratic(method, problem=poisoned([3]), cohort=None, evaluate=never)
    assert bool(result.x.isfinite().all())
    assert result.rejected == 10
    for record in result.records[1:]:
        assert [client for client, _ in record.rejected] == [3]
        assert "not finite" in record.rejected[0][1]
    assert 3 not in set(result.run.states.seen())


def test_a_round_without_a_usable_reply_raises_a_clear_error():
    with pytest.raises(ud.Diverged) as error:
        quadratic(ud.FedAvg(), problem=poisoned([0, 1, 2, 3, 4]))
    assert "round 1" in str(error.value)
    assert "not finite" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_method_that_diverges_does_not_stop_the_others():
    wild = ud.GD(lr=50.0, steps=50)
    found = ud.compare(
        {"wild": ud.FedAvg(), "calm": ud.DistributedSGD(server=ud.server.Plain(0.001))},
        problem=QUADRATICS,
        local=wild,
        rounds=20,
    )
    assert "no client of the cohort sent a usable update" in found["wild"].stopped
    assert found["calm"].stopped is None
    assert len(found["calm"].records) == 21
    assert "wild: In round" in found.summary()
    assert found["wild"].metrics == {}


def test_summary_plot_and_repr(tmp_path):
    result = ud.train(ud.FedAvg(), **network())
    assert "FedAvg" in result.summary()
    assert "test acc" in result.summary()
    assert max(len(line) for line in result.summary().splitlines()) <= 80
    picture = result.plot(tmp_path / "picture.png")
    assert picture.stat().st_size > 5000
    assert "FedAvg, seed 0: 4 rounds" in repr(result)
    rounds, values = result.history("test_accuracy")
    assert rounds == [0, 1, 2, 3, 4]
    assert all(0 <= value <= 1 for value in values)
    with pytest.raises(ud.UndriftError, match="no metric 'acuracy'"):
        result.history("acuracy")


@pytest.mark.parametrize(
    "method",
    [ud.SCAFFOLD(), ud.FedNova(variance_reduction=True), ud.VRLSGD(), ud.FedLGA(), ud.FedDR(0.3)],
    ids=repr,
)
def test_clients_that_are_accurate_from_the_start_still_take_a_step(method):
    """No division by zero once all clients have converged."""
    losses = ud.theory.random_quadratics(4, 3, sizes=[5] * 4, seed=1)
    local = ud.GD(lr=0.1, steps=5, tolerance=1e-3)
    result = ud.train(method, problem=losses, local=local, rounds=200)
    assert bool(result.x.isfinite().all())
    assert result.rejected == 0
    assert all(record.steps >= 4 for record in result.records[1:])


@pytest.mark.parametrize(
    "method", [ud.FedAvg(), ud.FedLGA(), ud.FedNova(), ud.FedDyn(0.5)], ids=repr
)
def test_a_client_without_any_step_does_not_reply(method):
    losses = ud.theory.random_quadratics(4, 3, sizes=[5] * 4, seed=1)

    def limit(client, round):
        return {0: 0, 1: 2}.get(client) if round < 3 else 0

    result = ud.train(method, problem=losses, local=GD, rounds=5, limit=limit)
    assert [record.absent for record in result.records[1:]] == [[0]] * 3 + [[0, 1, 2, 3]] * 2
    assert result.records[1].steps == 2 + 3 + 3
    assert result.records[3].metrics == result.records[5].metrics
    assert list(result.run.states.seen()) == [1, 2, 3]
    assert "1 of 4 clients never completed any work, for example client 0" in result.summary()
    same = ud.train(method, problem=losses, local=GD, rounds=3, limit={0: 0, 1: 2})
    assert same.records[3].metrics == result.records[3].metrics


def test_a_fold_that_is_not_finite_raises_and_changes_no_state():
    class Exploding(ud.FedAvg):
        def fold(self, server, replies):
            return ud.ServerState(x=server.x * math.inf)

    with pytest.raises(ud.Diverged, match="In round 1 the server's model is not finite"):
        quadratic(Exploding())


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"fold": lambda self, server, replies: None}, "must return a Server"),
        (
            {"fold": lambda self, server, replies: ud.ServerState(x=server.x[:1])},
            "a model of shape [1] instead of [3]",
        ),
        ({"keeps": {"h": "zeros"}}, "did you mean 'zero'?"),
        ({"keeps": ("h",)}, "keep h, but finish returned nothing"),
        ({"uploads": {}}, "do not declare how the server sums it"),
        ({"uploads": ("moved",)}, "must be like {'moved': ud.q}"),
        ({"uploads": {"moved": "q"}}, "must be a weight such as ud.q"),
        (
            {"finish": lambda self, down, mine, result, client: ud.Upload(moved=result.x)},
            "must return an Upload and a Keep",
        ),
        (
            {"problem": lambda self, down, mine, client: ud.LocalProblem(start=mine.h)},
            "declare it in the method's keeps",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_method_that_contradicts_its_declaration_raises(broken, words):
    class Base(ud.Method):
        uploads = {"moved": (ud.once,)}

        def problem(self, down, mine, client):
            return ud.LocalProblem(start=down.x)

        def finish(self, down, mine, result, client):
            return ud.Upload(moved=result.x - down.x), ud.Keep()

        def fold(self, server, replies):
            return ud.ServerState(x=server.x + replies.mean("moved"))

    quadratic(Base())
    with pytest.raises(ud.UndriftError) as error:
        quadratic(type("Broken", (Base,), broken)())
    assert words in str(error.value)


def test_scheme_one_draws_with_replacement_also_when_weights_are_equal():
    found = quadratic(ud.FedAvg("I"), objective="clients", cohort=9)
    assert found.run.sampler == ud.Weighted(9)
    mixed = ud.compare(
        [ud.FedAvg("I"), ud.FedAvg()], problem=QUADRATICS, local=GD, cohort=2, objective="clients"
    )
    assert mixed[0].run.sampler == ud.Uniform(2)


def test_the_mean_of_the_cohort_counts_draws():
    watch = ud.Evaluation(models=("server", "cohort"))
    found = quadratic(ud.FedAvg("I"), objective="clients", cohort=9, evaluate=watch)
    for record in found.records:
        assert record.metrics["train_loss"] == pytest.approx(record.metrics["cohort/train_loss"])


def test_a_target_on_a_users_metric_needs_a_direction():
    metric = {"rmse": lambda o, t: (o - t).square().mean().sqrt()}
    g = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=g)
    clients = ud.data.FederatedData.from_clients([(x, x @ torch.tensor([[2.0], [-1.0]]))])
    setting = dict(model=nn.Linear(2, 1), data=clients, local=ud.SGD(lr=0.1), metrics=metric)
    with pytest.raises(ud.UndriftError, match="fall or rise"):
        ud.train(ud.FedAvg(), **setting, target={"train_rmse": 0.1})
    found = ud.train(ud.FedAvg(), **setting, target={"train_rmse": ("below", 0.1)})
    assert found.records[-1].round > 0
    assert found.metrics["train_rmse"] <= 0.1
    missed = ud.train(ud.FedAvg(), **network(target={"test_accuracy": 2.0}))
    assert "was not reached" in missed.summary()
    with pytest.raises(ud.UndriftError, match="did you mean 'test_accuracy'"):
        ud.train(ud.FedAvg(), **network(target={"test_acuracy": 0.9}))


def test_the_round_that_ends_a_run_early_is_evaluated():
    found = quadratic(
        ud.FedAvg(),
        evaluate=ud.Evaluation(every=100),
        callbacks=[lambda run, record: record.round == 7],
    )
    assert found.history("train_loss")[0] == [0, 7]
    assert list(found.run.rounds()) == []


def test_the_summary_shows_reported_models_and_failures():
    models = ud.Evaluation(models=("server", "own"), gradient_mapping=0.1)
    metrics = {"confidence": lambda o, t: o.softmax(1).amax(1).mean()}
    found = ud.train(ud.FedAvg(), **network(evaluate=models, metrics=metrics))
    assert "FedAvg, own" in found.summary()
    assert "test confidence" in found.summary()
    assert "mapping" in found.summary()
    never = ud.Evaluation(every=10**6)
    bad = quadratic(ud.FedAvg(), problem=poisoned([3]), cohort=None, evaluate=never)
    assert "10 replies were rejected, the first in round 1 from client 3" in bad.summary()


def test_ids_may_be_numpy_integers():
    import numpy as np

    H, b = QUADRATICS.H, QUADRATICS.b
    own = ud.theory.Quadratics(H, b, QUADRATICS.sizes.tolist(), ids=list(np.arange(5)))
    assert torch.equal(quadratic(ud.FedAvg(), problem=own).x, quadratic(ud.FedAvg()).x)
    for cohort in ([1, 4], np.array([1, 4])):
        found = quadratic(ud.FedAvg(), cohort=ud.Fixed(cohort))
        assert torch.equal(found.x, quadratic(ud.FedAvg(), cohort=ud.Fixed([4, 1])).x)


def test_a_file_that_cannot_be_written_raises_and_is_not_left_behind(tmp_path, monkeypatch):
    result = ud.train(ud.FedAvg(), **network(rounds=1))
    whole = tmp_path / "model.safetensors"
    result.save(whole)
    before = whole.read_bytes()

    def full(values, path):
        path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("undrift.nets.weights.save_file", full)
    with pytest.raises(ud.UndriftError, match=r"cannot be written: OSError.*No space left"):
        result.save(whole)
    assert whole.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


REFUSED = [
    (lambda: ud.FedAvg("III"), "scheme is 'III'"),
    (lambda: ud.FedAvg("II-dleta"), "did you mean 'II-delta'?"),
    (lambda: ud.FedDyn(-1.0), "FedDyn's alpha is -1.0, but must be above 0"),
    (lambda: ud.FedDyn("big"), "must be a number"),
    (lambda: ud.FedProx(-0.1), "FedProx's mu is -0.1"),
    (lambda: ud.FedDR(alpha=3.0), "FedDR's alpha is 3.0"),
    (lambda: ud.FedDR(g="l1"), "None, L1(...), L2(...) or Box(...)"),
    (lambda: ud.FedPD(communication=0.0), "communication is 0.0"),
    (lambda: ud.FedNova(tau_eff="step"), "did you mean 'steps'?"),
    (lambda: ud.SCAFFOLD("III"), "option is 'III'"),
    (lambda: ud.FedLGA("litteral"), "did you mean 'literal'?"),
    (lambda: ud.L1(-1.0), "L1's strength is -1.0"),
    (lambda: ud.Box(2.0, 1.0), "low ≤ high"),
    (lambda: ud.server.Adam(beta2=1.0), "Adam's beta2 is 1.0"),
    (lambda: ud.server.Momentum(1.5), "Momentum's beta is 1.5"),
    (lambda: ud.Evaluation(models=("severs",)), "did you mean 'server'?"),
    (lambda: ud.Evaluation(every=0), "every is 0"),
    (lambda: quadratic(ud.FedAvg(), objective="sample"), "did you mean 'samples'?"),
    (lambda: quadratic(ud.FedAvg(), rounds=-1), "rounds is -1"),
    (lambda: quadratic(ud.FedAvg(), cohort=6), "only 5"),
    (lambda: quadratic(ud.FedAvg(), local=None), "must be a solver (SGD, GD"),
    (lambda: quadratic(ud.FedAvg(), local=0.1), "local is 0.1"),
    (lambda: quadratic(ud.FedAvg(), round=3), "did you mean 'rounds'?"),
    (lambda: quadratic("FedAvg"), "must be a method such as"),
    (lambda: quadratic(ud.FedAvg), "must be a method such as ud.FedAvg()"),
    (lambda: ud.compare([], problem=QUADRATICS, local=GD), "no method to run"),
    (lambda: ud.train(ud.FedAvg(), local=GD), "a model and data"),
    (lambda: ud.train(ud.FedAvg(), **network(problem=QUADRATICS)), "not both"),
    (lambda: ud.train(ud.FedAvg(), **network(data=[1, 2])), "must be FederatedData"),
    (
        lambda: ud.data.FederatedData.from_arrays(
            torch.ones(4, 2), [0, 1, 0, 1], [[0, 1], [], [2, 3]]
        ),
        "Client 1 has no data",
    ),
    (
        lambda: ud.compare([ud.FedAvg(), ud.FedDR(g=ud.L1(0.1))], problem=QUADRATICS, local=GD),
        "different objectives",
    ),
    (
        lambda: ud.compare([ud.FedAvg(), ud.FedLGA()], problem=QUADRATICS, local=GD, cohort=2),
        "cannot share cohorts",
    ),
    (lambda: ud.train(ud.FedAvg(), problem=QUADRATICS, local=ud.SGD(lr=0.1, batch_size=1)), "GD"),
    (lambda: ud.centralised(problem=QUADRATICS, local=GD), "needs data"),
    (lambda: quadratic(ud.FedAvg()).model(), "no module"),
    (lambda: ud.data.FederatedData.from_clients([]), "no clients"),
    (lambda: ud.data.FederatedData.from_clients([(torch.ones(2, 3), [1])]), "2 rows"),
    (lambda: ud.data.FederatedData.from_clients([3]), "pair (inputs, targets)"),
    (
        lambda: ud.data.FederatedData.from_clients(
            {"a": (torch.ones(2, 3), [0, 1]), "b": (torch.ones(2, 4), [0, 1])}
        ),
        "client 'b'",
    ),
    (
        lambda: ud.data.FederatedData.from_arrays(torch.ones(4, 2), [0, 1, 0, 1], [[0], [9]]),
        "outside 0 … 3",
    ),
    (lambda: ud.theory.Quadratics(torch.ones(2, 3), torch.ones(2, 3)), "[N, d, d]"),
    (lambda: ud.data.synthetic(alpha=-1), "alpha is -1"),
    (lambda: quadratic(ud.FedAvg(), seed="a"), "seed is 'a'"),
    (lambda: quadratic(ud.FedAvg(), rounds=2.5), "rounds is 2.5"),
    (lambda: quadratic(ud.FedAvg(), evaluate=5), "evaluate is 5"),
    (lambda: quadratic(ud.FedAvg(), target=[1]), "target is [1]"),
    (lambda: quadratic(ud.FedAvg(), callbacks=print), "list of functions"),
    (lambda: quadratic(ud.FedAvg(), limit=1), "limit is 1"),
    (lambda: quadratic(ud.FedAvg(), limit=lambda c, r: 0.5), "The limit of client"),
    (lambda: quadratic(ud.FedAvg(), device="foo"), "device 'foo' cannot be used"),
    (lambda: quadratic(ud.FedAvg(), problem="q"), "problem is 'q'"),
    (lambda: quadratic(ud.FedAvg(), weights="w"), "weights has no meaning"),
    (lambda: ud.train(ud.FedAvg(), **network(loss="mse")), "loss is 'mse'"),
    (lambda: ud.train(ud.FedAvg(), **network(metrics=["f2"])), "A metric is 'f2'"),
    (lambda: ud.compare(ud.FedAvg(), problem=QUADRATICS, local=GD), "a list of methods"),
    (lambda: ud.compare({"a": "x"}, problem=QUADRATICS, local=GD), "A method is 'x'"),
    (lambda: ud.FedAvg(server="adam"), "server is 'adam'"),
    (lambda: ud.FedDyn(math.inf), "alpha is inf"),
    (lambda: ud.SGD(lr=0.1, batch_size=2.5), "batch_size is 2.5"),
    (lambda: ud.SGD(lr=0.1, step_schedule=0.9), "must be a schedule"),
    (lambda: ud.PerClient(GD, {0: 0.1}), "PerClient's solver of 0 is 0.1"),
    (lambda: ud.Fixed(5), "Fixed's cohorts is 5"),
    (lambda: ud.centralised(**network(objective="clients")), "mean over samples"),
    (lambda: quadratic(ud.FedAvg(), local=ud.PerClient(GD, {"0": GD})), "names client '0'"),
    (lambda: quadratic(ud.FedAvg(), limit={77: 1}), "limit names client 77"),
    (lambda: quadratic(ud.FedAvg(), limit=lambda client: 1), "limit must be a function of"),
    (
        lambda: quadratic(ud.FedAvg(), local=ud.GD(lr=0.1, steps=lambda c: 1)),
        "steps must be a function of (client id, round)",
    ),
    (
        lambda: ud.PerClient(GD, {0: ud.GD(lr=0.1, weight_decay=0.1)}),
        "every solver must have the default's 0",
    ),
    (lambda: ud.train(ud.FedAvg(), **network(metrics={"a": lambda o, t: o})), "returns no number"),
    (lambda: ud.train(ud.FedAvg(), **network(metrics={"a": lambda o, t: 1 / 0})), "ZeroDivision"),
    (lambda: ud.data.synthetic(clients=2.5), "clients is 2.5"),
    (lambda: ud.Milestones(0.1, 5), "a list of rounds"),
    (lambda: ud.Box("a", 1), "Box's low is 'a'"),
    (lambda: quadratic(ud.FedAvg()).plot("a.png", ["loss"]), "A metric to plot is 'loss'"),
    (lambda: ud.train(ud.FedAvg(), **network(weights={})), "must be a safetensors file"),
    (lambda: QUADRATICS.weights("sample"), "did you mean 'samples'?"),
    (
        lambda: ud.data.FederatedData.from_clients(
            {"a": ([[1.0]], [0]), "b": ([[math.nan], [2.0]], [0, 1])}
        ),
        "The training inputs of client 'b' contain NaN or Inf (1 samples in all)",
    ),
    (lambda: quadratic(ud.FedAvg(), local=ud.GD(lr=0.1, tolerance=1.0, relative="step")), "pull"),
    (lambda: quadratic(ud.FedAvg()).plot("/no/such/folder/x.png"), "no folder"),
    (lambda: quadratic(ud.FedAvg()).plot("picture.xyz"), "kind of picture"),
    (
        lambda: ud.data.FederatedData.from_arrays([[1.0]], [0], [[True]]),
        "are a mask",
    ),
    (lambda: ud.data.FederatedData.from_clients([(["a"], ["b"])]), "must be arrays of numbers"),
    (
        lambda: quadratic(
            ud.FedAvg(),
            problem=ud.theory.Quadratics(
                QUADRATICS.H, QUADRATICS.b, ids=[0, 1, 2, 3, frozenset("a")]
            ),
        ),
        "a whole number or a string",
    ),
]


@pytest.mark.parametrize(("act", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_bad_input_gets_one_clear_sentence(act, words):
    with pytest.raises(ud.UndriftError) as error:
        act()
    assert words in str(error.value)
    assert "\n" not in str(error.value)
