"""Federated data from a user's folder with one file per client."""

import gzip
import json
from contextlib import suppress

import numpy as np
import pytest
import torch

import undrift as ud
from undrift.experiments.building import build_data
from undrift.experiments.experiment import Experiment

FROM = ud.data.FederatedData.from_folder


def samples(seed, n=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)).astype(np.float32), rng.integers(0, 2, n)


def write_npz(folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(names):
        x, y = samples(seed, 4 + seed)
        np.savez(folder / f"{name}.npz", x=x, y=y)


def write_csv(path, x, y, target="label"):
    lines = [f"a,b,c,{target}"]
    lines += [
        ",".join(map(repr, [*map(float, row), label])) for row, label in zip(x, y, strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def test_npz_csv_and_parquet_files_are_clients(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    arrow = pytest.importorskip("pyarrow")
    x, y = samples(0)
    write_csv(tmp_path / "tables" / "south.csv", x, y.tolist())
    columns = {"label": y, "b": x[:, 1], "c": x[:, 2], "a": x[:, 0]}  # columns in another order
    parquet.write_table(arrow.table(columns), tmp_path / "tables" / "west.parquet")
    (tmp_path / "tables" / "README.txt").write_text("not a client")
    (tmp_path / "arrays").mkdir()
    np.savez(tmp_path / "arrays" / "north.npz", x=x, y=y)
    tables, arrays = FROM(tmp_path / "tables"), FROM(tmp_path / "arrays")
    assert tables.ids == ["south", "west"]
    assert tables.name == "tables"
    for own in (tables.client("south"), tables.client("west"), arrays.client("north")):
        assert torch.allclose(own[0], torch.from_numpy(x))
        assert own[1].tolist() == y.tolist()
        assert not own[1].is_floating_point()


def test_train_and_test_folders_and_a_round_of_training(tmp_path):
    write_npz(tmp_path / "train", ["a", "b", "c"])
    write_npz(tmp_path / "test", ["a", "b"])
    data = FROM(tmp_path, classes=["no", "yes"])
    assert data.train.sizes.tolist() == [4, 5, 6]
    assert data.test.sizes.tolist() == [4, 5, 0]
    assert data.classes == ("no", "yes")
    result = ud.train(
        ud.FedAvg(),
        model=ud.models.logistic(3, 2),
        data=data,
        local=ud.SGD(lr=0.1, batch_size=2, epochs=1),
        rounds=1,
    )
    assert 0 <= result.records[-1].metrics["test_accuracy"] <= 1


def test_leaf_json_holds_many_clients(tmp_path):
    users = {f"u{k}": samples(k) for k in range(3)}
    leaf = {
        "users": list(users),
        "num_samples": [5] * 3,
        "user_data": {u: {"x": x.tolist(), "y": y.tolist()} for u, (x, y) in users.items()},
    }
    (tmp_path / "all.json.gz").write_bytes(gzip.compress(json.dumps(leaf).encode()))
    data = FROM(tmp_path)
    assert data.ids == ["u0", "u1", "u2"]
    assert torch.allclose(data.client("u1")[0], torch.from_numpy(users["u1"][0]))


def test_columns_are_chosen_by_name_and_words_are_classes(tmp_path):
    (tmp_path / "a.csv").write_text("id,age,outcome,bmi\nx1,40,no,20\nx2,50,yes,25\n")
    (tmp_path / "b.csv").write_text("bmi,outcome,age,id\n30,yes,60,x3\n")
    data = FROM(tmp_path, "outcome", ["age", "bmi"], classes=["no", "yes"])
    assert data.client("a")[0].tolist() == [[40, 20], [50, 25]]
    assert data.client("b")[0].tolist() == [[60, 30]]
    assert data.train.y.tolist() == [0, 1, 1]
    with pytest.raises(
        ud.UndriftError,
        match="column 'id', which must be a number; to leave the column out, name the",
    ):
        FROM(tmp_path, "outcome", classes=["no", "yes"])
    with pytest.raises(ud.UndriftError, match=r"A target in .*a.csv is 'yes'"):
        FROM(tmp_path, "outcome", ["age"], classes=["no", "ja"])
    with pytest.raises(ud.UndriftError, match=r"a.csv is a file, but must be a folder"):
        FROM(tmp_path / "a.csv")
    scaled = data.normalised()
    assert scaled.train.x.mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert scaled.train.x.std(0, correction=0).tolist() == pytest.approx([1, 1], abs=1e-6)


def test_a_target_of_fractions_is_for_regression(tmp_path):
    x, _ = samples(0)
    write_csv(tmp_path / "a.csv", x, [1.0, 2.0, 3.0, 4.0, 5.0], "price")
    data = FROM(tmp_path, target="price")
    assert data.train.y.dtype == torch.float32
    write_csv(tmp_path / "a.csv", x, [1, 2, 3, 4, 5], "y")
    assert FROM(tmp_path).train.y.dtype == torch.int64


def file(name, content):
    def write(folder):
        (folder / name).write_bytes(content)

    return write


def npz(name, **arrays):
    return lambda folder: np.savez(folder / name, **arrays)


X, Y = samples(0)
REFUSED = [
    ([], "There are no files *.npz, *.csv, *.parquet or *.json"),
    ([npz("a.npz", x=X, y=Y[:3])], "inputs of client 'a' have 5 rows, but its targets have 3"),
    ([npz("a.npz", x=X)], "must have arrays 'x' and 'y', but has 'x'"),
    ([npz("a.npz", x=X, y=Y), npz("b.npz", x=X[:, :2], y=Y)], "client 'b' have shape [2]"),
    ([npz("a.npz", x=X[:0], y=Y[:0])], "a.npz has no samples"),
    ([npz("a.npz", x=X * np.nan, y=Y)], "inputs of client 'a' contain NaN or Inf"),
    (
        [file("a.csv", b"a,label\n1,2\nnan,3\n")],
        "has 'nan' in column 'a', which must be a finite number: fill it in, or leave the row out",
    ),
    (
        [file("a.csv", b"a,label\n1,2\n"), file("b.csv", b"a,label\n1,yes\n")],
        "has 'yes' in column 'label', which must be a number; the targets of",
    ),
    ([file("a.csv", b"a,a,label\n1,2,3\n")], "two columns named 'a'"),
    ([file("a.csv", b"a;label\n1;2\n")], "are its columns separated by ';'"),
    ([file("a.csv", b"a,label\n1,yes\n")], "has words such as 'yes': give classes"),
    (
        [file("a.csv", b"a,b,label\n1,2,0\n"), file("b.csv", b"a,c,label\n1,2,0\n")],
        "b.csv has no column 'b', which a.csv has",
    ),
    ([npz("a.npz", x=X, y=Y), file("b.csv", b"a,y\n1,2\n")], "both tables and arrays"),
    ([npz("a.npz", x=np.array([{}, {}]), y=Y[:2])], "is damaged or not an npz file"),
    ([file("a.npz", b"not a zip")], "is damaged or not an npz file"),
    ([npz("a.npz", x=np.array(1), y=np.array(1))], "a.npz has no samples"),
    ([file("a.csv", b"a,label\n" + b"1" * 200_000 + b",2\n")], "cannot be read as csv"),
    ([file("a.csv", b"")], "a.csv is empty, but must begin with a line of column names"),
    ([file("a.csv", b"a,label\n")], "a.csv has no samples"),
    ([file("a.csv", b"a,label\n1,2\n3\n")], "Line 3 of"),
    ([file("a.csv", b"a,label\n1,2\nx,3\n")], "has 'x' in column 'a', which must be a number"),
    ([file("a.csv", b"a,b\n1,2\n")], "has no column 'label' or 'target' or 'y' to predict"),
    ([file("a.csv", b"label\n1\n")], "has no column except the target"),
    ([file("a.parquet", b"PAR")], "is damaged or not a parquet file"),
    (
        [npz("a.npz", x=X, y=Y), file("a.csv", b"a,label\n1,2\n")],
        "more than one file for client 'a'",
    ),
    ([npz("a.npz", x=X, y=Y), file("b.json", b"{}")], "either one file per client or LEAF json"),
    (
        [
            file(
                "a.json",
                b'{"users": ["u"], "num_samples": [1], '
                b'"user_data": {"u": {"x": ["to be"], "y": ["!"]}}}',
            )
        ],
        "are text, but must be numbers",
    ),
]


@pytest.mark.parametrize(("steps", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_wrong_folders_raise_a_clear_error(steps, words, tmp_path):
    for step in steps:
        step(tmp_path)
    with pytest.raises(ud.UndriftError) as error:
        FROM(tmp_path)
    assert words in str(error.value)


def test_a_damaged_npz_always_raises_a_clear_error(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(600.0).reshape(100, 6), y=np.arange(100))
    whole = (tmp_path / "a.npz").read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(150):
        place = int(rng.integers(len(whole)))
        damaged = bytearray(whole)
        damaged[place] ^= int(rng.integers(1, 256))
        (tmp_path / "a.npz").write_bytes(damaged)
        with suppress(ud.UndriftError):  # any other exception fails the test
            FROM(tmp_path)


def test_a_missing_folder(tmp_path):
    with pytest.raises(ud.UndriftError, match="There is no folder"):
        FROM(tmp_path / "nowhere")
    write_npz(tmp_path / "train", ["a"])
    write_npz(tmp_path / "test", ["a", "z"])
    with pytest.raises(ud.UndriftError, match="Client 'z' has test samples"):
        FROM(tmp_path)


def test_inputs_are_normalised_over_the_remaining_training_samples(tmp_path):
    x = np.arange(60, dtype=np.float32).reshape(20, 3) * [1, 10, 100]
    write_csv(tmp_path / "clinics" / "a.csv", x, [0, 1] * 10)
    whole = FROM(tmp_path / "clinics", normalise="features")
    assert whole.train.x.mean(0).tolist() == pytest.approx([0, 0, 0], abs=1e-6)
    assert whole.train.x.std(0, correction=0).tolist() == pytest.approx([1, 1, 1])
    with pytest.raises(ud.UndriftError, match="did you mean 'features'"):
        FROM(tmp_path / "clinics", normalise="feature")
    raw = {
        "data": {"source": "clinics", "normalise": "features", "test": 0.5},
        "model": {"name": "logistic"},
        "local": {"lr": 0.1},
        "method": [{"name": "FedAvg"}],
    }
    data = build_data(Experiment.from_dict(raw, folder=tmp_path))
    held, kept = data.test.x[data.test.rows], data.train.x[data.train.rows]
    assert len(held) == 10
    assert kept.mean(0).tolist() == pytest.approx([0, 0, 0], abs=1e-6)
    assert held.mean(0).abs().max() > 1e-3  # the scale was computed without the test samples
