"""Tables in a deployment: sites agree on an encoding, and reveal no more than they say."""

import json
import shutil

import numpy as np
import pytest
import torch

from deployments import InProcess, app
from test_deploy import Killed, Mortal, assert_same, deployed, model, simulated
from undrift.core.client_metrics import read_rows
from undrift.deploy.agreement import facts
from undrift.deploy.policy.approval import asking
from undrift.deploy.policy.limits import Limits
from undrift.deploy.policy.preview import as_lines, preview
from undrift.deploy.server import serve
from undrift.deploy.site import Site
from undrift.deploy.wire_format import decode, encode
from undrift.experiments.building import build_data
from undrift.experiments.experiment import Experiment
from undrift.utils.errors import UndriftError

SITE = """
from torch import nn
from torch.nn import functional as F


def model(encoding):
    return nn.Linear(encoding.features, 2)


def loss(outputs, targets, class_weights=None):
    return F.cross_entropy(outputs, targets, class_weights)
"""
EXPERIMENT = """
rounds = 3
seeds = [3]
loss = "site.py:loss"
model = {name = "site.py:model"}
local = {lr = 0.2, batch_size = 8}
metrics = {auc = "auc"}
evaluation = {clients = true, every = 1}
method = [{name = "FedAvg"}]
engine = {name = "serial"}

[data]
source = "rows"
sites = ["a", "b", "c"]
drop = ["id"]
categories = ["kind"]
dates = {day = ["weekday"]}
missing = {size = "median", weight = "mean"}
indicators = true
normalise = "features"
test = {share = 0.25, stratified = true}
"""
RUN = "0123456789abcdef"

pytestmark = pytest.mark.filterwarnings("ignore:Line")  # rare words stay unknown


def write_app(folder, sites=("a", "b", "c")):
    """An app whose folder has the files of these sites only."""
    (folder / "rows").mkdir(parents=True)
    (folder / "site.py").write_text(SITE)
    (folder / "experiment.toml").write_text(EXPERIMENT)
    for number, site in enumerate("abc"):
        if site not in sites:
            continue
        rng = np.random.default_rng(number)
        lines = ["id,day,kind,size,weight,label"]
        for k in range(40 + 20 * number):
            size = f"{rng.normal(10 + number, 3):.3f}" if rng.random() < 0.7 else ""
            weight = f"{rng.normal(0, 1):.3f}" if rng.random() < 0.9 else "NA"
            kind = "rare" if k == 0 else ("red", "blue", f"only-{site}")[k % 3]
            label = int(rng.random() < 0.2 + 0.3 * (kind == "red"))
            lines.append(f"{k},2024-03-{1 + k % 28:02d},{kind},{size},{weight},{label}")
        (folder / "rows" / f"{site}.csv").write_text("\n".join(lines) + "\n")
    return folder / "experiment.toml"


class OwnFiles:
    """Each site has an app of its own, with its own file only; the server's has none."""

    def made(self, site):
        if site not in self._made:
            file = self.file.parent.parent / f"app-{site}" / "experiment.toml"
            if not file.exists():
                write_app(file.parent, [site])
            experiment = Experiment.load(file)
            self._made[site] = Site(experiment, site, self.state / site, self.limits)
        return self._made[site]


class OwnFilesTransport(OwnFiles, InProcess):
    pass


class MortalTransport(OwnFiles, Mortal):
    pass


def server_app(folder):
    """The server's app: no files at all."""
    file = write_app(folder, [])
    shutil.rmtree(folder / "rows")
    return file


@pytest.fixture
def whole(tmp_path):
    """The folder of a simulation with all files."""
    simulated(write_app(tmp_path / "all"), tmp_path / "here")
    return tmp_path / "here"


def statistics(transport):
    """The questions and the answers about statistics, by site."""
    for site, request, answer in transport.exchanged:
        values = decode(request, len(request))[0]
        if values["kind"] == "statistics":
            yield site, values["question"], decode(answer, len(answer))[0]["statistics"]


def test_sites_agree_on_what_a_simulation_computes_from_all_files(tmp_path, whole):
    file = server_app(tmp_path / "server")
    transport = OwnFilesTransport(file, tmp_path / "state")
    serve(Experiment.load(file), tmp_path / "there", transport)
    assert_same(whole, tmp_path / "there", "FedAvg")
    agreed = json.loads((tmp_path / "there" / "deployment.json").read_text())["agreed"]
    data = build_data(Experiment.load(tmp_path / "all" / "experiment.toml"))
    assert agreed["encoding"] == json.loads(json.dumps(data.encoding.plain()))
    assert agreed["class_counts"] == data.class_counts()
    here, there = (
        read_rows(out / "FedAvg" / "seed-3" / "clients.csv") for out in (whole, tmp_path / "there")
    )
    for mine, other in zip(here, there, strict=True):
        assert mine.pop("client") == other.pop("client") and mine.pop("model") == other.pop("model")
        assert mine == pytest.approx(other, rel=1e-5)
    assert {"test_auc", "test_loss"} <= there[0].keys()


def test_sites_send_sums_and_counts_only(tmp_path):
    file = server_app(tmp_path / "server")
    transport = OwnFilesTransport(file, tmp_path / "state")
    notes = []

    class Observer:
        def note(self, text, row):
            notes.append(text)

        def __getattr__(self, name):
            return lambda *args, **options: None

    serve(Experiment.load(file), tmp_path / "out", transport, Observer())
    stages = [question["stage"] for site, question, _ in statistics(transport) if site == "a"]
    assert stages == ["counts", "deviations", *["cells"] * 4, "classes"]
    for site, question, found in statistics(transport):
        if question["stage"] == "counts":
            assert found["values"]["kind"].keys() == {"red", "blue", f"only-{site}"}  # no "rare"
            assert found["sums"].keys() == {"day.weekday", "size", "weight"}
            assert len(json.dumps(found)) < 600
    told = " ".join(notes)
    for words in ("each class", "names of the columns", "sum of", "in cells", "'kind' with at"):
        assert words in told


@pytest.mark.parametrize("answers", [1, 4, 10, 16, 24, 33])
def test_a_server_that_dies_before_or_after_the_agreement_goes_on(tmp_path, whole, answers):
    file = server_app(tmp_path / "server")
    with pytest.raises(Killed):
        serve(
            Experiment.load(file),
            tmp_path / "out",
            MortalTransport(file, tmp_path / "state", answers=answers),
        )
    serve(Experiment.load(file), tmp_path / "out", OwnFilesTransport(file, tmp_path / "state"))
    assert_same(whole, tmp_path / "out", "FedAvg")


# A site's own rules


@pytest.fixture
def experiment(tmp_path):
    return Experiment.load(write_app(tmp_path / "app-a", ["a"]))


def asked(site, question, run=RUN):
    request = {"kind": "statistics", "experiment": facts(site.experiment), "run": run}
    answer = site.answer(encode({**request, "question": question}, {}))
    return decode(answer, len(answer))[0]


COUNTS = {"stage": "counts"}
MEANS = {"day.weekday": 3.0, "size": 10.0, "weight": 0.0}
DEVIATIONS = {"stage": "deviations", "means": MEANS}


def cells(path, centre=(10.0, 3.0)):
    return {"stage": "cells", "centres": {"size": list(centre)}, "paths": {"size": path}}


@pytest.mark.parametrize(
    ("before", "question"),
    [
        ([], DEVIATIONS),
        ([], {"stage": "counts", "more": 1}),
        ([], {"stage": "rows"}),
        ([], "counts"),
        ([COUNTS], {"stage": "deviations", "means": {"size": 10.0}}),
        ([COUNTS], {"stage": "deviations", "means": MEANS | {"size": float("1e39")}}),
        ([COUNTS, DEVIATIONS], {"stage": "deviations", "means": MEANS | {"size": 11.0}}),
        ([COUNTS, DEVIATIONS], cells([3])),
        ([COUNTS, DEVIATIONS], cells([], (12.0, 3.0))),
        ([COUNTS, DEVIATIONS, cells([])], cells([], (10.0, 0.5))),
        ([COUNTS, DEVIATIONS, cells([])], cells([16])),
        ([COUNTS, DEVIATIONS, cells([]), cells([3])], cells([4, 1])),
        ([COUNTS, DEVIATIONS, *(cells([3] * n) for n in range(4))], cells([3] * 4)),
    ],
)
def test_a_site_answers_only_the_questions_of_its_experiment_in_their_order(
    tmp_path, experiment, before, question
):
    site = Site(experiment, "a", tmp_path / "state")
    for each in before:
        assert "statistics" in asked(site, each)
    assert "refuses the request for statistics" in asked(site, question)["error"]
    for each in before:  # a question is answered again, by the next process, too
        assert "statistics" in asked(Site(experiment, "a", tmp_path / "state"), each)


def describing(site):
    """Send the site an agreement, changed if something is given, and return its answer."""
    numbers = [
        {"kind": "number", "name": name, "fill": 0.0, "indicator": False, "mean": 0.0}
        | {"deviation": 1.0}
        for name in MEANS
    ]
    word = {"kind": "word", "name": "kind", "values": ["red"], "coded": False, "indicator": False}
    encoding = {"columns": [*numbers, word], "whole": True}
    agreed = {"encoding": encoding, "class_counts": [30, 10]}
    request = {"kind": "describe", "experiment": facts(site.experiment), "run": RUN}

    def describe(**change):
        answer = site.answer(encode({**request, "agreed": agreed | change}, {}))
        return decode(answer, len(answer))[0]

    return describe


def test_a_run_has_one_agreement_and_no_questions_after_it(tmp_path, experiment):
    site = Site(experiment, "a", tmp_path / "state")
    describe = describing(site)
    assert "gave no statistics" in describe()["error"]
    asked(site, COUNTS)
    assert "no list of whole numbers" in describe(class_counts=[1, -1])["error"]
    assert describe()["samples"] == {"train": 30, "test": 10}
    assert "another agreement" in describe(class_counts=[1, 39])["error"]
    assert "samples" in describe()
    assert "is complete" in asked(site, DEVIATIONS)["error"]


def test_the_limits_of_a_site_hold_for_statistics(tmp_path, experiment):
    few = Site(experiment, "a", tmp_path / "few", Limits(min_samples=31))
    assert "fewer than 31 samples" in asked(few, COUNTS)["error"]
    sparse = Site(experiment, "a", tmp_path / "sparse", Limits(min_samples=28))
    assert "'size' has only" in asked(sparse, COUNTS)["error"]
    once = Site(experiment, "a", tmp_path / "once", Limits(max_runs=1))
    assert "statistics" in asked(once, COUNTS)
    assert "questions of 1 runs" in asked(once, COUNTS, run="f" * 16)["error"]
    assert "no valid name" in asked(once, COUNTS, run="../../etc")["error"]


def test_a_person_may_decline_the_questions(tmp_path, experiment):
    seen, shown = [], []
    approve = asking(experiment, "a", shown.append, lambda text: seen.append(text) or "n")
    site = Site(experiment, "a", tmp_path / "state", approve=approve)
    for _ in range(2):
        assert "declined" in asked(site, COUNTS)["error"]
    assert seen == ["Send these statistics? [y/N] "]
    assert any("'kind' with at least 5" in line for line in shown)


def test_arrays_of_a_folder_are_refused_in_a_sentence(tmp_path):
    file = server_app(tmp_path / "server")
    transport = OwnFilesTransport(file, tmp_path / "state")
    for site in "abc":
        folder = write_app(tmp_path / f"app-{site}", []).parent / "rows"
        np.savez(folder / f"{site}.npz", x=np.zeros((20, 3)), y=np.arange(20) % 2)
        toml = folder.parent / "experiment.toml"
        kept = [line for line in toml.read_text().splitlines() if "drop" not in line]
        toml.write_text("\n".join(kept))
    shutil.rmtree(tmp_path / "state", ignore_errors=True)
    with pytest.raises(UndriftError, match="no columns, so leave"):
        serve(Experiment.load(file), tmp_path / "out", transport)


def test_the_audit_log_has_a_line_for_every_answer(tmp_path, experiment):
    site = Site(experiment, "a", tmp_path / "state")
    asked(site, COUNTS)
    asked(site, DEVIATIONS)
    asked(site, {"stage": "rows"})
    lines = (tmp_path / "state" / "a" / "audit.jsonl").read_text().splitlines()
    first, second, third = map(json.loads, lines)
    assert first["sent"]["stage"] == "counts" and "sums" in first["sent"]["fields"]
    assert second["sent"]["stage"] == "deviations"
    assert third["decision"] == "refused" if "decision" in third else "refused" in lines[2]


def test_class_weights_come_from_all_sites_with_any_source(tmp_path):
    file = app(tmp_path / "app")
    loss = """
def loss(outputs, targets, class_weights=None):
    each = nn.functional.cross_entropy(outputs, targets, class_weights, reduction="none")
    return each.mean()
"""
    site = file.parent / "site.py"
    site.write_text(site.read_text() + loss)
    settings = {"loss": "site.py:loss", "rounds": 2}
    simulated(file, tmp_path / "here", **settings)
    transport = InProcess(file, tmp_path / "state")
    deployed(file, tmp_path / "there", transport, **settings)
    assert_same(tmp_path / "here", tmp_path / "there", "FedAvg")
    assert [question for _, question, _ in statistics(transport)] == [{"stage": "classes"}] * 3
    deployed(file, tmp_path / "plain", InProcess(file, tmp_path / "other"), rounds=2)
    mine, plain = model(tmp_path / "there", "FedAvg"), model(tmp_path / "plain", "FedAvg")
    assert not torch.allclose(mine["0.weight"], plain["0.weight"], atol=1e-4)


def test_words_of_the_data_stay_at_the_site(tmp_path, experiment, capfd):
    strict = Experiment.load(tmp_path / "app-a" / "experiment.toml", {"data.unknown": "error"})
    site = Site(strict, "a", tmp_path / "state")
    asked(site, COUNTS)
    error = describing(site)()["error"]
    assert "failed with UndriftError" in error and "rare" not in error
    assert "'rare'" in capfd.readouterr().err  # in its own log


def test_a_dry_run_shows_the_statistics(experiment):
    (found,) = preview(experiment, "a", Limits())
    assert any("before the run: the sum of" in line for line in as_lines(found))
    assert [*found.statistics[0]["values"]["kind"]] == ["blue", "only-a", "red"]
