"""The README's table of methods says what the code does, and pictures have their commands."""

import re
import warnings

import pytest
import torch
from tools.pages import first_picture, readme_methods
from tools.pages.readme_methods import FEDNOVA_VR, USES, method_named, properties

import undrift as ud
from guide import DOCS, PAGES, ROOT, blocks, named
from undrift.core.sampling import All
from undrift.devices import Devices, Ladder
from undrift.local.solvers import GD
from undrift.loops import RunSpec, loop
from undrift.loops.paces import AsTheyArrive
from undrift.methods import METHODS
from undrift.theory import random_quadratics
from undrift.utils.errors import UndriftError

README = ROOT / "README.md"
DIAGRAMS = {"layers.svg"}
"""Drawings by hand, which show no result of a run."""


def accepted(method, **options):
    """Whether a run of the method with these options can be started."""
    spec = {"method": method, "losses": random_quadratics(3, 2), "local": GD(lr=0.1, steps=2)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of step sizes that no theorem covers
            loop(RunSpec(**spec, sampler=All(), rounds=1, objective="clients", **options))
    except UndriftError:
        return False
    return True


def test_the_table_of_methods_is_current():
    text = README.read_text(encoding="utf-8")
    assert text == readme_methods.page(text), (
        "refresh it: python -m tools.pages.readme_methods README.md"
    )


@pytest.mark.parametrize("name", [*METHODS, FEDNOVA_VR])
def test_the_table_says_what_runs_accept(name):
    method = method_named(name)
    said = properties(method)
    slow = {"devices": Devices(speed=Ladder(1, 2))}
    asynchronous = accepted(method, **slow, pace=AsTheyArrive(replies=1))
    assert asynchronous == (said["asynchronous"] != "–")
    if method.meant_asynchronous:
        assert said["private"] == "–"
    else:
        pytest.importorskip("dp_accounting", reason="the [privacy] extra is not installed")
        private = accepted(method, privacy=ud.privacy.Gaussian(clip=1.0, noise=1.0))
        assert private == (said["private"] == "yes")


def test_every_method_has_a_place_in_the_table(monkeypatch):
    text = README.read_text(encoding="utf-8")
    assert f"{len(METHODS)} methods" in text
    monkeypatch.setitem(METHODS, "Another", ud.FedAvg)
    with pytest.raises(UndriftError, match="differ in: Another"):
        list(readme_methods.methods())


def test_a_row_holds_methods_that_agree(monkeypatch):
    groups = {
        ("FedAvg", "SCAFFOLD"): "both",
        **{k: v for k, v in USES.items() if k != ("SCAFFOLD",)},
    }
    monkeypatch.setattr(readme_methods, "USES", groups)
    with pytest.raises(UndriftError, match="give each a row"):
        list(readme_methods.methods())


def pictures(page):
    """The pictures of a page, in Markdown or HTML."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text)
    found += re.findall(r'(?:src|srcset)="([^"]+)"', text)
    return {each.partition("#")[0] for each in found if "://" not in each}


def commands(page):
    """The code of a page: blocks, and spans in its prose."""
    spans = re.findall(r"`([^`]+)`", page.read_text(encoding="utf-8"))
    return [" ".join(each.split()) for each in spans] + [block.code for block in blocks(page)]


@pytest.mark.parametrize("page", [page for page in PAGES if pictures(page)], ids=named)
def test_every_picture_exists_and_its_command_is_beside_it(page):
    written = commands(page)
    overview = page.parent / "index.md"
    written += commands(overview) if overview.exists() and page.parent != DOCS else []
    for picture in pictures(page):
        path = (page.parent / picture).resolve()
        assert path.is_file(), picture
        if path.name in DIAGRAMS:
            continue
        folder = path.parent.relative_to(ROOT).as_posix()
        names = (path.name, f"tools.pages.{path.parent.name} ", f"first_picture {folder}")
        assert any(name in each for each in written for name in names), (
            f"{named(page)} shows {picture}: name the command that makes it"
        )


def test_the_first_picture_shows_who_stops_and_who_goes_on(monkeypatch):
    monkeypatch.setattr(first_picture, "ROUNDS", 30)
    losses = first_picture.problem()
    ends = {}
    for label, method in first_picture.METHODS.items():
        found = first_picture.distances(method, losses)
        ends[label] = found[-1], found[-1] / found[20]
    for label, (end, change) in ends.items():
        if label in first_picture.STOP_SHORT:
            assert end > 0.02 and change > 0.99  # it is at rest, away from the optimum
        else:
            assert end < 0.005 and change < 0.5
    for theme in first_picture.THEMES.values():
        figure = first_picture.draw({label: [1.0, 0.1] for label in ends}, theme)
        texts = " ".join(text.get_text() for text in figure.axes[0].texts)
        assert all(label in texts for label in ends)
    assert torch.equal(first_picture.problem().H, losses.H)
