"""`undrift verify` on private runs and on upload transforms: wrong ones fail."""

import pytest
import torch

import undrift as ud
from commands import called
from undrift.core.replies import q_draws
from undrift.verify import FACTS, Subject, explanations, named, verify
from undrift.verify.uploads.transforms import TRANSFORM_FACTS, load_transform

PRIVATE = [fact for fact in FACTS if fact.name in ("divides", "reach")]
TRANSFORMS = """
import torch
import undrift as ud


class Good(ud.UploadTransform):
    def __init__(self, norm=0.3):
        self.norm = norm

    def update(self, upload, mine, senders):
        square = sum(v.square().sum(-1, keepdim=True) for _, v in upload.items())
        factor = (self.norm * (1 - 1e-12) / square.sqrt().clamp_min(1e-30)).clamp_max(1.0)
        return ud.Upload(**{n: v * factor for n, v in upload.items()}), ud.Keep()


class ByCoordinate(Good):
    def update(self, upload, mine, senders):
        clamped = {n: v.clamp(-self.norm, self.norm) for n, v in upload.items()}
        return ud.Upload(**clamped), ud.Keep()


class OneNumber(ud.UploadTransform):
    def update(self, upload, mine, senders):
        return ud.Upload(**{n: v * (v.norm() < 1) for n, v in upload.items()}), ud.Keep()


class Unkeyed(ud.UploadTransform):
    def update(self, upload, mine, senders):
        return ud.Upload(**{n: v + torch.randn_like(v) for n, v in upload.items()}), ud.Keep()


class InPlace(Good):
    def update(self, upload, mine, senders):
        sent, _ = super().update(upload, mine, senders)
        for name, value in upload.items():
            value.copy_(getattr(sent, name))
        return upload, ud.Keep()


class NamesOneVector(ud.UploadTransform):
    def update(self, upload, mine, senders):
        return ud.Upload(moved=0.5 * upload.moved), ud.Keep()
"""


def measured(subject, facts):
    return {v.fact.name: v for v in verify([subject], facts) if v.finding is not None}


@pytest.mark.parametrize("name", ["FedAvg", "SCAFFOLD", "FedDyn", "FedDR", "FedADMM", "FedVARP"])
def test_methods_satisfy_the_facts_of_private_runs(name):
    found = measured(named(name)[0], PRIVATE)
    assert set(found) == {"divides", "reach"} and all(v.holds for v in found.values())


@pytest.mark.parametrize("name", ["FedNova", "FedPD", "FedLGA", "FedAvgMin", "FedAsync"])
def test_methods_that_private_runs_refuse_have_no_such_facts(name):
    assert measured(named(name)[0], PRIVATE) == {}


class Counts(ud.FedAvg):
    """Divides by the number of replies that it finds inside of them."""

    def fold(self, server, replies):
        moved = replies.sum("moved", by=q_draws)
        return ud.ServerState(x=server.x + moved * replies.clients / max(1, len(replies._who)))


def test_a_fold_with_its_own_denominator_fails():
    assert not measured(Subject("Counts", Counts()), PRIVATE)["divides"].holds


@pytest.mark.parametrize(
    ("name", "fails"),
    [
        ("Good", set()),
        ("ByCoordinate", {"bounded"}),
        ("OneNumber", {"stacked"}),
        ("Unkeyed", {"stacked", "repeats"}),
        ("InPlace", {"mirrors"}),
    ],
)
def test_wrong_transforms_fail_the_fact_that_they_break(tmp_path, name, fails):
    (tmp_path / "mine.py").write_text(TRANSFORMS)
    subject = load_transform(f"{tmp_path / 'mine.py'}:{name}")
    found = measured(subject, TRANSFORM_FACTS)
    assert {fact for fact, verdict in found.items() if not verdict.holds} == fails


def test_an_error_of_a_transform_is_not_explained_as_a_wrong_number(tmp_path):
    (tmp_path / "mine.py").write_text(TRANSFORMS)
    subject = load_transform(f"{tmp_path / 'mine.py'}:NamesOneVector")
    (line,) = explanations(verify([subject], TRANSFORM_FACTS))
    assert line.startswith("NamesOneVector, mirrors: ") and "measuring it failed: " in line
    assert "in place" not in line and line.endswith(".") and not line.endswith("..")


def test_the_command_verifies_a_transform(tmp_path):
    (tmp_path / "mine.py").write_text(TRANSFORMS)
    good = called("verify", "mine.py:Good", "--set", "norm=0.2", cwd=tmp_path)
    assert good.returncode == 0 and "4 of 4 facts hold" in good.stdout
    wrong = called("verify", "mine.py:ByCoordinate", cwd=tmp_path)
    assert wrong.returncode == 1 and "bounded" in wrong.stdout


def test_own_transforms_in_train_come_before_the_clipping():
    class Double(ud.UploadTransform):
        def update(self, upload, mine, senders):
            return ud.Upload(**{n: 2 * v for n, v in upload.items()}), ud.Keep()

    problem = ud.theory.random_quadratics(clients=3, dimension=2, seed=0)
    common = dict(problem=problem, local=ud.GD(lr=0.1, steps=2), rounds=1, objective="clients")
    plain = ud.train(ud.FedAvg(), **common)
    doubled = ud.train(ud.FedAvg(), transforms=[Double()], **common)
    torch.testing.assert_close(doubled.x, 2 * plain.x)
    privacy = ud.privacy.Gaussian(noise=0, clip=1e-3)
    clipped = ud.train(ud.FedAvg(), transforms=[Double()], privacy=privacy, **common)
    assert float(clipped.x.norm()) <= 1e-3
    with pytest.raises(ud.UndriftError, match="transforms must be a list"):
        ud.train(ud.FedAvg(), transforms=Double(), **common)
