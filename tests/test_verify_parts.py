"""`undrift verify` of compressors and robust statistics: ours hold, wrong ones fail."""

import pytest

import undrift as ud
from commands import called
from undrift.compression import COMPRESSORS, RandomK, TopK
from undrift.robust import STATISTICS
from undrift.verify.uploads.parts import part_named, verify_part


def failing(part):
    return {fact.name for fact in verify_part(part) if not fact.holds}


@pytest.mark.parametrize("name", [*COMPRESSORS, *STATISTICS])
def test_every_part_of_the_library_holds(name):
    part = part_named(name, {})
    assert failing(part) == set()
    assert len(verify_part(part)) >= 4


class Biased(RandomK):
    def approximate(self, rows, keys, damped=False):
        return 0.9 * super().approximate(rows, keys, damped)


class Forgetful(TopK):
    def encode(self, vector, key):
        parts = super().encode(vector, key)
        return {**parts, "values": parts["values"] * 1.001}


class Mean(ud.robust.Median):
    def of(self, rows):
        return rows.mean(0)


class First(ud.robust.Median):
    def of(self, rows):
        return rows[0]


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        (Biased(0.3), "unbiased"),
        (Forgetful(0.1), "decodes"),
        (Mean(), "tolerates"),
        (First(), "order"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_wrong_part_fails(part, wrong):
    assert wrong in failing(part)


def test_the_command_verifies_parts(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import undrift as ud\n\nclass Mean(ud.robust.Median):\n"
        "    def of(self, rows):\n        return rows.mean(0)\n"
    )
    assert "6 of 6 facts hold" in called("verify", "random-k", cwd=tmp_path).stdout
    found = called("verify", "mine.py:Mean", cwd=tmp_path)
    assert found.returncode == 1
    assert "✗ tolerates" in found.stdout
