"""Samples that are read when a batch needs them: files, mapped arrays, Hugging Face datasets."""

import random

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import undrift as ud
from plain_loops import fedavg, parameters_of
from undrift.data.fingerprint import fingerprint
from undrift.data.samples.lazy import LazySamples, Request
from undrift.data.samples.sources import DatasetSource
from undrift.utils.keys import key, sample_seeds, seed_global_generators

SIZES = {"a": 11, "b": 6}
SIDE = 6


class Images(Dataset):
    """Images in files, mirrored at random and with noise when they are read."""

    def __init__(self, folder, client, samples, augment=True):
        self.files = [folder / f"{client}-{number}.png" for number in range(samples)]
        self.augment = augment
        self.targets = [number % 3 for number in range(samples)]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, row):
        from PIL import Image

        with Image.open(self.files[row]) as file:
            pixels = torch.from_numpy(np.array(file)).float().permute(2, 0, 1) / 255
        if self.augment:
            if random.random() < 0.5:
                pixels = pixels.flip(-1)
            noise = np.random.rand()  # noqa: NPY002
            pixels = pixels + noise + 0.1 * torch.randn(pixels.shape)
        return pixels, self.targets[row]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from PIL import Image

    found = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for client, samples in SIZES.items():
        for number in range(samples):
            pixels = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(found / f"{client}-{number}.png")
    return found


def datasets(folder, **options):
    return {client: Images(folder, client, samples, **options) for client, samples in SIZES.items()}


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 3))


def train(data, engine="serial", **options):
    local = ud.SGD(0.05, batch_size=4, epochs=2)
    options = {"rounds": 2, "local": local, "model": model(), **options}
    return ud.train(ud.FedAvg(), data=data, engine=engine, **options)


def global_states():
    numpy = np.random.get_state()[1].tolist()  # noqa: NPY002
    return torch.get_rng_state().tolist(), numpy, random.getstate()


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_the_number_of_workers_changes_no_bit(folder, engine):
    found = []
    before = global_states()
    for workers in (0, 1, 2):
        lazy = ud.data.Lazy(workers=workers)
        data = ud.data.FederatedData.from_clients(datasets(folder), lazy=lazy)
        result = train(data, engine)
        found.append(parameters_of(result))
        assert "read when a batch needs them" in result.run.engine.strategy or engine == "serial"
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    torch.manual_seed(0)  # as `model` did
    assert global_states()[1:] == before[1:], "the global generators are as before"


def test_augmentation_is_keyed_by_round_client_epoch_and_sample(folder):
    """A plain loop that seeds the global generators for each sample trains to the same model."""
    own = datasets(folder)
    result = train(ud.data.FederatedData.from_clients(own, lazy=True), seed=3)
    first_row = {"a": 0, "b": SIZES["a"]}

    def batch_of(client):
        def batch(rows, round, epoch):
            number = key(key(3, "model", round, client), "samples", epoch)
            items = []
            for row in rows:
                (seed,) = sample_seeds(number, [first_row[client] + row])
                seed_global_generators(seed)
                items.append(own[client][row])
            x, y = zip(*items, strict=True)
            return torch.stack(x), torch.tensor(y)

        return SIZES[client], batch

    plain = fedavg(
        model(),
        {client: batch_of(client) for client in SIZES},
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        lambda p: torch.optim.SGD(p, 0.05),
        4,
        epochs=2,
        seed=3,
    )
    assert torch.allclose(parameters_of(result), plain, atol=1e-6)


def test_every_sample_has_a_seed_of_its_own_whatever_its_batch():
    seeds = sample_seeds(7, range(1000))
    assert len(set(seeds)) == 1000
    assert set(seeds).isdisjoint(sample_seeds(8, range(1000)))
    assert sample_seeds(7, [5, 3]) == [seeds[5], seeds[3]]


def test_every_round_and_epoch_sees_new_augmentations(folder):
    seen = []

    class Watched(Images):
        def __getitem__(self, row):
            x, y = super().__getitem__(row)
            seen.append((self.files[row].name, float(x.sum())))
            return x, y

    data = {c: Watched(folder, c, n) for c, n in SIZES.items()}
    federated = ud.data.FederatedData.from_clients(data, lazy=True)
    ud.train(
        ud.FedAvg(),
        model=model(),
        data=federated,
        local=ud.SGD(0.05, batch_size=4, epochs=3),
        rounds=2,
        engine="serial",
        evaluate=ud.Evaluation(every=100),
    )
    trained = [value for name, value in seen if name == "a-0.png"]
    assert len(set(trained)) == 2 * 3 + 1, "two rounds of three epochs, and evaluation"


def test_a_dataset_that_changes_its_items_at_random_stays_lazy_by_itself(folder):
    data = ud.data.FederatedData.from_clients(datasets(folder))
    assert data.train.lazy is not None
    assert "changes its items at random" in str(data.describe())
    assert "3 classes" in str(data.describe())
    once = ud.data.FederatedData.from_clients(datasets(folder), lazy=False)
    assert once.train.lazy is None
    same = ud.data.FederatedData.from_clients(datasets(folder, augment=False))
    assert same.train.lazy is None


@pytest.mark.parametrize("method", [ud.FedAvg(), ud.SCAFFOLD(option="I"), ud.FedProx(mu=0.1)])
def test_lazy_samples_train_as_those_in_memory(folder, method):
    plain = datasets(folder, augment=False)
    found = []
    for lazy in (False, True):
        data = ud.data.FederatedData.from_clients(plain, test=plain["a"], lazy=lazy)
        local = ud.SGD(0.05, batch_size=4, epochs=2, accumulate=2)
        result = ud.train(method, model=model(), data=data, local=local, rounds=2, engine="serial")
        found.append((parameters_of(result), result.records[-1].metrics))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-6)
    assert found[0][1].keys() == found[1][1].keys()
    for name, value in found[0][1].items():
        assert found[1][1][name] == pytest.approx(value, rel=1e-5)


def test_one_lazy_dataset_is_partitioned_by_its_labels(folder):
    dataset = datasets(folder)["a"]
    data = ud.data.FederatedData.from_dataset(
        dataset, partition="dirichlet:0.5", clients=2, lazy=True
    )
    assert data.train.lazy is not None
    held = data.with_test(0.3)
    assert held.train.lazy is not None and held.test.lazy is not None
    train(held)
    del dataset.targets
    with pytest.raises(ud.UndriftError, match="give targets=…"):
        ud.data.FederatedData.from_dataset(dataset, partition="dirichlet:0.5", clients=2, lazy=True)


def test_a_fingerprint_reads_a_few_samples(folder):
    data, same = (ud.data.FederatedData.from_clients(datasets(folder)) for _ in range(2))
    assert fingerprint(data) == fingerprint(same)
    other = ud.data.FederatedData.from_clients(datasets(folder, augment=False), lazy=True)
    assert fingerprint(data) != fingerprint(other)


def test_batches_read_ahead_are_bounded_in_number_and_memory():
    class Large(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, row):
            return torch.full((1000,), float(row))

    for memory, most in ((200, 4), (0.009, 1)):  # a batch has 8 kB
        samples = LazySamples(DatasetSource(Large(), "it"), 2, 2, memory)
        submitted = 0
        submit = samples._pools.submit

        def counted(request, submit=submit):
            nonlocal submitted
            submitted += 1
            return submit(request)

        samples._pools.submit = counted
        requests = [Request([2 * k, 2 * k + 1]) for k in range(20)]
        for number, (inputs, _) in enumerate(samples.batches(requests)):
            assert inputs[:, 0].tolist() == [2 * number, 2 * number + 1]
            if number:
                assert submitted - number <= most + 4 * (number < 4)
        assert submitted == 20


def test_a_sample_that_cannot_be_read_is_named(folder):
    class Broken(Images):
        def __getitem__(self, row):
            if row == 3:
                raise OSError("truncated")
            return super().__getitem__(row)

    for workers in (0, 1):
        lazy = ud.data.Lazy(workers=workers)
        broken = {c: Broken(folder, c, n) for c, n in SIZES.items()}
        with pytest.raises(ud.UndriftError, match=r"Item 3 of the Dataset .*truncated"):
            train(ud.data.FederatedData.from_clients(broken, lazy=lazy))


def test_mapped_arrays_train_as_those_in_memory(tmp_path):
    g = torch.Generator().manual_seed(0)
    arrays = {
        client: (torch.randn(n, 3, SIDE, SIDE, generator=g), torch.arange(n) % 3)
        for client, n in SIZES.items()
    }
    wanted = parameters_of(train(ud.data.FederatedData.from_clients(arrays)))
    import pyarrow as pa

    found = {}
    for client, (x, y) in arrays.items():
        np.save(tmp_path / f"{client}.npy", x.numpy())
        save_file({"x": x, "labels": y}, tmp_path / f"{client}.safetensors")
        flat = pa.FixedSizeListArray.from_arrays(pa.array(x.numpy().ravel()), 3 * SIDE * SIDE)
        table = pa.table({"x": flat, "labels": y.numpy()})
        with (
            pa.OSFile(str(tmp_path / f"{client}.arrow"), "wb") as file,
            pa.ipc.new_file(file, table.schema) as writer,
        ):
            writer.write_table(table, max_chunksize=4)
        mapped = ud.data.mapped(tmp_path / f"{client}.npy")
        assert isinstance(mapped, np.memmap)
        found.setdefault("npy", {})[client] = mapped, y
        for kind in ("safetensors", "arrow"):
            found.setdefault(kind, {})[client] = ud.data.mapped(tmp_path / f"{client}.{kind}")

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model()

        def forward(self, x):
            return self.inner(x.reshape(len(x), 3, SIDE, SIDE))

    for kind, clients in found.items():
        data = ud.data.FederatedData.from_clients(clients)
        assert data.train.lazy is not None
        result = train(data, model=model() if kind == "npy" else Named())
        assert torch.allclose(parameters_of(result), wanted, atol=1e-6), kind
    whole = ud.data.FederatedData.from_arrays(
        ud.data.mapped(tmp_path / "a.npy"), arrays["a"][1], clients=2, partition="dirichlet:1"
    )
    assert whole.train.lazy is not None
    train(whole)
    for name in ("b.txt", "none.npy"):
        (tmp_path / "b.txt").write_text("")
        with pytest.raises(ud.UndriftError):
            ud.data.mapped(tmp_path / name)


def test_hugging_face_datasets_stay_lazy():
    library = pytest.importorskip("datasets")
    g = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, SIDE, SIDE, generator=g)
    source = library.Dataset.from_dict({"x": x.numpy(), "label": [k % 3 for k in range(20)]})
    data = ud.data.FederatedData.from_huggingface(
        source, "x", "label", clients=2, partition="dirichlet:1", lazy=True
    )
    assert data.train.lazy is not None
    assert data.train.y.tolist() == [k % 3 for k in range(20)]
    eager = ud.data.FederatedData.from_arrays(
        x, torch.arange(20) % 3, clients=2, partition="dirichlet:1"
    )
    assert torch.allclose(parameters_of(train(data)), parameters_of(train(eager)), atol=1e-6)
    seen = []

    def noisy(batch):
        seen.append(1)
        changed = [torch.as_tensor(each) + torch.randn(()) for each in batch["x"]]
        return {"x": changed, "label": batch["label"]}

    named = ud.data.FederatedData.from_huggingface(
        source.with_transform(noisy), ["x"], "label", clients=2, lazy=ud.data.Lazy()
    )

    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model()

        def forward(self, x):
            return self.inner(x)

    first = parameters_of(train(named, model=Takes()))
    assert torch.equal(first, parameters_of(train(named, model=Takes())))
    assert seen


REFUSED = [
    (lambda data: data.normalised(), "cannot be normalised"),
    (lambda data: data.with_inputs(lambda x: x), "cannot be changed at once"),
]


@pytest.mark.parametrize(("act", "words"), REFUSED)
def test_what_needs_all_samples_in_memory_is_refused(folder, act, words):
    data = ud.data.FederatedData.from_clients(datasets(folder), lazy=True)
    with pytest.raises(ud.UndriftError, match=words):
        act(data)
