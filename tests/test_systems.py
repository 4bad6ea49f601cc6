"""The published systems that experiment files can name."""

from copy import deepcopy

import pytest

import undrift as ud
from device_experiments import alone, round_trip
from undrift.devices import Ladder, LogNormal, Normal
from undrift.experiments.building import build_data, build_model
from undrift.experiments.experiment import Experiment
from undrift.experiments.systems import SYSTEMS


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
        result = ud.train(
            found.methods()["FedAvg"],
            model=build_model(found, data, 0),
            data=data,
            local=found.local_of("FedAvg"),
            cohort=found.cohort(),
            limit=found.limits(),
            devices=found.device_profiles(),
            pace=found.paces(),
            rounds=2,
            progress=False,
        )
        assert [record.round for record in result.records] == [0, 1, 2]
        assert name in ("feddyn",) or result.records[2].steps > 0

    def test_what_they_mean(self):
        def found(name):
            raw = alone(devices=None, sampling=None, system=name)
            del raw["local"]["epochs"]
            return Experiment.from_dict(raw)

        first = found("fedavg-first")
        assert first.paces() == {"FedAvg": ud.FirstToRespond(30)}
        assert isinstance(first.device_profiles().speed, LogNormal)
        assert first.cohort() == ud.All()
        fixed = found("fednova-fixed")
        assert fixed.device_profiles() == ud.Devices(speed=Normal(30, 20, 1, 96))
        assert fixed.paces() == {"FedAvg": ud.Deadline(1.0)}
        assert fixed.local_of("FedAvg").steps == 96
        steps = found("fednova-random").local_of("FedAvg").steps
        assert steps == ud.NormalAmount(30, 20, 1, 96)
        assert found("fednova-epochs").local_of("FedAvg").epochs == ud.UniformAmount(2, 5)
        assert found("fednova-synthetic").local_of("FedAvg").epochs == ud.UniformAmount(1, 5)
        assert found("feddyn").cohort() == ud.Bernoulli(0.1)
        assert found("feddr-async").device_profiles() == ud.Devices(speed=Ladder(50, 100))
        assert found("feddr-async").paces() == {}
        lga = found("fedlga")
        assert (lga.limits(), lga.local_of("FedAvg").epochs) == (ud.Unfinished(0.5), 5)

    def test_the_file_has_the_last_word(self):
        raw = alone(devices={"jitter": 0.5}, sampling={"cohort": 3}, system="fedavg-first")
        raw["pace"] = {"kind": "first", "replies": 2}
        found = Experiment.from_dict(raw)
        assert found.device_profiles() == ud.Devices(speed=LogNormal(100, 0.5), jitter=0.5)
        assert found.paces()["FedAvg"] == ud.FirstToRespond(2)
        assert found.cohort() == 3
        raw["pace"] = {"kind": "deadline", "seconds": 3}
        assert Experiment.from_dict(raw).paces()["FedAvg"] == ud.Deadline(3)
        raw = alone(devices="none", system="feddr-async")
        assert Experiment.from_dict(raw).device_profiles() is None
        raw = alone(devices=None, system="fednova-random")
        assert Experiment.from_dict(raw).local_of("FedAvg").epochs == 2
        raw["local"] = {"solver": "Exact"}
        assert isinstance(Experiment.from_dict(raw).local_of("FedAvg"), ud.Exact)
        raw = alone(devices=None, sampling={"cohort": 0.5}, system="feddyn")
        assert Experiment.from_dict(raw).cohort() == ud.Bernoulli(0.5)

    def test_a_presets_tables_are_not_changed_by_using_them(self):
        before = deepcopy({name: each.tables for name, each in SYSTEMS.items()})
        for name in SYSTEMS:
            Experiment.from_dict(alone(devices=None, sampling=None, system=name))
        assert before == {name: each.tables for name, each in SYSTEMS.items()}
