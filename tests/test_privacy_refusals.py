"""Private runs whose guarantee would not hold are refused, each with a sentence."""

import pytest
import torch

import undrift as ud

QUADRATICS = ud.theory.random_quadratics(clients=6, dimension=3, seed=1)
PRIVATE = ud.privacy.Gaussian(noise=1.0, clip=0.1)


def run(method=None, problem=QUADRATICS, **options):
    settings = dict(local=ud.GD(lr=0.05, steps=5), rounds=1, objective="clients", privacy=PRIVATE)
    return ud.train(method or ud.FedAvg(), problem=problem, **settings | options)


class Own(ud.Averaging):
    """FedAvg with whatever weights and uploads a test gives it."""

    def __init__(self, weights=ud.q, number=False):
        self.weights = weights
        self.number = number

    @property
    def uploads(self):
        return {"moved": self.weights}

    def finish(self, down, mine, result, client):
        more = {"loss": 1.0} if self.number else {}
        return ud.Upload(moved=result.x - down.x, **more), mine

    def fold(self, server, replies):
        return ud.ServerState(x=server.x + replies.sum("moved", by=ud.q))


def by_samples(client):
    return client.samples


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (ud.FedNova(), "FedNova uploads the number 'progress'"),
        (ud.FedExP(), "uploads the number 'square'"),
        (ud.FedCM(), "uploads the number 'progress'"),
        (ud.FedLGA(), "FedLGA uploads the number|needs the upload"),
        (ud.FedPD(), "uploads models"),
        (ud.FedSplit(average="act"), "uploads models"),
        (ud.FedAvgMin(), "depend on the other clients"),
        (ud.Alone(), "uploads nothing"),
        (Own(number=True), "Own uploads the number 'loss'"),
        (Own(weights=by_samples), "sums 'moved' with the weights 'by_samples'"),
        (Own(weights=()), "needs the upload 'moved' of every single client"),
    ],
)
def test_methods_that_upload_what_noise_does_not_protect(method, said):
    with pytest.raises(ud.UndriftError, match=said):
        run(method)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(objective="samples"), "needs weights that do not depend"),
        (dict(privacy=ud.privacy.Gaussian(noise=1, clip=1, max_samples=5)), "max_samples caps"),
        (dict(cohort=ud.Fixed([0, 1])), "no accountant for the cohorts of Fixed"),
        (dict(cohort=ud.Weighted(2)), "no accountant for the cohorts of Weighted"),
        (dict(robust=ud.NormBound()), "cannot be combined with bounds on norms"),
        (dict(limit=ud.Unfinished(0.5)), "not defined with ud.Unfinished"),
        (dict(pace=ud.WaitForAll(min_replies=2)), "leave out min_replies"),
        (dict(pace=ud.FirstToRespond(2), devices=ud.Devices()), "not defined with FirstToRespond"),
        (dict(pace=ud.AsTheyArrive(), method=ud.FedBuff()), "synchronous rounds only"),
        (dict(method=ud.FedDR(start="everyone"), cohort=3), "starts with a round of all clients"),
    ],
)
def test_settings_that_break_the_sensitivity(options, said):
    with pytest.raises(ud.UndriftError, match=said):
        run(**options)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (dict(clip=1.0), "needs noise or epsilon"),
        (dict(noise=1.0), "privacy needs clip"),
        (dict(noise=-1.0, clip=1.0), "noise is -1.0"),
        (dict(noise=1.0, clip=0), "clip is 0"),
        (dict(noise=1.0, clip=1.0, delta=1.0), "delta is 1.0"),
        (dict(noise=0.0, clip=1.0, epsilon=1.0), "no epsilon is finite"),
        (dict(noise=1.0, clip=1.0, accountant="rpd"), "did you mean 'rdp'"),
    ],
)
def test_settings_that_make_no_sense(arguments, said):
    with pytest.raises(ud.UndriftError, match=said):
        ud.privacy.Gaussian(**arguments)


def test_other_objects_than_mechanisms():
    with pytest.raises(ud.UndriftError, match=r"privacy is 1\.0, but must be a mechanism"):
        run(privacy=1.0)


def test_models_with_buffers():
    data = ud.data.FederatedData.from_clients([(torch.randn(8, 4), torch.zeros(8).long())] * 3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    with pytest.raises(ud.UndriftError, match="does not cover the model's buffers"):
        run(problem=None, model=model, data=data, local=ud.SGD(lr=0.1, steps=1, batch_size=4))


def test_a_fold_sees_no_single_clients():
    class Curious(Own):
        def fold(self, server, replies):
            replies.weights(ud.q)

    with pytest.raises(ud.UndriftError, match="cannot use the weights of single clients"):
        run(Curious())


def test_fixed_size_cohorts_of_clients_with_state_are_not_amplified():
    guarantees = {
        method.name: run(method, cohort=2).run.mechanism.guarantee
        for method in (ud.FedAvg(), ud.FedDyn(alpha=0.5))
    }
    assert guarantees["FedAvg"].law.amplified and not guarantees["FedDyn"].law.amplified
    kept = run(ud.FedAvg(), cohort=2, local=ud.Adam(lr=0.1, steps=2, keep_state=True))
    assert not kept.run.mechanism.guarantee.law.amplified
    sentence = guarantees["FedDyn"].sentence(3)
    assert "replace one client" in sentence and "without amplification" in sentence
    assert "δ = 1e-05" in sentence


def test_advice_leaves_out_methods_that_cannot_be_private():
    advice = ud.advise(problem=QUADRATICS, local=ud.GD(lr=0.05, steps=5), privacy=PRIVATE)
    left_out = {each.name: each.left_out or "" for each in advice.methods}
    for name in ("FedNova", "FedLGA", "FedPD", "FedAsync"):
        assert left_out[name], name
    assert "privacy is not defined for it: FedNova uploads the number" in left_out["FedNova"]
    assert "privacy" not in left_out["SCAFFOLD"] + left_out["FedDyn"] + left_out["FedAvg"]
    assert not any(each.recommended and each.left_out for each in advice.methods)
