"""Typeset the formulas of the guide as MathML while the site is built, so that it needs no network.

A formula is written as text, in the notation of `undrift.methods.formulas`: in a block ```formula,
in a line of prose as $`x_k − x`$, and single letters with an index also without marks. MkDocs calls
this module through `mkdocs.yml`; in the repository the pages show the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from html import escape
from typing import Any
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

NAMES = ("argmin", "prox", "min", "max", "sign", "pow", "ln", "mod")
"""Functions, which are set upright."""
LETTER = r"[^\W\d_][\u0300-\u036f]*"
INDEX = r"\{(?:[^{}]|\{[^{}]*\})*\}|[^\W_]+"
TOKEN = re.compile(
    rf"(?P<space>\s+)|(?P<raised>[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵀ]+)|(?P<lowered>[₀₁₂₃₄₅₆₇₈₉]+)"
    rf"|(?P<number>\d+(?:\.\d+)?)|(?P<word>[A-Za-z]{{2,}})|(?P<letter>{LETTER})"
    rf"|_(?P<index>{INDEX})|(?P<mark>.)"
)
LEVEL = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵀ₀₁₂₃₄₅₆₇₈₉", "0123456789−T0123456789")
BRACKETS = {"(": ")", "⟨": "⟩", "⌊": "⌋", "‖": "‖", "|": "|", "[": "]"}
ACCENTS = {"\u0302": "^", "\u0303": "~", "\u0304": "¯"}
RELATIONS = "+−=←≤≥≈·,~:→∈<>;≠×…"
"""Marks between two terms: what comes before one is complete."""


def mathml(formula: str, display: bool = False) -> str:
    """Return a formula as a `<math>` element."""
    kind = ' display="block"' if display else ""
    return f"<math{kind}>{_Setter(formula).sequence()}</math>"


class _Setter:
    """Turns one formula into MathML."""

    def __init__(self, formula: str):
        self._tokens = [
            (str(found.lastgroup), found[found.lastgroup or 0]) for found in TOKEN.finditer(formula)
        ]
        self._at = 0

    def sequence(self, end: str = "") -> str:
        """Return the terms up to a closing bracket or the end."""
        return _row(self._items(end))

    def _items(self, end: str) -> list[str]:
        items: list[str] = []
        words: list[str] = []
        while self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if kind == "mark" and text == end:
                break
            if kind == "space":
                self._at += 1
            elif self._is_word(kind, text):
                self._at += 1
                words.append(text)
                continue
            elif kind == "mark" and text == "/" and items:
                self._at += 1
                self._skip_space()
                above, below = _unbracketed(items.pop()), _unbracketed(self._factor())
                items.append(f"<mfrac>{above}{below}</mfrac>")
            else:
                _flush(words, items)
                items.append(self._factor())
        _flush(words, items)
        return items

    def _is_word(self, kind: str, text: str) -> bool:
        """Whether this is a word of English, such as "from" in "from v_k"."""
        return kind == "word" and text not in NAMES and self._next()[0] != "index"

    def _next(self, further: int = 1) -> tuple[str, str]:
        place = self._at + further
        return self._tokens[place] if place < len(self._tokens) else ("", "")

    def _skip_space(self) -> None:
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "space":
            self._at += 1

    def _factor(self) -> str:
        """Return one symbol, number, mark or bracket with its indices and powers."""
        kind, text = self._tokens[self._at]
        if kind == "word" and text == "pow" and self._next() == ("mark", "("):
            return self._power()
        self._at += 1
        if kind == "letter":
            base = _letter(text)
        elif kind == "word":
            base = f'<mi mathvariant="normal">{escape(text)}</mi>'
        elif kind == "number":
            base = f"<mn>{text}</mn>"
        elif text == "√":
            self._skip_space()
            base = f"<msqrt>{self._factor()}</msqrt>"
        elif text == "−" and self._begins():
            return '<mo form="prefix">−</mo>'
        elif text in BRACKETS:
            base = self._bracket(text)
        else:
            # A mark is an operator; an unpaired ∇ or ∂ belongs to what follows.
            base = "<mi>∇</mi>" if text == "∇" else f"<mo>{escape(text)}</mo>"
        return self._with_indices(base)

    def _begins(self) -> bool:
        """Whether the mark just read stands at the beginning of a term, as a sign does."""
        before = self._at - 2
        while before >= 0 and self._tokens[before][0] == "space":
            before -= 1
        if before < 0:
            return True
        kind, text = self._tokens[before]
        return kind == "mark" and (text in RELATIONS or text in "([{⟨⌊/")

    def _more(self) -> bool:
        return self._at < len(self._tokens)

    def _bracket(self, opening: str) -> str:
        """Return a bracket with what is in it; a fraction alone needs no round brackets."""
        closing, start = BRACKETS[opening], self._at
        items = self._items(closing)
        if not self._more():  # an unpaired mark
            self._at = start
            return f"<mo>{opening}</mo>"
        self._at += 1
        if opening == "(" and len(items) == 1 and items[0].startswith("<mfrac>"):
            return items[0]
        return (
            f'<mrow><mo form="prefix" stretchy="true">{opening}</mo>{"".join(items)}'
            f'<mo form="postfix" stretchy="true">{closing}</mo></mrow>'
        )

    def _power(self) -> str:
        """Return pow(a, b) as a with the exponent b."""
        self._at += 2
        base, exponent = _row(self._items(",")), ""
        self._at += 1
        self._skip_space()
        exponent = _row(self._items(")"))
        self._at += 1
        return f"<msup><mrow><mo>(</mo>{base}<mo>)</mo></mrow>{exponent}</msup>"

    def _with_indices(self, base: str) -> str:
        """Return a symbol with the indices and powers that follow it."""
        lower = upper = ""
        while self._more():
            kind, text = self._tokens[self._at]
            if kind == "index":
                lower = _Setter(text.strip("{}") if text.startswith("{") else text).sequence()
                if not text.startswith("{") and len(text) > 1:
                    lower = f'<mi mathvariant="normal">{escape(text)}</mi>'
            elif kind == "lowered":
                lower = f"<mn>{text.translate(LEVEL)}</mn>"
            elif kind == "raised":
                upper = f"<mn>{text.translate(LEVEL)}</mn>"
            else:
                break
            self._at += 1
        if base == "<mi>Σ</mi>":
            base = '<mo largeop="true" movablelimits="true">∑</mo>'
            return f"<munder>{base}{lower}</munder>" if lower else base
        if lower and upper:
            return f"<msubsup>{base}{lower}{upper}</msubsup>"
        if lower:
            return f"<msub>{base}{lower}</msub>"
        return f"<msup>{base}{upper}</msup>" if upper else base


def _letter(text: str) -> str:
    """Return a letter with the accents above it."""
    plain, *marks = list(unicodedata.normalize("NFD", text))
    found = f"<mi>{escape(plain)}</mi>"
    for mark in marks:
        found = f'<mover accent="true">{found}<mo stretchy="false">{ACCENTS[mark]}</mo></mover>'
    return found


def _row(items: Sequence[str]) -> str:
    return f"<mrow>{''.join(items)}</mrow>"


def _unbracketed(item: str) -> str:
    """Return the part of a fraction without the round brackets around all of it."""
    found = re.fullmatch(r"<mrow><mo [^>]*>\(</mo>(.*)<mo [^>]*>\)</mo></mrow>", item, re.DOTALL)
    return f"<mrow>{found[1]}</mrow>" if found else item


def _flush(words: list[str], items: list[str]) -> None:
    """Append the words read so far as text."""
    if words:
        items.append(f"<mtext>&nbsp;{escape(' '.join(words))}&nbsp;</mtext>")
        words.clear()


def formula_block(
    source: str, language: str, css_class: str, options: Any, md: Markdown, **others: Any
) -> str:
    """Return a block of formulas as HTML, for superfences: a line each, with who computes it.

    A line may begin with a word and spaces, the one who computes; the next lines leave it out.
    """
    lines = [line for line in source.splitlines() if line.strip()]
    if not any(re.match(r"[A-Za-z]{2,} {2,}", line) for line in lines):
        body = "".join(mathml(line.strip(), display=True) for line in lines)
        return f'<div class="formulas">{body}</div>'
    rows = []
    for line in lines:
        found = re.match(r"(?P<who>[A-Za-z]*)\s+(?P<formula>\S.*)", line)
        assert found is not None, line
        rows.append(f"<tr><th>{found['who']}</th><td>{_displayed(found['formula'])}</td></tr>")
    return f'<table class="formulas">{"".join(rows)}</table>'


def _displayed(formula: str) -> str:
    """Return a formula in display style that stands at the left."""
    return mathml(formula).replace("<math>", '<math displaystyle="true">', 1)


class _Inline(InlineProcessor):
    """Replaces what a pattern finds by HTML."""

    def __init__(self, pattern: str, md: Markdown, convert: Callable[[re.Match[str]], str]):
        super().__init__(pattern, md)
        self._convert = convert

    def handleMatch(  # type: ignore[override]
        self, m: re.Match[str], data: str
    ) -> tuple[Element | str, int, int]:
        """Store the HTML, and return its placeholder."""
        return self.md.htmlStash.store(self._convert(m)), m.start(0), m.end(0)


class Formulas(Extension):
    """Typesets formulas in prose."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Register the two patterns: before code spans, and before escaped characters."""
        marked = _Inline(r"\$`([^`]+)`\$", md, lambda found: mathml(found[1].replace("\\|", "|")))
        md.inlinePatterns.register(marked, "formula", 195)
        symbol = rf"(?<![\w\\/.])((?:prox|\d*[α-ω]?{LETTER})\\?_(?:{INDEX}))"
        lone = _Inline(symbol, md, lambda found: mathml(found[1].replace("\\", "")))
        md.inlinePatterns.register(lone, "symbol", 185)


def makeExtension(**options: Any) -> Formulas:
    """Return the extension; Markdown finds it by this name."""
    return Formulas(**options)
