"""Sentences on a terminal: wrapped at its width, and whole in a pipe."""

import io

from rich.console import Console

from undrift.cli.app import print_next
from undrift.utils.display import print_wrapped

SENTENCE = "A sentence of more than forty columns names /a/path/that/alone/is/longer/than/a/line."


class Terminal(io.StringIO):
    def isatty(self):
        return True


def console(file):
    return Console(file=file, width=40, color_system=None, highlight=False, markup=False)


def test_a_terminal_gets_lines_between_words_and_whole_paths():
    shown = Terminal()
    print_wrapped(console(shown), SENTENCE)
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    assert " ".join(lines) == SENTENCE
    assert len(lines) == 3
    assert lines[-1] == "/a/path/that/alone/is/longer/than/a/line."
    assert all(len(line) <= 40 for line in lines[:-1])


def test_a_pipe_gets_one_line():
    shown = io.StringIO()
    print_wrapped(console(shown), SENTENCE)
    assert shown.getvalue() == f"{SENTENCE}\n"


def test_a_command_stays_whole_on_a_line_of_its_own():
    shown, command = Terminal(), f"undrift run {'x' * 40}.toml --live"
    print_next(console(shown), "Run it with:", command)
    assert shown.getvalue() == f"Run it with:\n  {command}\n"
