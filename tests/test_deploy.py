"""A deployment computes what a simulation computes, and uses no invalid answer."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from commands import called
from deployments import METHODS, InProcess, app
from undrift.core.client_metrics import read_rows
from undrift.deploy.server import serve
from undrift.deploy.site import Site
from undrift.deploy.wire_format import decode, encode
from undrift.experiments.experiment import Experiment
from undrift.utils.errors import UndriftError

ASYNCHRONOUS = {"FedAsync": "", "FedBuff": "buffer = 2", "AsyncFedDR": "eta = 0.5\nalpha = 0.1"}


def simulated(file, out, **settings):
    from undrift.runs.experiment_runs import run_experiment

    run_experiment(Experiment.load(file, settings), out)


def deployed(file, out, transport=None, **settings):
    transport = transport or InProcess(file, out.parent / "state")
    transport.configure(**settings)
    return serve(Experiment.load(file, settings), out, transport)


def model(out, label, seed=3):
    return load_file(out / label / f"seed-{seed}" / "model.safetensors")


def records(out, label="FedAvg", seed=3):
    lines = (out / label / f"seed-{seed}" / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def assert_same(one, other, label, tolerance=1e-6):
    mine, theirs = model(one, label), model(other, label)
    for name, value in mine.items():
        assert torch.allclose(value, theirs[name], atol=tolerance, rtol=0), (label, name)


@pytest.mark.parametrize("objective", ["samples", "clients"])
def test_every_method_computes_what_it_computes_in_simulation(tmp_path, objective):
    labels = [*METHODS, "FedProx", "FedPD", "FedSplit", "VRLSGD", "FedAvgMin", "DistributedSGD"]
    labels += ["FedCM", "FedACG", "FedExP", "FedADMM", "FedVARP", "MIFA", "Scaffnew", "MimeLite"]
    labels += ["FedSAM", "FedSpeed"]
    if objective == "samples":
        labels = [label for label in METHODS if label != "FedLGA"]
    text = f'objective = "{objective}"\nevaluation = {{every = 1}}\n'
    file = app(tmp_path / "app", labels, text=text)
    simulated(file, tmp_path / "simulated")
    deployed(file, tmp_path / "deployed")
    for label in labels:
        assert_same(tmp_path / "simulated", tmp_path / "deployed", label)
        here, there = records(tmp_path / "simulated", label), records(tmp_path / "deployed", label)
        for mine, other in zip(here, there, strict=True):
            assert mine["metrics"] == pytest.approx(other["metrics"], rel=1e-4)
            assert mine["diagnostics"] == pytest.approx(other["diagnostics"], rel=1e-3)
            for field in ("cohort", "steps", "gradients", "bytes_up", "bytes_down", "rejected"):
                assert mine[field] == other[field], field
    assert called("report", str(tmp_path / "deployed"), cwd=tmp_path).returncode == 0


def test_server_and_sites_agree_on_the_rounds_that_are_evaluated_by_default(tmp_path):
    deployed(app(tmp_path / "app"), tmp_path / "out", rounds=7)
    found = records(tmp_path / "out")
    assert [record["round"] for record in found if record["metrics"]] == [0, 5, 7]
    assert not any(record["rejected"] for record in found)


@pytest.mark.parametrize("label", ASYNCHRONOUS)
def test_asynchronous_methods_take_answers_as_they_arrive(tmp_path, label):
    file = app(tmp_path / "app")
    table = f'\n[[method]]\nname = "{label}"\n{ASYNCHRONOUS[label]}\n'
    file.write_text(file.read_text().partition("\n[[method]]")[0] + table)
    (outcome,) = deployed(file, tmp_path / "out", rounds=8)
    assert outcome.status == "finished"
    found = records(tmp_path / "out", label)
    assert len(found) == 9
    assert sum(record["updates"] for record in found) >= 8
    assert found[-1]["metrics"]["train_loss"] < found[0]["metrics"]["train_loss"]
    assert all(sorted(record["cohort"]) == ["a", "b", "c"] for record in found[1:])
    times = [record["virtual_seconds"] for record in found]
    assert times == sorted(times) and times[-1] > 0


def test_the_server_keeps_the_metrics_of_every_site(tmp_path):
    file = app(tmp_path / "app")
    settings = {"evaluation.clients": True, "rounds": 2}
    deployed(file, tmp_path / "out", **settings)
    options = [word for k, v in settings.items() for word in ("--set", f"{k}={str(v).lower()}")]
    place = tmp_path / "app"
    called(
        "run", file.name, "--only", "FedAvg", "--out", str(tmp_path / "sim"), *options, cwd=place
    )
    sites, simulated = (
        read_rows(tmp_path / out / "FedAvg" / "seed-3" / "clients.csv") for out in ("out", "sim")
    )
    assert [row["client"] for row in sites] == ["a", "b", "c"]
    for mine, other in zip(sites, simulated, strict=True):
        assert mine["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)
        assert mine["samples"] == other["samples"]
    last = records(tmp_path / "out")[-1]["metrics"]
    worst = max(row["train_loss"] for row in sites)
    assert last["train_client_loss_worst_tenth"] == pytest.approx(worst)


# Failures


class Killed(BaseException):
    pass


class Mortal(InProcess):
    """A transport whose server dies after a number of answers."""

    def __init__(self, *args, answers):
        super().__init__(*args)
        self.left = answers

    def next(self, seconds):
        if self.left == 0:
            raise Killed
        self.left -= 1
        return super().next(seconds)


def test_a_server_that_dies_at_any_moment_goes_on_and_no_state_is_applied_twice(tmp_path):
    file = app(tmp_path / "app", ["SCAFFOLD"])
    setting = {"rounds": 3}
    deployed(file, tmp_path / "whole", InProcess(file, tmp_path / "whole-state"), **setting)
    for moment in range(1, 22):
        out, state = tmp_path / f"out-{moment}", tmp_path / f"state-{moment}"
        try:
            deployed(file, out, Mortal(file, state, answers=moment), **setting)
        except Killed:
            deployed(file, out, InProcess(file, state), **setting)  # sites are new processes too
        else:
            break
        assert_same(tmp_path / "whole", out, "SCAFFOLD", tolerance=0)
    assert moment > 15


@pytest.mark.parametrize("label", ["SCAFFOLD", "FedBuff"])
def test_a_finished_deployment_is_extended_only_when_asked(tmp_path, label):
    file = app(tmp_path / "app", [label])
    short, long = (Experiment.load(file, {"rounds": n}) for n in (2, 4))
    out, transport = tmp_path / "out", InProcess(file, tmp_path / "state")
    transport.configure(rounds=2)
    serve(short, out, transport)
    with pytest.raises(UndriftError, match="have 2 rounds, not 4: extend them"):
        serve(long, out, transport)
    with pytest.raises(UndriftError, match="rounds is 2 here and 4 at the server"):
        serve(long, out, transport, extend=True)
    transport.configure(rounds=4)
    (outcome,) = serve(long, out, transport, extend=True)
    assert outcome.status == "finished" and not outcome.before
    assert [record["round"] for record in records(out, label)] == [0, 1, 2, 3, 4]
    if label == "SCAFFOLD":  # asynchronous runs depend on the time of arrival
        other = InProcess(file, tmp_path / "other")
        other.configure(rounds=4)
        serve(long, tmp_path / "whole", other)
        assert_same(tmp_path / "whole", out, label, tolerance=0)


def test_a_site_that_is_started_again_goes_on_with_its_own_state(tmp_path):
    file = app(tmp_path / "app", ["SCAFFOLD"])
    deployed(file, tmp_path / "whole")
    transport = InProcess(file, tmp_path / "restarted")
    answers = transport.send

    def send(site, request, seconds, max_bytes):
        transport.restart(site)
        return answers(site, request, seconds, max_bytes)

    transport.send = send
    deployed(file, tmp_path / "out", transport)
    assert_same(tmp_path / "whole", tmp_path / "out", "SCAFFOLD", tolerance=0)


def test_a_site_that_lost_its_state_is_named(tmp_path):
    file = app(tmp_path / "app", ["SCAFFOLD"])
    transport = InProcess(file, tmp_path / "state")
    answers = transport.send

    def send(site, request, seconds, max_bytes):
        if decode(request, 10**9)[0].get("version") == 3 and site == "b":
            for old in (tmp_path / "state" / "b").rglob("*.safetensors"):
                old.unlink()
        return answers(site, request, seconds, max_bytes)

    transport.send = send
    deployed(file, tmp_path / "out", transport)
    rejected = [record["rejected"] for record in records(tmp_path / "out", "SCAFFOLD")]
    assert rejected[:3] == [[], [], []]
    assert rejected[3][0][0] == "b" and "the site reports" in rejected[3][0][1]


def spoiled(change):
    """A function that changes the values and tensors of an answer."""

    def spoil(answer):
        values, tensors = decode(answer, 10**9)
        change(values, tensors)
        return encode(values, tensors)

    return spoil


def _set(place, name, value):
    place[name] = value


BAD = {
    "wrong shape": spoiled(lambda v, t: _set(t, "up moved", t["up moved"][:-1].clone())),
    "wrong type": spoiled(lambda v, t: _set(t, "up moved", t["up moved"].double())),
    "NaN": spoiled(lambda v, t: t["up moved"].fill_(float("nan"))),
    "infinite": spoiled(lambda v, t: _set(t["up moved"], 0, float("inf"))),
    "unknown tensor": spoiled(lambda v, t: _set(t, "up more", torch.zeros(3))),
    "tensor of nobody": spoiled(lambda v, t: _set(t, "more", torch.zeros(3))),
    "missing tensor": spoiled(lambda v, t: t.clear()),
    "stale round": spoiled(lambda v, t: _set(v, "version", v["version"] - 1)),
    "another run": spoiled(lambda v, t: _set(v, "run", "other")),
    "another client": spoiled(lambda v, t: _set(v, "client", "a")),
    "unknown number": spoiled(lambda v, t: _set(v["numbers"], "more", 1.0)),
    "no number": spoiled(lambda v, t: _set(v["numbers"], "@square", "much")),
    "negative steps": spoiled(lambda v, t: _set(v, "steps", -5)),
    "too many steps": spoiled(lambda v, t: _set(v, "steps", 10**9)),
    "10 GB header": lambda answer: (10**10).to_bytes(8, "little") + answer[8:],
    "too large": lambda answer: answer + b"\0" * 10**7,
    "cut": lambda answer: answer[: len(answer) // 2],
    "noise": lambda answer: b"\xff" * 100,
    "nothing": lambda answer: b"",
}


@pytest.fixture(scope="module")
def without_b(tmp_path_factory):
    """The run in which site b never answers."""
    folder = tmp_path_factory.mktemp("without")
    file = app(folder / "app", ["FedAvg"])
    transport = InProcess(file, folder / "state")
    send = transport.send

    def silent(site, request, seconds, max_bytes):
        kind = decode(request, 10**9)[0]["kind"]
        transport.silent = {"b"} if kind == "work" else set()
        return send(site, request, seconds, max_bytes)

    transport.send = silent
    deployed(file, folder / "out", transport, rounds=2)
    assert records(folder / "out")[1]["lost"] == [["b", "no answer"]]
    return folder / "out"


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_answer_changes_nothing_and_is_named(tmp_path, without_b, bad):
    file = app(tmp_path / "app", ["FedAvg"])
    transport = InProcess(file, tmp_path / "state")

    def spoil(site, request, answer):
        work = decode(request, 10**9)[0]["kind"] == "work"
        return BAD[bad](answer) if work and site == "b" else answer

    transport.spoil = spoil
    deployed(file, tmp_path / "out", transport, rounds=2)
    assert_same(without_b, tmp_path / "out", "FedAvg", tolerance=0)
    for record in records(tmp_path / "out")[1:]:
        ((site, why),) = record["rejected"]
        assert site == "b" and why.startswith("refused: "), why
        assert len(why) < 400


def test_sites_leave_and_come_back(tmp_path):
    file = app(tmp_path / "app", ["SCAFFOLD"])
    transport = InProcess(file, tmp_path / "state")
    send = transport.send

    def leaving(site, request, seconds, max_bytes):
        round = decode(request, 10**9)[0].get("version", 0)
        transport.away = {"c"} if round == 2 else set()
        return send(site, request, seconds, max_bytes)

    transport.send = leaving
    deployed(file, tmp_path / "out", transport)
    found = records(tmp_path / "out", "SCAFFOLD")
    assert [record["lost"] for record in found] == [[], [], [["c", "away"]], [], [], []]
    assert found[-1]["metrics"]["train_loss"] < found[0]["metrics"]["train_loss"]


def test_with_too_few_answers_a_round_is_skipped(tmp_path):
    text = 'pace = {kind = "all", min_replies = 2}\nevaluation = {every = 1}\n'
    file = app(tmp_path / "app", ["FedAvg"], text=text)
    transport = InProcess(file, tmp_path / "state")
    send = transport.send

    def leaving(site, request, seconds, max_bytes):
        round = decode(request, 10**9)[0].get("version", 0)
        transport.away = {"b", "c"} if round == 2 else set()
        return send(site, request, seconds, max_bytes)

    transport.send = leaving
    deployed(file, tmp_path / "out", transport)
    assert [record["updates"] for record in records(tmp_path / "out")] == [0, 1, 0, 1, 1, 1]


def test_a_method_that_needs_everyone_does_nothing_without(tmp_path):
    file = app(tmp_path / "app", ["FedPD"], text='objective = "clients"\n')
    transport = InProcess(file, tmp_path / "state")

    def spoil(site, request, answer):
        third = decode(request, 10**9)[0].get("version") == 3
        return b"" if third and site == "b" else answer

    transport.spoil = spoil
    deployed(file, tmp_path / "out", transport)
    assert [r["updates"] for r in records(tmp_path / "out", "FedPD")] == [0, 1, 1, 0, 1, 1]
    file = app(tmp_path / "first", ["FedPD"], text='pace = {kind = "first", replies = 2}\n')
    with pytest.raises(UndriftError, match="every client takes part"):
        deployed(file, tmp_path / "other")


def test_by_a_deadline_a_site_does_what_it_can(tmp_path, monkeypatch):
    monkeypatch.setattr("undrift.deploy.site.COMPUTING_SHARE", 1e-9)
    file = app(tmp_path / "app", ["FedNova"], text='pace = {kind = "deadline", seconds = 5}\n')
    deployed(file, tmp_path / "out", rounds=1)
    last = records(tmp_path / "out", "FedNova")[-1]
    assert (last["partial"], last["steps"]) == (3, 3)


def test_the_first_answers_end_a_round(tmp_path):
    file = app(tmp_path / "app", ["FedAvg"], text='pace = {kind = "first", replies = 2}\n')
    deployed(file, tmp_path / "out", rounds=2)
    for record in records(tmp_path / "out")[1:]:
        assert record["lost"] == [["c", "late"]]


def test_a_site_with_another_experiment_says_where_it_differs(tmp_path):
    file = app(tmp_path / "app")
    other = app(tmp_path / "other")
    other.write_text(other.read_text().replace("lr = 0.1", "lr = 0.2"))
    transport = InProcess(other, tmp_path / "state")
    with pytest.raises(UndriftError, match=r"local.lr is 0.2 here and 0.1 at the server"):
        deployed(file, tmp_path / "out", transport)


def test_a_failure_of_a_sites_own_code_is_named_and_its_words_stay_there(
    tmp_path, monkeypatch, capfd
):
    file = app(tmp_path / "app")
    work = Site._work

    def failing(site, request):
        if site.name == "b":
            raise ValueError("could not convert string to float: 'John Smith'")
        return work(site, request)

    monkeypatch.setattr(Site, "_work", failing)
    deployed(file, tmp_path / "out", rounds=1)
    ((site, why),) = records(tmp_path / "out")[-1]["rejected"]
    assert site == "b" and "failed with ValueError" in why and "Smith" not in why
    assert "John Smith" in capfd.readouterr().err  # in its own log


def test_what_cannot_be_deployed_is_refused_before_anybody_is_waited_for(tmp_path):
    file = app(tmp_path / "app")
    for change, sentence in {
        'source = "synthetic"': "every site reads its own data",
        'name = "logistic"': "sites create the model on their own",
    }.items():
        key = change.split()[0]
        text = file.read_text()
        old = next(line for line in text.splitlines() if line.startswith(f"{key} = "))
        changed = text.replace(old, change).replace(
            'sites = ["a", "b", "c"]', "clients = 3" if key == "source" else 'sites = ["a"]'
        )
        Path(tmp_path / "app" / "other.toml").write_text(changed)
        with pytest.raises(UndriftError, match=sentence):
            deployed(tmp_path / "app" / "other.toml", tmp_path / "out", InProcess(file, tmp_path))
    with pytest.raises(UndriftError, match="cannot compute evaluation"):
        deployed(file, tmp_path / "out", **{"evaluation.gradient_mapping": 0.1})
