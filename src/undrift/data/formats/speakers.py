"""Plays as text with speakers: what each role says, one speech after another."""

from __future__ import annotations

import re

from undrift.utils.errors import require

COLON = re.compile(r"^([A-Z][A-Za-z'’ .-]*):\s*$")
"""`First Citizen:` on a line of its own, with the speech on the next ones"""
INDENTED = re.compile(r"^  ([A-Za-z][A-Za-z' ]*)\. (.*)")
"""`  ROSALIND. I pray you …`, with further lines indented by four"""
CAPITALS = re.compile(r"^([A-Z][A-Z' ]+)\. (.*)")
"""the same without indentation, as in one play of the Gutenberg edition"""
UNINDENTED = re.compile(r"^\S")
CONTINUED = re.compile(r"^ {4,8}\S")
"""a further line; what is indented more is a stage direction"""
AUTHOR = re.compile(r"^\s*by William Shakespeare\s*$", re.IGNORECASE)


def read_speeches(text: str, where: str) -> dict[str, list[str]]:
    """The speeches of each role, in the order in which roles first speak.

    Two forms are known: `NAME:` on a line of its own, with an empty line after the speech; and
    Project Gutenberg's complete works, where `NAME.` begins the speech and a role is named
    "PLAY / NAME".
    """
    lines = text.splitlines()
    with_colon = sum(bool(COLON.match(line)) for line in lines)
    with_point = sum(bool(INDENTED.match(line) or CAPITALS.match(line)) for line in lines)
    require(
        max(with_colon, with_point) > 0,
        f"{where} has no speakers: a speech begins with 'NAME:' on a line of its own, or with "
        f"'  NAME. ' before it.",
    )
    said = _by_colon(lines) if with_colon >= with_point else _by_point(lines)
    return {role: ["\n".join(speech) for speech in speeches] for role, speeches in said.items()}


Said = dict[str, list[list[str]]]
"""The lines of each speech of each role."""


def _by_colon(lines: list[str]) -> Said:
    said: Said = {}
    speech: list[str] | None = None
    for line in lines:
        named = COLON.match(line)
        if named:
            speech = []
            said.setdefault(named[1], []).append(speech)
        elif speech is not None and line.strip():
            speech.append(line)
    return said


def _by_point(lines: list[str]) -> Said:
    said: Said = {}
    play = heading = ""
    speech: list[str] | None = None
    indented = True
    for line in lines:
        if AUTHOR.match(line):  # the line of text before it is the title
            play, speech = heading, None
        heading = line.strip() or heading
        named = INDENTED.match(line) or CAPITALS.match(line)
        if named:
            indented = line.startswith(" ")
            speech = [named[2]]
            role = named[1].strip()
            said.setdefault(f"{play} / {role}" if play else role, []).append(speech)
        elif speech is not None and (CONTINUED if indented else UNINDENTED).match(line):
            speech.append(line.strip())
        else:
            speech = None
    return said
