"""Federated data from objects of Hugging Face's datasets and of flwr-datasets."""

import os

import numpy as np
import pytest
import torch

import undrift as ud

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # tests send no telemetry
datasets = pytest.importorskip("datasets", reason="the library datasets is not installed")
FROM = ud.data.FederatedData.from_huggingface


def table(n=24, seed=0):
    rng = np.random.default_rng(seed)
    features = datasets.Features(
        {
            "a": datasets.Value("float32"),
            "b": datasets.Value("float64"),
            "vector": datasets.Sequence(datasets.Value("float32")),
            "who": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["cat", "dog", "cow"]),
        }
    )
    return datasets.Dataset.from_dict(
        {
            "a": rng.normal(size=n).tolist(),
            "b": rng.normal(size=n).tolist(),
            "vector": rng.normal(size=(n, 4)).tolist(),
            "who": [f"site {k % 3}" for k in range(n)],
            "label": (np.arange(n) % 3).tolist(),
        },
        features=features,
    )


def test_a_dataset_is_shared_out_by_a_partition_or_by_a_column():
    data = FROM(table(), ["a", "b"], "label", table(6, 1), partition="classes:1", clients=3)
    assert data.classes == ("cat", "dog", "cow")
    assert data.train.x.shape == (24, 2)
    assert len(data.test) == 6
    assert [set(data.train.client(k)[1].tolist()) for k in range(3)] in (
        [[{a}, {b}, {c}] for a in range(3) for b in range(3) for c in range(3) if a != b != c != a]
    )
    natural = FROM(table(), "vector", "label", by="who")
    assert natural.ids == ["site 0", "site 1", "site 2"]
    assert natural.train.x.shape == (24, 4)
    assert torch.allclose(natural.client("site 1")[0], torch.tensor(table()["vector"][:])[1::3])


def test_images_are_scaled_and_have_their_channels_first():
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    dataset = datasets.Dataset.from_dict(
        {"image": [image.fromarray(each) for each in pixels], "label": [0, 1, 0, 1]},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    data = FROM(dataset, "image", "label", clients=2)
    assert data.train.x.shape == (4, 3, 5, 6)
    assert torch.allclose(
        data.train.x, torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()).float() / 255
    )
    grey = dataset.map(lambda row: {"image": row["image"].convert("L")})
    assert FROM(grey, "image", "label", clients=2).train.x.shape == (4, 1, 5, 6)
    black_and_white = dataset.map(lambda row: {"image": row["image"].convert("1")})
    with pytest.raises(ud.UndriftError, match="have pixels of type bool, but must have bytes"):
        FROM(black_and_white, "image", "label", clients=2)


def test_clients_whose_classes_have_another_order_are_rejected():
    def client(names):
        return table().cast_column("label", datasets.ClassLabel(names=names))

    with pytest.raises(ud.UndriftError, match="classes of client 'b' differ in name or order"):
        FROM({"a": client(["x", "y", "z"]), "b": client(["y", "x", "z"])}, "vector", "label")


def test_splits_are_not_clients():
    both = datasets.DatasetDict({"train": table(), "test": table(6, 1)})
    data = FROM(both, "vector", "label", clients=4)
    assert len(data) == 4
    assert len(data.train) == 24
    assert len(data.test) == 6


def test_one_dataset_per_client():
    whole = table()
    own = {"x": whole.select(range(5)), "y": whole.select(range(5, 12))}
    data = FROM(own, "vector", "label")
    assert data.ids == ["x", "y"]
    assert data.train.sizes.tolist() == [5, 7]
    assert FROM(list(own.values()), "vector", "label").ids == [0, 1]


def test_partitions_of_flwr_datasets():
    partitioner = pytest.importorskip(
        "flwr_datasets.partitioner", reason="flwr-datasets is not installed"
    )
    iid = partitioner.IidPartitioner(num_partitions=4)
    iid.dataset = table()
    data = FROM(iid, "vector", "label")
    assert data.train.sizes.tolist() == [6] * 4
    skewed = partitioner.PathologicalPartitioner(
        num_partitions=3, partition_by="label", num_classes_per_partition=1
    )
    skewed.dataset = table()
    data = FROM(skewed, "vector", "label")
    for k in range(3):
        own = skewed.load_partition(k)
        assert data.train.client(k)[1].tolist() == own["label"][:]
    result = ud.train(
        ud.FedAvg(),
        model=ud.models.logistic(4, 3),
        data=data,
        local=ud.SGD(lr=0.1, batch_size=2, epochs=1),
        rounds=1,
    )
    assert np.isfinite(result.records[-1].metrics["train_loss"])


def test_a_federated_dataset_of_flwr():
    flwr = pytest.importorskip("flwr_datasets", reason="flwr-datasets is not installed")
    federated = flwr.FederatedDataset(dataset="local", partitioners={"train": 3})
    federated._dataset = datasets.DatasetDict({"train": table()})  # instead of a download
    federated._dataset_prepared = True
    data = FROM(federated, "vector", "label")
    assert data.train.sizes.tolist() == [8] * 3
    with pytest.raises(ud.UndriftError, match="split is 'tset'"):
        FROM(federated, "vector", "label", split="tset")


REFUSED = [
    (lambda: FROM(table(), "vectr", "label", clients=2), "did you mean 'vector'?"),
    (lambda: FROM(table(), "who", "label", clients=2), "must have numbers, or images of one size"),
    (lambda: FROM(table(), "vector", "label"), "clients=100"),
    (lambda: FROM([table()], "vector", "label", clients=2), "so clients must be left out"),
    (lambda: FROM(3, "vector", "label"), "The source is of type int"),
    (
        lambda: FROM([3], "vector", "label"),
        "client 0 is of type int, but must be a datasets.Dataset",
    ),
    (lambda: FROM([], "vector", "label"), "The source has no partitions"),
    (lambda: FROM(table(), [], "label", clients=2), "inputs must name at least one column"),
    (lambda: FROM(table(), "vector", "label", by="whom"), "by is 'whom'"),
]


@pytest.mark.parametrize(("action", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_invalid_sources_raise_a_clear_error(action, words):
    with pytest.raises(ud.UndriftError) as error:
        action()
    assert words in str(error.value)
