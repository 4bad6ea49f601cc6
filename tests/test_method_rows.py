"""The formulas that the guide and `undrift show` print are what the methods compute."""

from dataclasses import replace

import pytest
import torch

import undrift as ud
from undrift.methods import METHODS
from undrift.methods.formulas import ROWS, MethodRow, row_of
from undrift.verify import ours
from undrift.verify.formulas import Reader
from undrift.verify.one_round import _Round, formula
from undrift.verify.subjects import Subject


@pytest.mark.parametrize("subject", ours(), ids=lambda subject: subject.label)
def test_a_row_is_what_the_method_computes(subject):
    found = formula(subject)
    assert found.error < 1e-12, found.note


def test_every_method_has_a_row():
    assert ROWS.keys() == METHODS.keys()
    assert {subject.method.name for subject in ours()} == METHODS.keys()

    class FedAvg(ud.FedAvg):
        pass

    assert row_of(FedAvg()) is None


def error_of(subject, **changes):
    row = replace(row_of(subject.method), **changes)
    return _Round(subject, row, "samples").compare().error


@pytest.mark.parametrize(
    "changes",
    [
        {"linear": "c_k − c"},
        {"linear": "c − c_k − c"},
        {"linear": "c"},
        {"start": "c"},
        {"center": "x"},
        {"weight": "1"},
        {"scale": "2"},
        {"outside": True},
        {"asks": ("first_gradient",)},
        {"steps": "1"},
        {"uploads": ("Δ_k",)},
        {"uploads": ("δ_k", "Δ_k")},
        {"fold": ("x ← x + Σ_S q_k Δ_k", "c ← c + Σ_S q_k δ_k")},
        {"fold": ("x ← x + (N/K) Σ_S q_k Δ_k", "c ← c + (N/K) Σ_S q_k δ_k")},
        {"then": ("Δ_k ← x_k − x", "δ_k ← −c − Δ_k/(ητ_k)", "c_k ← c_k + δ_k")},
        {"then": ("Δ_k ← x_k − x", "δ_k ← −c − Δ_k/(η‖a_k‖₁)", "c_k ← c_k − δ_k")},
        {"used": "w_k"},
        {"residual": None},
    ],
    ids=str,
)
def test_a_wrong_formula_is_noticed(changes):
    subject = Subject("SCAFFOLD", ud.SCAFFOLD())
    assert error_of(subject) < 1e-12
    assert error_of(subject, **changes) > 1e-3


def test_a_users_method_may_declare_its_formulas():
    class Mine(ud.FedAvg):
        formulas = MethodRow(fold=("x ← x + (N/K) Σ_S q_k Δ_k",), used="w_k‖a_k‖₁", draws=True)

    assert formula(Subject("Mine", Mine())).error < 1e-12
    Mine.formulas = MethodRow(fold=("x ← x + (1/K) Σ_S Δ_k",), used="w_k‖a_k‖₁", draws=True)
    found = formula(Subject("Mine", Mine()))
    assert found.error > 1e-3
    assert found.note.startswith("server x")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2a + b/4", 7.0),
        ("2(a − b)/2", -1.0),
        ("−a b", -12.0),
        ("⟨v, v⟩", 14.0),
        ("max(a, b) − min(a, b)", 1.0),
        ("√b", 2.0),
        ("b² − 1", 15.0),
        ("⌊b/a⌋", 1.0),
        ("pow(a, 2)", 9.0),
        ("Σ_S c_k + 1", 7.0),
        ("a Σ_S c_k/2", 9.0),
        ("sign(a − b)", -1.0),
    ],
)
def test_formulas_are_read_as_on_paper(text, value):
    letters = {"a": 3.0, "b": 4.0, "v": torch.tensor([1.0, 2.0, 3.0])}
    clients = [{"c_k": 1.0}, {"c_k": 2.0}, {"c_k": 3.0}]
    assert float(Reader(text, letters, clients).value()) == pytest.approx(value)


@pytest.mark.parametrize("text", ["a + z", "(a", "a)", "⟨a, ", "min(a"])
def test_a_formula_that_cannot_be_read_is_an_error_of_one_sentence(text):
    with pytest.raises(ud.UndriftError, match="formula"):
        Reader(text, {"a": 1.0}).value()
