"""Tables as inputs: categories, dates, missing values, and splits that respect classes or time."""

import json
import statistics
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from undrift.data.tabular.answers import check_cells, check_counts, check_deviations
from undrift.data.tabular.encoding import encoding_from
from undrift.data.tabular.medians import LEVELS, counts_in_cells, edges, median_cell, middle
from undrift.experiments.building import build_data
from undrift.experiments.experiment import Experiment

FROM = ud.data.FederatedData.from_folder
CLASSES = ["well", "ill"]


def write(folder, **clients):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in clients.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def two_clients(folder):
    return write(
        folder,
        north="age,ward,seen,outcome\n40,b,2024-01-01,well\n,a,2024-01-03,ill\n60,,2024-01-02,well\n",
        south="ward,outcome,seen,age\na,ill,2024-01-05 12:00,20\nc,well,2024-01-04,NA\n",
    )


def read(folder, **options):
    given = {"categories": ["ward"], "min_count": 1, "missing": "mean", "dates": ["seen"]}
    return FROM(folder, "outcome", classes=CLASSES, **given | options)


def test_every_client_has_the_same_code_and_missing_values_are_filled_in(tmp_path):
    data = read(two_clients(tmp_path), indicators=True)
    assert data.encoding.names == [
        "age", "age is missing", "ward=a", "ward=b", "ward=c", "ward is missing", "seen",
    ]  # fmt: skip
    north, south = data.client("north")[0].tolist(), data.client("south")[0].tolist()
    assert north == [
        [40, 0, 0, 1, 0, 0, 19723],
        [40, 1, 1, 0, 0, 0, 19725],
        [60, 0, 0, 0, 0, 1, 19724],
    ]
    assert south == [[20, 0, 1, 0, 0, 0, 19727.5], [40, 1, 0, 0, 1, 0, 19726]]
    assert data.train.y.tolist() == [0, 1, 0, 1, 0]


def test_codes_are_for_embeddings_and_zero_is_unknown(tmp_path):
    options = {"encoding": "codes", "categories": {"ward": ["a", "b"]}, "dates": [], "missing": 7}
    with pytest.warns(UserWarning, match=r"Line 3 of .*south.csv has 'c' in column 'ward'"):
        data = read(two_clients(tmp_path), drop=["seen"], **options)
    numbers, codes = data.train.x
    assert codes.flatten().tolist() == [2, 1, 0, 1, 0]
    assert numbers.flatten().tolist() == [40, 7, 60, 20, 7]
    assert data.encoding.codes == [3] and data.encoding.code_names == ["ward"]

    class Embedded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.ward = torch.nn.Embedding(*data.encoding.codes, 2)
            self.out = torch.nn.Linear(3, 2)

        def forward(self, numbers, codes):
            return self.out(torch.cat([numbers / 50, self.ward(codes[:, 0])], 1))

    local = ud.SGD(lr=0.1, batch_size=2, epochs=1)
    result = ud.train(
        ud.FedAvg(), model=Embedded(), data=data, local=local, rounds=2, engine="serial"
    )
    assert np.isfinite(result.metrics["train_loss"])


def test_parts_of_dates_and_other_forms_of_dates(tmp_path):
    write(tmp_path, a="day,y\n31.05.2024,0\n01.06.2024,1\n")
    found = FROM(tmp_path, dates={"day": ["month", "weekday", "days"]}, date_format="%d.%m.%Y")
    assert found.encoding.names == ["day.month", "day.weekday", "day"]
    assert found.train.x.tolist() == [[5, 4, 19874], [6, 5, 19875]]


def test_statistics_come_from_the_training_samples_only(tmp_path):
    rows = "".join(f"{v},{w},{v % 2}\n" for v, w in zip(range(40), "ab" * 20, strict=True))
    write(tmp_path, a="v,w,y\n" + rows + "1000,z,1\n")
    options = {"categories": ["w"], "normalise": "features", "min_count": 1}
    # The last sample is the newest: its value must change neither mean nor vocabulary.
    with pytest.warns(UserWarning, match="'z' in column 'w', which is none of its 2 known"):
        data = FROM(tmp_path, **options).with_test(0.2, order="v")
    kept = np.arange(33)
    column, word = data.encoding.columns
    assert column.mean == pytest.approx(kept.mean(), rel=1e-12)
    assert column.deviation == pytest.approx(kept.std(), rel=1e-12)
    assert word.values == ("a", "b")
    assert data.train.x[data.train.rows, 0].mean() == pytest.approx(0, abs=1e-6)
    assert data.test.x[data.test.rows, 1:].sum(1).tolist() == [1] * 7 + [0]
    with pytest.raises(ud.UndriftError, match=r"Line 42 of .*a.csv has 'z' in column 'w'.*unknown"):
        FROM(tmp_path, **options, unknown="error").with_test(0.2, order="v")


def test_imputed_columns_are_standardised_after_imputation(tmp_path):
    write(tmp_path, a="v,y\n1,0\n,1\n3,0\n", b="v,y\n8,1\n,0\n")
    for missing, fill in (("mean", 4.0), ("median", 3.0), (-2, -2.0)):
        data = FROM(tmp_path, missing=missing, normalise="features")
        filled = np.array([1, fill, 3, 8, fill])
        wanted = (filled - filled.mean()) / filled.std()
        np.testing.assert_allclose(data.train.x[:, 0], wanted, atol=2e-4)


@given(
    st.lists(
        st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=15), min_size=1, max_size=4
    )
)
@settings(max_examples=100, deadline=None)
def test_medians_are_as_exact_as_stated(clients):
    values = np.array([v for own in clients for v in own])
    mean, deviation = float(values.mean()), float(values.std())
    if deviation <= 1e-9 * np.abs(values).max():
        return
    path = []
    for _ in range(LEVELS):
        bounds = edges(mean, deviation, path)
        counts = [{"v": counts_in_cells(np.array(own), bounds)} for own in clients]
        path.append(median_cell(counts, "v", len(values)))
    found = middle(mean, deviation, path)
    assert abs(found - statistics.median_low(values)) <= 1.001 * deviation / 16**4


def test_rare_values_do_not_enter_an_agreed_vocabulary(tmp_path):
    write(
        tmp_path,
        a="w,y\n" + "x,0\n" * 5 + "rare,1\n" * 4,
        b="w,y\n" + "z,0\n" * 6 + "rare,1\n" * 4,
    )
    with pytest.warns(UserWarning, match="8 train samples have unknown values"):
        assert FROM(tmp_path, categories=["w"]).encoding.names == ["w=x", "w=z"]
    assert FROM(tmp_path, categories=["w"], min_count=4).encoding.names == [
        "w=rare", "w=x", "w=z",
    ]  # fmt: skip


def test_identifiers_are_announced_and_dropped(tmp_path):
    rows = "".join(f"p{k},{k + 100},{k % 7},{k % 2}\n" for k in range(30))
    write(tmp_path, a="patient,number,v,y\n" + rows)
    with pytest.warns(UserWarning, match="columns 'number' of .* look like identifiers"):
        FROM(tmp_path, drop=["patient"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FROM(tmp_path, drop=["patient", "number"]).encoding.names == ["v"]


def test_an_encoding_is_kept_in_a_file_and_used_on_new_data(tmp_path):
    data = read(two_clients(tmp_path / "old"), normalise="features")
    stored = encoding_from(json.loads(json.dumps(data.encoding.plain())))
    assert stored == data.encoding
    write(tmp_path / "new", a="age,ward,seen,outcome\n40,b,2024-01-01,well\n")
    new = read(tmp_path / "new").encoded(stored)
    assert torch.equal(new.train.x[0], data.client("north")[0][0])
    for key, value in (("columns", []), ("whole", 1)):
        with pytest.raises(ud.UndriftError, match="encoding must have"):
            encoding_from({**data.encoding.plain(), key: value})


@pytest.mark.parametrize("by", ["client", "overall"])
def test_stratified_splits_take_the_share_of_every_class(by):
    y = np.array([0] * 40 + [1] * 12 + [2] * 8 + [0] * 30 + [1] * 10 + [2])
    x = np.arange(len(y), dtype=np.float32)[:, None]
    parts = [range(60), range(60, len(y))]
    data = ud.data.FederatedData.from_arrays(x, y, parts).with_test(0.25, by=by, stratified=True)
    if by == "client":
        counts = [np.bincount(data.test.client(k)[1], minlength=3).tolist() for k in (0, 1)]
        assert counts == [[10, 3, 2], [8, 2, 0]]  # the one sample of a class stays
    else:
        assert np.bincount(data.test.y[data.test.rows]).tolist() == [18, 5, 2]
    both = torch.cat([data.train.rows, data.test.rows])
    assert both.sort().values.tolist() == list(range(len(y)))


def test_a_class_keeps_its_last_training_sample():
    y = np.array([0] * 7 + [1])
    data = ud.data.FederatedData.from_arrays(np.zeros((8, 1), np.float32), y, [range(8)])
    data = data.with_test(0.7, stratified=True)
    assert data.train.y[data.train.rows].tolist().count(1) == 1


def test_splits_in_order_hold_out_the_newest_samples():
    times = np.array(["2024-03-01", "2024-01-01", "2024-02-01", "2024-04-01"] * 3, "datetime64[D]")
    y = np.arange(12) % 2
    data = ud.data.FederatedData.from_arrays(
        np.arange(12, dtype=np.float32)[:, None], y, [range(4), range(4, 12)]
    )
    held = data.with_test(0.25, order=times)
    assert held.test.rows.tolist() == [3, 7, 11]
    assert held.with_validation(0.3, order=times[held.train.rows]).validation.rows.tolist() == [
        0, 4, 8,
    ]  # fmt: skip
    for wrong, match in ((times[:3], "for each of the 12"), ("when", "has no tables")):
        with pytest.raises(ud.UndriftError, match=match):
            data.with_test(0.25, order=wrong)
    with pytest.raises(ud.UndriftError, match="either stratified or in order"):
        data.with_test(0.25, order=times, stratified=True)
    with pytest.raises(ud.UndriftError, match="needs one class number"):
        ud.data.FederatedData.from_arrays(y[:, None], y / 2, [range(12)]).with_test(
            0.5, stratified=True
        )


def test_class_weights_make_all_classes_count_the_same(tmp_path):
    write(tmp_path, a="v,y\n" + "1,0\n" * 6 + "2,1\n" * 2, b="v,y\n3,0\n4,0\n5,1\n6,1\n")
    data = FROM(tmp_path)
    assert data.class_counts() == [8, 4]
    assert data.class_weights().tolist() == [0.75, 1.5]


WRONG = [
    ({"missing": "error"}, r"Line 3 of .*north.csv has no value in column 'age': fill it in"),
    ({"missing": {"age": 0}}, r"Line 4 of .*north.csv has no value in column 'ward'"),
    ({"missing": "avg"}, "missing is 'avg', but must be 'error', 'mean', 'median' or a finite"),
    ({"categories": ["ward", "wards"]}, "A column of categories is 'wards'.*did you mean 'ward'"),
    ({"categories": []}, "'b' in column 'ward', which must be a number.*declare words"),
    ({"categories": {"ward": []}}, "categories is \\[\\] for 'ward'"),
    ({"dates": ["seen", "age"]}, "'40' in column 'age', which must be an ISO date"),
    ({"dates": {"seen": ["minute"]}}, "A part of the date 'seen' in dates is 'minute'"),
    ({"encoding": "hot"}, "encoding is 'hot', but must be one of 'one-hot', 'codes'"),
    ({"drop": ["ward"]}, "'ward' is in drop, but also in inputs, categories or dates"),
    ({"inputs": ["age"]}, "'ward' is in categories or dates, but not in inputs"),
    ({"min_count": 3}, "No value of the category 'ward' occurs in 3 training samples"),
    ({"sites": ["west"]}, "no file of the site 'west'"),
]


@pytest.mark.parametrize(("options", "match"), WRONG)
def test_mistakes_get_one_sentence(tmp_path, options, match):
    with pytest.raises(ud.UndriftError, match=match):
        read(two_clients(tmp_path), **options)


def test_a_file_reaches_all_of_it(tmp_path):
    two_clients(tmp_path / "wards")
    (tmp_path / "e.toml").write_text(
        """
        [data]
        source = "wards"
        target = "outcome"
        classes = ["well", "ill"]
        sites = ["south", "north"]
        missing = {age = "median", ward = 0, seen = "error"}
        indicators = ["age"]
        min_count = 1
        normalise = "features"
        test = {share = 0.5, order = "seen"}
        [data.categories]
        ward = ["a", "b", "c"]
        [data.dates]
        seen = ["days", "weekday"]
        [model]
        name = "logistic"
        [local]
        lr = 0.1
        batch_size = 2
        epochs = 1
        [[method]]
        name = "FedAvg"
        """
    )
    experiment = Experiment.load(tmp_path / "e.toml")
    data = build_data(experiment)
    assert data.ids == ["south", "north"]
    assert [len(own) for own in (data.train, data.test)] == [2, 3]
    assert data.encoding.names == [
        "ward=a", "ward=b", "ward=c", "seen", "seen.weekday", "age", "age is missing",
    ]  # fmt: skip
    again = build_data(Experiment.from_dict(experiment.resolved()))
    assert torch.equal(again.train.x, data.train.x)
    (tmp_path / "e.toml").write_text((tmp_path / "e.toml").read_text().replace('"seen"}', '"sn"}'))
    with pytest.raises(ud.UndriftError, match=r"data.test: The column to order by is 'sn'"):
        build_data(Experiment.load(tmp_path / "e.toml"))


def counted():
    return {
        "samples": 3,
        "columns": [["v", "number"], ["w", "word"]],
        "whole": True,
        "present": {"v": 2, "w": 3},
        "sums": {"v": 1.5},
        "values": {"w": {"a": 3}},
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("samples", -1),
        ("samples", True),
        ("columns", [["v", "number"], ["v", "word"]]),
        ("columns", []),
        ("present", {"v": 4, "w": 3}),
        ("present", {"v": 2}),
        ("sums", {"v": float("nan")}),
        ("sums", {"v": 1e39}),
        ("sums", {"w": 1.0}),
        ("values", {"w": {"a": 4}}),
        ("values", {"w": {"a" * 201: 1}}),
        ("values", {"v": {"a": 1}}),
    ],
)
def test_false_counts_are_refused(key, value):
    check_counts("client", counted())
    with pytest.raises(ud.UndriftError, match="client sent statistics that cannot be used"):
        check_counts("client", {**counted(), key: value})


def test_false_squares_and_cells_are_refused():
    check_deviations("client", {"squares": {"v": 0.0}}, {"v": 1.0})
    for wrong in (-1.0, float("inf"), "1", None):
        with pytest.raises(ud.UndriftError, match="cannot be used"):
            check_deviations("client", {"squares": {"v": wrong}}, {"v": 1.0})
    check_cells("client", {"cells": {"v": [2] + [0] * 16}}, {"v": 2})
    for cells in ([3] + [0] * 16, [1] * 16, [-1] + [0] * 16, [0.5] + [0] * 16):
        with pytest.raises(ud.UndriftError, match="cannot be used"):
            check_cells("client", {"cells": {"v": cells}}, {"v": 2})
