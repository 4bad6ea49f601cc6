"""Batches, outputs and losses of every form train as a plain PyTorch loop does."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import undrift as ud
from plain_loops import fedavg, parameters_of
from undrift.data.samples.structure import join_batch, split_batch
from undrift.nets.module_losses import ModuleLosses

SIZES = {"a": 13, "b": 7, "c": 10}
ENGINES = ("serial", "vectorised")
LR, BATCH = 0.1, 4


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rows_of(batch, rows):
    if isinstance(batch, dict):
        return {name: each[rows] for name, each in batch.items()}
    return tuple(each[rows] for each in batch) if isinstance(batch, tuple) else batch[rows]


def in_memory(clients):
    """Clients for the plain loop, whose batches are rows of their data."""
    sizes = {id: len(split_first(each)) for id, each in clients.items()}
    return {
        id: (sizes[id], lambda rows, round, epoch, own=own: rows_of(own, rows))
        for id, own in clients.items()
    }


def split_first(batch):
    if isinstance(batch, dict):
        return next(iter(batch.values()))
    return batch[0] if isinstance(batch, tuple) else batch


def train(model, data, engine="serial", local=None, **options):
    local = local or ud.SGD(LR, batch_size=BATCH, epochs=2)
    return ud.train(
        ud.FedAvg(), model=model, data=data, local=local, rounds=2, engine=engine, **options
    )


def check(model, clients, loss_of, engine, tolerance=1e-6, **options):
    """Train with undrift and with the plain loop, and compare their parameters."""
    result = train(model, ud.data.FederatedData.from_clients(clients), engine, **options)
    plain = fedavg(
        model, in_memory(clients), loss_of, lambda p: torch.optim.SGD(p, LR), BATCH, epochs=2
    )
    assert torch.allclose(parameters_of(result), plain, atol=tolerance, rtol=1e-5)
    return result


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right, self.out = nn.Linear(5, 6), nn.Linear(3, 6), nn.Linear(6, 4)

    def forward(self, left, right):
        return self.out(torch.tanh(self.left(left) + self.right(right)))


def two_inputs():
    g = generator()
    return {
        id: (torch.randn(n, 5, generator=g), torch.randn(n, 3, generator=g), torch.arange(n) % 4)
        for id, n in SIZES.items()
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_two_inputs_in_a_tuple(engine):
    def loss_of(model, batch):
        return F.cross_entropy(model(batch[0], batch[1]), batch[2])

    result = check(TwoInputs(), two_inputs(), loss_of, engine)
    assert 0 <= result.records[-1].metrics["train_accuracy"] <= 1
    if engine == "vectorised":
        assert "vmap" in result.run.engine.strategy, "several inputs are mapped over clients"


@pytest.mark.parametrize("engine", ENGINES)
def test_named_inputs_whose_labels_the_model_does_not_take(engine):
    clients = {
        id: {"left": left, "right": right, "labels": labels}
        for id, (left, right, labels) in two_inputs().items()
    }

    def loss_of(model, batch):
        return F.cross_entropy(model(left=batch["left"], right=batch["right"]), batch["labels"])

    check(TwoInputs(), clients, loss_of, engine)


class TupleOutput(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 4), nn.Linear(6, 1)

    def forward(self, x):
        hidden = torch.tanh(self.inner(x))
        return self.a(hidden), self.b(hidden)[:, 0]


def both(outputs, targets):
    scores, values = outputs
    return F.cross_entropy(scores, targets) + 0.3 * (values - targets).square().mean()


def labelled(shape=(5,), classes=4):
    g = generator(1)
    return {
        id: (torch.randn(n, *shape, generator=g), torch.arange(n) % classes)
        for id, n in SIZES.items()
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_tuple_output(engine):
    result = check(
        TupleOutput(),
        labelled(),
        lambda model, batch: both(model(batch[0]), batch[1]),
        engine,
        loss=both,
        metrics={"top": lambda outputs, targets: (outputs[0].argmax(1) == targets).float().mean()},
    )
    assert 0 <= result.records[-1].metrics["train_top"] <= 1
    if engine == "vectorised":
        assert "vmap" in result.run.engine.strategy


@dataclass
class Outputs:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class OwnLoss(nn.Module):
    """Computes its own loss, as models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(5, 4)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        return Outputs(logits, None if labels is None else F.cross_entropy(logits, labels))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["labels", "label"])
def test_a_model_with_a_loss_of_its_own(engine, name):
    clients = {id: {"x": x, name: y} for id, (x, y) in labelled().items()}
    result = check(
        OwnLoss(),
        clients,
        lambda model, batch: model(x=batch["x"], labels=batch[name]).loss,
        engine,
        metrics={"top": lambda outputs, y: (outputs.logits.argmax(1) == y).float().mean()},
    )
    last = result.records[-1].metrics
    assert last["train_accuracy"] == pytest.approx(last["train_top"])


def test_the_loss_of_a_client_is_not_mixed_with_that_of_others():
    """f_k of a loss that is only known for batches: its own samples make up its batches."""
    clients = {id: {"x": x, "labels": y} for id, (x, y) in labelled().items()}
    data = ud.data.FederatedData.from_clients(clients)
    model = OwnLoss()
    losses = ModuleLosses(model, data)
    assert losses.criterion.batchwise
    weights = losses.weights("clients")
    found = losses.evaluate(losses.initial(), weights, {})["train_loss"]
    each = [model(**client).loss.item() for client in clients.values()]
    assert found == pytest.approx(sum(each) / 3)
    for k, value in enumerate(each):
        assert losses.value(k, losses.initial()) == pytest.approx(value)
    x, y = clients["a"].values()
    expected = torch.autograd.grad(F.cross_entropy(model(x).logits, y), model.parameters())
    found = losses.gradient(0, losses.initial())
    assert torch.allclose(found, torch.cat([g.flatten() for g in expected]), atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_of_the_users_own(engine):
    def step(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y) + 0.01 * sum(
            p.square().sum() for p in model.parameters()
        )

    torch.manual_seed(0)
    result = check(nn.Linear(5, 4), labelled(), step, engine, step=step)
    assert result.records[-1].metrics["train_loss"] > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_autoencoder_on_samples_without_targets(engine):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 2), nn.Tanh(), nn.Linear(2, 5))
    clients = {id: x for id, (x, _) in labelled().items()}
    check(model, clients, lambda model, x: F.mse_loss(model(x), x), engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_multi_label(engine):
    torch.manual_seed(0)
    g = generator(2)
    clients = {
        id: (x, torch.randint(0, 2, (len(x), 3), generator=g).float())
        for id, (x, _) in labelled().items()
    }
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    loss = nn.BCEWithLogitsLoss()
    check(model, clients, lambda model, b: loss(model(b[0]), b[1]), engine, loss=loss)


class LanguageModel(nn.Module):
    def __init__(self, words=11):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(words, 6), nn.Linear(6, words)
        self.rnn = nn.GRU(6, 6, batch_first=True)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0]).transpose(1, 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_language_model(engine):
    g = generator(3)
    texts = {id: torch.randint(0, 11, (n, 9), generator=g) for id, n in SIZES.items()}
    clients = {id: (text[:, :-1], text[:, 1:]) for id, text in texts.items()}
    check(LanguageModel(), clients, lambda model, b: F.cross_entropy(model(b[0]), b[1]), engine)


class Texts(Dataset):
    """Texts of different lengths, each with a label."""

    def __init__(self, samples, seed):
        g = generator(seed)
        lengths = torch.randint(2, 8, (samples,), generator=g).tolist()
        self.items = [
            (torch.randint(1, 11, (length,), generator=g), number % 3)
            for number, length in enumerate(lengths)
        ]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, row):
        return self.items[row]


def padded(items):
    texts, labels = zip(*items, strict=True)
    tokens = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    return {"tokens": tokens, "mask": tokens > 0, "labels": torch.tensor(labels)}


class TextClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(11, 6), nn.Linear(6, 3)

    def forward(self, tokens, mask):
        weights = mask.float() / mask.sum(1, keepdim=True)
        return self.out(torch.tanh((self.embed(tokens) * weights[:, :, None]).sum(1)))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("workers", [0, 2])
def test_variable_lengths_with_padding(engine, workers):
    texts = {id: Texts(n, seed) for seed, (id, n) in enumerate(SIZES.items())}
    lazy = ud.data.Lazy(collate=padded, workers=workers)
    data = ud.data.FederatedData.from_clients(texts, lazy=lazy)
    result = train(TextClassifier(), data, engine)
    clients = {
        id: (len(own), lambda rows, round, epoch, own=own: padded([own[row] for row in rows]))
        for id, own in texts.items()
    }

    def loss_of(model, batch):
        return F.cross_entropy(model(batch["tokens"], batch["mask"]), batch["labels"])

    plain = fedavg(
        TextClassifier(), clients, loss_of, lambda p: torch.optim.SGD(p, LR), BATCH, epochs=2
    )
    assert torch.allclose(parameters_of(result), plain, atol=1e-6)


def test_variable_lengths_without_padding_name_the_cure():
    with pytest.raises(ud.UndriftError, match=r"lazy=ud\.data\.Lazy\(collate=…\)"):
        ud.data.FederatedData.from_clients([Texts(5, 0)])
    data = ud.data.FederatedData.from_clients([Texts(5, 0)], lazy=True)
    with pytest.raises(ud.UndriftError, match="give collate=…, which pads them"):
        train(nn.Linear(3, 3), data)


def test_a_dataset_of_named_items_is_read_into_memory():
    class Named(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, row):
            return {"left": torch.ones(5) * row, "right": torch.ones(3), "label": row % 4}

    data = ud.data.FederatedData.from_clients([Named(), Named()])
    assert {name: list(t.shape) for name, t in data.train.x.items()} == {
        "left": [12, 5],
        "right": [12, 3],
        "label": [12],
    }
    assert data.train.y.tolist() == [0, 1, 2, 3, 0, 1] * 2
    train(TwoInputs(), data)


def test_structured_data_are_partitioned_held_out_pooled_and_described():
    g = generator(4)
    x = {"left": torch.randn(60, 5, generator=g), "right": torch.randn(60, 3, generator=g)}
    y = torch.arange(60) % 4
    data = ud.data.FederatedData.from_arrays(x, y, partition="dirichlet:0.5", clients=4)
    data = data.with_test(0.2)
    assert len(data.pooled()) == 1
    assert "4 classes" in str(data.describe())
    train(TwoInputs(), data)
    alone = ud.data.FederatedData.from_arrays(x["left"], None, clients=4)
    assert alone.train.y is None
    with pytest.raises(ud.UndriftError, match="shares samples out by their labels"):
        ud.data.FederatedData.from_arrays(x["left"], None, clients=4, partition="dirichlet:0.5")


def test_a_batch_is_split_into_inputs_and_targets_and_joined_again():
    a, b, t = torch.ones(2), torch.zeros(2), torch.arange(2)
    for batch in ((a, t), (a, b, t), {"x": a, "labels": t}, a):
        inputs, targets = split_batch(batch)
        assert targets is (None if batch is a else t)
        joined = join_batch(inputs, targets)
        assert type(joined) is type(batch)
        assert all(x is y for x, y in zip(joined, batch, strict=True)) or joined is batch


BAD = [
    (dict(step=3), "step is 3, but must be a function of \\(model, batch\\)"),
    (dict(step=lambda m, b: m(b[0]).mean(), loss=nn.CrossEntropyLoss()), "either a loss"),
    (dict(step=lambda m, b: m(b)), r"The step failed on a batch of shapes \[0\] \[2, 5\]"),
    (dict(step=lambda m, b: m(b[0])), "single number with a gradient"),
]


@pytest.mark.parametrize(("options", "words"), BAD)
def test_a_step_that_does_not_fit_is_refused(options, words):
    with pytest.raises(ud.UndriftError, match=words):
        train(nn.Linear(5, 4), ud.data.FederatedData.from_clients(labelled()), **options)


def test_clients_with_other_tensors_are_refused():
    clients = {id: {"x": x, "labels": y} for id, (x, y) in labelled().items()}
    clients["b"] = {"z": clients["b"]["x"], "labels": clients["b"]["labels"]}
    with pytest.raises(ud.UndriftError, match=r"inputs\['z'\] of client 'b'"):
        ud.data.FederatedData.from_clients(clients)
    with pytest.raises(ud.UndriftError, match=r"numbers of rows are 3 in\['x'\], 2 in"):
        ud.data.FederatedData.from_clients([{"x": torch.ones(3, 5), "labels": torch.ones(2)}])
