"""`undrift verify`: our methods pass, and every seeded mistake is caught."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import undrift as ud
from commands import called
from undrift.engines import serial
from undrift.utils.errors import UndriftError
from undrift.verify import (
    FACTS,
    as_json,
    baselines,
    explanations,
    load,
    named,
    ours,
    remarks,
    verify,
)
from undrift.verify.explain import ALGEBRA, explained
from undrift.verify.subjects import Subject

WRONG = str(Path(__file__).with_name("wrong_methods.py"))


def failing(name, among=None, **settings):
    """The names of the facts that a wrong method fails, out of all or of `among`."""
    facts = [fact for fact in FACTS if among is None or fact.name in among]
    return {v.fact.name for v in verify([load(f"{WRONG}:{name}", settings)], facts) if not v.holds}


@pytest.mark.parametrize("subject", ours(), ids=lambda subject: subject.label)
def test_every_fact_holds_for_our_methods(subject):
    verdicts = list(verify([subject]))
    assert explanations(verdicts) == []
    measured = {v.fact.name for v in verdicts if v.finding is not None}
    expected = {"formula", "limit", "ragged", "weights", "order", "buffers", "refuses", "stacked"}
    expected |= {"private"}
    if subject.method.converges_to is None:  # nothing is claimed about its limit
        expected -= {"limit", "ragged"}
    assert expected - set(subject.exempt) <= measured


@pytest.mark.parametrize(
    ("mistake", "caught_by"),
    [
        ("DetachedRegulariser", {"limit", "acts", "ragged"}),
        ("ReversedSign", {"limit", "partial", "momentum", "ragged"}),
        ("WeightsNotOne", {"weights", "equals"}),
        ("ConfusedNK", {"partial"}),
        ("ConfusedControl", {"partial"}),
        ("DividedByAll", {"weights"}),
        ("NormalisedBySteps", {"equals"}),
        ("StepsInsteadOfANorm", {"momentum"}),
        ("BatchesOfEqualSize", {"ragged"}),
        ("BuffersAsParameters", {"buffers"}),
        ("PulledToItself", {"own"}),
        ("ForgottenOwnModel", {"own"}),
        ("SendsOwnModel", {"private", "equals"}),
        ("MixesInOwnModel", {"private"}),
        ("EnvelopeReversed", {"own", "limit", "ragged"}),
        ("EnvelopeOfOneClient", {"own", "limit"}),
    ],
)
def test_every_mistake_is_caught(mistake, caught_by):
    assert failing(mistake, among=caught_by) == caught_by


@pytest.mark.parametrize(
    ("broken", "note"),
    [
        (
            lambda result, own, kept: (result, kept),
            "FedPer: personal parameters do not move",
        ),
        (
            lambda result, own, kept: (replace(result, x=result.x + 0.1 * kept.numel()), own),
            "personal parameters that do not act change the server",
        ),
    ],
    ids=["not trained", "leaking"],
)
def test_broken_personal_work_is_caught(monkeypatch, broken, note):
    right = serial.solve_with_personal

    def wrong(loss, solver, problem, work, kept, personal):
        return broken(*right(loss, solver, problem, work, kept, personal), kept)

    monkeypatch.setattr(serial, "solve_with_personal", wrong)
    facts = [fact for fact in FACTS if fact.name == "private"]
    (verdict,) = verify(named("FedDyn")[:1], facts)
    assert not verdict.holds and note in verdict.finding.note


def test_baselines_hold_their_facts_too():
    assert explanations(verify(baselines())) == []


def test_a_whole_number_is_a_parameter_too():
    assert failing("DetachedRegulariser", among={"acts"}, mu=1) == {"acts"}


def test_a_wrong_method_is_wrong_in_nothing_else():
    assert failing("BuffersAsParameters") == {"buffers"}
    assert failing("ConfusedNK") <= {"partial", "momentum"}


def test_the_right_methods_pass_as_users_classes(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("from undrift import SCAFFOLD\nclass Mine(SCAFFOLD):\n    pass\n")
    assert explanations(verify([load(f"{mine}:Mine")])) == []


def test_a_claim_that_does_not_hold_is_explained_in_one_line():
    verdicts = list(verify([load(f"{WRONG}:Biased")]))
    lines = explanations(verdicts)
    assert any(
        line.startswith("Biased, limit: ") and "'averaging', or None" in line for line in lines
    )
    assert all("\n" not in line for line in lines)


def test_a_crash_in_the_users_code_is_explained_in_one_line():
    lines = explanations(verify([load(f"{WRONG}:Crashing")]))
    assert len(lines) == 1
    assert lines[0].startswith("Crashing breaks down: RuntimeError: size mismatch (line ")
    assert lines[0].endswith("of wrong_methods.py).")


def test_an_unknown_claim_is_refused(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("import undrift as ud\nclass Mine(ud.FedAvg):\n    converges_to = 'average'\n")
    (line,) = explanations(verify([load(f"{mine}:Mine")]))
    assert "did you mean 'averaging'?" in line


def test_a_file_may_import_its_neighbours(tmp_path):
    (tmp_path / "beside.py").write_text("from undrift import FedAvg as Base\n")
    mine = tmp_path / "mine.py"
    mine.write_text("from beside import Base\nclass Mine(Base):\n    pass\n")
    assert load(f"{mine}:Mine").method.name == "Mine"


def test_our_own_methods_have_names():
    labels = [subject.label for subject in named("FedNova")]
    assert {"FedNova", "FedNova prox", "FedNova VR"} < set(labels)
    assert named("Nothing") == []


def test_an_instance_and_settings_can_be_verified():
    assert load(f"{WRONG}:ready").method.gain == 1.0
    assert load(f"{WRONG}:NeedsArgument", {"gain": 0.5}).method.gain == 0.5


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("nothing", "file.py:Class"),
        ("no_such_file.py:Mine", "There is no file no_such_file.py"),
        ("no.such.module:Mine", "cannot be imported"),
        (f"{WRONG}:Missing", "has no 'Missing'"),
        (f"{WRONG}:NotAMethod", "not a subclass of undrift.Method"),
        (f"{WRONG}:Unfinished", "it has no fold"),
        (f"{WRONG}:NeedsArgument", "--set name=value"),
    ],
)
def test_what_cannot_be_verified_is_refused_with_a_sentence(where, words):
    with pytest.raises(UndriftError) as error:
        load(where)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_does_not_run_is_refused_with_a_sentence(tmp_path):
    mine = tmp_path / "broken.py"
    mine.write_text("1 / 0\n")
    with pytest.raises(UndriftError, match="ZeroDivisionError"):
        load(f"{mine}:Mine")


MINE = """
from dataclasses import replace

import torch
import undrift as ud
from undrift.methods.formulas import MethodRow


class Keeper(ud.FedAvg):
    'A right FedAvg that keeps a vector, as a log would.'

    keeps = ("log",)

    def finish(self, down, mine, result, client):
        upload, _ = super().finish(down, mine, result, client)
        return upload, ud.Keep(log=result.x - down.x)


class Declared(Keeper):
    idle = ("log",)


class MustAct(Keeper):
    acting = ("log",)


class UnusedParameter(ud.FedAvg):
    def __init__(self, alpha: float = 0.4):
        super().__init__()
        self.alpha = alpha


class ForLater(UnusedParameter):
    idle = ("alpha",)


class ServerLog(ud.FedAvg):
    'It keeps a vector on the server that nothing reads.'

    def init(self, x):
        return super().init(x).replace(mean=0 * x)

    def fold(self, server, replies):
        new = super().fold(server, replies)
        return new.replace(mean=0.9 * server.mean + 0.1 * new.x)


class CM(ud.Method):
    'FedCM, with a sign and an offset to get wrong.'

    sends = ("x", "d")
    uploads = {"moved": ud.q}
    needs_steps = True
    converges_to = None
    sign, offset = 1.0, 0.0
    formulas = MethodRow(
        scale="α",
        linear="(1 − α) D",
        uploads=("Δ_k", "‖a_k‖₁"),
        fold=(
            "u ← (N/K) Σ_S q_k Δ_k",
            "D ← −u/(η (Σ_S q_k ‖a_k‖₁)/(Σ_S q_k))",
            "x ← x + u",
        ),
        letters={"α": "method.alpha", "D": "down.d"},
    )

    def __init__(self, alpha: float = 0.4):
        self.alpha = alpha

    def init(self, x):
        return ud.ServerState(x=x, d=0 * x)

    def problem(self, down, mine, client):
        pull = self.sign * (1 - self.alpha) * down.d
        return ud.LocalProblem(start=down.x, scale=self.alpha, linear=pull)

    def finish(self, down, mine, result, client):
        return ud.Upload(moved=result.x - down.x, progress=result.a_norm), mine

    def fold(self, server, replies):
        moved = replies.clients / replies.count * replies.sum("moved", by=ud.q)
        d = -moved / (replies.rate * replies.mean("progress", by=ud.q))
        return ud.ServerState(x=server.x + moved + self.offset, d=d)

    def fixed_point(self, H, b, q, lr, steps):
        return ud.theory.fixed_points.fedavg(H, b, q, self.alpha * lr, steps)

    def coincidences(self):
        return [ud.Coincidence("alpha = 1 is FedAvg", type(self)(alpha=1.0), ud.FedAvg())]


class WrongSign(CM):
    sign = -1.0


class Undeclared(WrongSign):
    'The wrong sign without any claim that would show it.'

    formulas = None

    def fixed_point(self, H, b, q, lr, steps):
        return None

    def coincidences(self):
        return []


class Brake(Undeclared):
    slows_down = True


class Fading(CM):
    'A momentum whose share, 1/(2 + t) in round t, fades, so that it ends where FedAvg does.'

    sends = ("x", "d", "round")
    formulas = None
    idle = ("alpha",)

    def init(self, x):
        return ud.ServerState(x=x, d=0 * x, round=0.0)

    def problem(self, down, mine, client):
        share = self.sign / (2 + down.round)
        return ud.LocalProblem(start=down.x, linear=share * down.d)

    def fold(self, server, replies):
        return super().fold(server, replies).replace(round=server.round + 1)

    def fixed_point(self, H, b, q, lr, steps):
        return None

    def coincidences(self):
        return []


class FadingBrake(Fading):
    sign = -1.0


class Pushing(ud.FedAvg):
    'A pull with the wrong sign, which fades.'

    converges_to = None
    sends = ("x", "round")

    def init(self, x):
        return ud.ServerState(x=x, round=0.0)

    def problem(self, down, mine, client):
        return ud.LocalProblem(start=down.x, center=down.x, weight=-0.5 / (1 + down.round))

    def fold(self, server, replies):
        return super().fold(server, replies).replace(round=server.round + 1)


class SparseUphill(ud.FedDR):
    'FedDR whose clients climb.'

    converges_to = None

    def problem(self, down, mine, client):
        return replace(super().problem(down, mine, client), scale=-1.0)


class Uphill(ud.Method):
    'The server moves the wrong way, and nothing is claimed.'

    uploads = {"moved": ud.q}
    converges_to = None

    def problem(self, down, mine, client):
        return ud.LocalProblem(start=down.x)

    def finish(self, down, mine, result, client):
        return ud.Upload(moved=result.x - down.x), mine

    def fold(self, server, replies):
        return ud.ServerState(x=server.x - replies.mean("moved", by=ud.q))


class Decaying(Uphill):
    'An honest method with a server rate of 1/√t.'

    def init(self, x):
        return ud.ServerState(x=x, t=0.0)

    def fold(self, server, replies):
        t = server.t + 1
        return ud.ServerState(x=server.x + replies.mean("moved", by=ud.q) / t**0.5, t=t)


class Stopping(CM):
    'The server stops after the first round.'

    formulas = None

    def fixed_point(self, H, b, q, lr, steps):
        return None

    def coincidences(self):
        return []

    def problem(self, down, mine, client):
        return ud.LocalProblem(start=down.x, scale=self.alpha, linear=-self.alpha * down.d)

    def fold(self, server, replies):
        new = super().fold(server, replies)
        gradient = (new.d + self.alpha * server.d) / self.alpha
        return new.replace(d=gradient)


class NotFedAvg(CM):
    offset = 1e-6


class Growing(ud.DistributedSGD):
    monotone = {"|x|": lambda run: float(run.server.x.norm()), "n": lambda run: run.round}
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return lambda name: load(f"{path}:{name}")


def broken_facts(subject):
    return {verdict.fact.name for verdict in verify([subject]) if not verdict.holds}


def test_state_without_influence_is_no_failure_but_reported(mine):
    for name, words in (("Keeper", "the kept 'log'"), ("ServerLog", "the server's 'mean'")):
        verdicts = list(verify([mine(name)]))
        assert explanations(verdicts) == []
        (line,) = remarks(verdicts)
        assert line.startswith(f"{name}, acts: {words} influences nothing; ")
    assert remarks(verify([mine("Declared")])) == []


def test_state_that_must_act_and_parameters_are_failures_unless_they_are_declared_idle(mine):
    assert broken_facts(mine("MustAct")) == {"acts"}
    assert broken_facts(mine("UnusedParameter")) == {"acts"}
    assert broken_facts(mine("ForLater")) == set()


def test_the_meanings_of_the_facts_are_printed_only_if_asked_for(tmp_path):
    short, long = (called("verify", "FedSAM", *more, cwd=tmp_path) for more in ([], ["--explain"]))
    assert short.returncode == long.returncode == 0
    meanings = [fact.meaning.split(",")[0] for fact in FACTS]
    words = [" ".join(each.stdout.split()) for each in (short, long)]
    assert not any(meaning in words[0] for meaning in meanings)
    assert all(meaning in words[1] for meaning in meanings)
    assert "What the facts mean: undrift verify --explain" in words[0]


def test_the_command_reports_unused_state_and_ends_with_status_0(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    done = called("verify", "mine.py:Keeper", cwd=tmp_path)
    assert done.returncode == 0
    assert "! Keeper, acts: the kept 'log' influences nothing;" in done.stdout


def test_formulas_a_fixed_point_and_an_equality_may_be_declared(mine):
    assert broken_facts(mine("CM")) == set()
    # D vanishes where it converges, so that the limit does not show the sign.
    assert broken_facts(mine("WrongSign")) == {"formula", "descends"}
    assert {"formula", "limit", "equals"} <= broken_facts(mine("NotFedAvg"))


def test_a_momentum_with_the_wrong_sign_is_noticed_without_any_declaration(mine):
    subject = mine("Undeclared")
    (failed,) = (verdict for verdict in verify([subject]) if not verdict.holds)
    assert failed.fact.name == "descends"
    # D⁺ = αg − (1 − α)D tends to αg/(2 − α) instead of g.
    assert failed.finding.measured == pytest.approx(0.4 / 1.6)
    assert failed.finding.error == pytest.approx(1 - 1 / 1.6)
    told = dict(explained(failed, subject))
    assert "the sign of the linear term v is reversed" in told["cause"]
    assert broken_facts(mine("Brake")) == set()


def test_a_server_that_goes_uphill_or_stops_is_noticed_and_a_decaying_rate_is_not(mine):
    assert broken_facts(mine("Uphill")) == {"descends"}
    assert broken_facts(mine("Stopping")) == {"descends"}
    assert broken_facts(mine("Decaying")) == set()


def test_a_momentum_with_the_wrong_sign_that_fades_is_noticed(mine):
    assert broken_facts(mine("Fading")) == set()
    subject = mine("FadingBrake")
    assert broken_facts(subject) == {"descends"}
    (failed,) = (verdict for verdict in verify([subject]) if not verdict.holds)
    assert "all in the mean only" in failed.finding.note


def test_a_pull_with_the_wrong_sign_is_refused(mine):
    verdicts = list(verify([mine("Pushing")]))
    assert [verdict.fact.name for verdict in verdicts if not verdict.holds] == ["runs"]
    assert "weight = -0.5, but it must be at least 0" in verdicts[-1].finding.note


@pytest.mark.parametrize("g", [ud.L1(0.2), ud.L2(0.3), ud.Box(-3.0, 3.0)], ids=str)
def test_the_objective_of_a_method_with_a_regulariser_must_fall(g, mine):
    descends = next(fact for fact in FACTS if fact.name == "descends")
    right = Subject("FedDR", ud.FedDR(eta=0.8, alpha=0.9, g=g))
    assert descends.measure(right).error == 0
    wrong = type(mine("SparseUphill").method)(eta=0.8, alpha=0.9, g=g)
    assert descends.measure(Subject("SparseUphill", wrong)).error > descends.allowed


def test_quantities_declared_as_monotone_are_checked(mine):
    (line,) = (line for line in explanations(verify([mine("Growing")])) if ", monotone: " in line)
    assert "n grows in round 2" in line


def test_explain_names_the_cause_and_the_algebra():
    verdicts = list(verify([load(f"{WRONG}:ReversedSign")]))
    failed = next(verdict for verdict in verdicts if verdict.fact.name == "limit")
    told = dict(explained(failed, load(f"{WRONG}:ReversedSign")))
    assert told["cause"] == "the fact holds if the sign of the linear term v is reversed"
    assert told["algebra"] == ALGEBRA["limit"]
    assert ALGEBRA.keys() == {fact.name for fact in FACTS}


def test_explain_reports_the_reason_of_the_fact_where_no_single_change_mends_it():
    subject = load(f"{WRONG}:BuffersAsParameters")
    (failed,) = (verdict for verdict in verify([subject]) if not verdict.holds)
    assert dict(explained(failed, subject))["cause"] == failed.fact.failed


def test_the_command_explains(tmp_path):
    done = called("verify", f"{WRONG}:DividedByAll", "--explain", cwd=tmp_path)
    assert done.returncode == 1
    assert "the server's step is multiplied by N/|S|" in " ".join(done.stdout.split())
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_json_has_the_six_keys():
    rows = json.loads(as_json(verify(ours()[:1])))
    assert rows
    for row in rows:
        assert set(row) == {"method", "fact", "expected", "measured", "error", "holds"}
        assert row["fact"] in {fact.name for fact in FACTS}


def test_the_command_says_what_failed_and_ends_with_status_1(tmp_path):
    done = called("verify", f"{WRONG}:BuffersAsParameters", cwd=tmp_path)
    assert done.returncode == 1
    assert "BuffersAsParameters, buffers:" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert done.stderr == ""


def test_the_command_gives_json_also_to_a_user_without_a_home():
    done = subprocess.run(
        [sys.executable, "-m", "undrift", "verify", f"{WRONG}:Honest", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "80", "HOME": "/nonexistent"},
    )
    rows = json.loads(done.stdout)
    assert {row["fact"] for row in rows} >= {"weights", "order", "shift", "still", "stacked"}
    assert all(row["holds"] for row in rows)
    assert done.returncode == 0


def test_the_commands_errors_are_one_sentence(tmp_path):
    done = called("verify", "nothing", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: 'nothing' does not name a method")
    assert "Traceback" not in done.stderr
