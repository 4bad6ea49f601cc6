"""Reader of plays in text files: the speeches of each role, in order."""

from __future__ import annotations

import re

from undrift.utils.errors import require

COLON = re.compile(r"^([A-Z][A-Za-z'’ .-]*):\s*$")
"""`First Citizen:` on a line of its own, followed by the lines of the speech"""
INDENTED = re.compile(r"^  ([A-Za-z][A-Za-z' ]*)\. (.*)")
"""`  ROSALIND. I pray you …`, with further lines indented by four spaces"""
CAPITALS = re.compile(r"^([A-Z][A-Z' ]+)\. (.*)")
"""`ROSALIND. I pray you …` without indentation, as in one play of the Gutenberg edition"""
UNINDENTED = re.compile(r"^\S")
"""a further line of a speech that began without indentation"""
CONTINUED = re.compile(r"^ {4,8}\S")
"""a further line of an indented speech; a line indented more is a stage direction"""
AUTHOR = re.compile(r"^\s*by William Shakespeare\s*$", re.IGNORECASE)
"""the line after the title of a play"""


def read_speeches(text: str, where: str) -> dict[str, list[str]]:
    """The speeches of each role, in the order in which roles first speak.

    Two forms are read: `NAME:` on a line of its own, with an empty line after the speech; and
    Project Gutenberg's complete works, where `NAME.` begins the speech. Roles of the latter are
    called "PLAY / NAME". `where` names the text in error messages.
    """
    lines = text.splitlines()
    with_colon = sum(bool(COLON.match(line)) for line in lines)
    with_point = sum(bool(INDENTED.match(line) or CAPITALS.match(line)) for line in lines)
    require(
        max(with_colon, with_point) > 0,
        f"{where} has no speeches: a speech must begin with 'NAME:' on a line of its own, or with "
        f"'  NAME. ' before its first words.",
    )
    roles = _by_colon(lines) if with_colon >= with_point else _by_point(lines)
    return {role: ["\n".join(speech) for speech in speeches] for role, speeches in roles.items()}


Speeches = dict[str, list[list[str]]]
"""The lines of each speech of each role."""


def _by_colon(lines: list[str]) -> Speeches:
    """The speeches of a text in which `NAME:` stands on a line of its own."""
    speeches: Speeches = {}
    speech: list[str] | None = None
    for line in lines:
        named = COLON.match(line)
        if named:
            speech = []
            speeches.setdefault(named[1], []).append(speech)
        elif speech is not None and line.strip():
            speech.append(line)
    return speeches


def _by_point(lines: list[str]) -> Speeches:
    """The speeches of a text in which `NAME.` begins a speech, as in Gutenberg's edition."""
    speeches: Speeches = {}
    play = heading = ""
    speech: list[str] | None = None
    indented = True
    for line in lines:
        if AUTHOR.match(line):  # the last line of text before this one is the title
            play, speech = heading, None
        heading = line.strip() or heading
        named = INDENTED.match(line) or CAPITALS.match(line)
        if named:
            indented = line.startswith(" ")
            speech = [named[2]]
            role = named[1].strip()
            speeches.setdefault(f"{play} / {role}" if play else role, []).append(speech)
        elif speech is not None and (CONTINUED if indented else UNINDENTED).match(line):
            speech.append(line.strip())
        else:
            speech = None
    return speeches
