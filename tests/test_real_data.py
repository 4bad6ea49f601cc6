"""The published files of MNIST, Fashion-MNIST and Shakespeare, from the folder `UNDRIFT_DATA`."""

import os
from pathlib import Path

import numpy as np
import pytest

import undrift as ud

FOLDER = os.environ.get("UNDRIFT_DATA")


@pytest.fixture
def folder(request):
    """The folder of a data set; the test is skipped if it is missing."""
    wanted = request.param
    if not FOLDER:
        pytest.skip(f"{wanted}: UNDRIFT_DATA names no folder of data")
    if not (Path(FOLDER) / wanted).is_dir():
        pytest.skip(f"{wanted}: {FOLDER} has no folder {wanted}")
    return Path(FOLDER)


def with_(name):
    return pytest.mark.parametrize("folder", [name], indirect=True)


def one_round(data, model, **local):
    result = ud.train(
        ud.FedAvg(),
        model=model,
        data=data,
        local=ud.SGD(**{"lr": 0.1, "batch_size": 50, "epochs": 1, **local}),
        rounds=1,
        cohort=5,
    )
    return result.records[-1].metrics


@with_("mnist")
def test_mnist_trains_for_a_round(folder):
    data = ud.data.mnist(clients=100, folder=folder)
    assert data.train.x.shape == (60000, 1, 28, 28)
    assert np.bincount(data.train.y).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert float(data.train.x.mean()) == pytest.approx(0, abs=1e-4)
    plain = ud.data.mnist(clients=100, folder=folder, normalise=None)
    assert float(plain.train.x.mean()) == pytest.approx(0.1307, abs=1e-4)
    assert float(plain.train.x.std()) == pytest.approx(0.3081, abs=1e-4)
    metrics = one_round(data, ud.models.mlp(784, 200, 100, classes=10))
    assert metrics["test_accuracy"] > 0.6


@with_("fashion-mnist")
def test_fashion_mnist_trains_for_a_round(folder):
    data = ud.data.fashion_mnist(ud.data.Classes(2), 50, folder=folder)
    assert data.train.sizes.tolist() == [1200] * 50
    metrics = one_round(data, ud.models.mlp(784, 400, classes=10))
    assert metrics["test_accuracy"] > 0.15


@with_("shakespeare")
def test_shakespeare_trains_for_a_round(folder):
    data = ud.data.shakespeare(folder=folder)
    assert len(data) == 100
    assert data.train.sizes.tolist() == [2000] * 100
    assert len(data.test) == 40_000  # FedDyn's Table 3 has 200 000 and 40 000
    small = ud.data.shakespeare(clients=5, most=200, folder=folder)
    model = ud.models.char_lstm()
    chance = 1 / 80
    metrics = one_round(small, model, lr=1.0, batch_size=10, clip=5.0)
    assert metrics["test_accuracy"] > 5 * chance
    iid = ud.data.shakespeare("iid", 100, folder=folder)
    assert iid.train.sizes.tolist() == [2000] * 100
    apart = {name: d.describe().labels.distance.mean for name, d in (("role", data), ("iid", iid))}
    assert apart["iid"] < apart["role"]


@with_("mnist")
def test_mnist_over_dirichlet_clients_is_as_skewed_as_feddyn_says(folder):
    """Appendix A.2: 80 % of a client's data belong mostly to 3 or 4, and to 4 or 5 classes."""
    for alpha, wanted in ((0.3, (3, 4)), (0.6, (4, 5))):
        medians = []
        for seed in range(3):
            data = ud.data.mnist(ud.data.Dirichlet(alpha), 100, seed, folder=folder)
            needed = data.describe().labels.needed["80"]
            medians.append(needed.spread.median)
            share = sum(needed.clients[k - 1] for k in wanted) / 100
            assert share > 0.5, (alpha, needed.clients)
        assert wanted[0] <= np.mean(medians) <= wanted[1]


@with_("mnist")
def test_mnist_of_two_digits_is_the_tables_of_fedavg_noniid(folder):
    """Table 2: balanced 100 × 542; unbalanced mean 628, deviation 800."""
    balanced = ud.data.mnist(ud.data.Classes(2), 100, folder=folder)
    assert balanced.train.sizes.tolist() == [542] * 100
    assert balanced.describe().labels.per_client.max == 2
    rule = ud.data.Classes(2, sizes=ud.data.PowerLaw())
    unbalanced = ud.data.mnist(rule, 100, folder=folder, joined=True)
    sizes = unbalanced.train.sizes.double()
    assert float(sizes.mean()) == pytest.approx(628, rel=0.01)
    assert float(sizes.std(correction=0)) == pytest.approx(800, rel=0.2)


@with_("mnist")
def test_a_changed_file_is_refused(folder, tmp_path):
    (tmp_path / "mnist").mkdir()
    for file in (folder / "mnist").glob("*.gz"):
        (tmp_path / "mnist" / file.name).write_bytes(file.read_bytes())
    labels = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    whole = labels.read_bytes()
    labels.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ud.UndriftError, match="has the checksum sha256:"):
        ud.data.mnist(folder=tmp_path)
    labels.write_bytes(whole[:-1])
    with pytest.raises(ud.UndriftError, match="is truncated to 28880 of 28881 bytes"):
        ud.data.mnist(folder=tmp_path)
