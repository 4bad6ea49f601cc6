"""`undrift audit`: adapters of right and wrong implementations, here and in another Python."""

import json
import re
import sys
from pathlib import Path

import pytest
from tools.pages.audits import page, table

from commands import called
from undrift.audit import FACTS, Task, audit, implementation, load
from undrift.audit.explain import same_as
from undrift.audit.facts import make_task
from undrift.utils.errors import UndriftError
from undrift.verify import as_json, explanations

PAGE = Path(__file__).parents[1] / "docs" / "audit.md"
SCAFFOLD = """
import torch

def scaffold(task, sign={sign}, share={share}):
    if task.momentum:
        raise NotImplementedError("no momentum")
    x = torch.tensor(task.start, dtype=torch.float64)
    c, own = 0 * x, [0 * x for _ in task.sizes]

    def next_round(cohort):
        nonlocal x, c
        moves, changes = [], []
        for k in cohort:
            w = x
            for _ in range(task.steps[k]):
                w = w - task.lr * (task.gradient(k, w) + sign * (c - own[k]))
            new = own[k] - c + (x - w) / (task.steps[k] * task.lr)
            moves.append(w - x)
            changes.append(new - own[k])
            own[k] = new
        x = x + sum(moves) / len(moves)
        c = c + sum(changes) / (share * len(task.sizes) + (1 - share) * len(cohort))
        return x

    return next_round

scaffold.method, scaffold.objective = "SCAFFOLD", "clients"
"""


@pytest.fixture
def written(tmp_path):
    def write(text, name="mine.py"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def failing(found):
    return {verdict.fact.name for verdict in audit(found) if not verdict.holds}


def test_a_right_implementation_holds_every_fact(written):
    (found,) = load(written(SCAFFOLD.format(sign=1, share=1)))
    verdicts = list(audit([found]))
    assert explanations(verdicts) == []
    missing = {verdict.fact.name for verdict in verdicts if verdict.finding is None}
    assert missing == {"momentum", "acts"}  # it refuses momentum, and has no parameter


def test_a_reversed_sign_is_found_and_named(written):
    (found,) = load(written(SCAFFOLD.format(sign=-1, share=1)))
    assert failing([found]) >= {"formula", "cohorts", "limit", "partial"}
    assert "if the sign of the linear term v is reversed" in list(same_as(found, "formula"))


def test_a_mean_over_the_cohort_in_place_of_all_clients_is_found(written):
    (found,) = load(written(SCAFFOLD.format(sign=1, share=0)))
    assert "cohorts" in failing([found])
    named = "if the server's vectors other than x change N/|S| times as much"
    assert named in list(same_as(found, "cohorts"))


def test_another_python_gives_the_same_verdicts(written):
    file = written(SCAFFOLD.format(sign=-1, share=1))
    assert failing(load(file)) == failing(load(f"{file}:scaffold", python=sys.executable))


def test_the_adapter_of_the_page_runs(written):
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.S)[1]
    (found,) = load(written("import numpy as np\n" + code))
    assert failing([found]) == {"momentum"}


def test_a_parameter_without_effect_is_found():
    def fedprox(task):
        return implementation_of_fedavg(task)

    (acts,) = (
        verdict
        for verdict in audit([implementation(fedprox, "FedProx", {"mu": 0.5})])
        if verdict.fact.name == "acts"
    )
    assert not acts.holds
    assert "mu changes nothing" in acts.finding.note


def implementation_of_fedavg(task):
    import torch

    x = torch.tensor(task.start, dtype=torch.float64)

    def next_round(cohort):
        nonlocal x
        models = []
        for k in cohort:
            w = x
            for _ in range(task.steps[k]):
                w = w - task.lr * task.gradient(k, w)
            models.append(task.sizes[k] * w)
        x = sum(models) / sum(task.sizes[k] for k in cohort)
        return x

    return next_round


def test_the_modules_of_a_task_agree_with_its_gradient():
    import torch

    task = make_task()
    model, (inputs, targets) = task.model(), task.data(2)
    task.loss()(model(inputs), targets).backward()
    start = torch.tensor(task.start, dtype=torch.float64)
    assert torch.allclose(model.w.grad, task.gradient(2, start), atol=1e-14)
    assert [len(task.loader(k)) for k in range(4)] == task.batches
    assert Task(**json.loads(json.dumps(task.as_dict()))) == task


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("", "{}", "has no adapter"),
        ("def f(task): pass", "{}:f", "does not say which method"),
        ("def f(task): pass", "{}:g", "has no function 'g'"),
        ("def f(task): pass\nf.method = 'FedAvgg'", "{}", "did you mean 'FedAvg'?"),
        ("def f(task): pass\nf.method = 'FedBuff'", "{}", "synchronous rounds"),
        ("def f(task): pass\nf.method, f.parameters = 'FedAvg', {'a': 1}", "{}", "do not fit"),
    ],
)
@pytest.mark.parametrize("python", [None, sys.executable])
def test_what_cannot_be_audited_is_refused_with_a_sentence(written, text, where, words, python):
    with pytest.raises(UndriftError) as error:
        load(where.format(written(text)), python=python)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("python", [None, sys.executable])
def test_an_adapter_that_raises_is_one_line(written, python):
    file = written("def f(task):\n    return lambda cohort: 1 / 0\nf.method = 'FedAvg'\n")
    (line,) = explanations(audit(load(file, python=python)))
    assert line == "f breaks down: ZeroDivisionError: division by zero (line 2 of mine.py)."


def test_the_command(written, tmp_path):
    file = written(SCAFFOLD.format(sign=-1, share=1))
    done = called("audit", file, "--explain", cwd=tmp_path)
    assert done.returncode == 1
    words = " ".join(done.stdout.split())
    assert "equal SCAFFOLD if the sign of the linear term v is reversed" in words
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    done = called("audit", file, "--json", cwd=tmp_path)
    assert {row["fact"] for row in json.loads(done.stdout)} <= {fact.name for fact in FACTS}
    done = called("audit", "nothing", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: 'nothing' does not name an adapter")


def test_the_table_of_the_page_is_made_from_what_the_command_prints(written):
    found = load(written(SCAFFOLD.format(sign=-1, share=1)))
    rows = json.loads(as_json(audit(found)))
    rows.append({"method": "other", "fact": "limit", "error": None, "holds": False})
    head, rule, reversed_sign, other = table({"mine": rows})
    assert head == f"| library | adapter | {' | '.join(fact.name for fact in FACTS)} |"
    assert rule.count("|") == head.count("|") == other.count("|")
    cells = dict(zip(head.split(" | ")[2:], reversed_sign.split(" | ")[2:], strict=True))
    assert cells["formula"].startswith("**")
    assert not cells["weights"].startswith("**")
    assert cells["momentum"] == "·"
    assert other == "| mine | other | · | · | · | **inf** | · | · | · | · | · |"
    text = page(PAGE.read_text(), {"mine": rows})
    assert reversed_sign in text and "| pfl |" not in text
    assert text.startswith("# Auditing other implementations")
