"""`python -m benchmarks.mutants`: the mutants are valid, and the facts kill a sample of them."""

import ast
import json
from pathlib import Path

from benchmarks import theory_mutants
from benchmarks.mutant_runs import SURVIVES, judge
from benchmarks.mutants import EQUIVALENT_ONE, equivalents, files, totals, write
from benchmarks.mutations import METHODS, mutants_of
from tools.pages.mutants import NUMBERS, page

VERIFY_PAGE = Path(__file__).parents[1] / "docs" / "verify.md"


def test_every_file_has_mutants_with_names_of_their_own():
    names = []
    for path in files():
        found = list(mutants_of(path))
        assert len(found) >= 3, path
        names += [mutant.name for mutant in found]
    assert len(set(names)) == len(names) > 1000


def test_the_listed_equivalent_mutants_exist():
    names = {mutant.name for path in files() for mutant in mutants_of(path)}
    assert equivalents().keys() <= names


def test_a_mutant_changes_one_expression():
    path = METHODS / "primal_dual" / "feddyn.py"
    original = ast.unparse(ast.parse(path.read_text())).splitlines()
    for mutant in mutants_of(path):
        changed = ast.unparse(ast.parse(mutant.source)).splitlines()
        assert sum(a != b for a, b in zip(original, changed, strict=True)) == 1, mutant.name


def test_facts_kill_mutants_and_leave_equivalent_ones_alive(tmp_path):
    wanted = {
        "averaging/fedprox.py: FedProx.problem: weight=self.mu → nothing": "formula",
        "averaging/fedlga.py: FedLGA.fold: -moved → moved": SURVIVES,
    }
    chosen = [m for name in ("fedprox", "fedlga") for p in files([name]) for m in mutants_of(p)]
    chosen = [mutant for mutant in chosen if mutant.name in wanted]
    found = {each.name: each.verdict for each in judge(chosen, tmp_path / "log", 2)}
    assert found == wanted


def test_the_stored_score_has_every_mutant_and_no_survivor():
    stored = json.loads(NUMBERS.read_text())
    assert stored == totals(stored["files"])
    assert stored["killed"] == stored["of"] > 1000
    again = "judge them: python -m benchmarks.mutants --write benchmarks/mutants.json"
    counted = {file: sum(verdicts.values()) for file, verdicts in stored["files"].items()}
    found = {str(path.relative_to(METHODS)): len(list(mutants_of(path))) for path in files()}
    assert counted == found, again
    assert len(equivalents()) == sum(v.get(EQUIVALENT_ONE, 0) for v in stored["files"].values()), (
        again
    )


def test_the_table_of_the_guide_is_current():
    text = VERIFY_PAGE.read_text(encoding="utf-8")
    assert text == page(text), "refresh it: python -m tools.pages.mutants docs/verify.md"


def test_judging_some_files_leaves_the_numbers_of_others(tmp_path):
    path = tmp_path / "mutants.json"
    write(path, {"files": {"a.py": {"formula": 3}, "b.py": {"limit": 1, SURVIVES: 1}}})
    write(path, {"files": {"b.py": {"limit": 2, "breaks": 4, EQUIVALENT_ONE: 1}}})
    stored = json.loads(path.read_text())
    assert stored["files"]["a.py"] == {"formula": 3}
    assert (stored["killed"], stored["of"], stored["equivalent"], stored["breaks"]) == (5, 5, 1, 4)


def test_the_listed_equivalent_mutants_of_the_theory_exist():
    names = {
        mutant.name for path in theory_mutants.files() for mutant in theory_mutants.mutants(path)
    }
    assert theory_mutants.equivalents().keys() <= names
    assert len(names) > 1000
