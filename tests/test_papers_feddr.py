"""FedDR's reproductions: the settings of the paper, and claims that can fail."""

from importlib.resources import files

import pytest
import torch
from safetensors.torch import save_file

from undrift.core.records import Record
from undrift.experiments.experiment import Experiment
from undrift.report.recorded_runs import Folder, RunFiles, Runs
from undrift.reproduce.feddr.four_methods import (
    ACCURACY,
    GLOBAL,
    LOCAL,
    LOSS,
    METHODS,
    OWN,
    PUBLISHED,
    FourMethodRuns,
)
from undrift.reproduce.feddr.l1 import zeros
from undrift.reproduce.feddr.synthetic import DATA, RELEASED_ETA
from undrift.reproduce.feddr.tuning import GRIDS, as_settings, tuned
from undrift.runs.folder import MODEL


def run(method, losses, own=None, bytes_each=1, **more):
    """Return a run with a given loss in each of its rounds."""
    records = [
        Record(number, {LOSS: loss, OWN + LOSS: mine}, bytes_up={"x": bytes_each})
        for number, (loss, mine) in enumerate(zip(losses, own or losses, strict=True), 1)
    ]
    return Runs([(Folder(), [RunFiles(method, 0, records, **more)])])


def comparison(against="rounds", **runs):
    others = {method: run(method, [1.0] * 10) for method in METHODS}
    return FourMethodRuns("here", {**others, **runs}, against)


@pytest.mark.parametrize("name", DATA)
def test_the_synthetic_settings_are_the_paper_s(name):
    path = files("undrift.reproduce.feddr") / "synthetic.toml"
    experiment = Experiment.load(str(path), DATA[name])
    assert experiment.rounds == 200
    assert (experiment.local.epochs, experiment.local.batch_size) == (20, 10)


def test_the_grid_has_the_released_and_the_tuned_parameters():
    tried = GRIDS["FedDR"]
    assert len(tried) == 21 and {"eta": 1.0, "alpha": 1.0} in tried
    assert RELEASED_ETA == {"iid": 100, "(0,0)": 100, "(.5,.5)": 500, "(1,1)": 1000}


def test_the_parameters_with_the_lowest_training_loss_are_chosen():
    class OneResult:
        """A lab whose tuning runs have ended: FedDR is best with eta = 3, alpha = 1.5."""

        def either(self, full, quick):
            return full

        def run(self, cell, settings, most_seeds):
            assert most_seeds == 1
            return Runs(
                [
                    (Folder(), [RunFiles(t["label"], 0, [Record(1, {LOSS: self.loss(t)})])])
                    for t in settings["method"]
                ]
            )

        def loss(self, table):
            return abs(table.get("eta", 0) - 3) + abs(table.get("alpha", 0) - 1.5)

    found = tuned(OneResult(), "here", ("FedDR",), {}, sampled=True)
    assert found == {"FedDR": {"eta": 3.0, "alpha": 1.5}}
    assert as_settings(found) == {"method.FedDR.eta": 3.0, "method.FedDR.alpha": 1.5}


def test_an_order_fails_when_it_is_reversed():
    found = comparison(FedDR=run("FedDR", [2.0] * 10))
    assert found.ahead(GLOBAL, ("FedDR",), ("FedAvg",), LOSS).holds is False
    assert found.ahead(GLOBAL, ("FedAvg",), ("FedDR",), LOSS).holds is True


def test_global_and_own_models_are_told_apart():
    found = comparison(FedDR=run("FedDR", [2.0] * 10, own=[0.5] * 10))
    holds = {
        view: found.ahead(view, ("FedDR",), ("FedAvg",), LOSS).holds
        for view in (GLOBAL, LOCAL, PUBLISHED)
    }
    assert holds == {GLOBAL: False, LOCAL: True, PUBLISHED: True}


def test_a_method_that_sends_more_is_seen_where_the_others_end():
    dear = run("FedPD", [3.0, 2.0, 1.5, *[0.1] * 7], bytes_each=3)
    assert comparison("bytes", FedPD=dear).at_end("FedPD", LOSS).mean == 1.5
    assert comparison("rounds", FedPD=dear).at_end("FedPD", LOSS).mean == 0.1


def test_a_method_that_diverged_is_never_ahead():
    found = comparison(FedDR=run("FedDR", [0.1, 0.1], status="diverged"))
    for metric in (LOSS, ACCURACY):
        assert found.ahead(GLOBAL, ("FedDR",), ("FedAvg",), metric).holds is False


def test_only_exact_zeros_are_counted(tmp_path):
    save_file(
        {"a": torch.tensor([0.0, 1e-30]), "b": torch.tensor([[0.0], [2.0]])}, tmp_path / MODEL
    )
    assert zeros(run("FedDR", [1.0], folder=tmp_path)).mean == 0.5


def test_a_word_beside_the_models_does_not_cost_an_evaluation():
    cheap = {method: run(method, [1.0] * 4, bytes_each=1000) for method in METHODS}
    dear = run("FedPD", [2.0, 1.5], bytes_each=2004)
    assert (
        FourMethodRuns("here", {**cheap, "FedPD": dear}, "bytes").at_end("FedPD", LOSS).mean == 1.5
    )
