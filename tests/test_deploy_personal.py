"""Personal, own and fine-tuned models in a deployment: as in a simulation, and at the sites."""

import pytest
import torch
from safetensors.torch import load_file

from deployments import InProcess, app
from test_deploy import Killed, Mortal, assert_same, deployed, records, simulated
from undrift.deploy.wire_format import decode, encode

SHARED = 6 * 5 + 5
"""Parameters of the first layer of the app's model, which has 6 inputs and 5 units."""
BATCH_NORM = "nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))"
OWN = {"evaluation.models": ["server", "own"], "evaluation.clients": True}
SETTINGS = {
    "FedPer": {"personal": ["2.*"], "evaluation.clients": True},
    "FedRep": {"personal": {"parameters": ["2.*"], "first_epochs": 2}},
    "FedBN": {"personal": "normalisation"},
    "own": OWN,
    "tuned": {
        "evaluation.models": ["server", "tuned"],
        "evaluation.tune": {"lr": 0.05, "epochs": 1},
        "evaluation.clients": True,
    },
}


def close(mine, theirs, names):
    for one, other in zip(mine, theirs, strict=True):
        for name in names(one["metrics"]):
            found = one["metrics"][name]
            assert found == pytest.approx(other["metrics"][name], rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("method", ["FedAvg", "SCAFFOLD"])
@pytest.mark.parametrize("kind", SETTINGS)
def test_models_of_the_sites_own_are_those_of_a_simulation(tmp_path, kind, method):
    file = app(tmp_path / "app", [method])
    if kind == "FedBN":
        site = file.parent / "site.py"
        old = "nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))"
        site.write_text(site.read_text().replace(old, BATCH_NORM))
    settings = SETTINGS[kind] | {"rounds": 3, "sampling.cohort": 2, "evaluation.every": 1}
    simulated(file, tmp_path / "here", **settings)
    deployed(file, tmp_path / "there", **settings)
    assert_same(tmp_path / "here", tmp_path / "there", method)
    there, here = (records(tmp_path / out, method) for out in ("there", "here"))
    close(there, here, lambda found: found)
    assert {name.partition("/")[0] for name in there[-1]["metrics"] if "/" in name} == (
        {kind} if kind in ("own", "tuned") else set()
    )


@pytest.mark.parametrize("method", ["Ditto", "undrift.methods:Alone"])
def test_a_methods_own_models_are_measured_at_the_sites(tmp_path, method):
    file = app(tmp_path / "app", [method])
    label = "Ditto" if method == "Ditto" else "Alone"
    settings = OWN | {"rounds": 3, "evaluation.every": 1}
    simulated(file, tmp_path / "here", **settings)
    deployed(file, tmp_path / "there", **settings)
    there, here = (records(tmp_path / out, label) for out in ("there", "here"))
    close(there, here, lambda found: [name for name in found if name.startswith("own/")])
    assert there[-1]["metrics"]["own/train_loss"] < there[0]["metrics"]["own/train_loss"]
    assert "own/test_client_accuracy_worst_tenth" in there[-1]["metrics"]


def test_personal_parameters_never_travel_and_rest_at_the_site(tmp_path):
    file = app(tmp_path / "app")
    transport = InProcess(file, tmp_path / "state")
    deployed(file, tmp_path / "out", transport, personal=["2.*"], rounds=3)
    sent = [
        tensors
        for _, *both in transport.exchanged
        for each in both
        for tensors in [decode(each, len(each))[1]]
        if tensors
    ]
    assert len(sent) > 20
    assert {value.numel() for tensors in sent for value in tensors.values()} == {SHARED}
    file = "FedAvg-seed-3-server.safetensors"
    kept = {
        site: load_file(
            tmp_path / "state" / site / site / "models" / "FedAvg-seed-3-server.safetensors"
        )
        for site in "abc"
    }
    server = load_file(tmp_path / "out" / "FedAvg" / "seed-3" / "model.safetensors")
    for own in kept.values():
        assert own.keys() == server.keys()
        assert torch.equal(own["0.weight"], server["0.weight"])
        assert not torch.equal(own["2.weight"], server["2.weight"])
    assert not torch.equal(kept["a"]["2.weight"], kept["b"]["2.weight"])


def test_a_server_that_dies_goes_on_with_the_personal_parameters_of_the_sites(tmp_path):
    file = app(tmp_path / "app")
    settings = {"personal": ["2.*"], "rounds": 3, "evaluation.every": 1}
    deployed(file, tmp_path / "whole", InProcess(file, tmp_path / "one"), **settings)
    for answers in (8, 13, 20):
        state, out = tmp_path / f"state-{answers}", tmp_path / f"out-{answers}"
        with pytest.raises(Killed):
            deployed(file, out, Mortal(file, state, answers=answers), **settings)
        deployed(file, out, InProcess(file, state), **settings)
        assert_same(tmp_path / "whole", out, "FedAvg", tolerance=0)
        close(records(tmp_path / "whole"), records(out), lambda found: found)


def test_an_evaluation_with_another_version_of_the_sites_state_is_another_one(tmp_path):
    """Otherwise a server could compare the versions of a site's personal parameters at will."""
    file = app(tmp_path / "app")
    transport = InProcess(file, tmp_path / "state")
    settings = {"personal": ["2.*"], "rounds": 3, "evaluation.every": 1}
    deployed(file, tmp_path / "out", transport, **settings)
    requests = [
        decode(request, len(request)) for site, request, _ in transport.exchanged if site == "a"
    ]
    values, tensors = next(each for each in reversed(requests) if each[0]["kind"] == "evaluate")

    def answer(base):
        found = transport.made("a").answer(encode({**values, "base": base}, tensors))
        return decode(found, len(found))[0]

    assert "metrics" in answer(values["base"])
    assert "has evaluated the model" in answer(values["base"] - 1)["error"]
