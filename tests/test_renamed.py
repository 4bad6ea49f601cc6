"""Old names of public things still work, and say what they are called now."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import undrift as ud
from undrift.utils.renamed import MOVED, REMOVAL, RENAMED

GUIDE = Path(__file__).parents[1] / "docs" / "stability.md"


def found(name):
    """The object with a dotted name."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("old", [name for name in RENAMED if "LocalResult" not in name])
def test_an_old_name_is_the_new_thing(old):
    with pytest.warns(DeprecationWarning, match=re.escape(f"is now called {RENAMED[old]}")) as seen:
        assert found(old) is found(RENAMED[old])
    assert seen[0].filename == __file__


def test_the_old_name_of_a_norm_has_its_value():
    result = ud.LocalResult(torch.zeros(1), 3, 3, 2.5, 0.1)
    with pytest.warns(DeprecationWarning, match="is now called undrift.LocalResult.a_norm"):
        assert result.progress == 2.5


@pytest.mark.parametrize("old", MOVED)
def test_a_moved_module_is_the_same_module(old):
    sys.modules.pop(old, None)
    module = importlib.import_module(MOVED[old])
    spec = module.__spec__
    with pytest.warns(DeprecationWarning, match=re.escape(f"{old} moved to {MOVED[old]}")):
        assert importlib.import_module(old) is module
    assert module.__spec__ is spec and module.__name__ == MOVED[old]


def test_short_names_are_modules_without_a_warning():
    code = "from undrift.models import mlp; import undrift.server, undrift as ud; "
    code += "assert ud.models.mlp is mlp and undrift.server is ud.server; print(ud.models.__name__)"
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "undrift.nets.models\n", done.stderr


def test_other_names_are_still_unknown():
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        found("undrift.verify.Nothing")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("undrift.nothing")


def test_the_guide_lists_what_was_renamed():
    rows = re.findall(r"^\| `(.*)` \| `(.*)` \| (.*) \|$", GUIDE.read_text(encoding="utf-8"), re.M)
    assert {old: new for old, new, _ in rows} == RENAMED | MOVED
    assert {until for _, _, until in rows} == {REMOVAL}
