"""The sources, on small files that the tests write in the published formats."""

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from importlib import import_module

import numpy as np
import pytest
import torch

import undrift as ud
from undrift.data.formats import read_speeches
from undrift.data.sources import SOURCES
from undrift.data.sources.shakespeare import ALPHABET

D = ud.data
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Use an empty cache, so that the user's is neither read nor written."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("UNDRIFT_DATA", raising=False)


def idx(array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes())


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_idx_set(folder, prefixes, train, test, first=0, classes=10):
    """Write small files of images and labels, and return the arrays."""
    written = []
    for prefix, n in zip(prefixes, (train, test), strict=True):
        x, y = RNG.integers(0, 256, (n, 28, 28)), np.arange(n) % classes
        write(folder / f"{prefix}-images-idx3-ubyte.gz", idx(x))
        write(folder / f"{prefix}-labels-idx1-ubyte.gz", idx(y + first))
        written.append((x, y))
    return written


@pytest.mark.parametrize(
    ("source", "name"), [("mnist", "mnist"), ("fashion_mnist", "fashion-mnist")]
)
def test_mnist_and_fashion_mnist(tmp_path, source, name):
    written = write_idx_set(tmp_path / name, ("train", "t10k"), 40, 10)
    load = getattr(D, source)
    data = load(clients=4, folder=tmp_path, verify=False, normalise=None)
    assert data.train.x.shape == (40, 1, 28, 28)
    assert len(data.classes) == 10
    assert torch.equal(data.train.x[:, 0], torch.from_numpy(written[0][0]).float() * (1 / 255))
    assert data.train.y.tolist() == written[0][1].tolist()
    assert data.test.y.tolist() == written[1][1].tolist()
    assert data.train.sizes.tolist() == [10] * 4
    with pytest.raises(ud.UndriftError, match=r"checksum|truncated") as caught:
        load(clients=4, folder=tmp_path)
    assert f"{tmp_path / name}/t" in str(caught.value)  # train- or t10k-


def test_normalised_images_have_mean_0_and_deviation_1_over_the_training_part(tmp_path):
    write_idx_set(tmp_path / "mnist", ("train", "t10k"), 40, 10)
    load = dict(clients=4, folder=tmp_path, verify=False)
    by_channel = D.mnist(**load).train.x
    assert float(by_channel.mean()) == pytest.approx(0, abs=1e-5)
    assert float(by_channel.std(correction=0)) == pytest.approx(1, abs=1e-5)
    by_pixel = D.mnist(normalise="features", **load).train.x
    assert by_pixel.mean(0).abs().max() < 1e-5
    assert by_pixel.std(0, correction=0) == pytest.approx(torch.ones(1, 28, 28), abs=1e-4)
    plain = D.mnist(normalise=None, **load)
    again = plain.normalised()
    assert torch.allclose(again.train.x, by_channel, atol=1e-5)
    assert torch.allclose(again.test.x, D.mnist(**load).test.x, atol=1e-5)


def test_joined_parts_are_shared_out_together_with_a_tenth_for_test(tmp_path):
    write_idx_set(tmp_path / "mnist", ("train", "t10k"), 80, 20)
    data = D.mnist(clients=5, folder=tmp_path, verify=False, joined=True)
    assert (data.train.sizes + data.test.sizes).tolist() == [20] * 5
    assert data.test.sizes.tolist() == [2] * 5
    assert sorted([*data.train.rows.tolist(), *data.test.rows.tolist()]) == list(range(100))
    trained = data.train.x[data.train.rows]
    assert float(trained.mean()) == pytest.approx(0, abs=1e-5)
    assert float(trained.std(correction=0)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("place", ["emnist", "emnist/gzip", "zip"])
def test_emnist_letters_and_byclass(tmp_path, place):
    folder = tmp_path / ("zipped" if place == "zip" else place)
    kinds = {"letters": (26, 1), "byclass": (62, 0)}
    written = {}
    for kind, (classes, first) in kinds.items():
        prefixes = f"emnist-{kind}-train", f"emnist-{kind}-test"
        written[kind] = write_idx_set(folder, prefixes, 130, 62, first, classes)
    if place == "zip":
        (tmp_path / "emnist").mkdir()
        with zipfile.ZipFile(tmp_path / "emnist" / "gzip.zip", "w") as archive:
            for file in folder.iterdir():
                archive.write(file, f"gzip/{file.name}")
    load = dict(clients=5, folder=tmp_path, verify=False, normalise=None)
    data = D.emnist(kind="byclass", **load)
    assert len(data.classes) == 62
    assert "".join(data.classes[9:12]) == "9AB"
    upright = torch.from_numpy(written["byclass"][0][0].transpose(0, 2, 1)).float() / 255
    assert torch.allclose(data.train.x[:, 0], upright)
    assert len(D.emnist(kind="letters", **load).classes) == 26
    few = D.emnist_l(**load)
    assert "".join(few.classes) == "abcdefghij"
    kept = written["letters"][0][1] < 10
    assert few.train.y.tolist() == written["letters"][0][1][kept].tolist()
    assert len(few.train.x) == kept.sum()


def cifar_batch(n, classes=10):
    return RNG.integers(0, 256, (n, 3072), dtype=np.uint8), [int(k) % classes for k in range(n)]


def test_cifar10_python_and_binary_batches_are_the_same(tmp_path):
    python, binary = tmp_path / "py", tmp_path / "bin"
    for number, name in enumerate(
        [
            "data_batch_1",
            "data_batch_2",
            "data_batch_3",
            "data_batch_4",
            "data_batch_5",
            "test_batch",
        ]
    ):
        x, y = cifar_batch(10 + number)
        batch = pickle.dumps({b"data": x, b"labels": y, b"batch_label": b"a batch"})
        write(python / "cifar-10-batches-py" / name, batch)
        records = np.concatenate([np.array(y, np.uint8)[:, None], x], axis=1)
        write(binary / "cifar-10-batches-bin" / f"{name}.bin", records.tobytes())
        if number == 0:
            first = x, y
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(binary / "cifar-10-batches-bin", "cifar-10-batches-bin")
    found = [
        D.cifar10(clients=3, folder=folder, verify=False) for folder in (python, binary, tmp_path)
    ]
    for data in found:
        assert data.train.x.shape == (60, 3, 32, 32)
        assert len(data.test) == 15
        assert torch.equal(data.train.x, found[0].train.x)
        assert torch.equal(data.train.y, found[0].train.y)
    plain = D.cifar10(clients=3, folder=python, normalise=None)
    red = plain.train.x[0, 0] * 255
    assert red.flatten().round().int().tolist() == first[0][0][:1024].tolist()
    channel = found[0].train.x.transpose(0, 1).flatten(1)
    assert channel.mean(1).tolist() == pytest.approx([0, 0, 0], abs=1e-5)
    assert channel.std(1, correction=0).tolist() == pytest.approx([1, 1, 1], abs=1e-5)


def test_cifar100_python_and_binary(tmp_path):
    python, binary = tmp_path / "py" / "cifar-100-python", tmp_path / "bin" / "cifar-100-binary"
    for name, n in (("train", 200), ("test", 100)):
        x, fine = cifar_batch(n, 100)
        coarse = [label // 5 for label in fine]
        write(
            python / name, pickle.dumps({"data": x, "fine_labels": fine, "coarse_labels": coarse})
        )
        labels = np.array([coarse, fine], np.uint8).T
        write(binary / f"{name}.bin", np.concatenate([labels, x], axis=1).tobytes())
    names = [f"thing{k}" for k in range(100)]
    (binary / "fine_label_names.txt").write_text("\n".join(names))
    one = D.cifar100(ud.data.Classes(20), 5, folder=python.parent)
    other = D.cifar100(ud.data.Classes(20), 5, folder=binary.parent)
    assert torch.equal(one.train.x, other.train.x)
    assert torch.equal(one.train.y, other.train.y)
    assert other.classes[7] == "thing7"
    assert one.train.y.max() == 99


def test_digits_come_with_scikit_learn():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    data = D.digits("dirichlet:0.5", 10, seed=1)
    assert data.train.x.shape == (1438, 1, 8, 8)
    assert len(data.test) == 359
    assert np.bincount(data.test.y).min() > 20
    result = ud.train(
        ud.FedAvg(),
        model=ud.models.logistic(64, 10),
        data=data,
        local=ud.SGD(lr=0.1, batch_size=10, epochs=5),
        rounds=10,
    )
    assert result.records[-1].metrics["test_accuracy"] > 0.85


def leaf(users):
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(y) for _, y in users.values()],
            "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
        }
    ).encode()


def writers(n, first=0):
    return {
        f"f{first + k:04d}": (
            RNG.random((3 + k, 784)).round(4).tolist(),
            RNG.integers(0, 62, 3 + k).tolist(),
        )
        for k in range(n)
    }


def test_femnist_is_by_writer_and_read_once(tmp_path, monkeypatch):
    root = tmp_path / "femnist"
    train = writers(6), writers(2, 6)
    write(root / "train" / "all_data_0.json", leaf(train[0]))
    write(root / "train" / "all_data_1.json", leaf(train[1]))
    test = {user: ([x[0]], [y[0]]) for user, (x, y) in {**train[1], **train[0]}.items()}
    del test["f0003"]  # a writer without test images
    write(root / "test" / "all_data_0.json", leaf(test))
    data = D.femnist(clients=None, folder=tmp_path)
    assert data.ids == [f"f{k:04d}" for k in range(8)]
    assert data.train.sizes.tolist() == [3, 4, 5, 6, 7, 8, 3, 4]
    assert data.test.sizes.tolist() == [1, 1, 1, 0, 1, 1, 1, 1]
    x, y = data.client("f0002")
    assert torch.allclose(x.flatten(1), torch.tensor(train[0]["f0002"][0]))
    assert y.tolist() == train[0]["f0002"][1]
    assert data.test.client(7)[1].tolist() == test["f0007"][1]

    def fail(*_):
        raise AssertionError("it is read again")

    monkeypatch.setattr(import_module("undrift.data.sources.femnist"), "read_leaf", fail)
    again = D.femnist(clients=3, folder=tmp_path, seed=2)
    assert len(again) == 3
    assert set(again.ids) < set(data.ids)
    shared = D.femnist("iid", 4, folder=tmp_path)
    assert shared.train.sizes.tolist() == [10] * 4
    assert not shared.test.by_client
    changed = root / "test" / "all_data_0.json"
    before = changed.stat()
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns + 1000))
    with pytest.raises(
        AssertionError, match="read again"
    ):  # a new time stamp means that the file may have changed
        D.femnist(clients=None, folder=tmp_path)


COLON = """First Citizen:
Before we proceed any further,
hear me speak.

All:
Speak, speak.

First Citizen:
You are all resolved
"""
GUTENBERG = """1601

AS YOU LIKE IT

by William Shakespeare



  ORLANDO. As I remember, Adam, it was upon this fashion
    bequeathed me by will.
  ADAM. Yonder comes my master.
                                                  Enter OLIVER
  ORLANDO. Go apart, Adam.

1593

THE COMEDY OF ERRORS

by William Shakespeare

AEGEON. Proceed, Solinus, to procure my fall,
And by the doom of death end woes and all.

DUKE. Merchant of Syracuse, plead no more;
"""


def test_texts_with_speakers_in_both_forms():
    said = read_speeches(COLON, "a file")
    assert said == {
        "First Citizen": ["Before we proceed any further,\nhear me speak.", "You are all resolved"],
        "All": ["Speak, speak."],
    }
    plays = read_speeches(GUTENBERG, "a file")
    assert plays == {
        "AS YOU LIKE IT / ORLANDO": [
            "As I remember, Adam, it was upon this fashion\nbequeathed me by will.",
            "Go apart, Adam.",
        ],
        "AS YOU LIKE IT / ADAM": ["Yonder comes my master."],
        "THE COMEDY OF ERRORS / AEGEON": [
            "Proceed, Solinus, to procure my fall,\nAnd by the doom of death end woes and all."
        ],
        "THE COMEDY OF ERRORS / DUKE": ["Merchant of Syracuse, plead no more;"],
    }
    with pytest.raises(ud.UndriftError, match="a file has no speeches"):
        read_speeches("once upon a time", "a file")


def text_of(rows):
    return "".join(ALPHABET[k] for k in rows)


def roles(lengths):
    letters = "abcdefghijklmnopqrstuvwxyz"
    return {
        f"Play / ROLE {k}": ["".join(RNG.choice(list(letters), n)).capitalize() + "."]
        for k, n in enumerate(lengths)
    }


def test_shakespeares_points_are_80_characters_and_the_next(tmp_path):
    texts = roles([900, 50, 1200, 600])
    texts["Play / ROLE 3"][0] = "A\nline  with €uros{" + texts["Play / ROLE 3"][0]
    write(
        tmp_path / "shakespeare" / "plays_by_role.json.gz",
        gzip.compress(json.dumps(texts).encode()),
    )
    data = D.shakespeare(clients=None, most=None, folder=tmp_path)
    assert data.ids == ["Play / ROLE 0", "Play / ROLE 2", "Play / ROLE 3"]
    assert "1 of 4 roles with at most 80 characters" in data.notes[0]
    assert len(data.classes) == 80
    for k, id in enumerate(data.ids):
        whole = " ".join(" ".join(texts[id]).split()).replace("€", "}").replace("{", "}")
        points = len(whole) - 80
        n = int(0.8 * points)
        assert data.train.sizes[k] == n
        assert data.test.sizes[k] == points - n - 79
        x, y = data.train.client(k)
        for i in (0, 1, n - 1):
            assert text_of(x[i]) == whole[i : i + 80]
            assert ALPHABET[y[i]] == whole[i + 80]
        x, y = data.test.client(k)
        assert text_of(x[0]) == whole[n + 79 : n + 159]
        assert ALPHABET[y[-1]] == whole[-1]


def test_shakespeare_takes_consecutive_points_of_long_enough_roles(tmp_path):
    texts = roles([900, 50, 1200, 300, 1000, 2000, 1500])
    write(tmp_path / "shakespeare" / "plays_by_role.json", json.dumps(texts).encode())
    data = D.shakespeare(clients=3, most=400, folder=tmp_path, seed=3)
    assert data.train.sizes.tolist() == [400] * 3
    assert data.test.sizes.tolist() == [80] * 3
    assert data.notes == ()
    rows = data.train.of(0)
    assert (rows.diff() == 1).all()  # consecutive points of the text
    for k in range(3):
        # No test window overlaps a training window.
        assert data.test.of(k).min() - data.train.of(k).max() >= 80
    other = D.shakespeare(clients=3, most=400, folder=tmp_path, seed=4)
    assert other.ids != data.ids or other.train.of(0).tolist() != rows.tolist()
    all_of_them = D.shakespeare(clients=6, most=400, folder=tmp_path)
    assert "the 6 longest roles are taken" in all_of_them.notes[0]
    assert all_of_them.train.sizes.max() == 400
    iid = D.shakespeare("iid", 4, most=200, folder=tmp_path)
    assert iid.train.sizes.tolist() == [200] * 4
    assert len(iid.test) == 160
    assert not iid.test.by_client
    assert len(set(iid.train.rows.tolist())) == 800
    assert not set(iid.train.rows.tolist()) & set(iid.test.rows.tolist())


def test_shakespeare_from_text_with_speakers_and_from_leaf(tmp_path):
    long = {name: ["x".join(said * 40)] for name, said in read_speeches(COLON, "").items()}
    text = "\n\n".join(f"{name}:\n{said[0]}" for name, said in long.items())
    write(tmp_path / "one" / "shakespeare" / "plays.txt", text.encode())
    data = D.shakespeare(clients=2, most=100, folder=tmp_path / "one")
    assert data.ids == ["First Citizen", "All"]
    points = {
        name: (
            [said[0][i : i + 80].replace("\n", " ") for i in range(150)],
            [said[0][i + 80].replace("\n", " ") for i in range(150)],
        )
        for name, said in long.items()
    }
    root = tmp_path / "two" / "shakespeare"
    write(root / "train" / "all_data.json", leaf(points))
    write(
        root / "test" / "all_data.json", leaf({n: (x[:40], y[:40]) for n, (x, y) in points.items()})
    )
    data = D.shakespeare(clients=2, most=100, folder=tmp_path / "two")
    assert data.train.sizes.tolist() == [100, 100]
    assert data.test.sizes.tolist() == [20, 20]
    x, y = data.client("All")
    start = text_of(x[0])
    found = points["All"][0].index(start)
    assert ALPHABET[y[0]] == points["All"][1][found]
    assert len(D.shakespeare("iid", 3, most=50, folder=tmp_path / "two").train) == 150


def test_feddyns_four_types():
    def features(kind):
        data = D.feddyn_synthetic(kind, seed=3)
        means = torch.stack([data.train.client(k)[0].mean(0) for k in range(20)])
        sizes = data.train.sizes.double()
        x, y = data.train.x, data.train.y
        fit = ud.theory.LogisticRegression([x], [y], 5, weight_decay=1e-4)
        w = fit.optimum(torch.ones(1, dtype=torch.float64), tolerance=1e-3)
        right = (x.double() @ w[:150].view(5, 30).T + w[150:]).argmax(1) == y
        agree = float(right.double().mean())  # with one model for all clients
        return float(means.std(0).mean()), float(sizes.std() / sizes.mean()), agree

    spread, size, agree = zip(*(features(kind) for kind in range(4)), strict=True)
    assert max(spread[0], spread[1], spread[3]) < 0.1 < 0.8 < spread[2]
    assert size[:3] == (0, 0, 0)
    assert size[3] > 0.3
    assert agree[1] < 0.8
    assert min(agree[0], agree[2], agree[3]) > 0.95
    assert D.feddyn_synthetic(0).train.x.shape == (4000, 30)
    logs = np.log(D.feddyn_synthetic(3, clients=2000, spread=0.4).train.sizes.numpy())
    assert logs.mean() == pytest.approx(np.log(200), abs=0.05)
    assert logs.std() == pytest.approx(0.4, rel=0.1)


def broken_mnist(tmp_path, change):
    write_idx_set(tmp_path / "mnist", ("train", "t10k"), 40, 10)
    change(tmp_path / "mnist")
    return lambda: D.mnist(clients=2, folder=tmp_path, verify=False)


def broken_femnist(tmp_path, users):
    for part in ("train", "test"):
        write(tmp_path / "femnist" / part / "a.json", leaf(users))
    return lambda: D.femnist(clients=1, folder=tmp_path)


def cifar_with_label_12(tmp_path):
    x = np.zeros((2, 3072), np.uint8)
    for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]:
        batch = pickle.dumps({b"data": x, b"labels": [0, 12]})
        write(tmp_path / "cifar-10-batches-py" / name, batch)
    return lambda: D.cifar10(clients=1, folder=tmp_path)


REFUSED = [
    (
        lambda p: broken_mnist(
            p, lambda f: write(f / "train-labels-idx1-ubyte.gz", idx(np.full(40, 10)))
        ),
        "has the label 10, but there are 10 classes, 0 … 9",
    ),
    (
        lambda p: broken_mnist(
            p, lambda f: write(f / "train-labels-idx1-ubyte.gz", idx(np.zeros(39)))
        ),
        "has 39 labels for the 40 images",
    ),
    (
        lambda p: broken_mnist(
            p, lambda f: write(f / "train-images-idx3-ubyte.gz", idx(np.zeros((40, 27, 28))))
        ),
        "must have images of 28 × 28 bytes",
    ),
    (
        lambda p: broken_mnist(
            p,
            lambda f: write(
                f / "train-images-idx3-ubyte.gz",
                (f / "train-images-idx3-ubyte.gz").read_bytes()[:-100],
            ),
        ),
        "train-images-idx3-ubyte.gz is truncated",
    ),
    (cifar_with_label_12, "has the label 12, but there are 10 classes"),
    (lambda p: lambda: D.emnist(kind="letter", folder=p), "did you mean 'letters'?"),
    (lambda p: lambda: D.femnist(folder=p), "make them with LEAF"),
    (lambda p: lambda: D.mnist(folder=3), "folder is 3, but must be a folder"),
    (
        lambda p: lambda: D.shakespeare(D.Natural(most=3), folder=p),
        "use shakespeare's own `most`",
    ),
    (lambda p: lambda: D.feddyn_synthetic(3, spread=200), "spread is 200"),
    (
        lambda p: broken_femnist(p, {"a": ([[0.0] * 783], [1])}),
        "writer 'a' have shape [783], but must have 784 pixels",
    ),
    (
        lambda p: broken_femnist(p, {"a": ([[0.0] * 784], [62])}),
        "labels of writer 'a' must be whole numbers from 0 to 61",
    ),
    (
        lambda p: (
            write(p / "shakespeare" / "plays_by_role.json", b'{"a": "b"}'),
            lambda: D.shakespeare(folder=p),
        )[1],
        'must have the form {"play / role": [speech, …]}',
    ),
    (
        lambda p: (
            write(p / "shakespeare" / "plays_by_role.json", b'{"a": ["short"]}'),
            lambda: D.shakespeare(folder=p),
        )[1],
        "has more than 80 characters of text",
    ),
    (
        lambda p: (
            write(p / "shakespeare" / "plays_by_role.json", b'{"a": ["' + b"long" * 50 + b'"]}'),
            lambda: D.shakespeare(folder=p),
        )[1],
        "There are 1 roles with more than 80 characters, but clients is 100",
    ),
    (lambda p: lambda: D.feddyn_synthetic(4), "must be one of '0', '1', '2', '3'"),
    (
        lambda p: (
            broken_mnist(p, lambda f: None).__call__
            and (lambda: D.mnist(clients=2, folder=p, verify=False, normalise="pixels"))
        ),
        "normalise is 'pixels'",
    ),
]


@pytest.mark.parametrize(("setting", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_wrong_files_and_options_raise_a_clear_error(setting, words, tmp_path):
    action = setting(tmp_path)
    with pytest.raises(ud.UndriftError) as error:
        action()
    assert words in str(error.value)
    assert not list((tmp_path / "cache").rglob("*.safetensors*"))


def test_the_error_for_a_missing_file_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr("undrift.data.sources.images.MNIST_URLS", ("http://127.0.0.1:9/mnist/",))
    with pytest.raises(ud.UndriftError) as error:
        D.mnist(folder=tmp_path)
    sentence = str(error.value)
    assert "mnist/train-images-idx3-ubyte.gz is missing" in sentence
    assert f"to {tmp_path / 'mnist'}" in sentence
    assert "http://127.0.0.1:9/mnist/train-images-idx3-ubyte.gz" in sentence
    assert "UNDRIFT_DATA" in sentence


def test_an_environment_variable_sets_the_folder(tmp_path, monkeypatch):
    write_idx_set(tmp_path / "mnist", ("train", "t10k"), 40, 10)
    monkeypatch.setenv("UNDRIFT_DATA", str(tmp_path))
    assert len(D.mnist(clients=4, verify=False)) == 4


def test_a_malicious_batch_is_not_executed(tmp_path):
    class Malice:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'harm')!r}, 'w')",))

    buffer = io.BytesIO()
    pickle.Pickler(buffer).dump({b"data": Malice(), b"labels": []})
    for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]:
        write(tmp_path / "cifar-10-batches-py" / name, buffer.getvalue())
    with pytest.raises(ud.UndriftError, match=r"asks for builtins\.exec"):
        D.cifar10(folder=tmp_path)
    assert not (tmp_path / "harm").exists()


def test_an_incomplete_folder_is_not_used(tmp_path):
    x, y = cifar_batch(3)
    write(
        tmp_path / "cifar-10-batches-py" / "data_batch_1", pickle.dumps({b"data": x, b"labels": y})
    )
    for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]:
        records = np.concatenate([np.array(y, np.uint8)[:, None], x], axis=1)
        write(tmp_path / "cifar-10-batches-bin" / f"{name}.bin", records.tobytes())
    assert len(D.cifar10(clients=3, folder=tmp_path).train) == 15


def test_a_few_bytes_cannot_ask_for_all_memory(tmp_path):
    bomb = b"\x80\x02}r" + struct.pack("<I", 0x7FFFFFFF) + b"."
    for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]:
        write(tmp_path / "cifar-10-batches-py" / name, bomb)
    with pytest.raises(ud.UndriftError, match="has no key 'data'"):
        D.cifar10(folder=tmp_path)


def test_every_source_of_files_is_a_function_of_ud_data():
    named = {name: name.replace("-", "_") for name in SOURCES}
    assert [name for name in named if not callable(getattr(ud.data, named[name], None))] == []
