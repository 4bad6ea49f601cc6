"""Readers of file formats, on small files that the tests write from the formats' descriptions."""

import gzip
import json
import os
import pickle
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undrift import UndriftError
from undrift.data.formats import read_cifar_binary, read_cifar_python, read_idx, read_leaf

TYPES = {8: "B", 9: "b", 11: "h", 12: "i", 13: "f", 14: "d"}


def refused(read, path, *args):
    """The message of the error that a file raises; it must name the file."""
    with pytest.raises(UndriftError) as error:
        read(path, *args)
    message = str(error.value)
    assert message.endswith(".") and ". " not in message and "\n" not in message
    assert str(path[0] if isinstance(path, list) else path) in message
    return message


def idx(kind, shape, values):
    header = struct.pack(f">HBB{len(shape)}I", 0, kind, len(shape), *shape)
    return header + struct.pack(f">{len(values)}{TYPES[kind]}", *values)


def write(path, content):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@given(data=st.data(), kind=st.sampled_from(list(TYPES)), packed=st.booleans())
@settings(max_examples=60, deadline=None)
def test_idx_arrays_come_back(data, kind, packed):
    shape = data.draw(st.lists(st.integers(0, 4), max_size=4))
    code = np.dtype(TYPES[kind])
    if code.kind == "f":
        value = st.floats(width=8 * code.itemsize)
    else:
        value = st.integers(int(np.iinfo(code).min), int(np.iinfo(code).max))
    count = int(np.prod(shape, dtype=int))
    values = data.draw(st.lists(value, min_size=count, max_size=count))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("a.gz" if packed else "a")
        found = read_idx(write(path, idx(kind, shape, values)))
    assert found.dtype == code and found.dtype.isnative
    assert list(found.shape) == shape
    assert np.array_equal(found.ravel(), np.array(values, code), equal_nan=code.kind == "f")
    found[...] = 1  # fails if the array is read-only
    assert (found == 1).all()


def test_every_cut_of_an_idx_file_is_refused(tmp_path):
    content = idx(8, [2, 3, 2], range(12))
    for path in (tmp_path / "plain-idx3-ubyte", tmp_path / "packed-idx3-ubyte.gz"):
        whole = write(path, content).read_bytes()
        assert read_idx(path).shape == (2, 3, 2)
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            message = refused(read_idx, path)
            if length >= 4:
                assert f"{path} is truncated" in message
    write(path, content[:-1])
    assert (
        "is truncated: it has 27 bytes, but an array of shape [2, 3, 2] of type uint8 needs 28"
        in refused(read_idx, path)
    )


def test_wrong_idx_files_say_what_is_wrong(tmp_path):
    path = tmp_path / "images.gz"
    good = idx(8, [3], [1, 2, 3])
    assert "is too long" in refused(read_idx, write(path, good + b"\0"))
    assert "begins with 50 4b 03 04" in refused(read_idx, write(path, b"PK\3\4" + good))
    assert "begins with 00 00 0a 01" in refused(read_idx, write(path, b"\0\0\x0a" + good[3:]))
    assert "at most 32 dimensions" in refused(read_idx, write(path, b"\0\0\x08\xff" + good[4:]))
    path.write_bytes(good)
    assert "not a gzip file" in refused(read_idx, path)
    whole = gzip.compress(good)
    path.write_bytes(whole[:-8] + bytes(4) + whole[-4:])
    assert "damaged" in refused(read_idx, path)
    assert "cannot be read" in refused(read_idx, tmp_path / "absent.gz")


rng = np.random.default_rng(0)
IMAGES = rng.integers(0, 256, (4, 3, 32, 32), np.uint8)
LABELS = np.array([3, 0, 9, 3])


def python2_batch(images, labels):
    """A batch as Python 2 wrote it with protocol 2: strings are bytes, NumPy has its old names."""
    content = images.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\x01b\x87R"
        + b"(K\x01K"
        + bytes([len(images)])
        + b"M\0\x0c\x86cnumpy\ndtype\nU\x02u1K\0K\x01\x87R"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89T"
        + struct.pack("<I", len(content))
        + content
        + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u."


def batch(images=IMAGES, labels=LABELS, key="labels"):
    return {"batch_label": "batch 1 of 1", "data": images.reshape(-1, 3072), key: labels}


def save(path, content, protocol=2):
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return path


@pytest.mark.parametrize("protocol", [0, 2, 3, 4, 5])
@pytest.mark.parametrize("as_list", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
def test_python_batches_come_back(tmp_path, protocol, as_list, order):
    content = batch(labels=LABELS.tolist() if as_list else LABELS, key="fine_labels")
    content["data"] = np.asarray(content["data"], order=order)
    for keys in (str, str.encode):
        written = {keys(name): value for name, value in content.items()}
        path = save(tmp_path / "data_batch_1", written, protocol)
        for key in ("fine_labels", b"fine_labels"):
            images, labels = read_cifar_python(path, key)
            assert images.dtype == np.uint8 and np.array_equal(images, IMAGES)
            assert labels.dtype == np.int64 and np.array_equal(labels, LABELS)
            images[...], labels[...] = 0, 0  # fails if the arrays are read-only


@pytest.mark.parametrize("code", ["<i2", ">i4", ">u8", "i1"])
def test_labels_of_any_whole_numbers_are_read(tmp_path, code):
    path = save(tmp_path / "train", batch(labels=LABELS.astype(code)))
    assert np.array_equal(read_cifar_python(path, "labels")[1], LABELS)


def test_batches_by_python_2_are_read(tmp_path):
    path = save(tmp_path / "data_batch_1", python2_batch(IMAGES, LABELS))
    images, labels = read_cifar_python(path, b"labels")
    assert np.array_equal(images, IMAGES) and np.array_equal(labels, LABELS)


class Runs:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_runs_a_command_is_refused_and_does_not_run_it(tmp_path, protocol):
    mark = tmp_path / "mark"
    path = save(tmp_path / "batch", batch() | {"x": Runs(f"echo > {mark}")}, protocol)
    assert f"{os.system.__module__}.system" in refused(read_cifar_python, path, "labels")
    assert not mark.exists()
    pickle.loads(path.read_bytes())
    assert mark.exists()  # the file does run the command when unpickled normally


@pytest.mark.parametrize(
    "name",
    [
        "builtins eval",
        "builtins getattr",
        "numpy fromfile",
        "numpy.core.multiarray scalar",
        "functools partial",
        "undrift.data.formats.cifar pickle",
    ],
)
def test_nothing_but_arrays_may_be_asked_for(tmp_path, name):
    module, attribute = name.split()
    path = save(tmp_path / "batch", f"c{module}\n{attribute}\n.".encode())
    assert f"asks for {module}.{attribute}," in refused(read_cifar_python, path, "labels")


@pytest.mark.parametrize("protocol", [2, 5])
def test_every_cut_of_a_python_batch_is_refused(tmp_path, protocol):
    path = save(tmp_path / "batch", batch(), protocol)
    whole = path.read_bytes()
    for length in (*range(200), *range(200, len(whole), 97), len(whole) - 1):
        path.write_bytes(whole[:length])
        sentence = refused(read_cifar_python, path, "labels")
        assert "truncated" in sentence or "is rejected: its pickle asks for" in sentence


def test_wrong_python_batches_say_what_is_wrong(tmp_path):
    path = tmp_path / "batch"

    def message(content, key="labels"):
        return refused(read_cifar_python, save(path, content), key)

    assert "no key 'coarse_labels', only 'batch_label', 'data', 'labels'" in message(
        batch(), "coarse_labels"
    )
    assert "no key 'data'" in message({"labels": [1]})
    assert "must contain a dictionary" in message([1, 2])
    assert "4 images but 3 labels" in message(batch(labels=LABELS[:3]))
    assert "shape [6, 2048]" in message(batch() | {"data": IMAGES.reshape(-1, 2048)})
    assert "float32 of shape [4, 3072]" in message(batch(IMAGES.astype(np.float32)))
    assert "whole numbers" in message(batch(labels=[0.5, 1, 2, 3]))
    assert "whole numbers" in message(batch(labels=LABELS[None]))
    assert "must all have the same shape" in message(batch(labels=[[1], 2, 3, 4]))
    assert "'O8' instead of numbers" in message(batch(labels=np.array([1, "a", 2, 3], object)))
    assert "damaged or not a python batch" in message(b"<html>not found</html>")
    assert "bytes encoded as 'rot13'" in message(b"c_codecs\nencode\n(Va\nVrot13\ntR.")
    assert "cannot be read" in refused(read_cifar_python, tmp_path / "absent", "labels")


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_binary_batches_come_back(tmp_path, label_bytes):
    labels = rng.integers(0, 100, (4, label_bytes))
    path = tmp_path / "train.bin"
    records = zip(labels, IMAGES, strict=True)
    path.write_bytes(b"".join(bytes(y.tolist()) + x.tobytes() for y, x in records))
    images, found = read_cifar_binary(path, label_bytes)
    assert np.array_equal(images, IMAGES) and images.dtype == np.uint8
    assert np.array_equal(found, labels) and found.dtype == np.int64
    images[...], found[...] = 0, 0
    whole = path.read_bytes()
    for content in (whole[:-1], whole + b"\0", b"", whole[:3072]):
        path.write_bytes(content)
        message = refused(read_cifar_binary, path, label_bytes)
        assert f"{len(content)} bytes" in message and f"multiple of {label_bytes + 3072}" in message


def leaf(path, users, /, **changes):
    """Write a LEAF file of users with their x and y; `changes` replace top-level keys."""
    whole = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    whole |= changes
    content = json.dumps({key: value for key, value in whole.items() if value is not None})
    return write(path, content.encode())


def test_leaf_users_come_back_from_all_files_in_order(tmp_path):
    second = leaf(tmp_path / "b.json", {"u3": ([[0.5, 1], [2, 3]], [1, 0])})
    first = leaf(tmp_path / "a.json.gz", {"u2": ([[1, 2]], [7]), "u1": ([], [])})
    users = read_leaf([second, first])
    assert list(users) == ["u2", "u1", "u3"]
    x, y = users["u3"]
    assert x.dtype == np.float32 and x.tolist() == [[0.5, 1], [2, 3]]
    assert y.dtype == np.int64 and y.tolist() == [1, 0]
    assert users["u2"][0].dtype == np.float32
    assert all(len(values) == 0 for values in users["u1"])


def test_leaf_texts_and_real_targets_come_back(tmp_path):
    path = leaf(
        tmp_path / "a.json",
        {
            "play": (["to be, ", "or not "], ["o", "t"]),
            "tweets": ([["1", "a"], ["2", "b"]], [0.5, 1]),
        },
    )
    users = read_leaf([path])
    assert users["play"] == (["to be, ", "or not "], ["o", "t"])
    x, y = users["tweets"]
    assert x == [["1", "a"], ["2", "b"]]
    assert y.dtype == np.float32 and y.tolist() == [0.5, 1]


def test_wrong_leaf_files_say_what_is_wrong(tmp_path):
    path = tmp_path / "a.json"
    good = {"u": ([[1.0]], [0])}

    def message(users=good, /, **changes):
        return refused(read_leaf, [leaf(path, users, **changes)])

    for key in ("users", "num_samples", "user_data"):
        assert f"{key!r} of {path} must be" in message(**{key: None})
    assert "no user_data for the user 'v'" in message(users=["v"], num_samples=[1])
    assert "user_data of 'v', but does not list" in message(
        user_data={"u": {"x": [1], "y": [1]}, "v": {}}
    )
    assert "1 users but 2 num_samples" in message(num_samples=[1, 1])
    assert "1 samples but num_samples 2 of the user 'u'" in message(num_samples=[2])
    assert "2 x but 1 y of the user 'u'" in message({"u": ([1, 2], [1])})
    assert "'y' of the user 'u'" in message(user_data={"u": {"x": [1]}})
    assert "'x' of the user 'u'" in message(user_data={"u": 3})
    assert "lists the user 'u' twice" in message(users=["u", "u"], num_samples=[1, 1])
    assert "same shape" in message({"u": ([[1], [1, 2]], [0, 0])})
    for mixed in ([1, "2"], ["1", 2]):
        assert "all numbers or all strings" in message({"u": (mixed, [0, 0])})
    assert "all numbers or all strings" in message({"u": ([1, 2], [0, None])})
    assert "must be a string" in message(users=[3])
    for content in (b'{"users": [', b"", b"\xff\xfe\xfd", b"[" * 100_000):
        path.write_bytes(content)
        assert "not JSON" in refused(read_leaf, [path])
    path.write_bytes(b"[1]")
    assert "'users'" in refused(read_leaf, [path])
    assert "cannot be read" in refused(read_leaf, [tmp_path / "absent.json"])
    with pytest.raises(UndriftError, match="at least one file"):
        read_leaf([])


def test_a_leaf_user_may_be_in_one_file_only(tmp_path):
    files = [leaf(tmp_path / name, {"u": ([1], [0])}) for name in ("a.json", "b.json")]
    message = refused(read_leaf, files)
    assert "'u'" in message and str(files[1]) in message
