"""Devices, paces, limits, drawn work and systems in experiment files."""

import json
import signal
import subprocess
import sys
import tomllib
from copy import deepcopy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

import undrift as ud
from commands import called
from undrift.devices import Always, Between, Duty, Ladder, LogNormal, Normal
from undrift.errors import UndriftError
from undrift.records import Record
from undrift.runs.building import (
    build_data,
    build_devices,
    build_limit,
    build_local,
    build_methods,
    build_model,
    build_paces,
    build_sampler,
)
from undrift.runs.cost import duration, estimate
from undrift.runs.experiment import Experiment
from undrift.runs.fleets import summary
from undrift.runs.planning import plan_of
from undrift.runs.schema import json_schema
from undrift.runs.teaching import listing, showing, starter
from undrift.systems import SYSTEMS

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WORDS = ("none", "drawn", "classes", "file", "all", "first", "duty", "ladder", "same", "uniform")


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


def refused(raw, settings=None):
    with pytest.raises(UndriftError) as caught:
        Experiment.from_dict(raw, settings)
    return str(caught.value)


def round_trip(raw, tmp_path):
    found = Experiment.from_dict(raw)
    found.write(tmp_path / "experiment.toml")
    again = Experiment.load(tmp_path / "experiment.toml")
    assert again == found
    assert again.resolved() == found.resolved()
    assert build_devices(again) == build_devices(found)
    assert build_paces(again) == build_paces(found)
    assert build_limit(again) == build_limit(found)
    for label in found.labels:
        assert build_local(again, label) == build_local(found, label)
    return found


class TestWhatIsBuilt:
    def test_devices_and_paces_by_label(self, tmp_path):
        found = round_trip(tables(), tmp_path)
        plan = plan_of(found, build_data(found))
        assert plan.devices == ud.Devices(speed=Ladder(5, 20), latency=Between(0.0, 0.1), up=1e5)
        assert plan.paces == {
            "FedAvg": ud.Deadline(0.5),
            "first": ud.FirstToRespond(3),
            "FedBuff": ud.AsTheyArrive(concurrency=4),
            "FedAsync": ud.AsTheyArrive(),
        }
        assert plan.limit is None

    def test_without_the_tables_there_is_nothing(self, tmp_path):
        found = round_trip(alone(devices=None), tmp_path)
        assert not {"devices", "pace", "limit", "system"} & found.resolved().keys()
        plan = plan_of(found, build_data(found))
        assert (plan.devices, plan.paces, plan.limit) == (None, {}, None)

    def test_every_default_is_written_out(self):
        found = Experiment.from_dict(tables()).resolved()
        assert found["devices"]["kind"] == "drawn"
        assert found["devices"]["dropout"] == 0.0
        assert found["devices"]["availability"] == {"kind": "always"}
        assert found["pace"] == {
            "kind": "deadline",
            "seconds": 0.5,
            "late": "partial",
            "min_replies": 1,
        }
        assert found["method"][3]["pace"] == {"kind": "asynchronous", "stale": "wait"}

    def test_every_quantity_and_availability(self, tmp_path):
        table = {
            "speed": {"law": "normal", "mean": 30, "std": 20, "low": 1, "high": 96},
            "unit": "samples",
            "down": {"law": "lognormal", "median": 1e6, "sigma": 1.0},
            "up": "none",
            "jitter": 0.2,
            "dropout": {"law": "between", "low": 0, "high": 0.1},
            "damage": 0.01,
            "lifetime": 1e6,
            "availability": {"kind": "duty", "period": 100, "share": 0.5, "together": True},
            "size_correlation": -0.5,
            "seed": 7,
        }
        found = round_trip(alone(devices=table), tmp_path)
        assert build_devices(found) == ud.Devices(
            speed=Normal(30, 20, 1, 96),
            unit="samples",
            down=LogNormal(1e6, 1.0),
            jitter=0.2,
            dropout=Between(0, 0.1),
            damage=0.01,
            lifetime=1e6,
            availability=Duty(100, 0.5, True),
            size_correlation=-0.5,
            seed=7,
        )

    def test_classes(self, tmp_path):
        (tmp_path / "e.toml").write_text(
            '[data]\nsource = "synthetic"\nclients = 10\n[model]\nname = "logistic"\n'
            '[local]\nlr = 0.1\n[[method]]\nname = "FedAvg"\n'
            '[devices]\nkind = "classes"\nsize_correlation = 0.5\n'
            "[devices.classes.phone]\nshare = 0.7\nspeed = 2\nlatency = 0.1\n"
            "[devices.classes.laptop]\nshare = 0.3\n"
            'speed = {law = "ladder", slowest = 10, fastest = 20}\n'
        )
        found = Experiment.load(tmp_path / "e.toml")
        phone, laptop = ud.Devices(speed=2, latency=0.1), ud.Devices(speed=Ladder(10, 20))
        wanted = ud.DeviceClasses({"phone": (0.7, phone), "laptop": (0.3, laptop)}, 0.5)
        assert build_devices(found) == wanted
        assert build_devices(round_trip(found.resolved(), tmp_path)) == wanted

    def test_the_file_of_devices_is_seen_from_the_experiment(self, tmp_path):
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / "d.csv").write_text("device,speed\na,2\nb,8\n")
        (tmp_path / "here" / "w.csv").write_text("device,from,to\na,0,9\nb,0,10\n")
        raw = alone()
        raw["devices"] = {
            "kind": "file",
            "path": "d.csv",
            "windows": "w.csv",
            "repeat": 10,
            "match": "random",
        }
        found = Experiment.from_dict(raw, folder=tmp_path / "here")
        table = found.resolved()["devices"]
        assert table["path"] == str(tmp_path / "here" / "d.csv")
        assert table["windows"] == str(tmp_path / "here" / "w.csv")
        round_trip(found.resolved(), tmp_path)
        devices = build_devices(found)
        data = build_data(found)
        fleet = devices.fleet(ud.clients.Roster(data.ids, data.train.sizes), 0)
        assert {*fleet.speed} == {2.0, 8.0}
        with pytest.raises(UndriftError, match=r"^devices\.path: There is no file .*/d\.csv"):
            Experiment.from_dict(raw, folder=tmp_path)

    def test_drawn_local_work(self, tmp_path):
        raw = alone(
            local={"lr": 0.1, "epochs": {"amount": "uniform", "low": 2, "high": 5}},
            method={"local": {"steps": {"amount": "normal", "mean": 30, "std": 20, "high": 96}}},
        )
        raw["method"].append({"name": "FedProx"})
        found = round_trip(raw, tmp_path)
        assert build_local(found, "FedProx").epochs == ud.UniformAmount(2, 5)
        changed = build_local(found, "FedAvg")
        assert changed.steps == ud.NormalAmount(30, 20, high=96)
        assert changed.epochs is None
        resolved = found.resolved()
        assert resolved["local"]["epochs"]["per"] == "round"
        assert resolved["method"][0]["local"]["steps"]["low"] == 1

    def test_a_limit(self, tmp_path):
        found = round_trip(alone(limit={"longest": 2}), tmp_path)
        assert build_limit(found) == ud.Unfinished(0.5, 2)
        assert build_limit(round_trip(alone(limit={"share": 0.2}), tmp_path)) == ud.Unfinished(0.2)

    def test_a_pace_of_all_and_a_methods_own(self):
        raw = tables(method=[{"name": "FedAvg"}, {"name": "FedProx", "pace": "all"}])
        assert build_paces(Experiment.from_dict(raw)) == {
            "FedAvg": ud.Deadline(0.5),
            "FedProx": ud.WaitForAll(),
        }


class TestSettings:
    def test_a_part_of_a_word(self):
        found = Experiment.from_dict(
            tables(), {"method.FedAsync.pace.concurrency": 3, "devices.availability.kind": "always"}
        )
        assert build_paces(found)["FedAsync"] == ud.AsTheyArrive(concurrency=3)
        assert build_devices(found).availability == Always()

    def test_drawn_steps_take_the_place_of_epochs(self):
        keys = {"amount": "uniform", "low": 1, "high": 3}
        found = Experiment.from_dict(alone(), {f"local.steps.{k}": v for k, v in keys.items()})
        assert build_local(found, "FedAvg").steps == ud.UniformAmount(1, 3)

    def test_tables_can_be_switched_off(self):
        found = Experiment.from_dict(alone(), {"devices": None, "limit": "none", "pace": None})
        assert not {"devices", "pace", "limit"} & found.resolved().keys()

    def test_a_methods_pace_can_be_swept(self):
        key = "method.first.pace.replies"
        assert Experiment.from_dict(tables(sweep={key: [1, 2]})).sweep == {key: [1, 2]}
        said = refused(tables(sweep={key: [1, 0]}))
        assert said.startswith(f"sweep.{key}: With 0: {key}:")


LADDER = {"law": "ladder", "slowest": 1, "fastest": 2}


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("changes", "path", "words"),
        [
            ({"devices.kind": "drwan"}, "devices.kind", "did you mean 'drawn'?"),
            ({"devices.sped": 1}, "devices.sped", "did you mean 'speed'?"),
            ({"devices.speed": 0}, "devices.speed", "above 0"),
            ({"devices.speed": "fast"}, "devices.speed", "a number above 0"),
            ({"devices.speed": {"slowest": 1}}, "devices.speed.law", "one of 'same', 'ladder'"),
            ({"devices.speed.law": "lader"}, "devices.speed.law", "did you mean 'ladder'?"),
            ({"devices.speed.fastest": -1}, "devices.speed.fastest", "at least 0"),
            ({"devices.speed": {"law": "ladder"}}, "devices.speed.slowest", "is missing"),
            ({"devices.dropout": 2}, "devices.dropout", "at most 1"),
            ({"devices.unit": "step"}, "devices.unit", "did you mean 'steps'?"),
            ({"devices.availability": "alwys"}, "devices.availability.kind", "'always'?"),
            ({"devices.availability": "duty"}, "devices.availability.period", "is missing"),
            ({"devices": 3}, "devices", "a table"),
            ({"devices": {"kind": "classes"}}, "devices.classes", "[devices.classes.phone]"),
            ({"devices": {"kind": "file"}}, "devices.path", "is missing"),
            ({"pace.kind": "deadlin"}, "pace.kind", "did you mean 'deadline'?"),
            ({"pace": {"seconds": 1}}, "pace.kind", "one of 'all', 'deadline'"),
            ({"pace": {"kind": "deadline"}}, "pace.seconds", "is missing"),
            ({"pace.seconds": 0}, "pace.seconds", "above 0"),
            ({"pace.late": "partly"}, "pace.late", "did you mean 'partial'?"),
            ({"pace.replies": 3}, "pace.replies", "one of 'seconds'"),
            ({"pace": 3}, "pace", "a table such as"),
            ({"method.first.pace.replies": 0}, "method.first.pace.replies", "at least 1"),
            ({"method.first.pace": "first"}, "method.first.pace.replies", "is missing"),
            ({"limit.share": 1.5}, "limit.share", "at most 1"),
            ({"limit.longest": 0}, "limit.longest", "at least 1"),
            ({"limit.shar": 0.5}, "limit.shar", "did you mean 'share'?"),
            ({"system": "fedlag"}, "system", "did you mean 'fedlga'?"),
            ({"local.epochs": {"amount": "unifrm"}}, "local.epochs.amount", "'uniform'?"),
            ({"local.epochs": {"low": 1}}, "local.epochs.amount", "'uniform', 'normal'"),
            (
                {"local.epochs": {"amount": "uniform", "low": 3, "high": 2}},
                "local.epochs.high",
                "at least 3",
            ),
            ({"sweep": {"system": ["fedlga"]}}, "sweep.system", "cannot be varied"),
        ],
    )
    def test_a_sentence_with_the_path_and_what_is_allowed(self, changes, path, words):
        first = refused(tables(), changes).splitlines()[0]
        assert first.startswith((f"{path}:", f"{path} ")), first
        assert words in first
        assert first.endswith((".", "?"))

    @pytest.mark.parametrize(
        ("classes", "path", "words"),
        [
            ({"phone": {"share": 0.7}, "pc": {"share": 0.7}}, "devices.classes", "add up to 1.4"),
            ({"phone": {"speed": 1}}, "devices.classes.phone.share", "is missing"),
            ({"phone": {"share": 0}}, "devices.classes.phone.share", "above 0"),
            ({"phone": {"share": 1, "sped": 1}}, "devices.classes.phone.sped", "'speed'?"),
            (
                {"phone": {"share": 1, "speed": LADDER | {"x": 1}}},
                "devices.classes.phone.sp",
                "'x'",
            ),
            ({"phone": 1}, "devices.classes.phone", "a table with a share"),
            (3, "devices.classes", "must be tables"),
        ],
    )
    def test_classes_that_are_wrong(self, classes, path, words):
        said = refused(alone(devices={"kind": "classes", "classes": classes}))
        assert said.startswith(path), said
        assert words in said

    @pytest.mark.parametrize(
        "pace", [{"kind": "deadline", "seconds": 1}, {"kind": "first", "replies": 1}]
    )
    def test_a_pace_that_needs_a_clock(self, pace):
        said = refused(alone(devices=None, pace=pace))
        assert said.startswith("pace: ") and "needs a clock" in said and "[devices]" in said
        said = refused(alone(devices=None, method={"pace": pace}))
        assert said.startswith("method.FedAvg.pace: ")

    @pytest.mark.parametrize("name", ["FedAvg", "SCAFFOLD", "FedDyn"])
    def test_a_synchronous_method_asked_to_run_asynchronously(self, name):
        method = ud.METHODS[name]()
        for raw in (alone(name, pace="asynchronous"), alone(name, method={"pace": "asynchronous"})):
            said = refused(raw)
            assert said.startswith(f"method.{name}: {name} cannot take in replies one by one")
            assert method.why_synchronous in said

    def test_a_method_that_needs_everyone_with_a_pace_or_devices_that_lose_some(self):
        Experiment.from_dict(alone("FedPD"))
        said = refused(alone("FedPD", pace={"kind": "first", "replies": 3}))
        assert said.startswith("method.FedPD: FedPD is defined only when every client")
        for device in (
            {"dropout": 0.1},
            {"availability": {"kind": "duty", "period": 1, "share": 0.5}},
        ):
            assert "FedPD is defined only" in refused(alone("FedPD", devices=device))

    def test_a_limit_in_asynchronous_training(self):
        said = refused(alone("FedBuff", limit={}))
        assert said.startswith("limit: A limit is for rounds, but FedBuff runs asynchronously")
        Experiment.from_dict(alone("FedBuff", limit={}, pace="all"))

    def test_a_limit_longer_than_the_work(self):
        assert refused(alone(limit={"longest": 3})).startswith("limit.longest is 3, but a client")
        work = {"lr": 0.1, "epochs": {"amount": "uniform", "low": 2, "high": 5}}
        assert "asked for 2 only" in refused(alone(local=work, limit={"longest": 3}))

    @pytest.mark.parametrize(
        "sampling",
        [
            {"kind": "bernoulli", "cohort": 0.5},
            {"kind": "weighted", "cohort": 2},
            {"kind": "fixed", "cohort": [0, 1]},
        ],
    )
    def test_other_samplings_in_asynchronous_training(self, sampling):
        said = refused(alone("FedAsync", sampling=sampling))
        assert said.startswith("sampling.kind: FedAsync runs asynchronously")
        Experiment.from_dict(alone("FedAsync", sampling={"cohort": 2}))

    def test_a_delay_that_cannot_be_kept_as_the_loop_says_it(self):
        pace = {"kind": "asynchronous", "max_delay": 6}
        said = refused(alone("FedAsync", pace=pace))
        assert said.startswith("pace.max_delay: AsTheyArrive's max_delay is 6, but with 8 clients")
        own = refused(alone("FedAsync", method={"pace": pace}))
        assert own.startswith("method.FedAsync.pace.max_delay: AsTheyArrive's max_delay is 6")
        found = Experiment.from_dict(alone("FedAsync", pace=pace | {"max_delay": 7}))
        data = build_data(found)
        with pytest.raises(UndriftError) as caught:
            ud.train(
                ud.FedAsync(),
                model=build_model(found, data, 0),
                data=data,
                local=build_local(found, "FedAsync"),
                pace=ud.AsTheyArrive(max_delay=6),
                rounds=0,
            )
        assert str(caught.value).endswith(said.partition(": ")[2])
        for fine in ({"stale": "discard"}, {"concurrency": 7}, {"buffer": 2}):
            Experiment.from_dict(alone("FedAsync", pace=pace | fine))

    def test_step_sizes_for_another_number_of_clients(self):
        own = {"smoothness": 1.0, "clients": 9, "delay": 8}
        assert "AsyncFedDR's clients is 9, but there are 8" in refused(
            alone("AsyncFedDR", method=own)
        )


JUNK = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 3), st.floats(), st.sampled_from(WORDS), st.text()
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(["kind", "law", "share", "classes", "path", "speed", "amount", "low"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)
PLACES = [
    "system",
    "devices",
    "devices.kind",
    "devices.classes",
    "devices.classes.a",
    "devices.path",
    "devices.speed",
    "devices.availability",
    "devices.availability.kind",
    "pace",
    "pace.kind",
    "pace.seconds",
    "limit",
    "limit.share",
    "limit.longest",
    "local.epochs",
    "local.steps",
    "sampling.kind",
    "method.0.pace",
    "method.FedBuff.pace.max_delay",
    "method.FedBuff.pace.buffer",
]


@QUICK
@given(changes=st.dictionaries(st.sampled_from(PLACES), JUNK, min_size=1, max_size=3))
def test_anything_anywhere_is_accepted_or_refused_in_words(changes, tmp_path):
    said = "an experiment."
    try:
        round_trip(Experiment.from_dict(tables(), changes).resolved(), tmp_path)
    except UndriftError as error:
        said = str(error)
    assert "cannot be understood" not in said  # the last resort of the reader
    assert all(line.strip() for line in said.split("\n"))


class TestSystems:
    @pytest.mark.parametrize("name", list(SYSTEMS))
    def test_each_runs_and_is_written_out_in_full(self, name, tmp_path):
        raw = alone(devices=None, sampling=None, system=name, rounds=2)
        del raw["local"]["epochs"]
        found = round_trip(raw, tmp_path)
        resolved = found.resolved()
        assert "system" not in resolved
        for key, table in SYSTEMS[name].tables.items():
            for inner, value in table.items():
                got = resolved[key][inner]
                assert got == value or got == {**got, **value}
        data = build_data(found)
        plan = plan_of(found, data)
        result = ud.train(
            plan.methods["FedAvg"],
            model=plan.model(0),
            data=data,
            local=plan.local["FedAvg"],
            cohort=plan.cohort,
            limit=plan.limit,
            devices=plan.devices,
            pace=plan.paces,
            rounds=2,
            progress=False,
        )
        assert [record.round for record in result.records] == [0, 1, 2]
        assert name in ("feddyn",) or result.records[2].steps > 0

    def test_what_they_mean(self):
        def found(name):
            raw = alone(devices=None, sampling=None, system=name)
            del raw["local"]["epochs"]
            experiment = Experiment.from_dict(raw)
            return plan_of(experiment, build_data(experiment))

        first = found("fedavg-first")
        assert first.paces == {"FedAvg": ud.FirstToRespond(30)}
        assert isinstance(first.devices.speed, LogNormal)
        assert first.cohort == ud.All()
        fixed = found("fednova-fixed")
        assert fixed.devices == ud.Devices(speed=Normal(30, 20, 1, 96))
        assert fixed.paces == {"FedAvg": ud.Deadline(1.0)}
        assert fixed.local["FedAvg"].steps == 96
        steps = found("fednova-random").local["FedAvg"].steps
        assert steps == ud.NormalAmount(30, 20, 1, 96)
        assert found("fednova-epochs").local["FedAvg"].epochs == ud.UniformAmount(2, 5)
        assert found("fednova-synthetic").local["FedAvg"].epochs == ud.UniformAmount(1, 5)
        assert found("feddyn").cohort == ud.Bernoulli(0.1)
        assert found("feddr-async").devices == ud.Devices(speed=Ladder(50, 100))
        assert found("feddr-async").paces == {}
        lga = found("fedlga")
        assert (lga.limit, lga.local["FedAvg"].epochs) == (ud.Unfinished(0.5), 5)

    def test_the_file_has_the_last_word(self):
        raw = alone(devices={"jitter": 0.5}, sampling={"cohort": 3}, system="fedavg-first")
        raw["pace"] = {"kind": "first", "replies": 2}
        found = Experiment.from_dict(raw)
        assert build_devices(found) == ud.Devices(speed=LogNormal(100, 0.5), jitter=0.5)
        assert build_paces(found)["FedAvg"] == ud.FirstToRespond(2)
        assert build_sampler(found) == 3
        raw["pace"] = {"kind": "deadline", "seconds": 3}
        assert build_paces(Experiment.from_dict(raw))["FedAvg"] == ud.Deadline(3)
        raw = alone(devices="none", system="feddr-async")
        assert build_devices(Experiment.from_dict(raw)) is None
        raw = alone(devices=None, system="fednova-random")
        assert build_local(Experiment.from_dict(raw), "FedAvg").epochs == 2
        raw["local"] = {"solver": "Exact"}
        assert isinstance(build_local(Experiment.from_dict(raw), "FedAvg"), ud.Exact)
        raw = alone(devices=None, sampling={"cohort": 0.5}, system="feddyn")
        assert build_sampler(Experiment.from_dict(raw)) == ud.Bernoulli(0.5)

    def test_a_presets_tables_are_not_changed_by_using_them(self):
        before = deepcopy({name: each.tables for name, each in SYSTEMS.items()})
        for name in SYSTEMS:
            Experiment.from_dict(alone(devices=None, sampling=None, system=name))
        assert before == {name: each.tables for name, each in SYSTEMS.items()}


CLOCKS = {
    "plain": {},
    "unsteady": {
        "jitter": 0.3,
        "dropout": 0.1,
        "availability": {"kind": "duty", "period": 3.0, "share": 0.6},
    },
    "samples": {"unit": "samples", "speed": 100, "down": 5e4},
}
METHODS = {
    "all": {"name": "FedAvg"},
    "deadline": {"name": "FedAvg", "pace": {"kind": "deadline", "seconds": 0.4}},
    "dropped": {"name": "FedDyn", "pace": {"kind": "deadline", "seconds": 0.9, "late": "dropped"}},
    "first": {"name": "FedAvg", "pace": {"kind": "first", "replies": 3}},
    "enough": {"name": "FedAvg", "pace": {"kind": "first", "replies": 4, "min_replies": 4}},
    "everyone at once": {"name": "FedAsync"},
    "some at once": {"name": "FedBuff", "pace": {"kind": "asynchronous", "concurrency": 3}},
    "longer rounds": {"name": "FedAsync", "pace": {"kind": "asynchronous", "replies": 11}},
}


class TestCost:
    @pytest.mark.parametrize("clock", list(CLOCKS))
    @pytest.mark.parametrize("method", list(METHODS))
    @pytest.mark.parametrize("sampling", [{"kind": "all"}, {"kind": "uniform", "cohort": 5}])
    def test_is_what_the_run_then_costs(self, clock, method, sampling):
        raw = alone(sampling=sampling, rounds=6)
        raw["devices"] |= CLOCKS[clock]
        raw["local"]["epochs"] = {"amount": "uniform", "low": 1, "high": 3}
        raw["method"] = [METHODS[method]]
        found = Experiment.from_dict(raw)
        data = build_data(found)
        model = build_model(found, data, 0)
        cost = estimate(found, data, model).methods[0]
        (label,) = found.labels
        result = ud.train(
            build_methods(found)[label],
            model=model,
            data=data,
            local=build_local(found, label),
            cohort=build_sampler(found),
            devices=build_devices(found),
            pace=build_paces(found),
            rounds=6,
            progress=False,
        )
        rounds = result.records[1:]
        total = {
            "cohort": sum(len(r.cohort) for r in rounds),
            "gradients": sum(r.gradients for r in rounds),
            "bytes_down": sum(sum(r.bytes_down.values()) for r in rounds),
            "bytes_up": sum(sum(r.bytes_up.values()) for r in rounds),
            "seconds": rounds[-1].virtual_seconds,
        }
        assert total["gradients"] > 0
        for what, number in total.items():
            assert getattr(cost, what) * 6 == pytest.approx(number, rel=1e-9), what

    def test_a_limit_costs_less(self):
        found, limited = (
            Experiment.from_dict(alone(devices=None, limit=limit, local={"lr": 0.1, "epochs": 5}))
            for limit in (None, {"share": 1.0})
        )
        data = build_data(found)
        model = build_model(found, data, 0)
        full, less = (estimate(each, data, model).gradients for each in (found, limited))
        # τ is uniform on {1 … 4}, so that 5 − τ + 1 epochs are 3.5 on average.
        assert 0.5 < less / full < 0.9

    def test_time_is_shown_where_there_is_a_clock_and_fits(self):
        console = Console(width=80)
        for raw, clock in ((tables(), True), (alone(devices=None), False)):
            found = Experiment.from_dict(raw)
            data = build_data(found)
            cost = estimate(found, data, build_model(found, data, 0))
            with console.capture() as caught:
                console.print(cost)
            assert ("time of a round" in caught.get()) == clock
            assert ("asynchronous" in caught.get()) == clock
            assert "…" not in caught.get()
            assert (cost.as_dict()["methods"][0]["seconds"] is None) != clock

    def test_devices_that_cannot_be_are_refused_with_their_place(self):
        found = Experiment.from_dict(alone(devices={"speed": LADDER | {"slowest": 0}}))
        data = build_data(found)
        with pytest.raises(UndriftError, match=r"^devices: The speed of client \d is 0\.0"):
            estimate(found, data, build_model(found, data, 0))

    def test_durations(self):
        assert [duration(each) for each in (0.25, 100, 600, 9000, 864000)] == [
            "0.25 s",
            "100 s",
            "10 min",
            "2.5 h",
            "10 d",
        ]


class TestTeaching:
    @pytest.mark.parametrize(
        ("kind", "name", "words"),
        [
            ("device", "classes", ["[devices.classes.phone]", "share = 0.8"]),
            ("device", "drawn", ["how much a device computes", "availability"]),
            ("pace", "deadline", ["seconds", "[pace]", 'late = "partial"']),
            ("pace", "asynchronous", ["max_delay", "FedBuff"]),
            ("law", "ladder", ['law = "ladder"', "slowest"]),
            ("amount", "normal", ['amount = "normal"', "std"]),
            ("availability", "duty", ["period", 'kind = "duty"']),
            ("system", "fedlga", ["Half of every cohort", "[limit]", "share = 0.5", "epochs = 5"]),
            ("method", "FedBuff", ["Runs asynchronously"]),
        ],
    )
    def test_is_shown(self, kind, name, words):
        console = Console(width=80)
        with console.capture() as caught:
            console.print(showing(kind, name))
        for each in words:
            assert each in caught.get()

    def test_a_systems_tables_are_shown_as_they_are(self):
        for name, system in SYSTEMS.items():
            console = Console(width=200)
            with console.capture() as caught:
                console.print(showing("system", name))
            shown = caught.get().partition("otherwise:")[2]
            assert tomllib.loads(shown) == json.loads(json.dumps(system.tables, default=dict))
        with console.capture() as caught:
            console.print(listing("systems"))
        assert all(name in caught.get() for name in SYSTEMS)

    def test_what_the_starter_file_leaves_as_comments_is_right_too(self):
        text = starter()
        for key in ("[devices]", "speed", "dropout", "[pace]", "kind", "seconds", "system", "pace"):
            assert f"# {key}" in text
            text = text.replace(f"# {key}", key)
        found = Experiment.from_dict(tomllib.loads(text))
        assert build_devices(found).dropout == 0.05
        assert build_paces(found)["FedAvg"] == ud.Deadline(1)
        assert build_paces(found)["FedDyn"] == ud.WaitForAll()
        limit = starter().replace("# [limit]", "[limit]").replace("# share", "share")
        assert build_limit(Experiment.from_dict(tomllib.loads(limit))) == ud.Unfinished(0.5)

    def test_the_schema_agrees_with_the_reader(self):
        jsonschema = pytest.importorskip("jsonschema")
        validator = jsonschema.Draft7Validator(json_schema())

        def faults(raw):
            return [error.message for error in validator.iter_errors(json.loads(json.dumps(raw)))]

        drawn = {"amount": "uniform", "low": 2, "high": 5}
        classes = {"kind": "classes", "classes": {"a": {"share": 1, "speed": LADDER}}}
        for raw in (
            tables(limit={"share": 0.5}),
            tables(system="fedlga", local={"lr": 0.1, "epochs": drawn}),
            alone(devices=classes),
            alone(devices={"kind": "file", "path": "x.csv"}),
            alone(devices="none", limit="none"),
        ):
            assert faults(raw) == []
        assert faults(Experiment.from_dict(tables()).resolved()) == []
        assert faults(Experiment.from_dict(alone(devices=classes)).resolved()) == []
        for raw in (
            tables(system="fedlag"),
            tables(pace={"kind": "deadline"}),
            tables(pace="deadline"),
            tables(limit={"shar": 1}),
            alone(devices={"sped": 1}),
            alone(devices={"speed": {"law": "lader"}}),
            alone(devices={"kind": "classes", "classes": {"a": {"speed": 1}}}),
            alone(local={"lr": 0.1, "epochs": {"amount": "uniform"}}),
            alone(method={"pace": {"kind": "first"}}),
        ):
            assert faults(raw), raw


EXPERIMENT = """
rounds = 6

[data]
source = "synthetic"
clients = 8
most = 60

[model]
name = "logistic"

[local]
lr = 0.02
batch_size = 10
epochs = { amount = "uniform", low = 1, high = 3 }

[devices]
speed = { law = "ladder", slowest = 10, fastest = 40 }
jitter = 0.2
dropout = 0.05

[pace]
kind = "deadline"
seconds = 0.3

[[method]]
name = "FedAvg"

[[method]]
name = "FedAvg"
label = "first"
pace = { kind = "first", replies = 3 }

[[method]]
name = "AsyncFedDR"
smoothness = 1.0
clients = 8
delay = 7
pace = { kind = "asynchronous", max_delay = 7 }

[[method]]
name = "FedBuff"
buffer = 2
pace = { kind = "asynchronous", concurrency = 4 }
"""
LABELS = ("FedAvg", "first", "AsyncFedDR", "FedBuff")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    return tmp_path


def records(folder, label):
    lines = (folder / label / "seed-0" / "records.jsonl").read_text().splitlines()
    found = [Record.from_json(line) for line in lines]
    for record in found:
        record.seconds = 0.0
    return found


class TestTheCommandLine:
    def test_runs_on_a_clock_and_goes_on_after_an_interrupt(self, place):
        done = called("run", "exp.toml", "--out", "whole", cwd=place)
        assert done.returncode == 0, done.stderr
        whole = {label: records(place / "whole", label) for label in LABELS}
        for found in whole.values():
            assert [record.round for record in found] == list(range(7))
            times = [record.virtual_seconds for record in found]
            assert times == sorted(times) and times[-1] > 0
        assert whole["FedAvg"][-1].virtual_seconds <= 6 * 0.3 + 1e-9
        assert sum(record.partial for record in whole["FedAvg"]) > 0
        for record in whole["first"][1:]:
            assert (len(record.cohort), len(record.cohort) - len(record.lost)) == (8, 3)
        assert all(len(record.cohort) == 4 for record in whole["FedBuff"][1:])
        assert max(max(record.staleness, default=0) for record in whole["AsyncFedDR"]) > 0

        start = [sys.executable, "-m", "undrift", "run", "exp.toml", "--out", "out", "--json"]
        for end in (signal.SIGINT, signal.SIGKILL):
            process = subprocess.Popen(
                start, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            label = "first" if end == signal.SIGINT else "FedBuff"
            while json.loads(process.stdout.readline())["label"] != label:
                pass
            process.send_signal(end)
            process.communicate()
        done = called("resume", "out", cwd=place)
        assert done.returncode == 0, done.stderr
        for label in LABELS:
            assert records(place / "out", label) == whole[label]
        page = called("report", "out", "--out", "page.html", cwd=place)
        assert page.returncode == 0, page.stderr

    def test_a_dry_run_tells_the_time(self, place):
        done = called("run", "exp.toml", "--dry-run", cwd=place)
        assert done.returncode == 0, done.stderr
        assert 'law = "ladder"' in done.stdout
        assert "time of a round" in done.stdout
        assert not (place / "runs").exists()

    def test_inspect_tells_of_the_devices(self, place):
        done = called("inspect", "exp.toml", cwd=place)
        assert done.returncode == 0, done.stderr
        assert "steps a second" in done.stdout
        assert "fastest/slowest 4" in done.stdout.replace("\n", " ")
        assert max(len(line) for line in done.stdout.splitlines()) <= 80
        found = json.loads(called("inspect", "exp.toml", "--json", cwd=place).stdout)["devices"]
        assert (found["speed"]["slowest"], found["speed"]["fastest"]) == (10.0, 40.0)
        assert {*found["rounds"]} == {*LABELS}
        off = called(
            "inspect", "exp.toml", "--set", "devices=none", "--set", "pace=none", cwd=place
        )
        assert off.returncode == 2  # a pace of "first" needs them
        one = Experiment.load(place / "exp.toml", {"pace.seconds": 0.1})
        assert 0 < summary(one, build_data(one)).rounds["FedAvg"] <= 0.1 + 1e-9

    def test_systems_are_listed_shown_and_run(self, place):
        assert "fednova-fixed" in called("list", "systems", cwd=place).stdout
        assert "seconds = 1.0" in called("show", "system", "fednova-fixed", cwd=place).stdout
        text = EXPERIMENT.partition("[devices]")[0].replace('epochs = { amount = "uniform"', "# {")
        (place / "lga.toml").write_text(f'system = "fedlga"\n{text}\n[[method]]\nname = "FedLGA"\n')
        options = ("--set", "objective=clients", "--set", "local.lr=0.001")
        done = called("run", "lga.toml", *options, "--out", "lga", cwd=place)
        assert done.returncode == 0, done.stderr
        assert any(record.partial for record in records(place / "lga", "FedLGA"))
        resolved = tomllib.loads((place / "lga" / "experiment.toml").read_text())
        assert resolved["limit"] == {"share": 0.5}
        assert resolved["local"]["epochs"] == 5
        assert "system" not in resolved
