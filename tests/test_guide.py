"""README and guide: code runs, commands exist, links resolve, and the site builds.

The blocks of a page are executed in order, in one folder and one namespace, like a reader who types
them. Python is run. A block with a title such as ```toml title="exp.toml" is written to that file.
Other TOML is part of an experiment file and must be accepted as such.

Of the lines that begin with `undrift`, those that take a second or two and find their files are
run: init, list, show, schema; inspect, advise, run, resume, report and verify on files that the
page itself wrote. All others are only parsed, so that their command and options exist. They need
minutes (demo, bench, sweep, reproduce, verify for all methods), downloads, servers or a cluster,
and have their own tests: test_demo, test_bench, test_sweep, test_reproduce, test_deploy, test_ray.
"""

import os
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer
from tools.pages.commands import page as commands_page
from tools.pages.experiment_keys import page as keys_page

from commands import called
from guide import DOCS, PAGES, ROOT, anchors, blocks, links, mentions, named
from undrift.cli import app
from undrift.data import SOURCES
from undrift.deploy.starter_app import starter_file
from undrift.experiments.experiment import Experiment

UNDRIFT = typer.main.get_command(app)
DOWNLOADED = {*SOURCES} - {"synthetic", "feddyn-synthetic", "digits"}
MINIMAL = {
    "data": {"source": "synthetic"},
    "model": {"name": "logistic"},
    "local": {"lr": 0.1},
    "method": [{"name": "FedDyn"}],
}
"""The experiment that a part of a file is merged into."""


def is_run(words):
    """Whether a command is run and not only parsed."""
    command, arguments = words[0], [word for word in words[1:] if not word.startswith("-")]
    if command in ("init", "list", "show", "schema"):
        return True
    if command == "inspect":
        there = arguments and (arguments[0] in SOURCES or Path(arguments[0]).exists())
        return bool(there) and arguments[0] not in DOWNLOADED and "--gamma" not in words
    if command in ("advise", "run", "resume", "report"):
        return bool(arguments) and Path(arguments[0]).exists() and "ray" not in words
    if command == "verify":
        return bool(arguments) and Path(arguments[0].partition(":")[0]).is_file()
    return words == ["reproduce", "--list"]


def chosen(words):
    """Return the command that some words name, and its arguments."""
    command = UNDRIFT
    while words and hasattr(command, "commands"):
        name, *words = words
        assert name in command.commands, f"there is no command {name!r}"
        command = command.commands[name]
    return command, words


def parse(words):
    """Fail if a command or an option does not exist, or an argument is missing."""
    if words[0] not in ("--version", "--help"):
        command, arguments = chosen(words)
        command.make_context(words[0], arguments)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_what_a_page_says_can_be_done(page, tmp_path, monkeypatch, rigged):
    monkeypatch.chdir(tmp_path)
    rigged("stacked")  # choosing an engine would take a second each time
    monkeypatch.setenv("WANDB_MODE", "offline")
    namespace = {"__name__": "page"}
    for block in blocks(page):
        if block.file:
            Path(block.file).write_text(block.code, encoding="utf-8")
        if block.language == "python":
            exec(compile(block.code, block.file or named(page), "exec"), namespace)
        for words in block.commands():
            parse(words)
            if is_run(words):
                done = called(*words, cwd=tmp_path)
                assert done.returncode == 0, (words, done.stdout + done.stderr)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_commands_that_a_page_mentions_exist(page):
    for words in mentions(page):
        if words[0].isalpha() and words[0].islower():  # and not COMMAND, or an option of undrift
            command, arguments = chosen([word for word in words if not word.isupper()])
            known = {each for option in command.params for each in option.opts} | {"--help"}
            if not hasattr(command, "commands"):
                for word in arguments:
                    assert not word.startswith("-") or word.partition("=")[0] in known, words


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "experiment-keys.md"])
def test_parts_of_experiment_files_are_accepted(page, tmp_path):
    # The page of all keys has the examples of `undrift show`, which test_teaching checks.
    parts = [block for block in blocks(page) if block.language == "toml" and not block.file]
    for block in blocks(page):
        if block.file.endswith(".py"):
            (tmp_path / block.file).write_text(block.code, encoding="utf-8")
    if page.name == "deploy.md":
        (tmp_path / "site.py").write_text(starter_file("site.py"), encoding="utf-8")
    for block in parts:
        Experiment.from_dict(MINIMAL | tomllib.loads(block.code), folder=tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_between_sources_lead_somewhere(page):
    """Links must also work in the repository, not only on the site."""
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        if target.suffix == ".svg":
            assert anchor in ("", "only-light", "only-dark"), link  # the page it is shown on
        elif anchor and "api" not in target.parts:  # its anchors exist only on the site
            assert anchor in anchors(target), link


def test_pages_from_declarations_are_current():
    for name, text, module in (
        ("experiment-keys.md", keys_page(), "tools.pages.experiment_keys"),
        ("commands.md", commands_page(), "tools.pages.commands"),
    ):
        written = (DOCS / name).read_text(encoding="utf-8")
        assert written == text, f"refresh it: python -m {module} docs/{name}"


class Page(HTMLParser):
    """A page of the site: its anchors, its links, and what a browser loads with it."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.fetched = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link":
            self.fetched.append(found["href"])
        elif "src" in found:
            self.fetched.append(found["src"])


def test_the_site_builds_without_warnings_and_without_the_network(tmp_path):
    pytest.importorskip("mkdocs", reason="the [docs] extra is not installed")
    pytest.importorskip("mkdocstrings", reason="the [docs] extra is not installed")
    build = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *build],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},  # hides a notice about the future of MkDocs
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    pages = {path: Page(path) for path in tmp_path.rglob("*.html")}
    assert len(pages) > len(PAGES) - 1
    for path, page in pages.items():
        if path.name == "404.html":  # its links depend on the address it is served from
            continue
        for link in page.fetched:
            assert not urlsplit(link).netloc, (path, link)
        for link in page.links + page.fetched:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), (path, link)
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, (path, link)
    for sheet in tmp_path.rglob("*.css"):
        assert "url(http" not in sheet.read_text(encoding="utf-8"), sheet
