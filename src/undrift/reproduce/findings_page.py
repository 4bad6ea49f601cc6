"""Writes the HTML page of a reproduction, which links to the report of its runs."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from undrift.reproduce.findings import Findings
from undrift.reproduce.reproduction import PAPERS, Reproduction
from undrift.runs.folder import read_json
from undrift.utils.files import written_whole
from undrift.utils.formatting import duration

FINDINGS, FIGURE, REPORT, CURVES = "findings.json", "figure.png", "report.html", "runs.html"
"""Files in the folder of a reproduction, besides its runs."""
VERDICTS = {True: "holds", False: "does not hold", None: "undecided"}
STALE = (
    "These results were measured with earlier settings; the description is that of the current "
    "ones, which have not been run yet."
)
VERDICT_CLASSES = {True: "good", False: "bad", None: "wait"}


def command(reproduction: Reproduction, saved: dict[str, Any]) -> str:
    """Return the command that repeats the reproduction."""
    words = f"undrift reproduce {reproduction.name} --seeds {saved['seeds']}"
    parts = saved["parts"] if parts_not_run(reproduction, saved) else []
    return words + " --quick" * saved["quick"] + "".join(f' --part "{part}"' for part in parts)


def parts_not_run(reproduction: Reproduction, saved: dict[str, Any]) -> list[str]:
    """Return the parts that a full run left out."""
    if saved["quick"]:
        return []
    return [part for part in reproduction.parts if part not in saved["parts"]]


def write_page(reproduction: Reproduction, folder: Path) -> Path:
    """Write the page of the findings in the folder of a reproduction."""
    path = folder / REPORT
    with written_whole(path) as partial:
        partial.write_text(page(reproduction, folder), encoding="utf-8")
    return path


def page(reproduction: Reproduction, folder: Path) -> str:
    """Return the page as HTML."""
    saved = read_json(folder / FINDINGS)
    found = Findings.from_dict(saved)
    css = (files("undrift.report.html") / "page.css").read_text(encoding="utf-8")
    body = [
        f"<header><h1>{escape(reproduction.name)}</h1>",
        f'<p class="about">{escape(_paper(reproduction))}</p>',
        f"<p>{escape(reproduction.about)}</p>",
        *_warnings(reproduction, saved, found),
        f"<p><code>{escape(command(reproduction, saved))}</code> "
        f"took {duration(saved['seconds'])} with {saved['threads']} threads.</p></header><main>",
        *_section("Claims", _claims(found)),
        *_section("Figure", _figure(folder)),
        *_section("Published and measured", _numbers(found)),
        *_section("What the paper leaves open, and our choices", _open(reproduction)),
    ]
    if (folder / CURVES).is_file():
        body.append(
            f'<section><h2>Runs</h2><p><a href="{CURVES}">Curves, costs and settings of all '
            f"runs</a>.</p></section>"
        )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(reproduction.name)} · undrift</title>\n<style>{css}\n"
        "img { max-width: 100%; background: #fff; border-radius: 6px; }\n"
        "td, th { text-align: left; vertical-align: top; white-space: normal; }\n"
        "td.good, td.bad, td.wait { white-space: nowrap; }\n"
        ".good { color: var(--good); } .bad { color: var(--bad); } .wait { color: var(--wait); }\n"
        "</style></head>\n<body>\n" + "\n".join(body) + f"\n</main>\n<footer>Made by undrift "
        f"{escape(saved['undrift'])} on {escape(saved['made'])}.</footer>\n</body></html>\n"
    )


def _paper(reproduction: Reproduction) -> str:
    return f"{reproduction.shows} of {PAPERS[reproduction.paper]}"


def _warnings(reproduction: Reproduction, saved: dict[str, Any], found: Findings) -> Iterable[str]:
    if saved["quick"]:
        yield f'<p class="warning">The quick version: {escape(reproduction.quick_is)}</p>'
    left_out = parts_not_run(reproduction, saved)
    if left_out:
        yield f'<p class="warning">Not run: {escape("; ".join(left_out))}.</p>'
    for note in found.notes:
        yield f'<p class="warning">{escape(note)}</p>'


def _section(title: str, body: str) -> list[str]:
    return [f"<section><h2>{title}</h2>\n{body}</section>"] if body else []


def _claims(found: Findings) -> str:
    rows = (
        f'<tr><td>{escape(claim.text)}</td><td class="{VERDICT_CLASSES[claim.holds]}">'
        f"{VERDICTS[claim.holds]}</td><td>{escape(claim.evidence)}</td></tr>"
        for claim in found.claims
    )
    return _table(("claim", "here", "evidence"), rows) if found.claims else ""


def _numbers(found: Findings) -> str:
    rows = (
        f"<tr><td>{escape(n.where)}</td><td>{escape(n.what)}</td>"
        f"<td>{escape(n.printed())}</td><td>{escape(n.shown())}</td></tr>"
        for n in found.numbers
    )
    return _table(("where", "what", "published", "measured"), rows) if found.numbers else ""


def _table(head: Iterable[str], rows: Iterable[str]) -> str:
    heads = "".join(f'<th scope="col">{each}</th>' for each in head)
    body = "\n".join(rows)
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _figure(folder: Path) -> str:
    path = folder / FIGURE
    if not path.is_file():
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="The figure, drawn from these runs" src="data:image/png;base64,{data}">'


def _open(reproduction: Reproduction) -> str:
    if not reproduction.left_open:
        return ""
    return "<ul>" + "".join(f"<li>{escape(each)}</li>" for each in reproduction.left_open) + "</ul>"
