"""Differential privacy in deployments: clipping at the sites, noise and coins of the server."""

import json

import pytest
import torch
import typer
from rich.console import Console

import undrift as ud
from deployments import InProcess, app
from undrift.cli.run import conclude, resume
from undrift.core.clients import Roster
from undrift.deploy.loops import DeployedSynchronous
from undrift.deploy.orders import EVALUATE, with_prefix
from undrift.deploy.policy.limits import Limits
from undrift.deploy.policy.preview import as_lines, as_values, preview
from undrift.deploy.server import serve
from undrift.deploy.wire_format import decode, encode
from undrift.experiments.experiment import Experiment
from undrift.privacy.clipping import CLIP, WITHIN, joint_norm
from undrift.privacy.mechanism import Mechanism
from undrift.privacy.noise_sources import SystemNoise
from undrift.privacy.spending import Released, spending
from undrift.privacy.system_coins import secret_cohort
from undrift.report.html.html_page import write_report
from undrift.report.recorded_runs import read_runs
from undrift.runs.driver import RunOutcome
from undrift.runs.experiment_runs import run_experiment
from undrift.runs.folder import CONNECTION
from undrift.runs.records_file import read_records
from undrift.runs.store.releases import RELEASES, ReleaseLedger

TEXT = 'objective = "clients"\n'
CLIPPING = {"privacy": {"noise": 0.5, "clip": 0.05, "steps": 5}}


def deployed(folder, methods=("FedAvg",), settings=None, limits=None):
    """A deployment in one process: the experiment and its transport."""
    file = app(folder, methods, TEXT)
    transport = InProcess(file, folder / "sites")
    transport.limits = limits
    changes = settings or CLIPPING
    transport.configure(**changes)
    return Experiment.load(file, changes), transport


def works(transport):
    """The work orders and the answers to them, decoded."""
    for site, request, answer in transport.exchanged:
        asked = decode(request, len(request))[0]
        if asked["kind"] == "work":
            yield site, asked, *decode(answer, len(answer))


def records(folder, label="FedAvg"):
    return read_records(folder / label / "seed-3" / "records.jsonl")


@pytest.mark.parametrize("adaptive", [False, True])
def test_sites_send_clipped_uploads_and_the_server_adds_noise(tmp_path, adaptive):
    settings = {"privacy": {"noise": 0.5, "steps": 5, "adaptive_clip": {"initial": 0.1}}}
    experiment, transport = deployed(
        tmp_path, ("FedAvg", "SCAFFOLD"), settings if adaptive else CLIPPING
    )
    outcomes = serve(experiment, tmp_path / "run", transport)
    assert [outcome.status for outcome in outcomes] == ["finished"] * 2
    seen = clipped = 0
    for _, asked, values, tensors in works(transport):
        clip = asked["numbers"][CLIP] if adaptive else 0.05
        scales = ud.SCAFFOLD().upload_scales(0.1, 5)
        vectors = with_prefix("up ", tensors)
        assert set(vectors) <= {"moved", "c_change"}  # no diagnostics
        norm = float(joint_norm(vectors, scales))
        assert norm <= clip
        if adaptive:
            assert abs(values["numbers"][WITHIN]) == 0.5
        clipped += norm > 0.998 * clip
        seen += 1
    assert seen == 2 * 5 * 3
    # Nearly all would be larger. The noise is the operating system's, so that one may be smaller.
    assert adaptive or clipped >= seen / 2
    last = records(tmp_path / "run")[-1]
    assert last.privacy["epsilon"] > 0 and last.privacy["neighbours"]
    # All data belong to sites, so that nobody is asked for metrics.
    assert last.metrics == {} and not list(measurements(transport))
    write_report(tmp_path / "run", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "No metric is shown: all data belong to clients" in page
    assert "privacy.noisy_metrics releases noisy means" in page
    assert "measured yet" not in page
    # The clock of a deployment is the server's.
    assert "virtual" not in page.partition("<h2")[2].lower().replace("virtual_seconds", "")
    assert "Time since the start: clock of the server" in page


def measurements(transport):
    """The metrics that sites sent."""
    for _, request, answer in transport.exchanged:
        if decode(request, len(request))[0]["kind"] == EVALUATE:
            yield decode(answer, len(answer))[0]["metrics"]


def test_noisy_metrics_of_a_deployment_hide_those_of_the_sites(tmp_path):
    noisy = {"noise": 2.0, "every": 2}
    settings = {"privacy": {"noise": 0.5, "clip": 0.05, "noisy_metrics": noisy}}
    experiment, transport = deployed(tmp_path, ("FedAvg",), settings)
    outcome = serve(experiment, tmp_path / "run", transport)[0]
    measured = [record for record in records(tmp_path / "run") if record.metrics]
    assert [record.round for record in measured] == [0, 2, 4, 5]
    assert outcome.run.mechanism.evaluations == 4
    assert all(set(record.metrics) == {"test_loss", "test_accuracy"} for record in measured)
    sent = [value for metrics in measurements(transport) for value in metrics.values()]
    assert len(sent) >= 4 * 3 * 2
    text = "".join(path.read_text() for path in (tmp_path / "run").rglob("*.json*"))
    assert not [value for value in sent if len(repr(value)) > 8 and repr(value) in text]
    guarantee = outcome.run.mechanism.guarantee
    assert measured[-1].privacy["epsilon"] == guarantee.epsilon(5, 4) > guarantee.epsilon(5, 0)


def test_without_noise_a_deployment_is_its_simulation(tmp_path):
    settings = {"privacy": {"noise": 0.0, "clip": 0.1, "steps": 5}}
    experiment, transport = deployed(tmp_path / "a", ("FedAvg", "SCAFFOLD", "FedDyn"), settings)
    for outcome in serve(experiment, tmp_path / "a/run", transport):
        simulated = run_experiment(
            Experiment.load(app(tmp_path / "b", (outcome.label,), TEXT), settings),
            tmp_path / "b" / outcome.label,
        )
        assert torch.equal(outcome.run.server.x, simulated[0].run.server.x)
        assert outcome.run.records[-1].bytes_up == simulated[0].run.records[-1].bytes_up


def test_noise_and_coins_are_not_functions_of_the_seed(tmp_path):
    settings = CLIPPING | {"sampling": {"kind": "bernoulli", "cohort": 0.5}, "rounds": 8}
    found = []
    for name in ("a", "b"):
        experiment, transport = deployed(tmp_path / name, settings=settings)
        (outcome,) = serve(experiment, tmp_path / name / "run", transport)
        found.append(outcome.run)
    assert not torch.equal(found[0].server.x, found[1].server.x)
    # Two equal sequences of 24 coins would have a chance of 6e-8.
    assert [r.cohort for r in found[0].records] != [r.cohort for r in found[1].records]
    assert found[0].mechanism.guarantee.law.amplified
    assert all(record.updates for record in found[0].records[1:])  # also with an empty cohort


def test_the_coins_of_the_system_have_their_probability():
    roster = Roster(range(4000), torch.ones(4000), "clients")
    drawn = len(secret_cohort(ud.Bernoulli(0.3), roster))
    assert abs(drawn - 1200) < 5.5 * (4000 * 0.21) ** 0.5  # error rate 4e-8
    assert len(secret_cohort(ud.Uniform(7), roster)) == 7
    assert len(secret_cohort(ud.All(), roster)) == 4000
    few = torch.arange(4000).numpy() < 5
    assert secret_cohort(ud.Uniform(7), roster, few) == dict.fromkeys(range(5), 1)


def test_fixed_size_cohorts_of_sites_are_not_amplified(tmp_path):
    settings = CLIPPING | {"sampling": {"kind": "uniform", "cohort": 2}}
    experiment, transport = deployed(tmp_path, settings=settings)
    (outcome,) = serve(experiment, tmp_path / "run", transport)
    assert not outcome.run.mechanism.guarantee.law.amplified


def test_an_upload_beyond_the_clipping_norm_is_rejected(tmp_path):
    experiment, transport = deployed(tmp_path)

    def larger(site, request, answer):
        values, tensors = decode(answer, len(answer))
        if site != "b" or "up moved" not in tensors:
            return answer
        return encode(values, {"up moved": 1.01 * tensors["up moved"]})

    transport.spoil = larger
    serve(experiment, tmp_path / "run", transport)
    for record in records(tmp_path / "run")[1:]:
        ((site, why),) = record.rejected
        assert site == "b" and "above the clipping norm 0.05" in why


@pytest.mark.parametrize(
    ("limits", "settings", "said"),
    [
        (dict(require_privacy=True), {"rounds": 5}, "with differential privacy only"),
        (dict(require_privacy=True), {"privacy": {"noise": 0.0, "clip": 1.0}}, "privacy only"),
        (dict(max_clip=0.01), CLIPPING, "a clipping norm of 0.05, above the limit 0.01"),
        (dict(min_noise=1.0), CLIPPING, "a noise multiplier of 0.5, below the limit 1"),
        (dict(max_epsilon=1.0), CLIPPING, "an ε of .* above the limit 1 "),
    ],
)
def test_a_site_refuses_runs_that_its_limits_do_not_allow(tmp_path, limits, settings, said):
    experiment, transport = deployed(tmp_path, settings=settings, limits=Limits(**limits))
    with pytest.raises(ud.UndriftError, match=rf"No site takes part in FedAvg .*'c': .*{said}"):
        serve(experiment, tmp_path / "run", transport)
    assert len(list(works(transport))) == 3 and not any(t for *_, t in works(transport))
    # Nothing was released: the run continues as new when the sites accept it.
    assert not (tmp_path / "run" / RELEASES).exists()
    assert [record.round for record in records(tmp_path / "run")] == [0]


def test_a_run_that_some_sites_refuse_goes_on_without_them(tmp_path):
    experiment, transport = deployed(tmp_path)
    transport.limits = Limits(max_epsilon=1.0)
    for site in ("a", "c"):
        transport.made(site)
    transport.limits = None
    serve(experiment, tmp_path / "run", transport)
    for record in records(tmp_path / "run")[1:]:
        assert [site for site, _ in record.rejected] == ["a", "c"]


@pytest.mark.parametrize("rounds", [2, 9])
def test_sites_that_are_asked_one_by_one_and_all_refuse_end_the_run(tmp_path, rounds):
    settings = {
        "rounds": rounds,
        "seeds": [3],
        "sampling": {"kind": "uniform", "cohort": 1},
    }
    limits = Limits(require_privacy=True)
    experiment, transport = deployed(tmp_path, settings=settings, limits=limits)
    with pytest.raises(ud.UndriftError, match=r"No site takes part .* with differential privacy"):
        serve(experiment, tmp_path / "run", transport)


def test_a_site_takes_part_in_runs_that_its_limits_allow(tmp_path):
    limits = Limits(require_privacy=True, max_clip=0.1, min_noise=0.5, max_epsilon=100.0)
    experiment, transport = deployed(tmp_path, limits=limits)
    (outcome,) = serve(experiment, tmp_path / "run", transport)
    assert outcome.status == "finished" and not outcome.run.records[-1].rejected


def test_a_growing_norm_ends_at_the_limit_of_a_site(tmp_path):
    adaptive = {"initial": 0.02, "rate": 3.0, "quantile": 1.0}
    settings = {"privacy": {"noise": 0.01, "adaptive_clip": adaptive}}
    experiment, transport = deployed(tmp_path, settings=settings, limits=Limits(max_clip=0.05))
    with pytest.raises(ud.UndriftError, match=r"'a', 'b', 'c': .* above the limit 0.05 \(max_clip"):
        serve(experiment, tmp_path / "run", transport)
    done = len(records(tmp_path / "run")) - 1
    assert done >= 1  # the first norm is within the limit
    # No noise was released for the round that all sites refused.
    assert len(ReleaseLedger(tmp_path / "run", "FedAvg seed 3").rounds) == done


def test_a_site_need_not_evaluate(tmp_path):
    experiment, transport = deployed(tmp_path, limits=Limits(evaluations=False))
    serve(experiment, tmp_path / "run", transport)
    last = records(tmp_path / "run")[-1]
    assert not last.metrics and last.updates == 1
    assert all("evaluates nothing" in why for _, why in last.rejected)


class Killed(BaseException):
    """The server's process ends here."""


def test_a_round_that_was_released_is_never_released_again(tmp_path, monkeypatch):
    """The server dies after the model of round 3 was sent to be evaluated, before the commit."""
    experiment, transport = deployed(tmp_path)
    measure = DeployedSynchronous._measure

    def die(self, record, last):
        measure(self, record, last)
        if record.round == 3:
            raise Killed

    monkeypatch.setattr(DeployedSynchronous, "_measure", die)
    with pytest.raises(Killed):
        serve(experiment, tmp_path / "run", transport)
    monkeypatch.undo()
    assert json.loads((tmp_path / "run" / RELEASES).read_text()) == {"FedAvg seed 3": [0, 1, 2]}
    assert records(tmp_path / "run")[-1].round == 2
    before = len(list(works(transport)))
    (outcome,) = serve(experiment, tmp_path / "run", transport)
    assert outcome.status == "finished"
    found = records(tmp_path / "run")
    assert [record.updates for record in found] == [0, 1, 1, 0, 1, 1]
    assert len(list(works(transport))) == before + 2 * 3  # nobody was asked for round 3 again
    assert outcome.run.mechanism.releases == 5
    assert sorted(ReleaseLedger(tmp_path / "run", "FedAvg seed 3").rounds) == [0, 1, 2, 3, 4]


NOISY = {"privacy": {"noise": 0.5, "clip": 0.05, "noisy_metrics": {"noise": 2.0, "every": 2}}}


def test_every_release_of_noisy_metrics_counts_however_often_the_server_dies(tmp_path, monkeypatch):
    """Three servers die after the metrics of round 2 were released, before the commit."""
    experiment, transport = deployed(tmp_path, settings=NOISY)
    seen = []
    release = Mechanism.release_metrics

    def watched(self, *given):
        seen.append(release(self, *given))
        return seen[-1]

    measure = DeployedSynchronous._measure

    def die(self, record, last):
        measure(self, record, last)
        if record.round == 2:
            raise Killed

    monkeypatch.setattr(Mechanism, "release_metrics", watched)
    with monkeypatch.context() as dying:
        dying.setattr(DeployedSynchronous, "_measure", die)
        for _ in range(3):
            with pytest.raises(Killed):
                serve(experiment, tmp_path / "run", transport)
    ledger = ReleaseLedger(tmp_path / "run", "FedAvg seed 3")
    assert ledger.evaluations == [0, 2, 2, 2]
    (outcome,) = serve(experiment, tmp_path / "run", transport)
    made = outcome.run.mechanism
    # Rounds 0, 2, 4 and 5, and three times round 2 without a commit.
    assert made.evaluations == len(ledger.evaluations) == len(seen) == 7
    last = records(tmp_path / "run")[-1].privacy
    assert last["epsilon"] == made.guarantee.epsilon(5, 7) > made.guarantee.epsilon(5, 4)


def test_metrics_are_entered_before_their_noise_is_drawn(tmp_path, monkeypatch):
    experiment, transport = deployed(tmp_path, settings=NOISY)

    def die(self, *given):
        raise Killed

    monkeypatch.setattr(SystemNoise, "normal", die)
    with pytest.raises(Killed):
        serve(experiment, tmp_path / "run", transport)
    assert ReleaseLedger(tmp_path / "run", "FedAvg seed 3").evaluations == [0]


def test_metrics_of_a_folder_without_entries_of_metrics_count_and_one_more(tmp_path, monkeypatch):
    """As an older version left it: nothing says whether a server died after a release."""
    experiment, transport = deployed(tmp_path, settings=NOISY)
    honest = DeployedSynchronous._measure

    def die(self, record, last):
        if record.round == 4:
            raise Killed
        honest(self, record, last)

    with monkeypatch.context() as dying:
        dying.setattr(DeployedSynchronous, "_measure", die)
        with pytest.raises(Killed):
            serve(experiment, tmp_path / "run", transport)
    (tmp_path / "run" / RELEASES).write_text('{"FedAvg seed 3": [0, 1, 2, 3]}')
    (outcome,) = serve(experiment, tmp_path / "run", transport)
    assert outcome.run.mechanism.evaluations == 2 + 1 + 2


def test_what_an_interrupted_server_says_it_spent_includes_the_released_round(
    tmp_path, monkeypatch, capsys
):
    """It was stopped after the release of round 4, and its last record with an ε is of round 2."""
    experiment, transport = deployed(tmp_path, settings=NOISY)
    fold, made = DeployedSynchronous._folded, []

    def stop(self, *given):
        made.append(self.mechanism)
        folded = fold(self, *given)
        if self.round == 3:
            raise Killed
        return folded

    monkeypatch.setattr(DeployedSynchronous, "_folded", stop)
    with pytest.raises(Killed):
        serve(experiment, tmp_path / "run", transport)
    last = records(tmp_path / "run")[-1]
    assert last.round == 3 and "epsilon" not in last.privacy
    guarantee = made[-1].guarantee
    (run,) = read_runs(tmp_path / "run")
    spent = spending(run.records, run.released)
    assert spent.epsilon == guarantee.epsilon(4, 2) > guarantee.epsilon(3, 2)
    outcome = RunOutcome("FedAvg", 3, "interrupted")
    with pytest.raises(typer.Exit):
        conclude([outcome], experiment, tmp_path / "run", Console(quiet=True), as_json=False)
    said = " ".join(capsys.readouterr().out.split())
    assert f"ε = {spent.epsilon:.4g} at" in said
    assert "It includes 1 release that the run did not commit." in said
    write_report(tmp_path / "run", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert f"<td>{spent.epsilon:.4g}</td>" in page


def test_an_epsilon_that_cannot_be_computed_is_said_to_be_too_small(tmp_path, monkeypatch):
    experiment, transport = deployed(tmp_path)
    serve(experiment, tmp_path / "run", transport)
    (run,) = read_runs(tmp_path / "run")
    whole = spending(run.records)
    assert whole.missing == whole.uncommitted == 0 and "larger" not in whole.sentence()
    later = spending(run.records, Released(7))
    assert later.uncommitted == 2 and later.epsilon > whole.epsilon

    def absent(*given):
        raise ud.UndriftError("dp-accounting is not installed")

    monkeypatch.setattr("undrift.privacy.spending.epsilon_spent", absent)
    assert "It is larger by now: 2 releases since are not" in (
        spending(run.records, Released(7)).sentence()
    )


def test_what_was_released_and_not_committed_counts_for_the_budget(tmp_path):
    settings = {"privacy": {"noise": 1.0, "clip": 0.1, "epsilon": 11.0}}
    experiment, transport = deployed(tmp_path, settings=settings)
    allowed = ud.privacy.rounds(epsilon=11.0, noise=1.0, clients=3)
    assert 1 < allowed < 5
    (tmp_path / "run").mkdir()
    ReleaseLedger(tmp_path / "run", "FedAvg seed 3").add(0)
    (outcome,) = serve(experiment, tmp_path / "run", transport)
    assert "privacy budget is spent" in outcome.reason
    asked = {order["round"] for _, order, _, _ in works(transport)}
    assert asked == set(range(1, allowed))


def test_a_private_deployment_does_not_go_back(tmp_path):
    experiment, transport = deployed(tmp_path)
    serve(experiment, tmp_path / "run", transport)
    (tmp_path / "run" / CONNECTION).write_text("{}")  # as undrift deploy server writes it
    with pytest.raises(ud.UndriftError, match="cannot go back"):
        resume(tmp_path / "run", from_round=3)


@pytest.mark.parametrize(
    ("methods", "settings", "said"),
    [
        (("FedExP",), CLIPPING, "FedExP uploads the number"),
        (("FedAvg", "FedNova"), CLIPPING, "FedNova uploads the number"),
        (("FedProx", "FedBuff"), CLIPPING, "synchronous rounds only"),
        (("FedAvg",), CLIPPING | {"objective": "samples"}, "do not depend on the clients' numbers"),
        (("FedAvg",), CLIPPING | {"robust": {"norm_ratio": 3.0}}, "bounds on norms"),
        (
            ("FedAvg",),
            CLIPPING | {"pace": {"kind": "first", "replies": 2}},
            "not defined with FirstToRespond",
        ),
        (("FedAvg",), CLIPPING | {"evaluation": {"clients": True}}, "evaluation clients is meas"),
        (
            ("FedAvg",),
            CLIPPING | {"sampling": {"kind": "weighted", "cohort": 2}},
            "no accountant for the cohorts",
        ),
    ],
)
def test_what_is_not_defined_is_refused_before_a_site_is_asked(tmp_path, methods, settings, said):
    experiment, transport = deployed(tmp_path, methods, settings)
    with pytest.raises(ud.UndriftError, match=said):
        serve(experiment, tmp_path / "run", transport)
    assert transport.asked == []


def test_models_that_are_not_clipped_are_not_sent(tmp_path):
    settings = CLIPPING | {"evaluation": {"models": ["server", "cohort"]}}
    experiment, transport = deployed(tmp_path, settings=settings)
    with pytest.raises(ud.UndriftError, match="evaluates the server's model only"):
        serve(experiment, tmp_path / "run", transport)


SECURE = {"secure": True, "threshold": 3, "clip": 0.5, "noise": 3.0}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"rounds": 2},
            ["not compressed", "not clipped", "without noise, here or at the server", "not masked"],
        ),
        (
            {"privacy": {"noise": 2.0, "adaptive_clip": {"initial": 0.25}}},
            ["clipped to the norm 0.25 in the first round", "not noised here", "not masked"],
        ),
        (
            {"privacy": SECURE, "compression": {"up": {"name": "random-k", "ratio": 0.1}}},
            [
                "compressed by RandomK(ratio=0.1, shared=False), with error",
                "clipped to the norm 0.5",
                "not noised here: the server adds noise of 3 times the clipping norm",
                "masked, in words of 64 bits: the server sees the sum of at least 3 of 3 sites",
            ],
        ),
        (
            {"privacy": SECURE | {"noise_at": "sites"}},
            ["noised here, with 1.732 times the clipping norm", "have no noise", "masked, in wor"],
        ),
    ],
)
def test_a_dry_run_of_a_site_says_what_protects_its_upload(tmp_path, settings, said):
    file = app(tmp_path, text=TEXT)
    (found,) = preview(Experiment.load(file, settings), "b", Limits())
    lines = as_lines(found)
    assert all(any(each in line for line in lines) for each in said), lines
    private = "privacy" in settings
    assert ("  no metrics: they would be outside the guarantee of [privacy]" in lines) == private
    assert as_values(found)["protections"] == found.protections and len(found.protections) == 4
