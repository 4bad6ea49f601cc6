"""Augmentations: random crops and flips of training images, and users' own."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import undrift as ud
from plain_loops import fedavg, parameters_of
from undrift.data.fingerprint import fingerprint
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.keys import generator, key


def images(n=6, side=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, side, side, generator=g), torch.arange(n) % 2


def test_a_crop_is_a_window_of_the_padded_image():
    x, _ = images(50)
    crop = ud.data.RandomCrop(2)
    drawn = crop.draw(50, np.random.default_rng(0))
    changed = crop.apply(x, drawn)
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    for k, (top, left) in enumerate(drawn.tolist()):
        assert np.array_equal(changed[k], padded[k, :, top : top + 8, left : left + 8])
    assert set(drawn.flatten().tolist()) == {0, 1, 2, 3, 4}


def test_a_flip_mirrors_about_half_of_the_images():
    x, _ = images(400)
    flip = ud.data.HorizontalFlip()
    drawn = flip.draw(400, np.random.default_rng(0))
    changed = flip.apply(x, drawn)
    assert torch.equal(changed[drawn], x[drawn].flip(-1))
    assert torch.equal(changed[~drawn], x[~drawn])
    assert 150 < int(drawn.sum()) < 250


class Brightness(ud.data.Augmentation):
    """The example of `Augmentation`'s docstring, with an argument."""

    def __init__(self, low=0.8):
        self.low = low

    def draw(self, samples, rng):
        return torch.from_numpy(rng.uniform(self.low, 1.2, samples))

    def apply(self, x, drawn):
        return x * drawn.to(x)[:, None, None, None]


class Wrong(ud.data.Augmentation):
    def __init__(self, change):
        self.change = change

    def draw(self, samples, rng):
        return torch.zeros(samples)

    def apply(self, x, drawn):
        return self.change(x)


def test_a_users_augmentation_trains_alike_in_every_engine():
    data = federated(Brightness())
    serial, vectorised = (train(data, engine=name).x for name in ("serial", "vectorised"))
    assert torch.allclose(serial, vectorised, atol=1e-6)
    assert not torch.allclose(serial, train(federated()).x, atol=1e-4)


def test_the_fingerprint_of_a_users_augmentation_depends_on_its_arguments():
    found = [fingerprint(federated(Brightness(low))) for low in (0.8, 0.8, 0.5)]
    assert found[0] == found[1] != found[2]
    assert repr(Brightness()) == "Brightness(low=0.8)"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x[:, :1], "must keep the shape [2, 3, 8, 8] and the type torch.float32"),
        (lambda x: x.double(), "but returned [2, 3, 8, 8] and torch.float64"),
        (lambda x: None, "is None, but must be a tensor"),
    ],
)
def test_an_augmentation_must_keep_shape_and_type(change, words):
    with pytest.raises(ud.UndriftError) as error:
        federated(Wrong(change))
    assert words in str(error.value)


def federated(*augmentations):
    clients = {name: images(6, seed=k) for k, name in enumerate("abc")}
    data = ud.data.FederatedData.from_clients(clients, images(4, seed=9))
    return data.augmented(*augmentations)


def train(data, **options):
    setting = dict(
        model=ud.models.mlp(192, 5, classes=2),
        local=ud.SGD(lr=0.1, batch_size=2, epochs=2),
        rounds=2,
        engine="vectorised",  # by a fixed rule: bits are compared
    )
    return ud.train(ud.FedAvg(), data=data, **{**setting, **options})


def test_training_uses_changed_images_and_evaluation_does_not():
    changes = ud.data.RandomCrop(2), ud.data.HorizontalFlip()
    model = ud.models.logistic(192, 2)
    plain, random = (ModuleLosses(model, federated(*each)) for each in ((), changes))
    x = torch.linspace(-1, 1, plain.dimension)
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert plain.evaluate(x, weights, {}) == random.evaluate(x, weights, {})
    assert torch.equal(plain.gradient(1, x), random.gradient(1, x))
    batch = np.array([0, 3, 4])
    with random.training(1, {}, 5) as loss:
        found = loss.gradient(x, batch).clone()
        again = loss.gradient(x, batch).clone()
        whole = loss.full_gradient(x).clone()
    assert torch.equal(whole, plain.gradient(1, x))
    # The same by hand: one generator per client draws for one batch after another.
    rng = generator(5, "augmentation")
    for wanted in (found, again):
        inputs, targets = (values[batch] for values in images(6, seed=1))
        for each in changes:
            inputs = each.apply(inputs, each.draw(3, rng))
        data = ud.data.FederatedData.from_clients([(inputs, targets)])
        assert torch.equal(ModuleLosses(model, data).gradient(0, x), wanted)
    assert not torch.equal(found, again)


def test_augmentation_is_a_function_of_seed_round_and_client():
    changes = ud.data.RandomCrop(2), ud.data.HorizontalFlip()
    first, second = train(federated(*changes)), train(federated(*changes))
    assert torch.equal(first.x, second.x)
    assert not torch.equal(first.x, train(federated()).x)
    assert not torch.equal(first.x, train(federated(*changes), seed=1).x)
    order = federated(*changes)
    shuffled = ud.data.FederatedData.from_clients(
        {name: order.client(name) for name in "cab"}, images(4, seed=9)
    ).augmented(*changes)
    assert torch.equal(first.x, train(shuffled).x)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda: ud.data.RandomCrop(0), "padding is 0"),
        (lambda: ud.data.HorizontalFlip(2), "p is 2, but must be at least 0 and at most 1"),
        (
            lambda: ud.data.synthetic(clients=2, most=60).augmented(ud.data.HorizontalFlip()),
            "an input has shape [60]",
        ),
        (lambda: federated("flip"), "must be such as RandomCrop(padding=4)"),
    ],
)
def test_invalid_augmentations_raise_a_clear_error(action, words):
    with pytest.raises(ud.UndriftError) as error:
        action()
    assert words in str(error.value)


def test_a_reflected_crop_mirrors_the_image_at_its_border():
    image = torch.arange(16.0).view(1, 1, 4, 4)
    crop = ud.data.ReflectedCrop(1)
    first = crop.apply(image, torch.tensor([[0, 0]]))[0, 0]
    assert first[0].tolist() == [5, 4, 5, 6] and first[:, 0].tolist() == [5, 1, 5, 9]
    assert torch.equal(crop.apply(image, torch.tensor([[1, 1]])), image)


def segmentation():
    """Images whose left halves are bright, with the class of every pixel as their targets."""
    g = torch.Generator().manual_seed(5)
    clients = {}
    for id, n in {"a": 7, "b": 5}.items():
        x = torch.randn(n, 1, 4, 6, generator=g)
        x[..., :3] += 2
        clients[id] = x, (x[:, 0] > 1).long()
    return clients


def pixels():
    torch.manual_seed(0)
    return nn.Conv2d(1, 2, 3, padding=1)


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_segmentation_with_flips_trains_as_a_plain_loop(engine):
    clients = segmentation()
    data = ud.data.FederatedData.from_clients(clients).augmented(ud.data.HorizontalFlip())
    result = ud.train(
        ud.FedAvg(),
        model=pixels(),
        data=data,
        local=ud.SGD(0.1, batch_size=3, epochs=2),
        rounds=2,
        engine=engine,
    )
    rngs = {}

    def batch_of(id):
        def batch(rows, round, epoch):
            rng = rngs.setdefault(
                (id, round), generator(key(0, "model", round, id), "augmentation")
            )
            flipped = torch.from_numpy(rng.random(len(rows)) < 0.5)
            x, y = (each[rows] for each in clients[id])
            for k in flipped.nonzero().flatten().tolist():
                x[k], y[k] = x[k].flip(-1), y[k].flip(-1)
            return x, y

        return len(clients[id][0]), batch

    plain = fedavg(
        pixels(),
        {id: batch_of(id) for id in clients},
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        lambda p: torch.optim.SGD(p, 0.1),
        3,
        epochs=2,
    )
    assert torch.allclose(parameters_of(result), plain, atol=1e-6)


@pytest.mark.parametrize("augmentation", [ud.data.RandomCrop(1), ud.data.HorizontalFlip()])
@pytest.mark.parametrize("channels", [False, True])
def test_targets_that_are_images_move_with_their_inputs(augmentation, channels):
    x = torch.randn(6, 1, 5, 4)
    y = x if channels else x[:, 0]
    drawn = augmentation.draw(6, np.random.default_rng(1))
    changed, targets = augmentation.apply_both(x, y, drawn)
    assert torch.equal(targets, changed if channels else changed[:, 0])
    assert not torch.equal(changed, x)
    labels = torch.arange(6)
    assert augmentation.apply_both(x, labels, drawn)[1] is labels


def test_an_augmentation_that_ignores_targets_is_refused_for_images():
    class Brighter(ud.data.Augmentation):
        def draw(self, samples, rng):
            return torch.from_numpy(rng.random(samples))

        def apply(self, x, drawn):
            return x + drawn.to(x)[:, None, None, None]

    class Harmless(Brighter):
        def apply_target(self, y, drawn):
            return y

    data = ud.data.FederatedData.from_clients(segmentation())
    with pytest.raises(ud.UndriftError, match="define apply_target"):
        data.augmented(Brighter())
    with pytest.raises(ud.UndriftError, match=r"write a function of \(image, target\)"):
        data.augmented(lambda image: image.flip(-1))
    data.augmented(Harmless())


def random_flip(image, target):
    """In the style of torchvision's v2 transforms, with global random numbers."""
    if torch.rand(()) < 0.5:
        return image.flip(-1), target.flip(-1)
    return image, target


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_function_of_image_and_target_is_drawn_anew_and_keyed(engine):
    data = ud.data.FederatedData.from_clients(segmentation()).augmented(random_flip)
    model = pixels()

    def trained():
        return ud.train(
            ud.FedAvg(),
            model=model,
            data=data,
            local=ud.SGD(0.1, batch_size=3, epochs=2),
            rounds=2,
            engine=engine,
        )

    before = torch.get_rng_state()
    first = parameters_of(trained())
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(parameters_of(trained()), first)
    plain = ud.data.FederatedData.from_clients(segmentation())
    other = ud.train(
        ud.FedAvg(),
        model=pixels(),
        data=plain,
        local=ud.SGD(0.1, batch_size=3, epochs=2),
        rounds=2,
        engine=engine,
    )
    assert not torch.allclose(parameters_of(other), first, atol=1e-4)
    transform = ud.data.Transform(random_flip)
    assert repr(transform) == "Transform(random_flip)"
    x, y = segmentation()["a"]
    seeds = transform.draw(len(x), np.random.default_rng(0))
    changed, targets = transform.apply_both(x, y, seeds)
    moved = (changed != x).flatten(1).any(1)
    assert 0 < moved.sum() < len(x)
    for k, flipped in enumerate(moved.tolist()):
        assert torch.equal(targets[k], y[k].flip(-1) if flipped else y[k])
