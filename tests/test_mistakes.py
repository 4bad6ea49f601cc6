"""Typical mistakes of a newcomer: each is answered by one sentence that says what to do."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import undrift as ud
from commands import called

X, Y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2
SAMPLES = TensorDataset(X, Y)
Data = ud.data.FederatedData


def clients(x=X, y=Y):
    return Data.from_clients([(x, y)] * 3)


def train(method=None, **changed):
    options = {
        "model": nn.Linear(4, 2),
        "data": clients(),
        "local": ud.SGD(lr=0.1, batch_size=5, epochs=1),
        "rounds": 1,
        "engine": "serial",
    }
    return ud.train(method or ud.FedAvg(), **(options | changed))


def folder(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    return Data.from_folder(tmp_path)


MISTAKES = {
    "inputs": (lambda t: train(model=nn.Linear(5, 2)), "cannot take inputs of shape [2, 4]"),
    "bytes": (lambda t: train(data=clients(X.byte())), "x.float() / 255"),
    "classes": (lambda t: train(data=clients(y=Y + 3)), "labels go from 3 to 4"),
    "float labels": (
        lambda t: train(data=clients(y=Y.float())),
        "whole numbers: 1 and not 1.0 in a file",
    ),
    "whole values": (lambda t: train(model=nn.Linear(4, 1)), "floating-point, targets.float()"),
    "squeezed": (
        lambda t: train(model=nn.Linear(4, 1), data=clients(y=Y.float())),
        "use targets[:, None] or .squeeze(-1).",
    ),
    "words": (lambda t: folder(t, "age,sex,y\n3,m,0\n"), "has 'm' in column 'sex'"),
    "empty target": (lambda t: folder(t, "age,y\n3,\n"), "has no value in column 'y'"),
    "empty input": (lambda t: folder(t, "age,y\n3,0\n,1\n"), "Line 3 of"),
    "no target": (lambda t: folder(t, "age,z\n3,0\n"), "name one of its columns 'age', 'z'"),
    "no folder": (lambda t: Data.from_folder(t / "nowhere"), "There is no folder"),
    "cohort": (lambda t: train(cohort=10), "there are only 3"),
    "cohort of a file": (lambda t: train(cohort=10), 'sampling.kind = "weighted" in a file'),
    "page": (lambda t: train().report(t / "page"), "page must end in .html"),
    "share": (lambda t: train(cohort=0.1), "whole number of at least 1"),
    "class": (lambda t: train(ud.FedAvg), "the class FedAvg, but must be a method such as"),
    "classes of methods": (lambda t: ud.compare([ud.FedAvg]), "make one, FedAvg(…)"),
    "name": (lambda t: train("FedAvg"), "a method such as ud.FedAvg()"),
    "model class": (lambda t: train(model=nn.Linear), "make one, Linear(…)"),
    "local class": (lambda t: train(local=ud.SGD), "make one, SGD(…)"),
    "no local": (lambda t: train(local=None), "for example local=ud.SGD(lr=0.01"),
    "optimizer": (
        lambda t: train(local=torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)),
        "local is a SGD, but must be a solver",
    ),
    "loader": (lambda t: train(data=DataLoader(SAMPLES)), "from_dataset(loader.dataset"),
    "dataset": (lambda t: train(data=SAMPLES), "from_dataset(dataset"),
    "loaders": (lambda t: Data.from_clients([DataLoader(SAMPLES)]), "pass loader.dataset"),
    "pair": (lambda t: train(data=(X, Y)), "from_clients([(inputs, targets), …])"),
    "rate": (
        lambda t: train(data=clients(y=Y), local=ud.SGD(lr=1e38, batch_size=5, epochs=5), rounds=9),
        "a smaller learning rate may help",
    ),
    "loss class": (lambda t: train(loss=nn.CrossEntropyLoss), "CrossEntropyLoss()"),
    "loss name": (lambda t: train(loss="mse"), "a function of (outputs, targets)"),
    "unreduced": (lambda t: train(loss=nn.CrossEntropyLoss(reduction="none")), "the mean over the"),
    "epochs": (lambda t: train(epochs=3), "local=ud.SGD(epochs=…)"),
    "seeds": (lambda t: train(seeds=[0]), "seeds is an argument of ud.compare"),
    "metric": (lambda t: train(target={"accuracy": 0.9}), "did you mean 'train_accuracy'?"),
    "clock": (lambda t: train(pace=ud.Deadline(3)), "devices=ud.Devices("),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_by_a_sentence(mistake, tmp_path):
    act, words = MISTAKES[mistake]
    with pytest.raises(ud.UndriftError) as found:
        act(tmp_path)
    said = str(found.value)
    assert words in said
    assert "\n" not in said and len(said) < 320
    assert said[-1] in ".?"


def test_one_hot_targets_are_trained_on_as_values_with_a_warning():
    with pytest.warns(UserWarning, match=r"targets.argmax\(1\)") as found:
        train(data=clients(y=torch.eye(2)[Y]))
    assert found[0].filename == __file__  # at the user's own line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "missing.toml"), "There is no file missing.toml."),
        (("run", "app"), "app is a folder, but must be an experiment file; did you mean app/exp"),
        (("run", "experiment.toml", "--set", "rounds=abc"), "whole number of at least 1"),
        (("run", "experiment.toml", "--set", "sampling.cohort=1000"), "there are only 30"),
        (("run", "experiment.toml", "--only", "FedAvgg"), "did you mean 'FedAvg'?"),
        (("show", "method", "FedDin"), "did you mean 'FedDyn'?"),
        (("verify", "FedAvgg"), "did you mean 'FedAvg'?"),
        (("reproduce", "feddyn"), "did you mean 'feddyn-synthetic'?"),
        (("report", "."), "is not a run folder"),
        (("rnu", "experiment.toml"), "did you mean 'run'?"),
    ],
)
def test_a_mistake_on_the_command_line_too(arguments, words, tmp_path):
    (tmp_path / "app").mkdir()
    for name in ("experiment.toml", "app/experiment.toml"):
        assert called("init", name, cwd=tmp_path).returncode == 0
    done = called(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.stderr.count("Did you mean") <= 1
