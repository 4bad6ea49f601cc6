"""A valid experiment for the tests, changes to it, and what is said when it is refused."""

from copy import deepcopy

import pytest

from undrift.experiments.experiment import Experiment
from undrift.utils.errors import UndriftError


def tables(**changes):
    """A valid experiment that uses most of what there is."""
    base = {
        "name": "example",
        "rounds": 3,
        "seeds": [0, 1],
        "objective": "samples",
        "data": {
            "source": "synthetic",
            "alpha": 0.5,
            "clients": 6,
            "most": 40,
            "seed": 1,
            "validation": {"share": 0.2, "by": "overall"},
        },
        "model": {"name": "mlp", "hidden": [4]},
        "local": {
            "solver": "SGD",
            "lr": {"schedule": "Exponential", "lr": 0.1, "gamma": 0.99},
            "batch_size": 10,
            "epochs": 2,
        },
        "sampling": {"kind": "uniform", "cohort": 3},
        "method": [
            {"name": "FedAvg", "server": {"name": "Momentum", "beta": 0.5}},
            {"name": "FedDyn", "alpha": 0.1, "label": "FedDyn .1", "local": {"steps": 4}},
            {"name": "SCAFFOLD", "option": "II"},
        ],
        "evaluation": {"every": 2, "models": ["server", "cohort"]},
        "target": {"test_accuracy": 0.99, "cohort/train_loss": ["below", 0.01]},
        "engine": {"name": "serial"},
        "output": {"durability": "process", "memory": 10.5},
        "sweep": {"local.lr": [0.1, 0.01], "method.FedDyn .1.alpha": [0.1, 1.0]},
    }
    return {**deepcopy(base), **changes}


def refused(raw=None, settings=None, **changes):
    """The sentences with which an experiment is refused."""
    with pytest.raises(UndriftError) as caught:
        Experiment.from_dict(tables(**changes) if raw is None else raw, settings)
    return str(caught.value)


def one_method(**method):
    return tables(method=[method], sweep={})


def replaced(raw, path, value):
    raw = deepcopy(raw)
    table = raw
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    return raw
