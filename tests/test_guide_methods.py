"""The pages about methods: their generated blocks are current, and the runs behind the figures end
where theory predicts."""

import re
import tomllib
from pathlib import Path

import pytest
import torch
from tools.pages.methods import method_sections
from tools.pages.methods.__main__ import main
from tools.pages.methods.generated_blocks import MADE, refreshed
from tools.pages.methods.pages import ORDER, PAGES, page
from tools.pages.methods.path_plot import draw
from tools.pages.methods.two_clients import two_clients
from tools.pages.methods.verification import reason_not_claimed, stored
from tools.pages.methods.walks import WALKS, Walk, walked

from undrift.experiments.experiment import Experiment
from undrift.experiments.teaching import starter
from undrift.methods import METHODS, FedLGA
from undrift.utils.errors import UndriftError
from undrift.verify import FACTS, named, ours, verify

pytestmark = pytest.mark.xdist_group("guide")  # the runs are done once

FOLDER = Path(__file__).parents[1] / "docs" / "methods"
ALL = [(name, walk) for name, walks in WALKS.items() for walk in walks]
HEADINGS = [
    "The local problem",
    "What travels and is kept",
    "When it helps",
    "Bias, and what it needs",
    "Options",
    "Paper",
    "What `undrift verify` finds",
    "Where it converges, on two clients",
    "How to write it",
]


def text_of(name):
    return (FOLDER / f"{PAGES[name]}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list(PAGES))
def test_the_generated_blocks_of_a_page_are_current(name):
    assert text_of(name) == page(name, FOLDER), (
        "refresh them: python -m tools.pages.methods docs/methods"
    )


@pytest.mark.parametrize("name", [*METHODS, "servers"])
def test_every_page_has_the_same_order_and_a_picture(name):
    text = text_of(name)
    assert re.findall("^## (.*)$", text, re.MULTILINE) == HEADINGS
    made = [found[2] for found in MADE.finditer(text)]
    if name != "servers":
        assert [part for part in made if part in ORDER] == list(ORDER)
    picture = (FOLDER / f"{name.lower()}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 60_000
    assert "```python\nimport undrift as ud\n" in text


@pytest.mark.parametrize(("name", "number"), [(n, i) for n in WALKS for i in range(len(WALKS[n]))])
def test_a_run_ends_where_theory_predicts(name, number):
    found = method_sections.walks(name)[number]
    assert float((found.end - found.goal).norm()) <= found.walk.within
    settled = found.path[-1] - found.path[-2]
    if not found.walk.settles:
        assert float(settled.norm()) > 0.01
    elif not found.arrivals:  # it has settled, and is not passing by
        assert float(settled.norm()) < 1e-3


def test_unbiased_methods_end_at_the_optimum_and_others_do_not():
    biased = {"FedAvg", "FedAvgMin", "FedProx", "FedLGA", "FedAsync", "FedBuff", "servers"}
    biased |= {"FedVARP", "MIFA", "FedCM", "FedACG", "FedExP", "MimeLite", "Ditto", "PFedMe"}
    biased |= {"FedSAM"}
    for name in WALKS:
        for found in method_sections.walks(name):
            far = float((found.goal - found.optimum).norm())
            label = found.walk.label
            exact = name not in biased and label not in ("FedNova", "ρ = 0.5, α = 1")
            if name == "VRLSGD":
                exact = label == "7 and 7 steps"
            assert far < 1e-12 if exact else far > 0.01, (name, label)


def test_the_circles_of_fedasync_shrink_with_alpha():
    large, small = (float((f.end - f.goal).norm()) for f in method_sections.walks("FedAsync"))
    assert small < large / 4
    spread = [float(f.path[-12:].std(0).norm()) for f in method_sections.walks("FedAsync")]
    assert spread[1] < spread[0] / 4


def test_no_client_moves_at_the_end_of_an_unbiased_run():
    for name in ("SCAFFOLD", "FedDyn", "FedPD", "FedSplit", "FedDR"):
        for way in method_sections.walks(name)[0].drift:
            assert float((way[-1] - way[0]).norm()) < 1e-5, name
    first, second = method_sections.walks("FedAvg")[0].drift
    moved = 0.6 * (first[-1] - first[0]) + 0.4 * (second[-1] - second[0])
    assert float((second[-1] - second[0]).norm()) > 0.3
    assert float(moved.norm()) < 1e-6  # the moves are opposite and cancel


def test_fedlga_as_written_goes_past_the_complete_client_and_does_not_settle():
    found = walked(Walk("literal", FedLGA(), 12, 100, objective="clients", limit={0: 2}))
    beyond = found.path[-20:, 0] - found.problem.local_optimum(1)[0]
    assert float(beyond.min()) > 1
    assert float((found.path[-1] - found.path[-2]).norm()) > 0.3


def test_the_two_clients_differ_in_everything():
    problem = two_clients()
    assert not torch.allclose(problem.H[0], problem.H[1])
    for k in range(2):
        minimum = problem.local_optimum(k)
        assert problem.value(k, minimum) == pytest.approx(0, abs=1e-12)
        assert float(problem.gradient(k, minimum).norm()) < 1e-12
    assert len(set(problem.sizes.tolist())) == 2


def test_stored_results_of_verify_are_complete_and_missing_claims_explained():
    found = stored(FOLDER)
    assert list(found) == [subject.label for subject in ours()]
    for subject in ours():
        cells = found[subject.label]
        assert list(cells) == [fact.name for fact in FACTS]
        for fact in FACTS:
            cell = cells[fact.name]
            assert cell.holds
            assert bool(reason_not_claimed(fact, subject)) or cell.error is not None
            assert cell.error is None or cell.error <= fact.allowed


@pytest.mark.parametrize("name", ["FedAvg"])
def test_stored_results_of_verify_are_current(name):
    found = stored(FOLDER)
    for verdict in verify(named(name)):
        cell = found[verdict.method][verdict.fact.name]
        assert (cell.error is None) == (verdict.finding is None), verdict.fact.name
        assert cell.holds == verdict.holds


@pytest.mark.parametrize("name", [*METHODS, "servers"])
def test_the_parts_of_experiment_files_are_right(name):
    blocks = re.findall(r"```toml\n(.*?)```", text_of(name), re.DOTALL)
    assert blocks
    for block in blocks:
        raw = tomllib.loads(starter())
        raw |= {"method": [{"name": name if name in METHODS else "FedAvg"}]}
        if name in METHODS and METHODS[name]().needs_all:
            raw["sampling"] = {"kind": "all"}
        Experiment.from_dict(raw | tomllib.loads(block))


def test_a_picture_is_drawn(tmp_path):
    path = draw("FedAvg", [walked(walk) for walk in WALKS["FedAvg"]], tmp_path / "fedavg.png")
    assert 10_000 < path.stat().st_size < 60_000


def test_only_text_between_the_marks_is_generated():
    text = "before\n<!-- made: options -->\nold\n<!-- end -->\nafter\n"
    found = refreshed(text, {"options": lambda: iter(["new"])})
    assert found == "before\n<!-- made: options -->\n\nnew\n\n<!-- end -->\nafter\n"
    assert refreshed(found, {"options": lambda: iter(["new"])}) == found
    with pytest.raises(UndriftError, match="has a block 'options', but must use one of: picture"):
        refreshed(text, {"picture": lambda: iter([])})


def test_the_command_says_what_is_missing(tmp_path, capsys):
    with pytest.raises(SystemExit, match="write its text first"):
        main([str(tmp_path)])
    with pytest.raises(SystemExit, match="usage"):
        main([])
