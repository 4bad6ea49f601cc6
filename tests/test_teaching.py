"""The starter file, the lists, what is shown of each thing, the published schema."""

import json
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

import undrift as ud
from experiments import replaced, tables
from undrift.experiments.building import build_data, build_model
from undrift.experiments.catalogue import GROUPS
from undrift.experiments.experiment import Experiment
from undrift.experiments.schema import json_schema
from undrift.experiments.schema import text as schema_text
from undrift.experiments.teaching import SINGULAR, example, listing, names, showing, starter
from undrift.utils.errors import UndriftError


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
        for label, method in found.methods().items():
            result = ud.train(
                method,
                model=build_model(found, data, 0),
                data=data,
                local=found.local_of(label),
                cohort=found.cohort(),
                rounds=10,
                evaluate=found.evaluation_settings(),
                progress=False,
            )
            assert result.records[-1].metrics["test_accuracy"] > 0.5

    def test_the_starter_file_names_no_other_file_and_says_what_a_sweep_needs(self):
        assert "#:schema" not in starter()
        *_, sweep, _ = starter().splitlines()
        assert sweep.startswith("[sweep]") and "data.validation: uncomment it" in sweep

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
        assert "start x_k,  v = 0,  z = y_k,  r = 1/η" in text
        assert "server   x̃ ← x̃ + Σ_S q_k δ_k" in text

    def test_parameters_that_are_explained_elsewhere(self):
        assert "the weights of the average" in printed(showing("method", "FedProx"))
        assert "number of clients" in printed(showing("data", "cifar100"))

    def test_a_wrong_word(self):
        with pytest.raises(UndriftError, match="did you mean 'FedDyn'"):
            showing("method", "FedDin")
        with pytest.raises(UndriftError, match="did you mean 'methods'"):
            listing("metods")


class TestSchema:
    def test_the_published_one_is_current(self):
        published = Path(__file__).parents[1] / "docs" / "experiment.schema.json"
        assert published.read_text(encoding="utf-8") == schema_text(), (
            "write it anew: python -m undrift.experiments.schema docs/experiment.schema.json"
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
