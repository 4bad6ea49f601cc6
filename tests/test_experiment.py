"""Experiment files: what is refused and how, what is written out, what is built."""

import pytest
import torch

import undrift as ud
from experiments import one_method, refused, tables
from undrift.data.partitions import Dirichlet
from undrift.data.sizes import LogNormal
from undrift.experiments.building import build_data, build_model
from undrift.experiments.experiment import Experiment
from undrift.utils.errors import UndriftError


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
            ({"model.widths": [4]}, "model.widths", "(it has '"),
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
            ({"sweep": {"local.lr": []}}, "sweep.local.lr", "list is empty"),
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
        with pytest.raises(UndriftError, match="is a folder, but must be an experiment file"):
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
        assert found.cohort() == 2

    def test_a_part_of_a_partition_given_in_words(self):
        raw = tables(data={"source": "mnist", "partition": "dirichlet:0.3"})
        found = Experiment.from_dict(raw, {"data.partition.alpha": 0.7})
        assert found.data.parameters["partition"]["alpha"] == 0.7

    def test_none_from_the_command_line(self):
        found = Experiment.from_dict(tables(), {"local.batch_size": None})
        assert found.local_of("FedAvg").batch_size is None


class TestResolved:
    def test_has_all_defaults(self):
        found = Experiment.from_dict(tables()).resolved()
        assert found["data"]["beta"] == 1.0
        held = {"share": 0.2, "by": "overall", "seed": 1, "stratified": False}
        assert found["data"]["validation"] == held
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
        assert found.methods()["Mine"].beta == 0.25
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


class TestBuilding:
    def test_everything_that_a_run_takes(self):
        found = Experiment.from_dict(tables())
        data = build_data(found)
        assert len(data) == 6
        assert data.validation is not None
        assert not data.validation.by_client
        model = build_model(found, data, 0)
        assert ud.models.parameter_count(model) == 60 * 4 + 4 + 4 * 10 + 10
        methods = found.methods()
        assert list(methods) == ["FedAvg", "FedDyn .1", "SCAFFOLD"]
        assert methods["FedAvg"].server == ud.server.Momentum(beta=0.5)
        local = found.local_of("FedAvg")
        assert local == ud.SGD(lr=ud.Exponential(0.1, 0.99), batch_size=10, epochs=2)
        assert found.local_of("FedDyn .1").steps == 4
        assert found.local_of("FedDyn .1").epochs is None
        assert found.cohort() == ud.Uniform(3)
        assert found.evaluation_settings() == ud.Evaluation(2, ("server", "cohort"))
        assert found.targets()["cohort/train_loss"] == ("below", 0.01)

    def test_initial_weights_follow_the_run_unless_the_model_has_a_seed(self):
        found = Experiment.from_dict(tables())
        data = build_data(found)
        zero, one = (build_model(found, data, seed)[1].weight for seed in (0, 1))
        assert not torch.equal(zero, one)
        fixed = found.with_settings({"model.seed": 1})
        assert torch.equal(build_model(fixed, data, 0)[1].weight, one)

    def test_another_solver_keeps_what_it_has_in_common(self):
        raw = one_method(name="FedAvg", local={"solver": "GD", "steps": 2})
        local = Experiment.from_dict(raw).local_of("FedAvg")
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
