"""One word for one thing: pages, help texts and errors avoid synonyms of the glossary's words."""

import ast
import re
from functools import cache

import pytest

from guide import DOCS, PAGES, ROOT, named, prose

ARCHITECTURE = DOCS / "architecture.md"
NAMES = ("secure aggregation",)
"""Names of protocols, which keep their words."""
QUOTED = ("reproductions.md", "reproduce")
"""The page and the package that quote the papers in their own words."""
SOURCES = [path for path in sorted((ROOT / "src").rglob("*.py")) if QUOTED[1] not in path.parts]
WRITTEN = [page for page in PAGES if page != ARCHITECTURE and page.name != QUOTED[0]]


def table_below(heading):
    """The rows of the first table below a heading of the architecture page."""
    text = ARCHITECTURE.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2]
    found = re.search(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    assert found, f"there is no table below {heading!r}"
    rows = [line.strip("|").split("|") for line in found[0].splitlines()[2:]]
    return [[cell.strip() for cell in row] for row in rows]


@cache
def avoided():
    """The words to avoid, in any number."""
    words = [
        word.strip() for row in table_below("### Words to avoid") for word in row[0].split(",")
    ]
    return re.compile(
        rf"(?<![\w./-])(?:{'|'.join(words)})(?:s|d|ion|ions)?(?![\w/.-]*[/_(=])(?!\w)"
    )


def found_in(text):
    """The avoided words of a text, without code, addresses and names."""
    for name in NAMES:
        text = re.sub(name, "", text, flags=re.IGNORECASE)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", "", text)
    return avoided().findall(" ".join(text.split()))


def messages(path):
    """The sentences of a module, docstrings included: strings with a space."""
    text = path.read_text(encoding="utf-8")
    if not avoided().search(" ".join(text.split())):  # most modules need not be parsed
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_a_page_avoids_the_synonyms_of_the_glossary(page):
    assert not found_in(prose(page))


def test_help_texts_docstrings_and_errors_avoid_them_too():
    wrong = {
        f"{named(path)}:{line}": found
        for path in SOURCES
        for line, text in messages(path)
        if (found := found_in(text))
    }
    assert not wrong


def test_the_search_finds_what_it_should():
    assert found_in("The global model is sent.") == ["global model"]
    assert found_in("Participants train.") == [] and found_in("participants train") != []
    assert not found_in("`silo` and secure aggregation and [x](silo.md)")


def test_the_glossary_defines_every_word_once_and_avoids_none_of_its_words():
    words = [word.strip() for row in table_below("## Glossary") for word in row[0].split(",")]
    assert len(words) > 50
    assert len(words) == len(set(words))
    assert not found_in(" ; ".join(words))
    assert all(row[1] for row in table_below("## Glossary"))
