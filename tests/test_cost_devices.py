"""What an experiment on a clock is said to cost, against what the run then costs."""

import pytest
from rich.console import Console

import undrift as ud
from device_experiments import LADDER, alone, tables
from undrift.experiments.building import build_data, build_model
from undrift.experiments.cost import estimate
from undrift.experiments.experiment import Experiment
from undrift.utils.errors import UndriftError
from undrift.utils.formatting import duration

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
            found.methods()[label],
            model=model,
            data=data,
            local=found.local_of(label),
            cohort=found.cohort(),
            devices=found.device_profiles(),
            pace=found.paces(),
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
