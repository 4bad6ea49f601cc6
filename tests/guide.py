"""The guide's pages as tests read them: blocks of code, commands and links."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SHELL = ("", "sh", "bash", "console")
"""The languages of blocks whose lines are commands."""
BLOCK = re.compile(
    r"^```(?P<language>\w*)(?P<more>[^\n]*)\n(?P<code>.*?)^```$"
    r"|(?<=\n\n)(?P<indented>(?:    [^\n]*\n)+)",
    flags=re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block of code: its language, the file it stands for if it names one, and the text."""

    language: str
    file: str
    code: str

    def commands(self):
        """The words of every line that calls undrift, if this is a block of commands."""
        if self.language not in SHELL:
            return
        whole = self.code.replace("\\\n", " ")
        for line in whole.splitlines():
            for part in re.split(";|>", line):
                if part.strip().startswith("undrift "):
                    yield shlex.split(part, comments=True)[1:]


def named(page):
    """A page as it is called in the names of tests."""
    return page.relative_to(ROOT).as_posix()


def blocks(page):
    """The blocks of a page, in their order."""
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
    """A page without its blocks of code."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def mentions(page):
    """The words of every command of undrift that the prose names in passing."""
    for each in re.findall(r"`(undrift [^`]+)`", prose(page)):
        first = re.split(r"[;>|]", " ".join(each.split()))[0]
        yield [word for word in shlex.split(first)[1:] if word != "…"]


def links(page):
    """Where the links and pictures of a page lead."""
    text = re.sub(r"`[^`]*`", "", prose(page))
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(page):
    """The anchors of a page's headings, as GitHub and MkDocs name them."""
    heads = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
