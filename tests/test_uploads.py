"""Upload transforms between finish and fold: on every engine, and with the clients' state."""

import pytest
import torch

import undrift as ud
from looping import asynchronous, synchronous
from undrift.core.uploads import UploadTransform
from undrift.engines import EngineOptions
from undrift.nets.module_losses import ModuleLosses

C = 0.05
QUADRATICS = ud.theory.random_quadratics(clients=5, dimension=3, seed=1)


class Clip(UploadTransform):
    """Clips all vectors of an upload jointly to a norm, as client-level privacy does."""

    def __init__(self, norm):
        self.norm = norm

    def update(self, upload, mine, senders):
        vectors = {n: v for n, v in upload.items() if isinstance(v, torch.Tensor) and v.ndim}
        square = sum(v.square().sum(-1, keepdim=True) for v in vectors.values())
        factor = (self.norm / square.sqrt().clamp_min(1e-30)).clamp_max(1.0)
        return upload.replace(**{n: v * factor for n, v in vectors.items()}), ud.Keep()


class Noise(UploadTransform):
    """Adds keyed noise and counts uploads: a transform with random numbers and state."""

    def init(self):
        return {"@count": ud.NUMBER}

    def update(self, upload, mine, senders):
        rows = [
            torch.randn(
                upload.moved.shape[-1], generator=torch.Generator().manual_seed(key % 2**63)
            )
            for key in senders.keys("noise")
        ]
        noise = torch.stack(rows) if upload.moved.ndim == 2 else rows[0]
        count = getattr(mine, "@count") + 1
        return upload.replace(moved=upload.moved + 1e-3 * noise.to(upload.moved)), ud.Keep(
            **{"@count": count}
        )


METHODS = {
    "SCAFFOLD": ud.SCAFFOLD(),
    "FedDyn": ud.FedDyn(alpha=0.5),
    "FedDR": ud.FedDR(eta=0.5),
    "FedSplit": ud.FedSplit(eta=0.5),
    "FedNova": ud.FedNova(variance_reduction=True),
    "VRLSGD": ud.VRLSGD(),
}


def distance(method, rounds, transforms, cohort=None):
    local = ud.Exact() if not method.needs_steps else ud.GD(lr=0.05, steps=5)
    sampler = ud.All() if cohort is None else ud.Uniform(cohort)
    run = synchronous(
        method,
        QUADRATICS,
        local,
        sampler,
        rounds,
        objective="clients",
        evaluation=ud.Evaluation(every=10**6),
        transforms=transforms,
    )
    for _ in run.rounds():
        pass
    return float((run.server.x - QUADRATICS.optimum(QUADRATICS.weights("clients"))).norm())


@pytest.mark.parametrize("name", METHODS)
def test_clipped_methods_with_state_still_reach_the_optimum(name):
    assert distance(METHODS[name], 3000, [Clip(C)]) < 1e-8


@pytest.mark.parametrize("name", ["SCAFFOLD", "FedDyn", "FedDR"])
def test_without_settle_the_limit_is_wrong(name, monkeypatch):
    monkeypatch.setattr(type(METHODS[name]), "settle", lambda self, keep, *others: keep)
    assert distance(METHODS[name], 3000, [Clip(C)]) > 1e-3


@pytest.mark.parametrize("cohort", [1, 3])
def test_clipped_methods_with_state_and_partial_cohorts(cohort):
    for name in ("FedDyn", "FedDR"):
        assert distance(METHODS[name], 4000, [Clip(C)], cohort) < 1e-6


def test_a_method_that_keeps_state_must_settle():
    class Unsettled(ud.FedDyn):
        settle = ud.Method.settle

    with pytest.raises(ud.UndriftError, match=r"Unsettled keeps state .* does not define settle"):
        distance(Unsettled(alpha=0.5), 1, [Clip(C)])
    assert distance(Unsettled(alpha=0.5), 1, []) > 0


@pytest.mark.parametrize("method", [ud.FedPD(), ud.FedSplit(average="act")])
def test_uploads_that_are_models_are_not_transformed(method):
    with pytest.raises(ud.UndriftError, match="uploads models, not changes"):
        distance(method, 1, [Clip(C)])
    assert distance(method, 1, []) > 0


@pytest.mark.parametrize("method", [ud.FedAvg(), ud.FedNova(), ud.FedLGA(cap=True)])
def test_stateless_methods_and_numbers_beside_the_vectors(method):
    """A transform sees vectors only, so that engines agree on methods that upload numbers."""
    found = {}
    for engine in ("serial", "vectorised"):
        transforms = [Clip(0.05), Counting()]
        run = synchronous(
            method,
            losses(),
            LOCAL,
            ud.All(),
            3,
            transforms=transforms,
            engine=EngineOptions(engine),
        )
        list(run.rounds())
        assert {float(getattr(run.states.get(c), "@calls")) for c in run.states.seen()} == {3.0}
        found[engine] = run.server.x
    torch.testing.assert_close(found["serial"], found["vectorised"], rtol=1e-4, atol=1e-6)


class Counting(UploadTransform):
    """Sees that every value is a vector, and counts its calls."""

    def init(self):
        return {"@calls": ud.NUMBER}

    def update(self, upload, mine, senders):
        assert all(value.shape[-1] > 1 for _, value in upload.items())
        return upload, ud.Keep(**{"@calls": getattr(mine, "@calls") + 1})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (lambda upload: upload, "must return an Upload and a Keep"),
        (lambda upload: (ud.Upload(), ud.Keep()), "must return the vectors it got"),
        (lambda upload: (upload, ud.Keep(**{"@else": 1.0})), "declares .* but update returned"),
    ],
)
def test_a_transform_that_returns_nonsense_is_named(found, said):
    class Nonsense(UploadTransform):
        def update(self, upload, mine, senders):
            return found(upload)

    with pytest.raises(ud.UndriftError, match=f"Nonsense.*{said}"):
        distance(ud.FedDyn(alpha=0.5), 1, [Nonsense()])


def test_names_of_a_transforms_state():
    class Wrong(Clip):
        def init(self):
            return {"residual": ud.ZERO}

    with pytest.raises(ud.UndriftError, match="must start with '@'"):
        distance(ud.FedAvg("full"), 1, [Wrong(1)])
    with pytest.raises(ud.UndriftError, match="Two upload transforms keep a state '@count'"):
        distance(ud.FedAvg("full"), 1, [Noise(), Noise()])


class KeepsTheRest(ud.SCAFFOLD):
    """Returns a changed copy of its state, which has the states of transforms, too."""

    def finish(self, down, mine, result, client):
        upload, keep = super().finish(down, mine, result, client)
        return upload, mine.replace(**dict(keep.items()))


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_method_may_return_a_changed_copy_of_its_state(engine):
    found = []
    for method in (ud.SCAFFOLD(), KeepsTheRest()):
        run = synchronous(
            method,
            losses(),
            LOCAL,
            ud.Uniform(4),
            3,
            evaluation=ud.Evaluation(models=("server", "all")),
            transforms=[Noise()],
            engine=EngineOptions(engine),
        )
        list(run.rounds())
        found.append(run)
    assert torch.equal(found[0].server.x, found[1].server.x)
    for client in found[0].states.seen():
        a, b = (dict(run.states.get(client).items()) for run in found)
        assert a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def losses():
    data = ud.data.synthetic(1, 1, clients=6, seed=0, most=40)
    return ModuleLosses(ud.models.mlp(60, 8, classes=10, seed=0), data)


LOCAL = ud.SGD(lr=0.05, batch_size=10, steps=3)


@pytest.mark.parametrize("method", [ud.SCAFFOLD(), ud.FedDyn(0.5)])
def test_engines_agree_on_transformed_uploads(method):
    found = {}
    for engine in ("serial", "vectorised"):
        run = synchronous(
            method,
            losses(),
            LOCAL,
            ud.Uniform(4),
            4,
            transforms=[Clip(0.01), Noise()],
            engine=EngineOptions(engine),
        )
        list(run.rounds())
        counts = [float(getattr(run.states.get(c), "@count")) for c in run.states.seen()]
        assert sum(counts) == 4 * 4
        found[engine] = run.server.x
    torch.testing.assert_close(found["serial"], found["vectorised"], rtol=1e-4, atol=1e-6)
    plain = synchronous(method, losses(), LOCAL, ud.Uniform(4), 4)
    list(plain.rounds())
    assert (plain.server.x - found["serial"]).norm() > 1e-3


def test_uploads_of_asynchronous_runs_are_transformed():
    steps = []

    def note(run, record):
        steps.append(record.diagnostics.get("step", 0.0))

    run = asynchronous(
        ud.FedBuff(buffer=1),
        losses(),
        LOCAL,
        ud.Uniform(2),
        3,
        objective="clients",
        callbacks=[note],
        transforms=[Clip(0.01)],
    )
    list(run.rounds())
    assert 0 < max(steps) <= 0.01 * (1 + 1e-4)


class TooShort(ud.FedAvg):
    """Uploads a vector of the wrong length."""

    def finish(self, down, mine, result, client):
        upload, keep = super().finish(down, mine, result, client)
        return upload.replace(moved=upload.moved[..., :-1]), keep


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_an_upload_of_the_wrong_length_is_rejected_by_every_engine(engine):
    run = synchronous(TooShort(), losses(), LOCAL, ud.All(), 1, engine=EngineOptions(engine))
    with pytest.raises(ud.Diverged, match=r"moved has shape \[\d+\] instead of \[\d+\]"):
        list(run.rounds())
