"""What is shown of devices, paces, limits and systems; the starter file; the schema."""

import json
import tomllib

import pytest
from rich.console import Console

import undrift as ud
from device_experiments import LADDER, alone, tables
from undrift.experiments.experiment import Experiment
from undrift.experiments.schema import json_schema
from undrift.experiments.systems import SYSTEMS
from undrift.experiments.teaching import listing, showing, starter


class TestTeaching:
    @pytest.mark.parametrize(
        ("kind", "name", "words"),
        [
            ("device", "classes", ["[devices.classes.phone]", "share = 0.8"]),
            ("device", "drawn", ["work per second", "availability"]),
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
        assert found.device_profiles().dropout == 0.05
        assert found.paces()["FedAvg"] == ud.Deadline(1)
        assert found.paces()["FedDyn"] == ud.WaitForAll()
        limit = starter().replace("# [limit]", "[limit]").replace("# share", "share")
        assert Experiment.from_dict(tomllib.loads(limit)).limits() == ud.Unfinished(0.5)

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
