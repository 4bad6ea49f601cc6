"""Experiment files: what is refused and how, what is written out, what is built, what it costs."""

import json
import tomllib
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

import undrift as ud
from undrift.data.partitions import Dirichlet
from undrift.data.sizes import LogNormal
from undrift.errors import UndriftError
from undrift.modules import ModuleLosses
from undrift.runs.building import (
    build_data,
    build_evaluation,
    build_local,
    build_methods,
    build_model,
    build_sampler,
    build_target,
)
from undrift.runs.catalogue import GROUPS
from undrift.runs.cost import estimate
from undrift.runs.experiment import Experiment
from undrift.runs.schema import json_schema
from undrift.runs.schema import text as schema_text
from undrift.runs.teaching import SINGULAR, example, listing, names, showing, starter

QUICK = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


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


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("settings", "path", "words"),
        [
            ({"rounds": "ten"}, "rounds", "a whole number of at least 1"),
            ({"rounds": 0}, "rounds", "at least 1"),
            ({"seeds": [0, 0]}, "seeds", "0 twice"),
            ({"seeds": [-1]}, "seeds", "at least 0"),
            ({"seeds": []}, "seeds", "at least one"),
            ({"seeds": 3}, "seeds", "a list"),
            ({"objective": "sample"}, "objective", "did you mean 'samples'?"),
            ({"data.source": "syntetic"}, "data.source", "did you mean 'synthetic'?"),
            ({"data.source": "/no/such"}, "data.source", "no folder"),
            ({"data.alhpa": 1}, "data.alhpa", "did you mean 'alpha'?"),
            ({"data.clients": 0}, "data.clients", "at least 1"),
            ({"data.clients": "six"}, "data.clients", "a whole number"),
            ({"data.iid": 1}, "data.iid", "true or false"),
            ({"data.partition": "iid"}, "data.partition", "takes no partition"),
            ({"data.validation": 1.5}, "data.validation", "above 0 and below 1"),
            ({"data.validation.by": "clients"}, "data.validation.by", "'client'"),
            ({"data.augment": ["crp"]}, "data.augment", "did you mean 'crop'?"),
            ({"model.name": "mpl"}, "model.name", "did you mean 'mlp'?"),
            ({"model.hidden": [0]}, "model.hidden", "at least 1"),
            ({"model.hidden": "4"}, "model.hidden", "a list of whole numbers"),
            ({"model.widths": [4]}, "model.widths", "one of"),
            ({"model.seed": -1}, "model.seed", "at least 0"),
            ({"local.solver": "Exct"}, "local.solver", "did you mean 'Exact'?"),
            ({"local.lr": -1}, "local.lr", "above 0"),
            ({"local.lr.schedule": "Exponentail"}, "local.lr.schedule", "'Exponential'?"),
            ({"local.lr.gama": 1}, "local.lr.gama", "did you mean 'gamma'?"),
            ({"local.batchsize": 1}, "local.batchsize", "did you mean 'batch_size'?"),
            ({"local.tolerance": "x"}, "local.tolerance", "a number"),
            ({"local.momentum": 1}, "local.momentum", "below 1"),
            ({"local.epochs": {"0": 1}}, "local.epochs.amount", "'uniform', 'normal'"),
            ({"local.epochs": "two"}, "local.epochs", "a whole number"),
            ({"sampling.kind": "unifrom"}, "sampling.kind", "did you mean 'uniform'?"),
            ({"sampling.cohort": 7}, "sampling.cohort", "only 6"),
            ({"sampling.cohort": 0}, "sampling.cohort", "at least 1"),
            ({"method.0.sceme": "I"}, "method.FedAvg.sceme", "did you mean 'scheme'?"),
            ({"method.FedDyn .1.alpha": 0}, "method.FedDyn .1.alpha", "above 0"),
            ({"method.FedAvg.server.beta": 2}, "method.FedAvg.server.beta", "below 1"),
            ({"method.2.option": "III"}, "method.SCAFFOLD.option", "one of 'I', 'II'"),
            ({"method.1.local.clip": -1}, "method.FedDyn .1.local.clip", "above 0"),
            ({"method.1.label": "FedAvg"}, "method.1.label", "a label of its own"),
            ({"method.1.label": ".."}, "method.1.label", "needs a letter"),
            ({"evaluation.evry": 1}, "evaluation.evry", "did you mean 'every'?"),
            ({"evaluation.models": ["cohrt"]}, "evaluation.models", "did you mean 'cohort'?"),
            ({"target.tst_accuracy": 1}, "target.tst_accuracy", "did you mean 'test_accuracy'?"),
            ({"target.test_accuracy": "high"}, "target.test_accuracy", "a number"),
            ({"target.test_loss": ["under", 1]}, "target.test_loss", "'below', 'above'"),
            ({"target.own/test_loss": 1}, "target.own/test_loss", "not among those"),
            ({"engine.name": "seria"}, "engine.name", "did you mean 'serial'?"),
            ({"output.durability": "disk"}, "output.durability", "'power', 'process'"),
            ({"output.memory": -1}, "output.memory", "at least 0"),
            ({"output.loggers": ["wand"]}, "output.loggers", "did you mean 'wandb'?"),
            ({"sweep": {"local.lr": [0.1, -1]}}, "sweep.local.lr", "above 0"),
            ({"sweep": {"local.lr": []}}, "sweep.local.lr", "no value"),
            ({"sweep": {"method.FedDin.alpha": [1]}}, "sweep.method.FedDin.alpha", "FedDin"),
            ({"rouds": 3}, "rouds", "did you mean 'rounds'?"),
        ],
    )
    def test_a_sentence_with_the_path_and_what_is_allowed(self, settings, path, words):
        said = refused(settings=settings)
        first = said.splitlines()[0]
        assert first.startswith((f"{path}:", f"{path} ")), said
        assert words in first
        assert first.endswith((".", "?"))

    def test_a_missing_table(self):
        raw = tables()
        del raw["data"], raw["method"]
        said = refused(raw)
        assert "data is missing" in said.splitlines()[0]
        assert "method is missing" in said.splitlines()[1]

    def test_several_problems_are_listed_one_per_line(self):
        said = refused(settings={"rounds": 0, "data.alhpa": 1, "local.lr": -1})
        assert [line.split(" ")[0].rstrip(":") for line in said.splitlines()] == [
            "rounds",
            "data.alhpa",
            "local.lr",
        ]

    def test_a_method_that_needs_everyone_with_fewer(self):
        raw = one_method(name="FedPD")
        assert refused(raw).startswith("method.FedPD: FedPD is defined only when every client")
        raw["sampling"]["cohort"] = 6
        Experiment.from_dict(raw)

    def test_a_method_that_counts_steps_with_an_exact_solver(self):
        raw = one_method(name="FedNova", local={"solver": "Exact"})
        assert refused(raw).startswith("method.FedNova: FedNova divides by")

    def test_different_regularisers_are_different_objectives(self):
        l1 = {"name": "FedDR", "g": {"name": "L1", "strength": 0.1}}
        said = refused(tables(method=[l1, {"name": "FedAvg"}], sweep={}))
        assert "different objectives" in said

    def test_the_same_method_twice(self):
        raw = tables(method=[{"name": "FedAvg"}, {"name": "FedAvg"}], sweep={})
        assert "label of its own" in refused(raw)

    def test_labels_that_name_the_same_folder(self):
        methods = [{"name": "FedAvg", "label": "a b"}, {"name": "FedAvg", "label": "a/b"}]
        assert "name the same folder" in refused(tables(method=methods, sweep={}))

    def test_a_setting_that_could_mean_several_methods(self):
        methods = [{"name": "FedDyn", "alpha": 1}, {"name": "FedDyn", "alpha": 2}]
        raw = tables(method=methods, sweep={})
        assert "by its label, or by its number" in refused(raw, {"method.FedDyn.alpha": 3})

    def test_a_file_that_is_not_there_or_not_toml(self, tmp_path):
        with pytest.raises(UndriftError, match="There is no file"):
            Experiment.load(tmp_path / "no.toml")
        with pytest.raises(UndriftError, match="cannot be read"):
            Experiment.load(tmp_path)
        for content in (b"rounds = ", b"\xff\xfe", b"a = " + b"[" * 5000, b"a=0x" + b"f" * 9000):
            (tmp_path / "bad.toml").write_bytes(content)
            with pytest.raises(UndriftError) as caught:
                Experiment.load(tmp_path / "bad.toml")
            assert str(caught.value).startswith(str(tmp_path / "bad.toml"))


class TestSettings:
    def test_take_the_place_of_what_the_file_says(self):
        found = Experiment.from_dict(
            tables(), {"method.FedDyn .1.alpha": 2, "method.0.scheme": "renormalised", "rounds": 9}
        )
        assert found.of("FedDyn .1").parameters["alpha"] == 2
        assert found.of("FedAvg").parameters["scheme"] == "renormalised"
        assert found.rounds == 9

    def test_steps_take_the_place_of_epochs(self):
        local = Experiment.from_dict(tables(), {"local.steps": 7}).local.parameters
        assert local["steps"] == 7
        assert "epochs" not in local

    def test_a_cohort_takes_the_place_of_everyone(self):
        found = Experiment.from_dict(tables(sampling={})).with_settings({"sampling.cohort": 2})
        assert build_sampler(found) == 2

    def test_a_part_of_a_partition_given_in_words(self):
        raw = tables(data={"source": "mnist", "partition": "dirichlet:0.3"})
        found = Experiment.from_dict(raw, {"data.partition.alpha": 0.7})
        assert found.data.parameters["partition"]["alpha"] == 0.7

    def test_none_from_the_command_line(self):
        found = Experiment.from_dict(tables(), {"local.batch_size": None})
        assert build_local(found, "FedAvg").batch_size is None


class TestResolved:
    def test_has_all_defaults(self):
        found = Experiment.from_dict(tables()).resolved()
        assert found["data"]["beta"] == 1.0
        assert found["data"]["validation"] == {"share": 0.2, "by": "overall", "seed": 1}
        assert found["local"]["momentum"] == 0.0
        assert found["method"][0]["server"] == {"name": "Momentum", "beta": 0.5, "lr": 1.0}
        assert found["method"][2]["label"] == "SCAFFOLD"
        assert found["output"]["folder"] == "runs/example"

    def test_is_a_file_that_gives_the_same_experiment(self, tmp_path):
        found = Experiment.from_dict(tables())
        found.write(tmp_path / "experiment.toml")
        assert Experiment.load(tmp_path / "experiment.toml") == found

    def test_names_itself_for_its_file(self, tmp_path):
        raw = tables()
        del raw["name"]
        Experiment.from_dict(raw).write(tmp_path / "experiment.toml")
        text = (tmp_path / "experiment.toml").read_text().replace('name = "experiment"\n', "", 1)
        (tmp_path / "mine.toml").write_text(text.replace('folder = "runs/experiment"\n', ""))
        found = Experiment.load(tmp_path / "mine.toml")
        assert found.name == "mine"
        assert found.output.folder == "runs/mine"

    def test_paths_are_seen_from_the_file_and_written_in_full(self, tmp_path):
        (tmp_path / "clients").mkdir()
        for k in range(3):
            rows = "\n".join(f"{i},{i % 2}" for i in range(k + 4))
            (tmp_path / "clients" / f"c{k}.csv").write_text(f"a,label\n{rows}\n")
        (tmp_path / "mine.py").write_text(
            "import torch, undrift as ud\n"
            "class Mine(ud.FedAvg):\n"
            "    def __init__(self, beta=0.5):\n"
            "        super().__init__()\n"
            "        self.beta = beta\n"
            "def net(width: int = 3):\n"
            "    return torch.nn.Sequential(torch.nn.Linear(1, width), torch.nn.Linear(width, 2))\n"
        )
        (tmp_path / "e.toml").write_text(
            '[data]\nsource = "clients"\n[model]\nname = "mine.py:net"\n[local]\nlr = 0.1\n'
            '[[method]]\nname = "mine.py:Mine"\nbeta = 0.25\n'
        )
        found = Experiment.load(tmp_path / "e.toml")
        resolved = found.resolved()
        assert resolved["data"]["source"] == str(tmp_path / "clients")
        assert resolved["model"] == {"name": f"{tmp_path}/mine.py:net", "width": 3}
        assert resolved["method"][0]["name"] == f"{tmp_path}/mine.py:Mine"
        found.write(tmp_path / "clients" / "elsewhere.toml")
        assert Experiment.load(tmp_path / "clients" / "elsewhere.toml") == found
        data = build_data(found)
        assert data.ids == ["c0", "c1", "c2"]
        assert build_methods(found)["Mine"].beta == 0.25
        one, same, other = (build_model(found, data, seed) for seed in (0, 0, 1))
        assert torch.equal(one[0].weight, same[0].weight)
        assert not torch.equal(one[0].weight, other[0].weight)
        with pytest.raises(UndriftError, match=r"method\.mine\.py:Mine\.beat: .*'beta'"):
            Experiment.load(tmp_path / "e.toml", {"method.0.beat": 1})

    def test_what_is_wrong_in_a_file_of_the_users(self, tmp_path):
        (tmp_path / "mine.py").write_text("x = 1\n")
        (tmp_path / "broken.py").write_text("x = 1 / 0\n")
        for name, said in [
            ("mine.py:Mine", "has no 'Mine'"),
            ("mine.py:x", "not a subclass"),
            ("no.py:Mine", "There is no file"),
            ("broken.py:Mine", "ZeroDivisionError"),
            ("nowhere.at.all:Mine", "cannot be imported"),
            (":", "does not name a method"),
        ]:
            with pytest.raises(UndriftError) as caught:
                Experiment.from_dict(one_method(name=name), folder=tmp_path)
            assert said in str(caught.value)
            assert len(str(caught.value).splitlines()) == 1


LOCALS = st.one_of(
    st.fixed_dictionaries(
        {"lr": st.floats(1e-6, 10)},
        optional={
            "batch_size": st.one_of(st.integers(1, 100), st.just("none")),
            "epochs": st.integers(1, 9),
            "momentum": st.floats(0, 0.99),
            "clip": st.floats(0.1, 9),
            "step_schedule": st.just({"schedule": "Milestones", "lr": 1, "milestones": [3]}),
        },
    ),
    st.fixed_dictionaries(
        {"solver": st.just("GD"), "lr": st.floats(1e-6, 10), "steps": st.integers(1, 9)}
    ),
)
PARTITION = st.one_of(
    st.sampled_from(["iid", "dirichlet:0.5", "classes:2", "natural"]),
    st.fixed_dictionaries(
        {"kind": st.just("dirichlet"), "alpha": st.floats(0.01, 10)},
        optional={
            "min_size": st.integers(0, 9),
            "sizes": st.sampled_from(
                ["lognormal:0.3", {"kind": "power-law", "exponent": 1.5}, [10, 20, 30]]
            ),
        },
    ),
)
DATA = st.one_of(
    st.fixed_dictionaries(
        {"source": st.just("synthetic")},
        optional={"most": st.integers(2, 99), "iid": st.booleans(), "test": st.floats(0.01, 0.9)},
    ),
    st.fixed_dictionaries(
        {"source": st.sampled_from(["mnist", "emnist_l", "cifar10"])},
        optional={
            "partition": PARTITION,
            "normalise": st.sampled_from(["none", "features"]),
            "augment": st.just(["crop:4", "flip"]),
            "seed": st.integers(0, 99),
            "validation": st.floats(0.01, 0.9),
        },
    ),
    st.just({"source": "femnist", "clients": "none"}),
)
METHOD = st.one_of(
    st.sampled_from([{"name": name} for name in ("FedAvg", "FedProx", "SCAFFOLD", "FedLGA")]),
    st.fixed_dictionaries({"name": st.just("FedDyn"), "alpha": st.floats(1e-3, 10)}),
    st.just({"name": "FedNova", "tau_eff": "steps", "server": "Adam", "local": {"epochs": 3}}),
)


@QUICK
@given(
    data=DATA,
    local=LOCALS,
    methods=st.lists(METHOD, min_size=1, max_size=3, unique_by=str),
    seeds=st.lists(st.integers(0, 2**40), min_size=1, max_size=3, unique=True),
    name=st.text(st.characters(categories=["L", "N", "Zs", "S"]), min_size=1).filter(str.strip),
    rounds=st.integers(1, 10**6),
)
def test_what_is_written_is_what_was_read(tmp_path, data, local, methods, seeds, name, rounds):
    raw = {
        "data": data,
        "local": local,
        "method": methods,
        "seeds": seeds,
        "rounds": rounds,
        "model": {"name": "logistic"},
    }
    raw |= {"name": name} if name.isprintable() else {}
    raw["method"] = [{**each, "label": f"m{k}"} for k, each in enumerate(methods)]
    found = Experiment.from_dict(raw)
    found.write(tmp_path / "e.toml")
    again = Experiment.load(tmp_path / "e.toml")
    assert again == found
    assert again.resolved() == found.resolved()
    assert repr(build_methods(again)) == repr(build_methods(found))
    for label in found.labels:
        assert build_local(again, label) == build_local(found, label)


JUNK = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-3, 3),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(
            [
                "none",
                "FedAvg",
                "SGD",
                "iid:",
                "dirichlet:x",
                ":",
                "a.py:B",
                "..",
                "\0",
                "~",
                10**400,
            ]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["name", "kind", "lr", "alpha", "x", ""]), inner, max_size=3
        ),
    ),
    max_leaves=6,
)


def paths(value, before=()):
    """Every place in nested tables."""
    yield before
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in inner:
            yield from paths(each, (*before, key))


def replaced(raw, path, value):
    raw = deepcopy(raw)
    table = raw
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    return raw


PLACES = [path for path in paths(tables()) if path]


def accepted_or_refused(make):
    """Either an experiment comes of it, or sentences; never anything else."""
    said = "an experiment."
    try:
        make()
    except UndriftError as error:
        said = str(error)
    assert all(line.strip() for line in said.split("\n"))
    assert "cannot be understood" not in said  # the last resort of the reader


class TestFuzz:
    @QUICK
    @given(path=st.sampled_from(PLACES), value=JUNK)
    def test_anything_anywhere(self, path, value):
        accepted_or_refused(lambda: Experiment.from_dict(replaced(tables(), path, value)))

    @QUICK
    @given(
        where=st.lists(st.sampled_from(PLACES), min_size=1, max_size=4),
        values=st.lists(JUNK, min_size=4, max_size=4),
        extra=st.text(max_size=5),
    )
    def test_several_changes_at_once(self, where, values, extra):
        raw = tables()
        for path, value in zip(where, values, strict=False):
            try:
                raw = replaced(raw, path, value)
            except (TypeError, KeyError, IndexError, AttributeError):
                continue  # what the path leads to is gone
        raw[extra] = values[0]
        accepted_or_refused(lambda: Experiment.from_dict(raw))

    @pytest.mark.parametrize(
        "value", [None, True, -1, 0.5, float("nan"), "x", [], [[]], {}, {"": 1}]
    )
    def test_a_wrong_type_at_every_place(self, value):
        for path in PLACES:
            accepted_or_refused(lambda p=path: Experiment.from_dict(replaced(tables(), p, value)))

    @QUICK
    @given(
        key=st.one_of(
            st.text(max_size=20),
            st.sampled_from(PLACES).map(lambda path: ".".join(map(str, path))),
        ),
        value=JUNK,
    )
    def test_any_setting(self, key, value):
        accepted_or_refused(lambda: Experiment.from_dict(tables(), {key: value}))

    @QUICK
    @given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
    def test_any_file(self, tmp_path, content):
        path = tmp_path / "any.toml"
        path.write_bytes(content)
        accepted_or_refused(lambda: Experiment.load(path))

    @QUICK
    @given(
        where=st.integers(0, 10_000), what=st.text(min_size=0, max_size=4), cut=st.integers(0, 5)
    )
    def test_a_damaged_file(self, tmp_path, where, what, cut):
        text = starter()
        where %= len(text)
        path = tmp_path / "damaged.toml"
        path.write_text(text[:where] + what + text[where + cut :], errors="replace")
        accepted_or_refused(lambda: Experiment.load(path))


class TestBuilding:
    def test_everything_that_a_run_takes(self):
        found = Experiment.from_dict(tables())
        data = build_data(found)
        assert len(data) == 6
        assert data.validation is not None
        assert not data.validation.by_client
        model = build_model(found, data, 0)
        assert ud.models.parameter_count(model) == 60 * 4 + 4 + 4 * 10 + 10
        methods = build_methods(found)
        assert list(methods) == ["FedAvg", "FedDyn .1", "SCAFFOLD"]
        assert methods["FedAvg"].server == ud.server.Momentum(beta=0.5)
        local = build_local(found, "FedAvg")
        assert local == ud.SGD(lr=ud.Exponential(0.1, 0.99), batch_size=10, epochs=2)
        assert build_local(found, "FedDyn .1").steps == 4
        assert build_local(found, "FedDyn .1").epochs is None
        assert build_sampler(found, methods) == ud.Uniform(3)
        assert build_evaluation(found) == ud.Evaluation(2, ("server", "cohort"))
        assert build_target(found)["cohort/train_loss"] == ("below", 0.01)

    def test_initial_weights_follow_the_run_unless_the_model_has_a_seed(self):
        found = Experiment.from_dict(tables())
        data = build_data(found)
        zero, one = (build_model(found, data, seed)[1].weight for seed in (0, 1))
        assert not torch.equal(zero, one)
        fixed = found.with_settings({"model.seed": 1})
        assert torch.equal(build_model(fixed, data, 0)[1].weight, one)

    def test_another_solver_keeps_what_it_has_in_common(self):
        raw = one_method(name="FedAvg", local={"solver": "GD", "steps": 2})
        local = build_local(Experiment.from_dict(raw), "FedAvg")
        assert isinstance(local, ud.GD)
        assert (local.batch_size, local.steps, local.rate(0)) == (None, 2, 0.1)

    def test_a_partition_from_its_table(self):
        pytest.importorskip("sklearn")
        partition = {"kind": "dirichlet", "alpha": 0.5, "sizes": {"kind": "lognormal"}}
        raw = tables(data={"source": "digits", "clients": 8, "partition": partition})
        data = build_data(Experiment.from_dict(raw))
        wanted = ud.data.digits(Dirichlet(0.5, sizes=LogNormal(0.3)), clients=8)
        assert data.name == wanted.name
        assert torch.equal(data.train.rows, wanted.train.rows)

    def test_what_only_the_data_can_refuse_has_its_place_too(self):
        found = Experiment.from_dict(tables(), {"data.alpha": -1})
        with pytest.raises(UndriftError, match=r"^data\.alpha: alpha is -1"):
            build_data(found)
        found = Experiment.from_dict(tables(), {"data.test": 0.5})
        with pytest.raises(UndriftError, match=r"^data\.test: .* already has a test part"):
            build_data(found)
        found = Experiment.from_dict(tables(), {"model": {"name": "cifar_cnn"}})
        with pytest.raises(UndriftError, match=r"^model: cifar_cnn takes images"):
            build_model(found, build_data(found), 0)


class TestCost:
    @pytest.mark.filterwarnings("ignore:asyncFedDR's alpha")
    @pytest.mark.parametrize("name", list(ud.METHODS))
    @pytest.mark.parametrize(
        "local",
        [
            {"lr": 0.01, "batch_size": 10, "epochs": 2},
            {"lr": 0.01, "batch_size": 7, "steps": 9},
            {"lr": 0.01, "batch_size": 7, "steps": 5, "fresh_batches": True},
            {"solver": "GD", "lr": 0.01, "steps": 3},
        ],
    )
    def test_is_what_the_run_then_costs(self, name, local):
        raw = one_method(name=name)
        raw |= {"local": local, "objective": "clients", "sampling": {}, "target": {}}
        found = Experiment.from_dict(raw)
        self.check(found)

    @pytest.mark.parametrize(
        "method",
        [
            {"name": "SCAFFOLD", "option": "I"},
            {"name": "FedDR", "start": "everyone"},
            {"name": "FedNova", "variance_reduction": True},
            {"name": "FedLGA", "gradient": "last"},
            {"name": "FedAvgMin"},
        ],
    )
    @pytest.mark.parametrize(
        "sampling",
        [{"cohort": 2}, {"kind": "bernoulli", "cohort": 0.5}, {"kind": "fixed", "cohort": [1, 4]}],
    )
    def test_with_the_cohorts_of_the_run(self, method, sampling):
        raw = one_method(**method)
        raw |= {"sampling": sampling, "objective": "clients", "target": {}}
        self.check(Experiment.from_dict(raw))

    def check(self, found):
        data = build_data(found)
        model = build_model(found, data, 0)
        (label, method), *_ = build_methods(found).items()
        cost = estimate(found, data, model).methods[0]
        result = ud.train(
            method,
            model=model,
            data=data,
            local=build_local(found, label),
            cohort=build_sampler(found),
            rounds=found.rounds,
            objective=found.objective,
            progress=False,
        )
        rounds = [record for record in result.records if record.round]
        total = {
            "cohort": sum(len(r.cohort) for r in rounds),
            "gradients": sum(r.gradients for r in rounds),
            "bytes_down": sum(sum(r.bytes_down.values()) for r in rounds),
            "bytes_up": sum(sum(r.bytes_up.values()) for r in rounds),
        }
        for what, number in total.items():
            assert getattr(cost, what) * found.rounds == pytest.approx(number, rel=1e-12), what
        assert cost.seen == len({client for r in rounds for client in r.cohort})

    def test_states_are_the_vectors_of_those_who_took_part(self):
        raw = one_method(name="FedDyn") | {"sampling": {}}
        found = Experiment.from_dict(raw)
        data = build_data(found)
        losses = ModuleLosses(build_model(found, data, 0), data)
        cost = estimate(found, data, losses)
        assert cost.methods[0].state == 6 * losses.dimension * 4
        assert cost.state == 2 * cost.methods[0].state  # two seeds

    def test_the_expected_number_of_clients_seen_in_many_rounds(self):
        raw = one_method(name="FedDyn") | {"rounds": 1000}
        raw["data"] |= {"clients": 5000, "most": 2, "validation": "none"}
        raw["sampling"] = {"cohort": 5}
        found = Experiment.from_dict(raw)
        data = build_data(found)
        cost = estimate(found, data, build_model(found, data, 0))
        assert cost.methods[0].seen == pytest.approx(5000 * (1 - 0.999**1000), rel=1e-6)

    def test_a_method_that_the_data_do_not_allow(self):
        found = Experiment.from_dict(one_method(name="FedLGA") | {"sampling": {}})
        data = build_data(found)
        with pytest.raises(UndriftError, match="q_k differ"):
            estimate(found, data, build_model(found, data, 0))

    def test_the_table_fits_the_terminal(self):
        found = Experiment.from_dict(tables())
        data = build_data(found)
        console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        console.print(estimate(found, data, build_model(found, data, 0)))
        text = console.export_text()
        assert "FedDyn .1" in text
        assert "…" not in text
        console.file.close()


def printed(renderable):
    console = Console(width=80, record=True, quiet=False)
    with console.capture() as caught:
        console.print(renderable)
    return caught.get()


class TestTeaching:
    def test_the_starter_file_runs_as_it_is(self, tmp_path):
        path = tmp_path / "experiment.toml"
        path.write_text(starter())
        found = Experiment.load(path)
        assert found.labels == ["FedAvg", "SCAFFOLD", "FedDyn"]
        data = build_data(found)
        for label, method in build_methods(found).items():
            result = ud.train(
                method,
                model=build_model(found, data, 0),
                data=data,
                local=build_local(found, label),
                cohort=build_sampler(found),
                rounds=10,
                evaluate=build_evaluation(found),
                progress=False,
            )
            assert result.records[-1].metrics["test_accuracy"] > 0.5

    def test_every_line_of_the_starter_file_is_explained(self):
        for line in starter().splitlines():
            if line and not line.startswith(
                ('"local.lr"', "[evaluation]", "[output]", "[[method]]")
            ):
                assert "#" in line

    def test_what_the_starter_file_leaves_as_comments_is_right_too(self, tmp_path):
        text = starter().replace("# label", "label").replace("# local = ", "local = ")
        text = text.replace("# validation", "validation").replace("# [target]", "[target]")
        text = text.replace("# test_accuracy", "test_accuracy").replace("# folder", "folder")
        (tmp_path / "e.toml").write_text(text)
        found = Experiment.load(tmp_path / "e.toml")
        assert found.labels[-1] == "FedDyn 0.1"
        assert found.target == {"test_accuracy": 0.9}

    @pytest.mark.parametrize("group", list(GROUPS))
    def test_everything_is_listed_shown_and_its_example_is_right(
        self, group, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "devices.csv").write_text("client,speed\n0,1\n")
        assert all(about for _, about in names(group))
        for name in GROUPS[group]:
            assert name in printed(listing(group))
            kind = next(kind for kind, of in SINGULAR.items() if of == group)
            assert name in printed(showing(kind, name))
            part = tomllib.loads(example(group, name))
            raw = {
                "data": {"source": "mnist"},
                "model": {"name": "logistic"},
                "local": {"lr": 0.1},
                "method": [{"name": "FedAvg"}],
            }
            for key, value in part.items():
                own = raw.get(key)
                raw[key] = {**own, **value} if isinstance(own, dict) else value
            if group == "data":
                raw["data"] = part["data"]
            if name == "Exact":
                raw["local"] = part["local"]
            Experiment.from_dict(raw)

    def test_a_method_is_shown_with_formula_paper_parameters_and_traffic(self):
        text = printed(showing("method", "FedDR"))
        for words in ("prox", "Tran-Dinh", "alpha", "the relaxation", "keeps: y", "[[method]]"):
            assert words in text

    def test_parameters_that_are_explained_elsewhere(self):
        assert "how the cohort is averaged" in printed(showing("method", "FedProx"))
        assert "their number" in printed(showing("data", "cifar100"))

    def test_a_wrong_word(self):
        with pytest.raises(UndriftError, match="did you mean 'FedDyn'"):
            showing("method", "FedDin")
        with pytest.raises(UndriftError, match="did you mean 'methods'"):
            listing("metods")


class TestSchema:
    def test_the_published_one_is_current(self):
        published = Path(__file__).parents[1] / "docs" / "experiment.schema.json"
        assert published.read_text(encoding="utf-8") == schema_text(), (
            "write it anew: python -m undrift.runs.schema docs/experiment.schema.json"
        )

    def test_every_key_is_described(self):
        schema = json_schema()
        for name, each in schema["properties"].items():
            assert each.get("description") or "$ref" in each, name
        for name in ("DataTable", "ModelTable", "EvaluationTable", "OutputTable", "MethodTable"):
            for key, each in schema["definitions"][name]["properties"].items():
                assert each.get("description"), (name, key)

    def test_it_agrees_with_the_reader(self):
        jsonschema = pytest.importorskip("jsonschema")
        schema = json_schema()
        jsonschema.Draft7Validator.check_schema(schema)
        validator = jsonschema.Draft7Validator(schema)

        def faults(raw):
            return [".".join(map(str, error.path)) for error in validator.iter_errors(raw)]

        raw = json.loads(json.dumps(tables()))
        assert faults(raw) == []
        assert faults(Experiment.from_dict(raw).resolved()) == []
        assert faults(tomllib.loads(starter())) == []
        for path, value in [
            (("rounds",), 0),
            (("rouds",), 1),
            (("data", "alhpa"), 1),
            (("local", "lr"), "fast"),
            (("local", "batchsize"), 1),
            (("method", 1, "alhpa"), 1),
            (("method", 0, "server"), {"name": "Momentun"}),
            (("evaluation", "models"), ["cohrt"]),
        ]:
            assert faults(replaced(raw, path, value)), path
