"""A small experiment on a clock for the tests, changes to it, and the way to disk and back."""

from copy import deepcopy

from undrift.experiments.experiment import Experiment

LADDER = {"law": "ladder", "slowest": 1, "fastest": 2}


def tables(**changes):
    """A small experiment on a clock, with a pace of each kind."""
    base = {
        "rounds": 4,
        "data": {"source": "synthetic", "clients": 8, "most": 40},
        "model": {"name": "logistic"},
        "local": {"lr": 0.05, "batch_size": 10, "epochs": 2},
        "sampling": {"kind": "all"},
        "devices": {
            "speed": {"law": "ladder", "slowest": 5, "fastest": 20},
            "latency": {"law": "between", "low": 0.0, "high": 0.1},
            "up": 1e5,
            "availability": "always",
        },
        "pace": {"kind": "deadline", "seconds": 0.5},
        "method": [
            {"name": "FedAvg"},
            {"name": "FedAvg", "label": "first", "pace": {"kind": "first", "replies": 3}},
            {"name": "FedBuff", "buffer": 2, "pace": {"kind": "asynchronous", "concurrency": 4}},
            {"name": "FedAsync", "pace": "asynchronous"},
        ],
    }
    found = {**deepcopy(base), **changes}
    return {key: value for key, value in found.items() if value is not None}


def alone(name="FedAvg", **changes):
    """The same with one method and no pace."""
    method = {"name": name} | changes.pop("method", {})
    return tables(**{"method": [method], "pace": None} | changes)


def round_trip(raw, tmp_path):
    found = Experiment.from_dict(raw)
    found.write(tmp_path / "experiment.toml")
    again = Experiment.load(tmp_path / "experiment.toml")
    assert again == found
    assert again.resolved() == found.resolved()
    assert again.device_profiles() == found.device_profiles()
    assert again.paces() == found.paces()
    assert again.limits() == found.limits()
    for label in found.labels:
        assert again.local_of(label) == found.local_of(label)
    return found
