"""A newcomer's first minutes: the bare command, completion, pipes, browsers and notebooks."""

import io
import os
import pty
import re
import subprocess
import sys
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import undrift as ud
from commands import called
from undrift.bench.workloads import FURTHER, WORKLOADS
from undrift.cli import completion
from undrift.cli.app import FIRST_COMMANDS, PANEL_OF, app, open_page
from undrift.cli.demo import demo_run as demo
from undrift.core.records import Record
from undrift.engines.options import ENGINES
from undrift.experiments.catalogue import GROUPS
from undrift.experiments.teaching import SINGULAR
from undrift.reproduce.registry import NAMES
from undrift.runs.progress import progress_bars
from undrift.utils import display

ROOT = Path(__file__).parent.parent


def small(**options):
    return ud.compare(
        [ud.FedAvg(), ud.SCAFFOLD()],
        model=ud.models.logistic(60, 10),
        data=ud.data.synthetic(1, 1, clients=4, most=20),
        local=ud.SGD(lr=0.03, batch_size=10, epochs=1),
        rounds=2,
        engine="serial",
        **options,
    )


@pytest.fixture(scope="module")
def results():
    return small()


def test_undrift_alone_shows_five_commands_that_there_are(tmp_path):
    done = called(cwd=tmp_path)
    assert done.returncode == 0
    assert len(FIRST_COMMANDS) == 5
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    for name in FIRST_COMMANDS:
        assert f"undrift {name}" in done.stdout
        assert name in known or (name == "advise" and find_spec("undrift.cli.advise") is None)
    assert len(done.stdout.splitlines()) <= 12
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "undrift --help" in done.stdout


def test_help_has_every_command_in_a_panel(tmp_path):
    text = called("--help", cwd=tmp_path).stdout
    places = [text.index(f"─ {panel} ─") for panel in dict.fromkeys(PANEL_OF.values())]
    assert places == sorted(places)
    assert "─ Commands ─" not in text  # where those go that no panel names
    assert text.index(" demo ") < text.index(" run ") < text.index(" resume ")


def test_the_words_to_complete_are_those_there_are():
    assert {group: list(names) for group, names in completion.NAMES.items()} == {
        group: list(names) for group, names in GROUPS.items()
    }
    assert completion.KINDS == SINGULAR
    assert completion.REPRODUCTIONS == NAMES
    assert (*WORKLOADS, *FURTHER) == completion.WORKLOADS
    assert tuple(ENGINES) == completion.ENGINES


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("undrift re", {"report", "resume", "reproduce"}),
        ("undrift show me", {"method", "metric"}),
        ("undrift show method FedD", {"FedDyn", "FedDR"}),
        ("undrift reproduce fedlga-", {"fedlga-fmnist", "fedlga-cifar"}),
        ("undrift run ", {"here.toml", "below/there.toml"}),
        ("undrift run below/", {"below/there.toml"}),
        ("undrift run here.toml --only ", {"mine", "FedDyn"}),
        ("undrift run broken.toml --only ", set()),
        ("undrift run here.toml --engine v", {"vectorised"}),
        ("undrift report ru", {"runs/first"}),
        ("undrift bench W", {f"W{number}" for number in range(1, 11)}),
        ("undrift inspect fas", {"fashion-mnist"}),
        ("undrift verify FedB", {"FedBuff"}),
        ("undrift deploy local ", {"app"}),
    ],
)
def test_completion_offers_values(typed, offered, tmp_path, monkeypatch):
    (tmp_path / "below").mkdir()
    text = '[[method]]\nname = "FedAvg"\nlabel = "mine"\n[[method]]\nname = "FedDyn"\n'
    for name in ("here.toml", "below/there.toml"):
        (tmp_path / name).write_text(text)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "broken.toml").write_text("name = [\n")
    for file in ("runs/first/about.json", "app/site.py", "app/experiment.toml"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    monkeypatch.chdir(tmp_path)
    words = typed.split(" ")
    monkeypatch.setenv("_UNDRIFT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    found = called(cwd=tmp_path).stdout.split()
    assert set(found) == offered


def test_the_command_line_and_completion_do_without_torch():
    code = "import sys, undrift.cli; print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_names_of_the_package_come_when_they_are_asked_for():
    assert set(ud.__all__) <= set(dir(ud))
    with pytest.raises(AttributeError, match="did you mean 'FedAvg'"):
        _ = ud.FedAvgg
    assert not hasattr(ud, "nonsense")


def test_a_page_is_opened_or_a_sentence_says_why_not(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    monkeypatch.setattr(demo, "demo_entries", lambda: {"FedAvg": demo.Entry(ud.FedAvg(), 0.03)})
    done = called("demo", "--rounds", "1", "--open", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert opened == [(tmp_path / "undrift-demo.html").as_uri()]
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    open_page(Path("page.html"))
    assert "No browser was found on this machine; open page.html" in capsys.readouterr().err
    for command in ("report", "sweep", "reproduce"):
        assert "--open" in called(command, "--help", cwd=tmp_path).stdout


def plain(text):
    """Without escape codes and control characters but the end of a line."""
    return not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)


def test_nothing_but_plain_text_goes_into_a_pipe(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "demo_entries", lambda: {"FedAvg": demo.Entry(ud.FedAvg(), 0.03)})
    monkeypatch.setattr(demo, "LINE_SECONDS", 0.0)
    done = called("demo", "--rounds", "2", cwd=tmp_path)
    assert plain(done.stdout + done.stderr)
    assert "round 1 of 2" in done.stdout and "━" not in done.stdout
    for arguments in ((), ("list", "paces"), ("inspect", "synthetic"), ("show", "pace", "first")):
        done = called(*arguments, cwd=tmp_path)
        assert plain(done.stdout + done.stderr), arguments


@pytest.mark.parametrize(
    ("environment", "coloured", "redrawn"),
    [
        ({"TERM": "xterm-256color"}, True, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False, True),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_colours_and_bars_are_for_terminals_that_can(environment, coloured, redrawn, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    far, near = pty.openpty()
    try:
        with os.fdopen(near, "w") as terminal:
            console = Console(file=terminal)
            assert display.redraws(console) == redrawn
            console.print("[red]word")
            terminal.flush()
            assert ("\x1b[31m" in os.read(far, 100).decode()) == coloured
    finally:
        os.close(far)


def test_colours_that_are_forced_upon_a_pipe_do_not_make_it_a_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not display.redraws(Console(file=io.StringIO()))
    closed = io.StringIO()
    closed.close()
    assert not display.is_terminal(closed)


@pytest.fixture
def notebook(monkeypatch):
    """Something that shows as IPython does; gives what was displayed and then drawn over."""
    shown = []

    class HTML:
        def __init__(self, data):
            self.data = data

    def show(page, display_id):
        assert display_id
        shown.append([page.data])
        return SimpleNamespace(update=lambda page, own=shown[-1]: own.append(page.data))

    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=HTML, display=show))
    return shown


def test_a_notebook_has_one_place_of_progress_that_is_drawn_over(notebook, monkeypatch):
    assert display.in_notebook() and display.progress_is_visible()
    monkeypatch.setattr(display, "REDRAW_SECONDS", 0.0)
    small()
    (place,) = notebook
    assert len(place) > 3
    assert place[-1].count("2/2") == 2  # a bar for each of the methods, both at their end
    assert "FedAvg" in place[-1] and "\x1b" not in place[-1]
    small(progress=False)
    assert len(notebook) == 1
    small(seeds=[0, 1])
    assert len(notebook) == 2
    assert notebook[-1][-1].count("4/4") == 2  # both seeds in one bar


def test_a_notebook_is_not_flooded(notebook):
    with progress_bars(["FedAvg"], 1000, shown=None) as bars:
        bars.begin("FedAvg", 0, 0)
        for number in range(1, 1001):
            bars.show("FedAvg", 0, Record(number))
    assert sum(map(len, notebook)) < 20


def test_results_data_and_descriptions_show_themselves_in_a_notebook(results):
    data = results[0].run.losses.data
    for shown, word in (
        (results, "SCAFFOLD"),
        (results[0], "FedAvg"),
        (data, "4 clients"),
        (data.describe(), "4 clients"),
    ):
        page = shown._repr_html_()
        assert page.startswith("<pre") and word in page
    content, size = results.plot()._repr_png_()
    assert content.startswith(b"\x89PNG") and size["width"] > 300
    assert results[0].plot(metrics=["test_loss"])._repr_png_()[1]["width"] < size["width"]
    assert data.describe().plot()._repr_png_()[0].startswith(b"\x89PNG")


def test_reprs_are_short_and_say_something(results):
    for each, words in (
        (results, "FedAvg, SCAFFOLD"),
        (results[0], "2 rounds; "),
        (results[0].records[2], "round 2: "),
        (results[0].run.losses.data.describe(), "4 clients, 10 classes"),
        (ud.SGD(lr=0.1, batch_size=5, epochs=1), "SGD(lr=0.1, batch_size=5, epochs=1)"),
        (ud.Devices(speed=3.0), "Devices(speed=3.0)"),
        (ud.EngineOptions(threads=2), "EngineOptions(threads=2)"),
        (ud.Evaluation(), "Evaluation()"),
        (ud.AsTheyArrive(buffer=3), "AsTheyArrive(buffer=3)"),
        (results.plot(), "Picture of"),
    ):
        assert words in repr(each)
        assert len(repr(each)) < 250


def test_seeds_are_run_apart_and_told_together(results):
    both = small(seeds=[0, 1])
    assert both.seeds == [0, 1] and both.labels == ["FedAvg", "SCAFFOLD"]
    assert both["FedAvg"][0].metrics == results["FedAvg"].metrics
    assert both["FedAvg"][1].metrics == small(seed=1)["FedAvg"].metrics
    for wrong, words in (({"seed": 1, "seeds": [1]}, "not both"), ({"seeds": [1, 1]}, "twice")):
        with pytest.raises(ud.UndriftError, match=words):
            small(**wrong)
    with pytest.raises(ud.UndriftError, match="no virtual time to plot against"):
        results.plot(against="virtual_seconds")
