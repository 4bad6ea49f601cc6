"""Data that used to be read otherwise than their owner expects: refused or announced."""

import time

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import undrift as ud
from commands import called
from undrift.data.arrays import warn_of_rounding
from undrift.experiments.building import build_data, build_model
from undrift.experiments.experiment import Experiment

FROM = ud.data.FederatedData.from_folder
CLIENTS = ud.data.FederatedData.from_clients
ONE_TO_TEN = [*range(1, 11)]


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def table(labels, feature="1.5"):
    return "a,label\n" + "".join(f"{feature},{label}\n" for label in labels)


def experiment(folder, **data):
    return Experiment.from_dict(
        {
            "data": {"source": folder.name, **data},
            "model": {"name": "logistic"},
            "local": {"lr": 0.1},
            "method": [{"name": "FedAvg"}],
        },
        folder=folder.parent,
    )


def outputs(model):
    return model(torch.ones(1, 1)).shape[1]


# Labels


def test_labels_from_1_to_10_do_not_silently_make_11_classes(tmp_path):
    folder = write(tmp_path / "wards", a=table(ONE_TO_TEN))
    read = experiment(folder)
    with pytest.raises(
        ud.UndriftError, match=r"model: The labels run from 1 to 10, so a model wou"
    ):
        build_model(read, build_data(read), 0)
    refused = called("inspect", str(folder), "--model", "logistic", cwd=tmp_path)
    assert refused.returncode == 2
    assert "number the labels from 0" in " ".join(refused.stderr.split())
    shown = called("inspect", str(folder), cwd=tmp_path)
    assert shown.returncode == 0
    assert "The labels run from 1 to 10" in " ".join(shown.stdout.split())
    arrays = ud.data.FederatedData.from_arrays(np.ones((10, 1)), ONE_TO_TEN, clients=1)
    assert any("The labels run from 1 to 10" in note for note in arrays.describe().notes)


def test_numbered_labels_in_a_table_may_be_the_names_of_the_classes(tmp_path):
    names = [str(number) for number in ONE_TO_TEN]
    # The labels of site b alone would also be valid class numbers of 10 classes.
    folder = write(tmp_path / "wards", a=table(ONE_TO_TEN), b=table([9, 1]))
    read = experiment(folder, classes=names)
    data = build_data(read)
    assert data.client("a")[1].tolist() == [*range(10)]
    assert data.client("b")[1].tolist() == [8, 0]
    assert outputs(build_model(read, data, 0)) == 10
    assert not data.describe().notes
    with pytest.raises(ud.UndriftError, match=r"A target in .*a.csv is '10', but must be one of"):
        FROM(folder, classes=names[:9])


def test_class_0_may_occur_in_another_part_or_have_a_name(tmp_path):
    x = torch.ones(2, 1)
    split = CLIENTS({"a": (x, [1, 2])}, (x, [0, 1]))
    assert not split.describe().notes
    named = CLIENTS({"a": (x, [1, 2])}, classes=["none", "some", "many"])
    assert not named.describe().notes


def test_gaps_and_impossible_class_numbers_are_told(tmp_path):
    folder = write(tmp_path / "gaps", a=table([0, 1, 99]))
    read = experiment(folder)
    with pytest.warns(UserWarning, match=r"Only 3 of the 100 classes 0 … 99 of gaps have samples"):
        assert outputs(build_model(read, build_data(read), 0)) == 100
    for labels, words in (
        ([-1, 1], "range from -1 to 1, but classes are 0, 1"),
        ([0, 5_000_000], "go up to 5000000, which is too large for a class number"),
    ):
        write(folder, a=table(labels))
        with pytest.raises(ud.UndriftError, match=words):
            build_model(read, build_data(read), 0)


# Types


def test_whole_and_floating_point_numbers_of_clients_are_not_merged():
    whole = (torch.tensor([[16_777_217]]), [0])
    with pytest.raises(ud.UndriftError, match=r"inputs of client 'b' are torch.float32, but those"):
        CLIENTS({"a": whole, "b": (torch.tensor([[0.5]]), [1])})
    with pytest.raises(
        ud.UndriftError, match=r"targets of client 'b' are torch.float64, but those"
    ):
        CLIENTS({"a": (torch.ones(1, 1), [0]), "b": (torch.ones(1, 1), np.array([1.0]))})
    with pytest.raises(ud.UndriftError, match="inputs of the test part are"):
        CLIENTS({"a": (torch.ones(1, 1), [0])}, whole)


def test_merging_of_types_is_announced():
    wide, narrow = np.ones((1, 1)), np.ones((1, 1), np.float32)
    with pytest.warns(
        UserWarning,
        match=r"inputs are of several types and are merged into one: torch.float32 \(client 'a'\), "
        r"torch.float64 \(client 'b'\)",
    ):
        data = CLIENTS({"a": (narrow, [0]), "b": (wide, [0]), "c": (narrow, [0])})
    assert data.train.x.dtype == torch.float64


def test_targets_of_tables_are_fractions_in_all_files_or_in_none(tmp_path):
    folder = write(tmp_path / "prices", a=table([1, 2]), b=table([1.5, 2]))
    assert FROM(folder).train.y.tolist() == [1.0, 2.0, 1.5, 2.0]


class Uneven(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, number):
        return torch.ones(1), [0, 0.5][number]


def test_datasets_are_checked_as_arrays_are():
    small = TensorDataset(torch.ones(2, 1), torch.tensor([0, 1], dtype=torch.int8))
    assert CLIENTS([small]).train.y.dtype == torch.int64
    with pytest.raises(ud.UndriftError, match=r"targets of .* number 1 is torch.float64, but numb"):
        CLIENTS([Uneven()])
    with pytest.raises(ud.UndriftError, match="inputs of client 0 are complex"):
        CLIENTS([(torch.ones(2, 1) * 1j, [0, 1])])
    with pytest.raises(ud.UndriftError, match="numbers above 2\\^63"):
        CLIENTS([(torch.ones(1, 1), np.array([2**63], np.uint64))])


# Whole numbers that 32-bit floating-point numbers cannot hold


@pytest.mark.parametrize("value", ["16777217", "-16777217", str(2**53 + 1)])
def test_rounded_whole_numbers_of_a_csv_are_announced(value, tmp_path):
    folder = write(tmp_path / "ids", a=table([0, 1]), b=table([0, 1], value))
    with pytest.warns(
        UserWarning, match=f"columns 'a' of .*ids have whole numbers such as {value}, which become"
    ):
        FROM(folder)


def test_whole_numbers_beyond_the_range_are_announced():
    with pytest.warns(UserWarning, match=r"such as 1e\+200, which become Inf as 32-bit"):
        warn_of_rounding(torch.full((3,), 1e200, dtype=torch.float64), "The inputs")


def test_rounded_targets_of_a_regression_are_announced(tmp_path):
    folder = write(tmp_path / "ids", a=table([16_777_217, 0.5]))
    with pytest.warns(UserWarning, match="columns 'label' of"):
        FROM(folder)


@pytest.mark.parametrize("value", ["16777216", "16777217.0", "1.6777217e7", "33554432"])
def test_exact_numbers_and_measurements_are_not_announced(value, tmp_path):
    FROM(write(tmp_path / "fine", a=table([0, 1], value)))  # a warning would fail this test


def test_rounded_whole_numbers_of_parquet_leaf_and_arrays_are_announced(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "p").mkdir()
    parquet.write_table(arrow.table({"a": [16_777_217], "y": [0]}), tmp_path / "p" / "a.parquet")
    with pytest.warns(UserWarning, match="such as 16777217, which become 16777216"):
        FROM(tmp_path / "p")
    (tmp_path / "leaf").mkdir()
    (tmp_path / "leaf" / "all.json").write_text(
        '{"users": ["u"], "num_samples": [1], "user_data": {"u": {"x": [[16777217]], "y": [0]}}}'
    )
    with pytest.warns(UserWarning, match="The x of the user 'u' in .* such as 16777217"):
        FROM(tmp_path / "leaf")
    data = CLIENTS([(np.array([[16_777_217.0], [1.0]]), [0, 1])])
    with pytest.warns(UserWarning, match="The inputs have whole numbers such as 16777217"):
        ud.train(
            ud.FedAvg(),
            model=ud.models.logistic(1, 2),
            data=data,
            local=ud.SGD(lr=1e-9, batch_size=2),
            rounds=1,
        )


# Files


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\n\n\n", "a.csv is empty, but must begin with a line of column names"),
        (b"\r\n", "a.csv is empty"),
        (b"\xef\xbb\xbf", "a.csv is empty"),
        (b"a\tlabel\n1\t2\n", "are its columns separated by '\\t'"),
        (b"0.5,1.5,0\n1,2,1\n", "begins with the numbers '0.5', '1.5', '0', but must begin with"),
        (b",a,label\n0,1,0\n1,1,1\n", "a column without a name, such as the row numbers that pand"),
        (b"a,label\n\n\n1,0\n\nx,1\n", "Line 6 of"),
        (b"a,label\n1,0\n\n1,1,1\n", "Line 4 of"),
        (b"a,label\n\xe9,0\n", "is not UTF-8 text"),
        ("a,label\n1,0\n".encode("utf-16"), "is not UTF-8 text"),
        (b"a,label\n1e39,0\n", "has '1e39' in column 'a', which must be a finite number"),
        (b"a,label\nTrue,0\n", "has 'True' in column 'a', which must be a number"),
        (b"a,label\n" + b"9" * 400 + b",0\n", "which must be a finite number"),
    ],
    ids=range(13),
)
def test_wrong_csv_files_raise_a_clear_error(content, words, tmp_path):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(ud.UndriftError) as error:
        FROM(tmp_path)
    assert words in str(error.value)


def test_many_columns_are_read_in_linear_time_and_listed_briefly(tmp_path):
    names = [f"c{number}" for number in range(100_000)]
    text = ",".join([*names, "label"]) + "\n" + "1," * len(names) + "0\n"
    write(tmp_path, a=text)
    began = time.process_time()
    assert FROM(tmp_path).train.x.shape == (1, len(names))
    assert FROM(tmp_path, inputs=names).train.x.shape == (1, len(names))
    assert time.process_time() - began < 30  # takes 1 s; comparing all pairs of names, minutes
    with pytest.raises(ud.UndriftError, match=r"'c11' and 99989 more as the target") as error:
        FROM(tmp_path, "outcome")
    assert len(str(error.value)) < 1000
    with pytest.raises(ud.UndriftError, match=r"'c11' and 99989 more; did you mean 'c99999'"):
        FROM(tmp_path, inputs=["c999999"])


def test_columns_of_later_files_that_are_not_used_are_announced(tmp_path):
    folder = write(tmp_path, a="a,label\n1,0\n", b="a,label,c\n1,1,5\n")
    with pytest.warns(UserWarning, match=r"columns 'c' of .*b.csv are not used, because a.csv has"):
        assert FROM(folder).train.x.shape == (2, 1)
    assert FROM(folder, inputs=["a"]).train.x.shape == (2, 1)


def test_files_in_capitals_are_clients_too(tmp_path):
    write(tmp_path, a=table([0, 1]))
    (tmp_path / "B.CSV").write_text(table([1]))
    assert FROM(tmp_path).ids == ["B", "a"]
