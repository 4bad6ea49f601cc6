"""Descriptions of data: checked by hand, against plain loops, and against closed forms."""

import json
import math
import string
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import undrift as ud
from undrift.data.description import describe, label_counts
from undrift.data.part import Part
from undrift.data.plotting import draw, plot_description
from undrift.theory import heterogeneity
from undrift.theory.minima import find_gamma, minimum


def labelled(*labels, **options):
    """Clients with the given labels; the inputs are irrelevant."""
    clients = [(torch.zeros(len(y), 1), torch.tensor(y)) for y in labels]
    return ud.data.FederatedData.from_clients(clients, **options)


def drawn(clients, classes, alpha=0.5, names=None, ids=None, seed=0):
    """Clients of log-normal sizes with labels from Dirichlet distributions."""
    rng = np.random.default_rng(seed)
    found = {}
    for k in range(clients):
        n = int(rng.lognormal(3.5, 1)) + 5
        y = rng.choice(classes, n, p=rng.dirichlet(np.full(classes, alpha)))
        found[ids(k) if ids else k] = (torch.zeros(n, 1), torch.as_tensor(y))
    return ud.data.FederatedData.from_clients(found, name="drawn", classes=names)


# Numbers


def test_an_example_by_hand():
    found = describe(labelled([0, 0, 0, 1], [1, 1], [0, 0, 1, 2], classes=("a", "b", "c", "d")))
    assert (found.clients, found.samples["train"]) == (3, 10)
    assert found.sizes.mean == pytest.approx(10 / 3)
    assert found.sizes.std == pytest.approx(math.sqrt(8 / 9))  # divided by N
    assert (found.sizes.min, found.sizes.median, found.sizes.max) == (2, 4, 4)
    labels = found.labels
    assert labels.classes == 4  # including the one that no client has
    assert labels.counts == (5, 4, 1, 0)
    assert labels.per_client.mean == pytest.approx(2)
    assert (labels.per_client.min, labels.per_client.max) == (1, 3)
    # Shares .75 .25 | 1 | .5 .25 .25: 40 % is one class for all; 60 % and 80 % grow.
    assert labels.needed["40"].clients == (3, 0, 0)
    assert labels.needed["60"].clients == (2, 1, 0)
    assert labels.needed["80"].clients == (1, 1, 1)
    assert labels.needed["80"].spread.median == 2
    # p = (.5, .4, .1): distances .25, .6 and .15.
    assert labels.distance.mean == pytest.approx((0.25 + 0.6 + 0.15) / 3)
    assert labels.distance_weighted == pytest.approx(0.4 * 0.25 + 0.2 * 0.6 + 0.4 * 0.15)
    assert (labels.distance.min, labels.distance.max) == pytest.approx((0.15, 0.6))


def test_a_share_that_is_met_exactly_needs_no_further_class():
    labels = describe(labelled([0] * 2 + [1] * 1 + [2] * 1 + [3] * 1)).labels
    assert [labels.needed[s].spread.max for s in ("40", "60", "80")] == [1, 2, 3]


def test_counts_by_hand_and_labels_outside():
    x, y = torch.zeros(5, 1), torch.tensor([2, 0, 1, 1, 0], dtype=torch.uint8)
    part = Part(x, y, torch.tensor([4, 3, 2, 0]), torch.tensor([0, 1, 4]))
    assert label_counts(part, 4).tolist() == [[1, 0, 0, 0], [0, 2, 1, 0]]
    with pytest.raises(ud.UndriftError, match=r"from 0 to 2, but the classes are 0 … 1\.$"):
        label_counts(part, 2)


some_clients = st.lists(
    st.lists(st.integers(0, 5), min_size=1, max_size=30), min_size=1, max_size=12
)


@given(clients=some_clients)
@settings(max_examples=80, deadline=None)
def test_against_plain_loops(clients):
    data = labelled(*clients)
    found = describe(data)
    labels = found.labels
    everyone = Counter(label for own in clients for label in own)
    total = sum(everyone.values())
    distances, needed = [], {"40": [], "60": [], "80": []}
    for own in clients:
        held = Counter(own)
        distances.append(
            sum(abs(held[c] / len(own) - everyone[c] / total) for c in everyone) / 2,
        )
        for percent, numbers in needed.items():
            reached, number = 0, 0
            for _, count in held.most_common():
                if 100 * reached >= int(percent) * len(own):
                    break
                reached, number = reached + count, number + 1
            numbers.append(number)
    assert labels.distance.mean == pytest.approx(np.mean(distances), abs=1e-12)
    assert labels.distance.max == pytest.approx(max(distances), abs=1e-12)
    weighted = sum(len(own) * d for own, d in zip(clients, distances, strict=True)) / total
    assert labels.distance_weighted == pytest.approx(weighted, abs=1e-12)
    for percent, numbers in needed.items():
        counted = Counter(numbers)
        histogram = labels.needed[percent].clients
        assert list(histogram) == [counted[n] for n in range(1, len(histogram) + 1)]
        assert labels.needed[percent].spread.median == np.median(numbers)
    counts = label_counts(data.train, labels.classes)
    assert counts.sum(1).tolist() == data.train.sizes.tolist()
    assert tuple(counts.sum(0)) == labels.counts
    assert labels.per_client.mean == pytest.approx((counts > 0).sum(1).mean())


@given(clients=some_clients)
@settings(max_examples=60, deadline=None)
def test_bounds_that_always_hold(clients):
    found = describe(labelled(*clients))
    labels = found.labels
    assert 0 <= labels.distance.min <= labels.distance.max <= 1
    assert labels.distance.min - 1e-12 <= labels.distance.mean <= labels.distance.max + 1e-12
    assert 0 <= labels.distance_weighted <= 1
    fewest, more, most = (labels.needed[s].spread for s in ("40", "60", "80"))
    for measure in ("mean", "min", "median", "max"):
        numbers = [getattr(s, measure) for s in (fewest, more, most, labels.per_client)]
        assert numbers == sorted(numbers)
    for needed in labels.needed.values():
        assert sum(needed.clients) == found.clients
    assert sum(found.histogram.counts) == found.clients
    assert sum(labels.counts) == found.samples["train"]


@given(own=st.lists(st.integers(0, 5), min_size=1, max_size=9), times=st.lists(st.integers(1, 4)))
@settings(max_examples=40, deadline=None)
def test_equal_shares_of_labels_are_at_distance_zero(own, times):
    found = describe(labelled(own, *(own * n for n in times)))
    assert found.labels.distance.max == pytest.approx(0, abs=1e-12)


@given(clients=some_clients, seed=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_the_order_of_clients_does_not_matter(clients, seed):
    order = np.random.default_rng(seed).permutation(len(clients))
    one = describe(labelled(*clients)).as_dict()
    other = describe(labelled(*(clients[k] for k in order))).as_dict()
    assert list(numbers(one)) == pytest.approx(list(numbers(other)), abs=1e-12)


def numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, int | float):
        yield value


@given(
    low=st.integers(1, 1000),
    spread=st.lists(st.floats(1, 1e3), min_size=1, max_size=30),
)
@settings(max_examples=80, deadline=None)
def test_every_bar_covers_a_size_that_can_occur(low, spread):
    sizes = [int(low * factor) for factor in spread]
    bounds = torch.tensor([0, *sizes]).cumsum(0)
    n = int(bounds[-1])
    part = Part(torch.zeros(n, 0), torch.zeros(n), torch.arange(n), bounds)
    found = describe(ud.data.FederatedData(part)).histogram
    assert sum(found.counts) == len(sizes)
    assert 1 <= len(found.counts) == len(found.edges) - 1 <= 20
    assert found.logarithmic == (max(sizes) / min(sizes) > 20)
    assert 0 < found.edges[0] < min(sizes) and max(sizes) < found.edges[-1]
    widths = np.diff(found.edges)
    assert (widths >= 1).all() and (widths == widths.round()).all()


def test_samples_of_all_parts_and_classes_that_only_the_test_part_has():
    data = labelled([0, 1] * 10, [1] * 10, test=(torch.zeros(3, 1), torch.tensor([0, 1, 4])))
    data = data.with_validation(0.2)
    found = describe(data)
    assert found.samples == {"train": 24, "validation": 6, "test": 3}
    assert found.labels.classes == 5
    assert "24 training, 6 validation, 3 test samples" in str(found)


@pytest.mark.parametrize("y", [torch.zeros(6), torch.zeros(6, 2), torch.zeros(6, 2).long()])
def test_targets_that_are_not_classes_have_sizes_only(y, tmp_path):
    data = ud.data.FederatedData.from_arrays(torch.zeros(6, 1), y, [[0, 1], [2, 3, 4, 5]])
    found = describe(data)
    assert found.labels is None and found.sizes.mean == 3 and not found.notes
    assert json.loads(found.to_json())["labels"] is None
    assert found.plot(tmp_path / "sizes.png").stat().st_size > 5000


def test_integers_that_are_not_classes_get_a_note():
    found = describe(labelled([-1, 1], [1, 1]))
    assert found.labels is None
    assert "so labels are not described" in " ".join(str(found).split())


def test_a_hundred_thousand_clients():
    rng = np.random.default_rng(0)
    clients, n = 100_000, 300_000
    cuts = np.sort(rng.choice(np.arange(1, n), clients - 1, replace=False))
    bounds = torch.as_tensor(np.concatenate([[0], cuts, [n]]))
    y = torch.as_tensor(rng.integers(0, 62, n))
    part = Part(torch.zeros(n, 1), y, torch.as_tensor(rng.permutation(n)), bounds)
    found = describe(ud.data.FederatedData(part))
    assert found.clients == 100_000 and found.labels.classes == 62
    assert sum(found.labels.needed["80"].clients) == 100_000
    assert len(found.plotted.ids) == 40
    assert (found.plotted.ids[0], found.plotted.ids[-1]) == ("0", "99999")


# Text


@pytest.mark.parametrize(
    "data",
    [
        labelled([0, 1], [1]),
        drawn(30, 62),
        drawn(5, 100, ids=lambda k: f"a client with a very long name {k}"),
        labelled([0], [0], name="a [bold]name[/bold] of :smile: that is " + "long " * 30),
    ],
)
def test_text_has_eighty_columns_and_the_name(data):
    text = str(describe(data))
    assert max(map(len, text.splitlines())) <= 80
    assert " ".join(text.split()).startswith(" ".join(data.name.split())[:60])
    assert "…" not in text  # no text was truncated
    assert "█" in text


def test_notes_are_printed():
    data = labelled([0, 1], [1])
    noted = ud.data.FederatedData(data.train, notes=["Two clients were left out."])
    assert "Two clients were left out." in str(describe(noted))


def test_json_is_valid(tmp_path):
    x = torch.ones(4, 1)
    data = ud.data.FederatedData.from_clients([(x, torch.ones(4, 1)), (x, -torch.ones(4, 1))])
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    found = describe(data, model)
    assert found.gradients.ratio == math.inf  # the gradients cancel
    assert "B² = ∞" in str(found)

    def refuse(word):
        raise AssertionError(word)

    parsed = json.loads(found.to_json(), parse_constant=refuse)
    assert parsed["gradients"]["ratio"] is None
    assert parsed["gradients"]["variance"] == pytest.approx(4)
    assert parsed == found.as_dict()


# Gradients and minima


def logistic_data(iid=False):
    return ud.data.synthetic(1, 1, clients=4, seed=3, most=80, iid=iid)


def test_gradients_of_a_model_by_definition():
    data = logistic_data()
    model = ud.models.logistic(60, 10)
    linear = model[1]
    for objective, q in (
        ("samples", data.train.sizes / data.train.sizes.sum()),
        ("clients", torch.full((4,), 0.25)),
    ):
        gradients = []
        for k in range(4):
            x, y = data.train.client(k)
            loss = nn.functional.cross_entropy(model(x), y)
            found = torch.autograd.grad(loss, [linear.weight, linear.bias])
            gradients.append(torch.cat([g.flatten() for g in found]).double())
        g, q = torch.stack(gradients), q.double()
        mean = q @ g
        got = describe(data, model, objective=objective).gradients
        assert got.square_mean == pytest.approx(float(mean @ mean), rel=1e-5)
        assert got.mean_square == pytest.approx(float(q @ g.square().sum(1)), rel=1e-5)
        assert got.variance == pytest.approx(float(q @ (g - mean).square().sum(1)), rel=1e-5)
        assert got.ratio == pytest.approx(got.mean_square / got.square_mean)
        assert got.objective == objective


def test_the_variance_does_not_cancel_where_gradients_are_alike():
    rng = torch.Generator().manual_seed(0)
    apart = torch.randn(6, 3, dtype=torch.float64, generator=rng)
    q = torch.tensor([0.1, 0.3, 0.0, 0.2, 0.2, 0.2], dtype=torch.float64)
    expected = float(q @ (apart - q @ apart).square().sum(1))
    problem = ud.theory.distances(apart + 1e7)
    got = heterogeneity.dissimilarity(problem, q, torch.zeros(3, dtype=torch.float64))
    assert got.variance == pytest.approx(expected, rel=1e-7)


@given(seed=st.integers(0, 1000), decay=st.sampled_from([0.0, 0.3]))
@settings(max_examples=20, deadline=None)
def test_minima_and_gamma_of_quadratics_in_closed_form(seed, decay):
    problem = ud.theory.random_quadratics(4, 3, seed=seed)
    q = problem.weights("samples")
    ridge = decay * torch.eye(3, dtype=torch.float64)
    H, b = problem.H + ridge, problem.b

    def least(H, b):  # min ½xᵀHx − bᵀx = −½ bᵀH⁻¹b
        return float(-b @ torch.linalg.solve(H, b) / 2)

    H_mean, b_mean = torch.einsum("k,kij->ij", q, H), q @ b
    found = minimum(problem, q, weight_decay=decay, tolerance=1e-7)
    assert found.converged and found.gradient_norm <= 1e-7
    torch.testing.assert_close(found.x, torch.linalg.solve(H_mean, b_mean), atol=1e-6, rtol=0)
    local = [least(H[k], b[k]) for k in range(4)]
    gap = find_gamma(problem, q, weight_decay=decay, tolerance=1e-7)
    assert gap.converged
    assert gap.global_minimum == pytest.approx(least(H_mean, b_mean), abs=1e-10)
    assert gap.local_minima.tolist() == pytest.approx(local, abs=1e-10)
    expected = least(H_mean, b_mean) - sum(w * f for w, f in zip(q.tolist(), local, strict=True))
    assert gap.value == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("iid", [True, False])
def test_gamma_of_logistic_regression_is_that_of_its_optima(iid):
    data, decay = logistic_data(iid), 1e-2
    x, y = zip(*(data.train.client(k) for k in range(4)), strict=True)
    problem = ud.theory.LogisticRegression(x, y, 10, weight_decay=decay)
    q = problem.weights("samples")

    def F(w):
        return sum(float(q[k]) * problem.value(k, w) for k in range(4))

    local = sum(float(q[k]) * problem.value(k, problem.local_optimum(k)) for k in range(4))
    found = describe(data, ud.models.logistic(60, 10), gamma=True, weight_decay=decay)
    assert found.gamma.converged and found.gamma.gradient_norm <= found.gamma.tolerance
    error = found.gamma.tolerance**2 / (2 * decay)
    assert found.gamma.value == pytest.approx(F(problem.optimum(q)) - local, abs=error + 1e-12)
    assert found.gamma.value > 0.01
    assert "Γ = " in str(found) and "all minima found to" in str(found)


def test_one_client_has_no_gamma():
    data = logistic_data().pooled()
    found = describe(data, ud.models.logistic(60, 10), gamma=True, weight_decay=0.1)
    assert found.gamma.value == 0 and found.gradients.ratio == pytest.approx(1)


def test_gamma_of_a_network_is_not_negative():
    data = logistic_data()
    model = ud.models.mlp(60, 5, classes=10)
    found = describe(data, model, gamma=True, weight_decay=0.01, tolerance=1e-3)
    assert found.gamma.value >= 0


def test_a_tolerance_that_is_not_reached_is_reported():
    data = logistic_data()
    model = ud.models.logistic(60, 10)
    found = describe(data, model, gamma=True, weight_decay=0.1, tolerance=1e-30)
    assert not found.gamma.converged and 0 < found.gamma.gradient_norm < 1e-4
    assert "not all minima found" in " ".join(str(found).split())


def test_clients_of_weight_zero_are_never_evaluated():
    class Empty(ud.theory.Quadratics):
        def value(self, k, x):
            assert k != 1
            return super().value(k, x)

        def gradient(self, k, x):
            assert k != 1
            return super().gradient(k, x)

    points = torch.tensor([[0.0, 1.0], [9.0, 9.0], [2.0, 1.0]], dtype=torch.float64)
    plain = ud.theory.distances(points)
    problem = Empty(plain.H, plain.b, constants=plain.constants.tolist())
    q = torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64)
    gap = find_gamma(problem, q)
    assert gap.value == pytest.approx(0.5)  # half the mean square distance from (1, 1)
    assert gap.local_minima.isnan().tolist() == [False, True, False]
    assert heterogeneity.dissimilarity(problem, q, points[1]).variance == pytest.approx(1)


def test_a_model_that_fails_in_double_precision_is_measured_in_single():
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = ud.models.logistic(60, 10)

        def forward(self, x):
            return self.linear(x.float())

    data = logistic_data()
    options = dict(gamma=True, weight_decay=0.1, tolerance=1e-3)
    single = describe(data, Single(), **options)
    double = describe(data, ud.models.logistic(60, 10), **options)
    assert single.gamma.value == pytest.approx(double.gamma.value, abs=1e-4)


def test_the_users_model_is_not_changed():
    model = ud.models.mlp(60, 5, classes=10)
    before = [p.clone() for p in model.parameters()]
    describe(logistic_data(), model, gamma=True, weight_decay=0.1, tolerance=1e-2)
    for p, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, old) and p.dtype == torch.float32 and p.grad is None


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda d: describe(d, gamma=True), "gamma=True needs a model"),
        (lambda d: describe(d, nn.Linear(1, 2), objective="sample"), "did you mean 'samples'"),
        (lambda d: describe(d, "cnn"), "torch nn.Module"),
        (lambda d: describe([1]), "a FederatedData"),
        (lambda d: describe(d, nn.Linear(1, 2), True, weight_decay=-1), "weight_decay is -1"),
        (lambda d: plot_description(d, "picture.jpg"), "did you mean"),
    ],
)
def test_invalid_requests_raise_a_clear_error(call, sentence):
    with pytest.raises(ud.UndriftError, match=sentence):
        call(labelled([0, 1], [1]))


# Plots


NAMES = string.digits + string.ascii_letters
PICTURES = {
    "3 clients": labelled([0, 1, 1], [1], [0, 2], classes=("airplane", "automobile", "bird")),
    "1 client, 1 class": labelled([0]),
    "100 clients": drawn(100, 10),
    "62 classes": drawn(50, 62, names=NAMES, ids=lambda k: f"f{k:04}_41"),
    "100 classes": drawn(12, 100, names=[f"long_name_of_{c}" for c in range(100)]),
    "5000 classes": labelled([0, 70, 4999], [70, 70, 3]),
    "odd names": labelled([0, 1], [1, 2], classes=("$x$", "\n", " "), name="$a$ _b^{"),
}


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_plot_of_each_file_type(suffix, tmp_path):
    path = plot_description(PICTURES["3 clients"], tmp_path / f"picture{suffix}")
    assert path.stat().st_size > 5000
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", PICTURES)
def test_plots_have_readable_labels(name):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    found = describe(PICTURES[name])
    figure = draw(found)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba()).reshape(-1, 4)
    assert len(np.unique(pixels, axis=0)) > 50
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            boxes = [t.label1.get_window_extent() for t in axis.get_major_ticks()]
            boxes = [b for b in boxes if b.width > 0]
            assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :]), (
                f"labels overlap along {axis.axis_name}"
            )
    bubbles = figure.axes[0]
    assert found.name in figure.get_suptitle().replace("\\", "")
    shown = sum(len(c.get_offsets()) for c in bubbles.collections)
    held = sum(n > 0 for row in found.plotted.counts for n in row)
    assert shown == held
    assert ("40 of" in bubbles.get_title("left")) == (found.clients > 40)


def test_areas_are_in_proportion_to_samples():
    figure = draw(describe(labelled([0] * 40 + [1] * 10, [0] * 20)))
    areas = figure.axes[0].collections[0].get_sizes()
    assert areas / areas[0] == pytest.approx([1, 1 / 4, 1 / 2])
