"""The formulas of the guide as MathML: every letter is there, fractions and indices are built."""

import re
import unicodedata
from xml.etree import ElementTree

import pytest

from guide import DOCS, blocks

pytest.importorskip("markdown", reason="the [docs] extra is not installed")

from markdown import markdown
from tools.pages.methods.method_sections import formulas, variants
from tools.pages.typesetting import formula_block, mathml

from browser import chromium
from undrift.methods import METHODS
from undrift.methods.formulas import steps_of

LEVEL = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵀ₀₁₂₃₄₅₆₇₈₉∑", "0123456789−T0123456789Σ")
NOT_SHOWN = re.compile(r"pow|[\s\u00a0()/_{},√]|<[^>]*>")
"""What the layout says and no letter: brackets, commas of pow, and the marks of notation."""


def letters(text):
    """The letters and marks of a formula or of its MathML, sorted, accents above or beside."""
    text = unicodedata.normalize("NFD", NOT_SHOWN.sub("", text.replace("&nbsp;", " ")))
    accents = {"\u0302": "^", "\u0303": "~", "\u0304": "¯"}
    return sorted(accents.get(each, each) for each in text.translate(LEVEL))


def children(element):
    return {each.tag: len(each) for each in element.iter()}


def all_formulas():
    for name in METHODS:
        for method in variants(name).values():
            row = formulas(method)
            yield from (line[9:].strip() for line in steps_of(row))
            yield from (row.start, row.linear, row.center, row.weight, *row.uploads)


@pytest.mark.parametrize("formula", dict.fromkeys(all_formulas()))
def test_a_formula_keeps_its_letters_and_is_well_formed(formula):
    found = mathml(formula)
    tree = ElementTree.fromstring(found.replace("&nbsp;", " "))
    assert letters(formula) == letters(found)
    for element in tree.iter():
        if element.tag in ("mfrac", "msub", "msup", "munder", "mover"):
            assert len(element) == 2, (element.tag, found)
        if element.tag == "msubsup":
            assert len(element) == 3
    assert "/" not in NOT_SHOWN.sub("", found)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("(N/K) x", "<mfrac><mi>N</mi><mi>K</mi></mfrac><mi>x</mi>"),
        ("−a/b", '<mo form="prefix">−</mo><mfrac><mi>a</mi><mi>b</mi></mfrac>'),
        ("x̂_k", "<msub><mover"),
        ("‖a_k‖₁", "</mo></mrow><mn>1</mn></msub>"),
        ("τ_eff", '<mi mathvariant="normal">eff</mi>'),
        ("pow(1 + u, −a)", "<msup><mrow><mo>(</mo>"),
        ("|x|²", "<mn>2</mn></msup>"),
        ("Σ_S q_k", "<munder><mo"),
    ],
)
def test_indices_fractions_and_powers_are_built(formula, expected):
    assert expected in mathml(formula)


def test_a_fraction_takes_the_factor_before_it_and_drops_its_brackets():
    found = mathml("x + (a − b)/(c d)")
    row = ElementTree.fromstring(found)[0]
    assert [each.tag for each in row] == ["mi", "mo", "mfrac"]
    assert "(" not in found


def test_a_block_says_who_computes():
    found = formula_block("client   x ← y\n         y ← z\nserver   z ← x", "", "", {}, None)
    rows = ElementTree.fromstring(found)
    assert [row[0].text for row in rows] == ["client", None, "server"]
    alone = formula_block("F(x) = x", "", "", {}, None)
    assert alone.startswith('<div class="formulas"><math display="block">')


def test_formulas_in_prose_are_typeset_and_code_is_not():
    def html(text):
        return markdown(text, extensions=["tools.pages.typesetting", "tables"])

    assert html("with τ_k steps").count("<math>") == 1
    assert html("τ\\_k and 2x_k and ητ_k and ∇f_k(x)").count("<math>") == 4
    assert html("$`c − c_k`$").count("<math>") == 1 and "<code>" not in html("$`c − c_k`$")
    assert "<math>" not in html("`x_k` and client_id and _emphasis_ and a/b_c.py")
    table = html("| a |\n|---|\n| $`\\|Δ_k\\|²`$ |")
    assert "<msup>" in table and "\\" not in table


def test_pages_of_methods_have_no_formula_as_plain_text():
    for page in sorted((DOCS / "methods").glob("*.md")):
        for block in blocks(page):
            assert block.language != "text" or "←" not in block.code, page.name


def test_a_browser_lays_the_formulas_out(tmp_path):
    block = formula_block("server   x ← (a + b)/(Σ_S q_k)", "", "", {}, None)
    (tmp_path / "page.html").write_text(f"<!doctype html><body>{block}", encoding="utf-8")
    with chromium() as browser:
        page = browser.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        box = "document.querySelector('{}').getBoundingClientRect()"
        above = page.evaluate(box.format("mfrac > :first-child"))
        below = page.evaluate(box.format("mfrac > :last-child"))
        index, base = (page.evaluate(box.format(f"msub > {each}")) for each in ("mrow", "mi"))
    assert above["bottom"] <= below["top"] + 1  # one above the other, and not side by side
    assert index["height"] < base["height"] and index["left"] >= base["right"] - 1
