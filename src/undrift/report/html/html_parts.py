"""The building blocks of sections as HTML: tables, links, switches, histograms and images.

Text that comes from a run is escaped here or by the caller.
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from urllib.parse import quote

from undrift.report.recorded_runs import Runs
from undrift.utils.plot_style import dash_number

MAX_PICTURE_BYTES = 1_200_000
"""The most bytes of images in one section."""


def plural(number: int, noun: str) -> str:
    """Return a count with its noun: "1 seed", "1,200 rounds"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def html_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    name: str,
    text: Sequence[int] = (),
    long: Sequence[int] = (),
) -> str:
    """Return a table whose cells are HTML; the first cell of each row is its header.

    `text` and `long` are the columns with text and with long text; the others hold numbers.
    """
    kinds = dict.fromkeys(text, ' class="text"') | dict.fromkeys(long, ' class="text long"')
    top = "".join(f'<th scope="col"{kinds.get(at, "")}>{h}</th>' for at, h in enumerate(head))
    top = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td{kinds.get(at, '')}>{cell}</td>" for at, cell in enumerate(row[1:], 1))
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}"><table>'
        f"{top}\n<tbody>{body}</tbody></table></div>"
    )


def csv_link(name: str, text: str) -> str:
    """Return a link that downloads a table as CSV."""
    return (
        f'<a class="button" download="{name}.csv" '
        f'href="data:text/csv;charset=utf-8,{quote(text)}">↓ {name}.csv</a>'
    )


def method_cell(runs: Runs, method: str) -> str:
    """Return a method's label with a swatch of its colour."""
    number = next(at for at, group in enumerate(runs.groups) if group.label == method)
    swatch = f'<span class="swatch dash-{dash_number(number)}" data-method="{number}"></span>'
    return f'{swatch}<span class="name">{escape(method)}</span>'


def radios(name: str, choices: Mapping[str, str], chosen: str) -> str:
    """Return a group of radio buttons, one per choice."""
    return '<span class="segments">{}</span>'.format(
        "".join(
            f'<label><input type="radio" name="{name}" value="{key}"'
            f"{' checked' * (key == chosen)}>{label}</label>"
            for key, label in choices.items()
        )
    )


def chart_figure(name: str, head: str, log: bool) -> str:
    """Return the element in which `page.js` draws one metric or diagnostic."""
    return (
        f'<figure data-name="{escape(name)}" data-log="{str(log).lower()}"><div class="head">'
        f'{head}<label><input type="checkbox"> log scale</label></div>'
        f'<div class="plot"></div></figure>'
    )


def svg_image(svg: bytes, alt: str) -> str:
    """Return an SVG as an image element, in which scripts of the SVG cannot run."""
    content = base64.b64encode(svg).decode()
    source = f"data:image/svg+xml;base64,{content}"
    return f'<img class="picture" alt="{escape(alt)}" src="{source}">'


def histogram(
    title: str, times: Counter[int], x: str, y: str, hint: Callable[[int, str], str]
) -> str:
    """Return bars as SVG: how often each integer occurs.

    `hint(count, range)` returns the tooltip of a bar.
    """
    found = histogram_bars(times)
    if not found:
        return ""
    width, height, left, bottom = 480, 170, 46, 34
    most = max(count for _, _, count in found)
    step = min((width - left) / len(found), 60)  # few bars stay narrow
    shapes = []
    for at, (first, last, count) in enumerate(found):
        size = (height - bottom - 12) * count / most
        reach = f"{first}" if first == last else f"{first} to {last}"
        shapes.append(
            f'<rect x="{left + at * step + 0.5:.1f}" y="{height - bottom - size:.1f}" '
            f'width="{max(step - 1, 0.5):.1f}" height="{size:.1f}">'
            f"<title>{escape(hint(count, reach))}</title></rect>"
        )
    every = math.ceil(len(found) / 9)
    ticks = "".join(
        f'<text x="{left + (at + 0.5) * step:.1f}" y="{height - bottom + 14}" '
        f'text-anchor="middle">{found[at][0]}</text>'
        for at in range(0, len(found), every)
    )
    return f"""<figure><h3>{escape(title)}</h3>
<svg class="histogram" viewBox="0 0 {width} {height}" role="img"
aria-label="{escape(f"{y} by {x}: {title}")}">
<line x1="{left}" x2="{width}" y1="{height - bottom}" y2="{height - bottom}"/>
<text x="{left - 6}" y="{16}" text-anchor="end">{most:,}</text>
<text x="{left - 6}" y="{height - bottom}" text-anchor="end">0</text>
{"".join(shapes)}{ticks}
<text x="{(left + width) / 2}" y="{height - 4}" text-anchor="middle">{escape(x)}</text>
<text x="12" y="{(height - bottom) / 2}" text-anchor="middle"
transform="rotate(-90 12 {(height - bottom) / 2})">{escape(y)}</text>
</svg></figure>"""


def histogram_bars(times: Counter[int], most: int = 40) -> list[tuple[int, int, int]]:
    """Return (first, last, count) of at most `most` bars of equal width."""
    if not times:
        return []
    low, high = min(times), max(times)
    width = math.ceil((high - low + 1) / most)
    found = []
    for first in range(low, high + 1, width):
        last = first + width - 1
        found.append((first, last, sum(times[n] for n in range(first, last + 1))))
    return found
