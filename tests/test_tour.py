"""The notebook examples/tour.ipynb: it runs from top to bottom, and its cells show what they say.

The cells run in this process with the display functions of a notebook in small; a second test uses
a real kernel where Jupyter is installed.
"""

import ast
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples" / "tour.ipynb"
FEW = ("rounds=60", "rounds=4")


def cells():
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def shown_by(cell, namespace):
    """Run a cell, and return the value of its last line if that is an expression."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "tour.ipynb", "exec"), namespace)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "tour.ipynb", "eval"), namespace)


@pytest.fixture
def notebook_display(monkeypatch):
    """The module IPython.display with the one class that the notebook uses."""

    class IFrame:
        def __init__(self, src, width, height):
            self.src = src

    package, display = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: None  # no kernel: bars are not drawn
    package.version_info = (8, 24)  # matplotlib asks
    package.display, display.IFrame = display, IFrame
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", display)


def test_the_tour_runs_from_top_to_bottom(tmp_path, monkeypatch, rigged, notebook_display, capsys):
    monkeypatch.chdir(tmp_path)
    rigged("stacked")  # choosing an engine would take a second
    assert sum(FEW[0] in cell for cell in cells()) == 1
    namespace, shown = {"__name__": "tour"}, []
    for cell in cells():
        shown.append(shown_by(cell.replace(*FEW), namespace))
    described, comparison, *pictures, frame = (each for each in shown if each is not None)
    assert "30 clients" in described._repr_html_()
    assert "SCAFFOLD" in comparison._repr_html_()
    assert pictures and all(picture._repr_png_()[0].startswith(b"\x89PNG") for picture in pictures)
    assert "facts hold" in capsys.readouterr().out
    page = (tmp_path / frame.src).read_text(encoding="utf-8")
    assert "FedDyn" in page


def test_the_tour_is_stored_without_outputs():
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None


def test_the_tour_runs_in_a_kernel(tmp_path):
    client = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    notebook = nbformat.reads(NOTEBOOK.read_text(encoding="utf-8").replace(*FEW), 4)
    nbformat.validate(notebook)
    options = {"timeout": 300, "resources": {"metadata": {"path": str(tmp_path)}}}
    client.NotebookClient(notebook, **options).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    kinds = {kind for out in outputs for kind in out.get("data", ())}
    assert {"text/html", "image/png"} <= kinds
