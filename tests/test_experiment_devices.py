"""Devices, paces, limits and drawn work in experiment files: what is built, what is refused."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import undrift as ud
from device_experiments import LADDER, alone, round_trip, tables
from experiments import refused
from undrift.core.clients import Roster
from undrift.devices import Always, Between, Duty, Ladder, LogNormal, Normal
from undrift.experiments.building import build_data, build_model
from undrift.experiments.experiment import Experiment
from undrift.utils.errors import UndriftError

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WORDS = ("none", "drawn", "classes", "file", "all", "first", "duty", "ladder", "same", "uniform")


class TestWhatIsBuilt:
    def test_devices_and_paces_by_label(self, tmp_path):
        found = round_trip(tables(), tmp_path)
        assert found.device_profiles() == ud.Devices(
            speed=Ladder(5, 20), latency=Between(0.0, 0.1), up=1e5
        )
        assert found.paces() == {
            "FedAvg": ud.Deadline(0.5),
            "first": ud.FirstToRespond(3),
            "FedBuff": ud.AsTheyArrive(concurrency=4),
            "FedAsync": ud.AsTheyArrive(),
        }
        assert found.limits() is None

    def test_without_the_tables_there_is_nothing(self, tmp_path):
        found = round_trip(alone(devices=None), tmp_path)
        assert not {"devices", "pace", "limit", "system"} & found.resolved().keys()
        assert (found.device_profiles(), found.paces(), found.limits()) == (None, {}, None)

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
        assert found.device_profiles() == ud.Devices(
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
        assert found.device_profiles() == wanted
        assert round_trip(found.resolved(), tmp_path).device_profiles() == wanted

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
        devices = found.device_profiles()
        data = build_data(found)
        fleet = devices.fleet(Roster(data.ids, data.train.sizes), 0)
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
        assert found.local_of("FedProx").epochs == ud.UniformAmount(2, 5)
        changed = found.local_of("FedAvg")
        assert changed.steps == ud.NormalAmount(30, 20, high=96)
        assert changed.epochs is None
        resolved = found.resolved()
        assert resolved["local"]["epochs"]["per"] == "round"
        assert resolved["method"][0]["local"]["steps"]["low"] == 1

    def test_a_limit(self, tmp_path):
        found = round_trip(alone(limit={"longest": 2}), tmp_path)
        assert found.limits() == ud.Unfinished(0.5, 2)
        assert round_trip(alone(limit={"share": 0.2}), tmp_path).limits() == ud.Unfinished(0.2)
        dropping = round_trip(alone(limit={"share": 0.2, "drop": True}), tmp_path).limits()
        assert dropping == ud.Unfinished(0.2, drop=True)

    def test_a_pace_of_all_and_a_methods_own(self):
        raw = tables(method=[{"name": "FedAvg"}, {"name": "FedProx", "pace": "all"}])
        assert Experiment.from_dict(raw).paces() == {
            "FedAvg": ud.Deadline(0.5),
            "FedProx": ud.WaitForAll(),
        }


class TestSettings:
    def test_a_part_of_a_word(self):
        found = Experiment.from_dict(
            tables(), {"method.FedAsync.pace.concurrency": 3, "devices.availability.kind": "always"}
        )
        assert found.paces()["FedAsync"] == ud.AsTheyArrive(concurrency=3)
        assert found.device_profiles().availability == Always()

    def test_drawn_steps_take_the_place_of_epochs(self):
        keys = {"amount": "uniform", "low": 1, "high": 3}
        found = Experiment.from_dict(alone(), {f"local.steps.{k}": v for k, v in keys.items()})
        assert found.local_of("FedAvg").steps == ud.UniformAmount(1, 3)

    def test_tables_can_be_switched_off(self):
        found = Experiment.from_dict(alone(), {"devices": None, "limit": "none", "pace": None})
        assert not {"devices", "pace", "limit"} & found.resolved().keys()

    def test_a_methods_pace_can_be_swept(self):
        key = "method.first.pace.replies"
        assert Experiment.from_dict(tables(sweep={key: [1, 2]})).sweep == {key: [1, 2]}
        said = refused(tables(sweep={key: [1, 0]}))
        assert said.startswith(f"sweep.{key}: With 0: {key}:")


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
            ({"pace.replies": 3}, "pace.replies", "(it has 'seconds'"),
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
        assert said.startswith("pace: ") and "needs a virtual clock" in said and "[devices]" in said
        said = refused(alone(devices=None, method={"pace": pace}))
        assert said.startswith("method.FedAvg.pace: ")

    @pytest.mark.parametrize("name", ["FedAvg", "SCAFFOLD", "FedDyn"])
    def test_a_synchronous_method_asked_to_run_asynchronously(self, name):
        method = ud.METHODS[name]()
        for raw in (alone(name, pace="asynchronous"), alone(name, method={"pace": "asynchronous"})):
            said = refused(raw)
            assert said.startswith(f"method.{name}: {name} cannot fold replies one by one")
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
        assert said.startswith("limit: [limit] applies to rounds, but FedBuff runs asynchronously")
        Experiment.from_dict(alone("FedBuff", limit={}, pace="all"))

    def test_a_limit_longer_than_the_work(self):
        assert refused(alone(limit={"longest": 3})).startswith(
            "limit.longest is 3, but must be at most"
        )
        work = {"lr": 0.1, "epochs": {"amount": "uniform", "low": 2, "high": 5}}
        assert "at most 2" in refused(alone(local=work, limit={"longest": 3}))

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
        words = "max_delay is 6, but must be at least 7 with 8 clients at work at once"
        assert said.startswith(f"pace.max_delay: AsTheyArrive's {words}")
        own = refused(alone("FedAsync", method={"pace": pace}))
        assert own.startswith("method.FedAsync.pace.max_delay: AsTheyArrive's max_delay is 6")
        found = Experiment.from_dict(alone("FedAsync", pace=pace | {"max_delay": 7}))
        data = build_data(found)
        with pytest.raises(UndriftError) as caught:
            ud.train(
                ud.FedAsync(),
                model=build_model(found, data, 0),
                data=data,
                local=found.local_of("FedAsync"),
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
    "limit.drop",
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
    assert "The experiment cannot be read" not in said  # the last resort of the reader
    assert all(line.strip() for line in said.split("\n"))
