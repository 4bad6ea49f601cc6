"""What an experiment is said to cost, against what the run then costs."""

import pytest
from rich.console import Console

import undrift as ud
from experiments import one_method, tables
from undrift.experiments.building import build_data, build_model
from undrift.experiments.cost import estimate
from undrift.experiments.experiment import Experiment
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.errors import UndriftError


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
        (label, method), *_ = found.methods().items()
        cost = estimate(found, data, model).methods[0]
        result = ud.train(
            method,
            model=model,
            data=data,
            local=found.local_of(label),
            cohort=found.cohort(),
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
