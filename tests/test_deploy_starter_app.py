"""The starter app works without changes."""

import tomllib
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch

import undrift as ud
from undrift.deploy.starter_app import FILES, write_starter_app


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("started") / "new" / "app"
    assert write_starter_app(folder) == [folder / name for name in FILES]
    return folder


@pytest.fixture(scope="module")
def site(app):
    spec = spec_from_file_location("the_users_site", app / "site.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def experiment(app):
    return tomllib.loads((app / "experiment.toml").read_text(encoding="utf-8"))


def same(first, second):
    return all(
        torch.equal(a, b)
        for part in ("train", "test")
        for a, b in zip(first[part], second[part], strict=True)
    )


def test_the_files_are_there_and_nothing_else(app):
    assert {path.name for path in app.iterdir()} == set(FILES)


def test_the_experiment_names_what_the_app_has(experiment, site):
    for where in (experiment["data"]["source"], experiment["model"]["name"]):
        file, _, function = where.partition(":")
        assert file == "site.py" and callable(getattr(site, function))
    assert len(set(experiment["data"]["sites"])) == 3
    assert experiment["rounds"] == 10 and experiment["deploy"] == {"timeout": 600}
    assert [method["name"] for method in experiment["method"]] == ["SCAFFOLD"]


def test_a_sites_data_are_its_own_and_always_the_same(site):
    torch.manual_seed(1)
    first = site.data("site-1")
    torch.manual_seed(2)
    assert same(first, site.data("site-1"))
    other = site.data("site-2")
    assert first["train"][0].shape != other["train"][0].shape
    shares = [
        each["train"][1].bincount(minlength=site.CLASSES) / len(each["train"][1])
        for each in (first, other)
    ]
    assert (shares[0] - shares[1]).abs().sum() > 0.3  # they are heterogeneous


def test_the_model_fits_the_data(site):
    x, y = site.data("another name")["test"]
    assert site.model()(x).shape == (len(y), site.CLASSES)
    assert len(x) == len(y) > 0 and y.dtype == torch.int64
    assert y.min() >= 0 and y.max() < site.CLASSES


def test_it_learns_with_the_settings_of_the_experiment(site, experiment):
    parts = {name: site.data(name) for name in experiment["data"]["sites"]}
    torch.manual_seed(0)
    data = ud.data.FederatedData.from_clients({k: part["train"] for k, part in parts.items()})
    local = {key: experiment["local"][key] for key in ("lr", "batch_size", "epochs")}
    result = ud.train(
        ud.SCAFFOLD(),
        model=site.model(),
        data=data,
        local=ud.SGD(**local),
        rounds=experiment["rounds"],
        engine="serial",
    )
    x, y = (
        torch.cat(each) for each in zip(*(part["test"] for part in parts.values()), strict=True)
    )
    with torch.no_grad():
        found = result.model()(x).argmax(1)
    assert (found == y).float().mean() > 0.8


@pytest.mark.parametrize("there", ["site.py", "experiment.toml", "notes.txt"])
def test_nothing_is_overwritten(tmp_path, there):
    (tmp_path / there).write_text("mine")
    with pytest.raises(
        ud.UndriftError, match=f"already has {there} in it, and nothing is overwritten"
    ):
        write_starter_app(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"


def test_an_empty_folder_will_do_also_under_version_control(tmp_path):
    (tmp_path / ".git").mkdir()
    assert [path.name for path in write_starter_app(tmp_path)] == list(FILES)


def test_a_file_in_the_place_of_the_folder_is_a_sentence(tmp_path):
    (tmp_path / "app").write_text("")
    with pytest.raises(ud.UndriftError, match="cannot be created"):
        write_starter_app(tmp_path / "app")
