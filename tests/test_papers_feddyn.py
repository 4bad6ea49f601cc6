"""FedDyn's transcribed tables, and the rules for judging its claims."""

import pytest

from undrift.experiments.experiment import Experiment
from undrift.reproduce.feddyn import (
    cifar10,
    cifar100,
    emnist,
    fedsplit,
    mnist,
    shakespeare,
    synthetic,
)
from undrift.reproduce.feddyn.models_sent import TableRow, fewest
from undrift.reproduce.findings import over_seeds

TABLES = (cifar10, cifar100, emnist, mnist, shakespeare)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.REPRODUCTION.name)
def test_the_tables_say_what_tables_of_models_sent_can_say(table):
    for row in table.ROWS:
        low, high = sorted(row.sent)[0], max(row.sent)
        for target, (_, scaffold, *_) in row.sent.items():
            assert 0 < target < 1
            count = int(str(scaffold or 0).rstrip("+"))
            assert count % 2 == 0, "SCAFFOLD sends two models a round"
        for easy, hard in zip(row.sent[low], row.sent[high], strict=True):
            if easy is not None and hard is not None:
                assert int(str(easy).rstrip("+")) <= int(str(hard).rstrip("+"))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.REPRODUCTION.name)
def test_every_row_is_an_experiment(table):
    name = table.REPRODUCTION.name.partition("-")[2]
    path = table.__file__.replace(f"{name}.py", f"{name}.toml")
    found = [Experiment.load(path, row.settings).resolved() for row in table.ROWS]
    assert all(one not in found[:number] for number, one in enumerate(found)), "two rows are equal"


def test_a_lead_is_claimed_only_where_the_paper_has_one():
    row = TableRow("1 %", {0.98: (100, 200, 110, "1000+"), 0.97: (100, None, 90, 130)})
    assert row.beaten(0.98) == ["SCAFFOLD", "FedProx"]
    assert row.beaten(0.97) == ["FedProx"]


@pytest.mark.parametrize(
    ("ours", "theirs", "holds"),
    [
        (over_seeds(10), over_seeds(20), True),
        (over_seeds(20), over_seeds(10), False),
        (over_seeds(20), over_seeds(19), None),  # too close to decide
        (over_seeds(20), over_seeds(21), None),
        (
            over_seeds(10),
            over_seeds(3, missed=1),
            True,
        ),  # it diverged early and never reached the target
        (over_seeds(30, missed=1), over_seeds(30, missed=1), None),
        (over_seeds(30, missed=1), over_seeds(20), False),
    ],
)
def test_fewer_models(ours, theirs, holds):
    assert fewest("", {"FedDyn": ours, "FedAvg": theirs}, ["FedAvg"]).holds is holds


def test_close_accuracies_are_not_told_apart():
    assert fedsplit.better("", 0.9, 0.898).holds is None
    assert fedsplit.better("", 0.9, 0.8).holds is True
    assert fedsplit.better("", 0.8, 0.9).holds is False


def test_the_grid_is_the_papers():
    tables = synthetic.grid()
    counts = [sum(table["name"] == name for table in tables) for name in synthetic.METHODS]
    assert counts == [18, 6, 6, 12]
    steps = {t["local"]["steps"] for t in tables if t["name"] == "SCAFFOLD"}
    assert steps == {20, 200, 1000}
