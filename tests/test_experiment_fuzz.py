"""Experiments made up at random: read again as written, accepted or refused in words."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments import replaced, tables
from undrift.experiments.experiment import Experiment
from undrift.experiments.teaching import starter
from undrift.utils.errors import UndriftError

QUICK = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LOCALS = st.one_of(
    st.fixed_dictionaries(
        {"lr": st.floats(1e-6, 10)},
        optional={
            "batch_size": st.one_of(st.integers(1, 100), st.just("none")),
            "epochs": st.integers(1, 9),
            "momentum": st.floats(0, 0.99),
            "clip": st.floats(0.1, 9),
            "step_schedule": st.just({"schedule": "Milestones", "lr": 1, "milestones": [3]}),
        },
    ),
    st.fixed_dictionaries(
        {"solver": st.just("GD"), "lr": st.floats(1e-6, 10), "steps": st.integers(1, 9)}
    ),
)
PARTITION = st.one_of(
    st.sampled_from(["iid", "dirichlet:0.5", "classes:2", "natural"]),
    st.fixed_dictionaries(
        {"kind": st.just("dirichlet"), "alpha": st.floats(0.01, 10)},
        optional={
            "min_size": st.integers(0, 9),
            "sizes": st.sampled_from(
                ["lognormal:0.3", {"kind": "power-law", "exponent": 1.5}, [10, 20, 30]]
            ),
        },
    ),
)
DATA = st.one_of(
    st.fixed_dictionaries(
        {"source": st.just("synthetic")},
        optional={"most": st.integers(2, 99), "iid": st.booleans(), "test": st.floats(0.01, 0.9)},
    ),
    st.fixed_dictionaries(
        {"source": st.sampled_from(["mnist", "emnist_l", "cifar10"])},
        optional={
            "partition": PARTITION,
            "normalise": st.sampled_from(["none", "features"]),
            "augment": st.just(["crop:4", "flip"]),
            "seed": st.integers(0, 99),
            "validation": st.floats(0.01, 0.9),
        },
    ),
    st.just({"source": "femnist", "clients": "none"}),
)
METHOD = st.one_of(
    st.sampled_from([{"name": name} for name in ("FedAvg", "FedProx", "SCAFFOLD", "FedLGA")]),
    st.fixed_dictionaries({"name": st.just("FedDyn"), "alpha": st.floats(1e-3, 10)}),
    st.just({"name": "FedNova", "tau_eff": "steps", "server": "Adam", "local": {"epochs": 3}}),
)


@QUICK
@given(
    data=DATA,
    local=LOCALS,
    methods=st.lists(METHOD, min_size=1, max_size=3, unique_by=str),
    seeds=st.lists(st.integers(0, 2**40), min_size=1, max_size=3, unique=True),
    name=st.text(st.characters(categories=["L", "N", "Zs", "S"]), min_size=1).filter(str.strip),
    rounds=st.integers(1, 10**6),
)
def test_what_is_written_is_what_was_read(tmp_path, data, local, methods, seeds, name, rounds):
    raw = {
        "data": data,
        "local": local,
        "method": methods,
        "seeds": seeds,
        "rounds": rounds,
        "model": {"name": "logistic"},
    }
    raw |= {"name": name} if name.isprintable() else {}
    raw["method"] = [{**each, "label": f"m{k}"} for k, each in enumerate(methods)]
    found = Experiment.from_dict(raw)
    found.write(tmp_path / "e.toml")
    again = Experiment.load(tmp_path / "e.toml")
    assert again == found
    assert again.resolved() == found.resolved()
    assert repr(again.methods()) == repr(found.methods())
    for label in found.labels:
        assert again.local_of(label) == found.local_of(label)


JUNK = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-3, 3),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(
            [
                "none",
                "FedAvg",
                "SGD",
                "iid:",
                "dirichlet:x",
                ":",
                "a.py:B",
                "..",
                "\0",
                "~",
                10**400,
            ]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["name", "kind", "lr", "alpha", "x", ""]), inner, max_size=3
        ),
    ),
    max_leaves=6,
)


def paths(value, before=()):
    """Every place in nested tables."""
    yield before
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in inner:
            yield from paths(each, (*before, key))


PLACES = [path for path in paths(tables()) if path]


def accepted_or_refused(make):
    """Either an experiment comes of it, or sentences; never anything else."""
    said = "an experiment."
    try:
        make()
    except UndriftError as error:
        said = str(error)
    assert all(line.strip() for line in said.split("\n"))
    assert "The experiment cannot be read" not in said  # the last resort of the reader


class TestFuzz:
    @QUICK
    @given(path=st.sampled_from(PLACES), value=JUNK)
    def test_anything_anywhere(self, path, value):
        accepted_or_refused(lambda: Experiment.from_dict(replaced(tables(), path, value)))

    @QUICK
    @given(
        where=st.lists(st.sampled_from(PLACES), min_size=1, max_size=4),
        values=st.lists(JUNK, min_size=4, max_size=4),
        extra=st.text(max_size=5),
    )
    def test_several_changes_at_once(self, where, values, extra):
        raw = tables()
        for path, value in zip(where, values, strict=False):
            try:
                raw = replaced(raw, path, value)
            except (TypeError, KeyError, IndexError, AttributeError):
                continue  # what the path leads to is gone
        raw[extra] = values[0]
        accepted_or_refused(lambda: Experiment.from_dict(raw))

    @pytest.mark.parametrize(
        "value", [None, True, -1, 0.5, float("nan"), "x", [], [[]], {}, {"": 1}]
    )
    def test_a_wrong_type_at_every_place(self, value):
        for path in PLACES:
            accepted_or_refused(lambda p=path: Experiment.from_dict(replaced(tables(), p, value)))

    @QUICK
    @given(
        key=st.one_of(
            st.text(max_size=20),
            st.sampled_from(PLACES).map(lambda path: ".".join(map(str, path))),
        ),
        value=JUNK,
    )
    def test_any_setting(self, key, value):
        accepted_or_refused(lambda: Experiment.from_dict(tables(), {key: value}))

    @QUICK
    @given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
    def test_any_file(self, tmp_path, content):
        path = tmp_path / "any.toml"
        path.write_bytes(content)
        accepted_or_refused(lambda: Experiment.load(path))

    @QUICK
    @given(
        where=st.integers(0, 10_000), what=st.text(min_size=0, max_size=4), cut=st.integers(0, 5)
    )
    def test_a_damaged_file(self, tmp_path, where, what, cut):
        text = starter()
        where %= len(text)
        path = tmp_path / "damaged.toml"
        path.write_text(text[:where] + what + text[where + cut :], errors="replace")
        accepted_or_refused(lambda: Experiment.load(path))
