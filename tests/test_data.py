"""Federated data from users' arrays and Datasets, and the synthetic data of FedProx."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import undrift as ud


def test_a_clients_data_do_not_depend_on_the_number_of_clients():
    few, many = (
        ud.data.synthetic(1, 1, clients=3, seed=4),
        ud.data.synthetic(1, 1, clients=6, seed=4),
    )
    for k in range(3):
        for a, b in zip(few.train.client(k), many.train.client(k), strict=True):
            assert torch.equal(a, b)
    other = ud.data.synthetic(1, 1, clients=3, seed=5)
    assert few.train.sizes.tolist() != other.train.sizes.tolist()


def test_sizes_follow_the_papers_law():
    data = ud.data.synthetic(0, 0, clients=400, seed=1)
    n = (data.train.sizes + data.test.sizes).numpy()
    assert n.min() >= 50
    logs = np.log(np.maximum(n - 50, 1))
    assert np.median(logs) == pytest.approx(4, abs=0.35)
    assert logs.std() == pytest.approx(2, abs=0.3)
    share = data.train.sizes.numpy() / n
    assert share == pytest.approx(np.full(400, 0.9), abs=0.02)


def test_inputs_have_the_papers_variances_and_labels_a_linear_rule():
    data = ud.data.synthetic(1, 1, clients=40, seed=2)
    k = int(data.train.sizes.argmax())
    x, y = data.train.client(k)
    assert x.shape[1] == 60
    expected = np.arange(1, 61) ** -1.2
    assert x.numpy().var(0) == pytest.approx(expected, rel=0.25)
    assert set(y.tolist()) <= set(range(10))
    fit = ud.theory.LogisticRegression([x], [y], 10, weight_decay=1e-4)
    w = fit.optimum(torch.ones(1, dtype=torch.float64), tolerance=1e-4)
    scores = x.double() @ w[:600].view(10, 60).T + w[600:]
    assert float((scores.argmax(1) == y).double().mean()) > 0.97


def test_heterogeneity_grows_with_alpha_and_beta():
    def spread(alpha, beta, **options):
        data = ud.data.synthetic(alpha, beta, clients=40, seed=0, most=400, **options)
        means = torch.stack([data.train.client(k)[0].mean(0).mean() for k in range(40)])
        return float(means.std())

    assert spread(0, 0, iid=True) < spread(0, 0) < spread(1, 1) < spread(3, 3)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    seed=st.integers(0, 10),
)
@settings(max_examples=40, deadline=None)
def test_arrays_with_parts_and_lists_of_clients_are_the_same(sizes, seed):
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    x, y = rng.normal(size=(n, 2)), rng.integers(0, 3, n)
    order = rng.permutation(n)
    parts = np.split(order, np.cumsum(sizes)[:-1])
    by_parts = ud.data.FederatedData.from_arrays(x, y, parts)
    by_clients = ud.data.FederatedData.from_clients([(x[part], y[part]) for part in parts])
    assert by_parts.train.sizes.tolist() == by_clients.train.sizes.tolist() == sizes
    for k in range(len(sizes)):
        for a, b in zip(by_parts.train.client(k), by_clients.train.client(k), strict=True):
            assert torch.equal(a, b)
    pooled = by_parts.pooled()
    assert pooled.train.sizes.tolist() == [n]
    assert torch.equal(pooled.train.client(0)[1], torch.as_tensor(y[order]))


def test_test_data_may_be_common_or_per_client():
    own = {"a": (torch.ones(2, 1), [0, 1]), "b": (torch.ones(3, 1), [0, 1, 1])}
    common = ud.data.FederatedData.from_clients(own, (torch.ones(4, 1), [0, 1, 0, 1]))
    assert not common.test.by_client
    each = ud.data.FederatedData.from_clients(own, {"a": (torch.ones(1, 1), [0]), "b": own["b"]})
    assert each.test.sizes.tolist() == [1, 3]
    assert "2 clients; 5 training, 4 test samples" in repr(common)
    with pytest.raises(ud.UndriftError, match="no entry for client 'b'"):
        ud.data.FederatedData.from_clients(own, {"a": own["a"]})


class Squares(Dataset):
    """A Dataset whose items are lists and numbers, not tensors."""

    def __init__(self, n, width=2):
        self.n, self.width = n, width

    def __len__(self):
        return self.n

    def __getitem__(self, k):
        return np.full(self.width, float(k) ** 2), k % 3


def test_a_torch_dataset_is_shared_out_or_is_one_client():
    data = ud.data.FederatedData.from_dataset(Squares(30), partition="classes:1", clients=3)
    assert data.train.x.shape == (30, 2)
    assert data.train.y.tolist() == [k % 3 for k in range(30)]
    assert [len(set(data.train.client(k)[1].tolist())) for k in range(3)] == [1, 1, 1]
    tensors = TensorDataset(torch.arange(8.0)[:, None], torch.arange(8) % 2)
    own = {"a": Subset(tensors, [1, 3, 5]), "b": tensors}
    each = ud.data.FederatedData.from_clients(own, Subset(tensors, [0, 7]))
    assert each.client("a")[0].flatten().tolist() == [1, 3, 5]
    assert len(each.client("b")[1]) == 8
    assert each.test.x.flatten().tolist() == [0, 7]


def test_a_hundred_thousand_clients_are_a_few_tensors():
    n, clients = 300_000, 100_000
    x, y = torch.arange(float(n))[:, None], torch.arange(n) % 10
    data = ud.data.FederatedData.from_arrays(x, y, partition=ud.data.IID(), clients=clients)
    assert len(data) == clients
    assert data.train.x.data_ptr() == x.data_ptr()  # the samples themselves are not copied
    held = data.with_validation(0.34).with_test(0.5)
    assert held.train.x.data_ptr() == x.data_ptr()
    assert len(held.train) + len(held.validation) + len(held.test) == n
    assert held.train.sizes.min() >= 1


def test_contiguous_samples_are_views():
    data = ud.data.FederatedData.from_clients(
        [(torch.ones(3, 2), [0, 1, 2]), (torch.ones(4, 2), [0] * 4)]
    )
    x, _ = data.train.client(1)
    assert x.data_ptr() == data.train.x[3:].data_ptr()


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    share=st.floats(0.01, 0.99),
    by=st.sampled_from(["client", "overall"]),
    seed=st.integers(0, 5),
)
@settings(max_examples=100, deadline=None)
def test_the_share_is_held_out_and_every_client_keeps_a_sample(sizes, share, by, seed):
    n = sum(sizes)
    parts = np.split(np.arange(n), np.cumsum(sizes)[:-1])
    data = ud.data.FederatedData.from_arrays(np.arange(n)[:, None], np.arange(n) % 2, parts)
    held = data.with_validation(share, seed, by)
    rows = [*held.train.rows.tolist(), *held.validation.rows.tolist()]
    assert sorted(rows) == list(range(n))
    assert held.train.sizes.min() >= 1
    if by == "client":
        for k, size in enumerate(sizes):
            assert held.validation.sizes[k] == min(size - 1, int(share * size + 0.5))
            assert set(held.validation.of(k).tolist()) <= set(parts[k])
    else:
        assert not held.validation.by_client
        assert len(held.validation) == min(n - len(sizes), int(share * n + 0.5))


def test_held_out_samples_of_a_client_do_not_depend_on_other_clients():
    own = {name: (np.arange(20.0)[:, None], np.arange(20) % 2) for name in "abc"}
    few = ud.data.FederatedData.from_clients({"c": own["c"]}).with_test(0.3, seed=1)
    many = ud.data.FederatedData.from_clients(own).with_test(0.3, seed=1)
    assert torch.equal(few.test.client(0)[0], many.test.client(2)[0])
    assert not torch.equal(many.test.client(0)[0], many.test.client(2)[0])
    other = ud.data.FederatedData.from_clients(own).with_test(0.3, seed=2)
    assert not torch.equal(other.test.client(2)[0], many.test.client(2)[0])


def test_a_validation_part_is_measured_beside_the_test_part():
    data = ud.data.synthetic(1, 1, clients=5, most=60).with_validation(0.2)
    result = ud.train(
        ud.FedAvg(),
        model=ud.models.logistic(60, 10),
        data=data,
        local=ud.SGD(lr=0.03, batch_size=10, epochs=1),
        rounds=2,
        evaluate=ud.Evaluation(models=("server", "own")),
        target={"validation_loss": 0.01},
    )
    metrics = result.records[-1].metrics
    for name in ("validation_loss", "validation_accuracy", "test_accuracy", "own/validation_loss"):
        assert np.isfinite(metrics[name])
    x, y = data.validation.x[data.validation.rows], data.validation.y[data.validation.rows]
    right = (result.model()(x).argmax(1) == y).double().mean()
    assert metrics["validation_accuracy"] == pytest.approx(float(right))


def part(**changed):
    whole = torch.zeros(4, dtype=torch.int64)
    train = ud.data.Part(ONES, whole, torch.arange(4), torch.tensor([0, 2, 4]))
    return ud.data.FederatedData(train, **changed)


class Endless(IterableDataset):
    def __iter__(self):
        yield from ()


ONES = torch.ones(4, 2)
REFUSED = [
    (
        lambda: ud.data.FederatedData.from_dataset(3, clients=2),
        "must be a torch.utils.data.Dataset",
    ),
    (lambda: ud.data.FederatedData.from_dataset(Squares(0), clients=2), "has no samples"),
    (
        lambda: ud.data.FederatedData.from_dataset(Endless(), clients=2),
        "must have a length and items by index",
    ),
    (
        lambda: ud.data.FederatedData.from_clients([[ONES, ONES, ONES]]),
        "client 0 must be a pair (inputs, targets), or a Dataset",
    ),
    (lambda: ud.data.FederatedData.from_arrays(ONES, [0, 1, 0, 1]), "clients=100"),
    (lambda: ud.data.FederatedData.from_arrays(ONES, [0, 1, 0, 1], [[0.5]]), "whole numbers"),
    (lambda: ud.data.FederatedData.from_arrays(ONES, [0, 1, 0, 1], [[["a"]]]), "whole numbers"),
    (lambda: ud.data.FederatedData.from_arrays(ONES, [0, 1, 0, 1], [1, 2]), "whole numbers"),
    (
        lambda: ud.data.FederatedData.from_arrays(
            ONES, [0, 1, 0, 1], owners=range(4), partition=ud.data.Natural(min_size=5)
        ),
        "has no clients, but needs at least one",
    ),
    (lambda: ud.data.FederatedData.from_clients(None), "must be a list or a mapping from ids"),
    (lambda: part(ids=["a", "a"]), "Two clients have the same id 'a'"),
    (lambda: part(ids=[1.5, 2]), "A client's id is 1.5"),
    (
        lambda: part(validation=ud.data.Part.joined([(ONES, torch.zeros(4).long())])),
        "The validation part has 1 clients, but the training part has 2",
    ),
    (
        lambda: part(validation=ud.data.Part.common(ONES[:, :1], torch.zeros(4).long())),
        "The validation inputs have shape [1] per sample, but the training inputs have [2]",
    ),
    (
        lambda: part(test=ud.data.Part.common(ONES, torch.zeros(4))),
        "The test targets are torch.float32, but the training targets are torch.int64",
    ),
    (lambda: ud.data.synthetic(most=1), "most is 1"),
    (lambda: ud.data.synthetic(seed=-1), "seed is -1"),
    (
        lambda: ud.data.FederatedData.from_arrays(ONES, [0, 1, 0, 1], [[0]], clients=2),
        "leave clients out",
    ),
    (
        lambda: ud.data.FederatedData.from_arrays(ONES, [0, 1, 0, 2], clients=2, classes="ab"),
        "label of client",
    ),
    (
        lambda: ud.data.FederatedData.from_arrays(
            ONES, [0, 1, 0, 1], clients=2, classes="ab", test=(ONES, [0, 0, -1, 0])
        ),
        "A test label is -1, but there are 2 classes, 0 … 1",
    ),
    (
        lambda: ud.data.FederatedData.from_arrays(ONES, ONES[:, 0], clients=2, classes="ab"),
        "must be whole numbers",
    ),
    (
        lambda: ud.data.FederatedData.from_arrays(
            ONES, [0, 1, 0, 1], clients=2, test=(torch.ones(4, 3), [0, 0, 1, 0])
        ),
        "inputs of the test part have shape [3] per sample, but those of the data have [2]",
    ),
    (lambda: ud.data.synthetic(clients=2, most=60).with_test(0.1), "already has a test part"),
    (
        lambda: ud.data.synthetic(clients=2, most=60).with_validation(1.0),
        "must be above 0 and below 1",
    ),
    (
        lambda: ud.data.synthetic(clients=2, most=60).with_validation(0.1, by="clients"),
        "did you mean 'client'?",
    ),
    (lambda: ud.data.synthetic(clients=2, most=60).client(7), "There is no client 7 among the 2"),
    (lambda: ud.data.synthetic(clients=2, most=60).normalised("rows"), "by is 'rows'"),
    (
        lambda: ud.data.FederatedData.from_arrays([[1], [2]], [0, 1], clients=2).normalised(),
        "cannot be normalised",
    ),
]


@pytest.mark.parametrize(("action", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_invalid_data_raise_a_clear_error(action, words):
    with pytest.raises(ud.UndriftError) as error:
        action()
    assert words in str(error.value)


def test_a_dataset_names_the_item_that_does_not_fit():
    class Ragged(Squares):
        def __getitem__(self, k):
            return ("no", k) if k == 3 and self.width == 2 else (np.ones(1 + (k == 3)), k)

    with pytest.raises(ud.UndriftError, match="Item 3 of the Dataset of the data is not a pair"):
        ud.data.FederatedData.from_dataset(Ragged(5), clients=2)
    with pytest.raises(ud.UndriftError, match="number 3 has shape"):
        ud.data.FederatedData.from_dataset(Ragged(5, 1), clients=2)


def test_clients_that_a_partition_leaves_empty_are_left_out_and_counted():
    y = np.zeros(30, dtype=int)
    rule = ud.data.DirichletPerClass(1e-3, min_size=0)
    data = ud.data.FederatedData.from_arrays(np.ones((30, 1)), y, partition=rule, clients=10)
    assert len(data) < 10
    assert f"{10 - len(data)} clients without samples are left out" in " ".join(data.notes)
    assert data.train.sizes.sum() == 30


def test_arrays_of_many_libraries_are_accepted():
    x = np.arange(12.0).reshape(6, 2)
    y = np.array([0, 1, 0, 1, 2, 2])
    forms = {
        "reversed": (x[::-1], y[::-1]),
        "foreign": (x.astype(">f8")[::-1], y.astype(">i2")[::-1]),
        "small": (x[::-1], y.astype(np.uint8)[::-1]),
    }
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    forms["frame"] = (pandas.DataFrame(x[::-1]), pandas.Series(y[::-1].copy()))
    for name, (a, b) in forms.items():
        data = ud.data.FederatedData.from_arrays(a, b, [[0, 1], [2, 3, 4, 5]])
        assert data.client(0)[0].tolist() == [[10, 11], [8, 9]], name
        assert data.train.y.tolist() == [2, 2, 1, 0, 1, 0]
        assert data.train.y.dtype == torch.int64
        assert data.describe().labels.classes == 3
    bools = ud.data.FederatedData.from_arrays(x, y > 0, partition="classes:1", clients=2)
    assert bools.train.y.tolist() == [0, 1, 0, 1, 1, 1]


def test_numpy_ids_become_python_ids():
    own = (np.arange(20.0)[:, None], np.arange(20) % 2)
    one, other = (
        ud.data.FederatedData.from_clients({id: own}).with_test(0.3) for id in (1, np.int64(1))
    )
    assert other.ids == [1]
    assert type(other.ids[0]) is int
    assert torch.equal(one.test.rows, other.test.rows)


def test_biases_of_synthetic_clients_lie_about_the_clients_own_mean():
    """b_k ~ N(u_k, 1): W and b have the mean u_k, so only differences from u_k decide y."""
    few = ud.data.synthetic(30.0, 0, clients=200, seed=1, most=50)
    none = ud.data.synthetic(0.0, 0, clients=200, seed=1, most=50)
    # u_k adds the same number to all classes' scores, so it changes no label.
    labels = [torch.cat([d.train.y, d.test.y]) for d in (few, none)]
    assert torch.equal(*labels)


def test_two_augmentations_in_turn_are_both_used():
    x = torch.zeros(4, 1, 4, 4)
    data = ud.data.FederatedData.from_clients([(x, [0, 1, 0, 1])])
    twice = data.augmented(ud.data.RandomCrop(1)).augmented(ud.data.HorizontalFlip())
    assert twice.augmentations == (ud.data.RandomCrop(1), ud.data.HorizontalFlip())


def test_feature_noise_grows_from_client_to_client():
    x, y = torch.zeros(4000, 3, 5), torch.arange(4000) % 10
    data = ud.data.FederatedData.from_clients(
        [(x[k::4], y[k::4]) for k in range(4)], test=(x[:2000], y[:2000])
    )
    changed = data.with_noise(0.3, seed=1)
    deviations = [float(changed.train.client(k)[0].std()) for k in range(4)]
    assert deviations == pytest.approx([0, 0.1, 0.2, 0.3], rel=0.03)
    tested = changed.test.x[changed.test.rows]
    of_each = [float(tested[k::4].std()) for k in range(4)]
    assert of_each == pytest.approx([0, 0.1, 0.2, 0.3], rel=0.05)
    assert float(data.train.x.abs().max()) == 0, "the original is unchanged"
    again = data.with_noise(0.3, seed=1)
    assert torch.equal(again.train.x, changed.train.x)
    assert not torch.equal(data.with_noise(0.3, seed=2).train.x, changed.train.x)
