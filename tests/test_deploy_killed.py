"""Servers and sites that are killed at any message: no contribution is released twice."""

import pytest

from deployments import InProcess, app
from test_deploy_privacy import CLIPPING, TEXT, Killed
from test_deploy_secure import SITES, SecureInProcess, secure_app
from undrift.deploy.protocol import WORK
from undrift.deploy.server import serve
from undrift.deploy.wire_format import decode
from undrift.experiments.experiment import Experiment
from undrift.privacy.mechanism import Mechanism
from undrift.report.recorded_runs import read_runs
from undrift.runs.store.releases import ReleaseLedger

ROUNDS = "rounds = 2"
EVERY = "\n[evaluation]\nevery = 1\n"


def killed_at(transport, messages):
    """Have the server die instead of sending message `messages`, counted from 0."""
    honest, sent = transport.send, []

    def send(*request):
        if len(sent) == messages:
            raise Killed
        sent.append(request)
        return honest(*request)

    transport.send = send
    return lambda: setattr(transport, "send", honest)


@pytest.fixture
def released(monkeypatch):
    """The rounds for which noise was drawn, in all servers of a test."""
    rounds = []
    release = Mechanism.release

    def watched(self, replies, x, round, rate):
        rounds.append(round)
        return release(self, replies, x, round, rate)

    monkeypatch.setattr(Mechanism, "release", watched)
    return rounds


# Three sites: they describe themselves and measure the initial model (6 messages), then each round
# has 3 orders to train and 3 to evaluate.
@pytest.mark.parametrize("messages", [6, 8, 9, 11, 14, 15])
def test_a_private_server_that_dies_releases_no_round_twice(tmp_path, released, messages):
    file = app(tmp_path / "app", text=TEXT)
    file.write_text(file.read_text().replace("rounds = 5", ROUNDS) + EVERY)
    transport = InProcess(file, tmp_path / "sites")
    measured = {"privacy": {**CLIPPING["privacy"], "metrics": "exact"}}
    transport.configure(**measured)
    experiment = Experiment.load(file, measured)
    revive = killed_at(transport, messages)
    with pytest.raises(Killed):
        serve(experiment, tmp_path / "run", transport)
    revive()
    (outcome,) = serve(experiment, tmp_path / "run", transport)
    assert outcome.status == "finished"
    assert sorted(released) == [0, 1]  # each round once, in whichever server
    assert sorted(ReleaseLedger(tmp_path / "run", "FedAvg seed 3").rounds) == [0, 1]
    assert outcome.run.mechanism.releases == 2


def test_a_server_that_dies_while_it_enters_a_release_asks_again_for_the_same_uploads(
    tmp_path, released, monkeypatch
):
    """Nothing was released yet, and the sites' answers are those of before."""
    file = app(tmp_path / "app", text=TEXT)
    file.write_text(file.read_text().replace("rounds = 5", ROUNDS))
    transport = InProcess(file, tmp_path / "sites")
    transport.configure(**CLIPPING)
    experiment = Experiment.load(file, CLIPPING)

    def die(self, round):
        raise Killed

    monkeypatch.setattr(ReleaseLedger, "add", die)
    with pytest.raises(Killed):
        serve(experiment, tmp_path / "run", transport)
    monkeypatch.undo()
    serve(experiment, tmp_path / "run", transport)
    answers = {}
    for site, request, answer in transport.exchanged:
        asked = decode(request, 10**9)[0]
        if asked["kind"] == WORK and asked["round"] == 0:
            answers.setdefault(site, []).append(decode(answer, 10**9)[1]["up moved"].tolist())
    assert answers.keys() == {"a", "b", "c"}
    assert all(len(each) == 2 and each[0] == each[1] for each in answers.values())


def revealed(transport):
    """How often each site revealed shares of masks, by site and round."""
    found = {}
    for site, request, answer in transport.exchanged:
        asked, told = decode(request, 10**9)[0], decode(answer, 10**9)[0]
        if asked.get("stage") == "unmask" and "shares" in told:
            found[site, asked["round"]] = found.get((site, asked["round"]), 0) + 1
    return found


# Five sites: 5 descriptions and 5 evaluations, then each round has 5 messages in each of 5 stages.
STAGES = {"advertise": 10, "share": 15, "mask": 20, "agree": 25, "unmask": 30, "evaluation": 35}


@pytest.mark.parametrize(
    ("stage", "asked", "restarted"),
    [(stage, 4, SITES) for stage in STAGES]
    + [("mask", 1, ()), ("unmask", 2, ()), ("unmask", 3, ())],
)
def test_no_round_is_unmasked_twice_whoever_is_killed(tmp_path, stage, asked, restarted):
    """The server dies when `asked` sites have got the request of a stage; sites may die as well."""
    file = secure_app(tmp_path / "app")
    file.write_text(file.read_text().replace("rounds = 5", ROUNDS) + EVERY)
    transport = SecureInProcess(file, tmp_path / "sites")
    revive = killed_at(transport, STAGES[stage] + asked)
    with pytest.raises(Killed):
        serve(Experiment.load(file), tmp_path / "runs", transport)
    revive()
    for site in restarted:
        transport.restart(site)
    serve(Experiment.load(file), tmp_path / "runs", transport)
    counts = revealed(transport)
    assert counts and set(counts.values()) == {1}
    (run,) = read_runs(tmp_path / "runs")
    updates = [record.updates for record in run.records]
    # Once three sites have revealed shares of the first round's masks, or too few are left that
    # have not, the round is over without an update. Nobody reveals the masks of another sum of it.
    first = {site for site, round in counts if round == 0}
    lost = stage == "evaluation" or (stage == "unmask" and asked > 2)
    assert updates == [0, 0 if lost else 1, 1]
    assert len(first) >= 3


def test_sites_that_are_killed_between_any_two_stages_reveal_nothing_twice(tmp_path):
    """Site c dies before each stage of a round in turn; the others go on without it."""
    file = secure_app(tmp_path / "app")
    transport = SecureInProcess(file, tmp_path / "sites")
    stages = ["advertise", "share", WORK, "agree", "unmask"]
    honest = transport.send

    def send(site, request, seconds, max_bytes):
        asked = decode(request, 10**9)[0]
        stage = asked.get("stage", asked["kind"])
        if site == "c" and stage in stages and stages[asked["round"]] == stage:
            transport.restart("c")
        return honest(site, request, seconds, max_bytes)

    transport.send = send
    serve(Experiment.load(file), tmp_path / "runs", transport)
    (run,) = read_runs(tmp_path / "runs")
    assert [record.updates for record in run.records] == [0, 1, 1, 1, 1, 1]
    counts = revealed(transport)
    assert set(counts.values()) == {1}
    assert [("c", round) in counts for round in range(5)] == [True, False, False, False, False]
