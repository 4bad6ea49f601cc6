"""Parses the guide's pages for tests: blocks of code, commands and links."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SHELL = ("", "sh", "bash", "console")
"""Languages of blocks whose lines are shell commands."""
BLOCK = re.compile(
    r"^```(?P<language>\w*)(?P<more>[^\n]*)\n(?P<code>.*?)^```$"
    r"|(?<=\n\n)(?P<indented>(?:    [^\n]*\n)+)",
    flags=re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block of code: its language, the file that its title names, and its text."""

    language: str
    file: str
    code: str

    def commands(self):
        """Yield the words of every line that calls undrift, if this is a block of commands."""
        if self.language not in SHELL:
            return
        whole = self.code.replace("\\\n", " ")
        for line in whole.splitlines():
            for part in re.split(";|>", line):
                if part.strip().startswith("undrift "):
                    yield shlex.split(part, comments=True)[1:]


def named(page):
    """Return the name of a page in test ids."""
    return page.relative_to(ROOT).as_posix()


def blocks(page):
    """Return the blocks of a page, in order."""
    found = []
    for each in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if each["indented"]:
            code = "".join(line[4:] + "\n" for line in each["indented"].splitlines())
            found.append(Block("", "", code))
            continue
        title = re.search(r'title="([^"]*)"', each["more"])
        file = title[1] if title and "." in title[1] else ""
        found.append(Block(each["language"], file, each["code"]))
    return found


def prose(page):
    """Return the text of a page without its blocks of code."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def mentions(page):
    """Yield the words of every undrift command in the prose."""
    for each in re.findall(r"`(undrift [^`]+)`", prose(page)):
        first = re.split(r"[;>|]", " ".join(each.split()))[0]
        yield [word for word in shlex.split(first)[1:] if word != "…"]


def links(page):
    """Return the targets of the links and images of a page."""
    text = re.sub(r"`[^`]*`", "", prose(page))
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(page):
    """Return the anchors of a page's headings, as GitHub and MkDocs name them."""
    heads = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
