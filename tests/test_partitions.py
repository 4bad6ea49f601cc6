"""Partitions: properties of all of them, and what the papers say about each."""

import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from undrift.data.partitions import as_partition
from undrift.data.sizes import apportion

D = ud.data

alphas = st.sampled_from([1e-3, 0.01, 0.1, 0.3, 1.0, 100.0])
laws = st.sampled_from(
    [
        D.Balanced(),
        D.Balanced(3),
        D.LogNormal(0.0),
        D.LogNormal(0.3),
        D.LogNormal(3.0),
        D.PowerLaw(2.0),
        D.PowerLaw(1e5),
        D.DirichletSizes(0.5),
        D.DirichletSizes(0.01, draws=2),
    ]
)
rules = st.one_of(
    st.builds(D.IID, sizes=laws, min_size=st.integers(0, 3)),
    st.builds(D.Dirichlet, alphas, sizes=laws, min_size=st.integers(0, 3)),
    st.builds(
        D.DirichletPerClass,
        alphas,
        capped=st.booleans(),
        draws=st.integers(1, 4),
        min_size=st.integers(0, 3),
    ),
    st.builds(D.Classes, st.integers(1, 3), sizes=laws, min_size=st.integers(0, 3)),
    st.builds(D.Classes, st.integers(1, 3), cyclic=st.just(True), min_size=st.integers(0, 3)),
)
labelled = st.builds(
    lambda classes, n, seed, gap: np.random.default_rng(seed).integers(0, classes, n) * gap,
    st.integers(1, 8),
    st.integers(1, 400),
    st.integers(0, 10**6),
    st.sampled_from([1, 3]),  # labels need not be 0, 1, 2, …
)


def counts(labels, split):
    """The number of samples of each class per client, [N, C]."""
    names, place = np.unique(labels, return_inverse=True)
    found = np.zeros((len(split.sizes), len(names)), dtype=int)
    owner = np.repeat(np.arange(len(split.sizes)), split.sizes)
    np.add.at(found, (owner, place[split.rows]), 1)
    return found


@given(rule=rules, labels=labelled, clients=st.integers(1, 60), seed=st.integers(0, 3))
@settings(max_examples=400, deadline=None)
def test_every_partition_is_disjoint_complete_and_deterministic_or_says_why_not(
    rule, labels, clients, seed
):
    try:
        split = rule.split(labels, clients, seed)
    except ud.UndriftError as refused:
        # A partition may refuse only what is impossible.
        sentence = str(refused)
        assert sentence.count(". ") == 0
        scarce = len(labels) < clients * max(1, rule.min_size) or isinstance(rule, D.Classes)
        law = getattr(rule, "sizes", None)
        if isinstance(law, D.Balanced):
            each = law.samples or len(labels) // clients
            scarce = scarce or each < rule.min_size or each * clients > len(labels)
        assert scarce, sentence
        return
    assert len(split.sizes) == clients
    assert len(np.unique(split.rows)) == len(split.rows)
    assert split.rows.size == 0 or (split.rows.min() >= 0 and split.rows.max() < len(labels))
    assert split.sizes.min() >= rule.min_size
    notes = " ".join(split.notes)
    if len(split.rows) < len(labels):
        assert f"{len(labels) - len(split.rows)} of {len(labels)} samples stay unused" in notes
    if split.sizes.min() == 0 and isinstance(rule, D.DirichletPerClass):
        assert "have no samples" in notes
    again = rule.split(labels, clients, seed)
    assert np.array_equal(split.rows, again.rows)
    assert np.array_equal(split.bounds, again.bounds)


@given(alpha=alphas, law=laws, labels=labelled, clients=st.integers(1, 40), seed=st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_dirichlet_keeps_the_sizes_it_was_given(alpha, law, labels, clients, seed):
    each = law.samples if isinstance(law, D.Balanced) else None
    if len(labels) < clients * (each or 1):
        return
    split = D.Dirichlet(alpha, sizes=law).split(labels, clients, seed)
    assert np.array_equal(split.sizes, law.numbers(len(labels), clients, seed, 1))


@given(
    weights=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30),
    spare=st.integers(0, 500),
    least=st.integers(0, 5),
)
@settings(max_examples=200, deadline=None)
def test_apportioned_numbers_add_up_and_keep_their_order(weights, spare, least):
    weights = np.array(weights)
    total = len(weights) * least + spare
    numbers = apportion(weights, total, least)
    assert numbers.sum() == total
    assert numbers.min() >= least
    order = np.argsort(weights, kind="stable")
    assert (np.diff(numbers[order]) >= -1).all()  # equal up to rounding
    exact = weights / weights.sum() * total
    if (exact >= least).all():
        assert np.abs(numbers - exact).max() <= 1


def test_another_seed_gives_another_partition():
    labels = np.arange(600) % 10
    for rule in (D.IID(), D.Dirichlet(0.3), D.DirichletPerClass(0.5), D.Classes(2)):
        first, second = rule.split(labels, 10, 0), rule.split(labels, 10, 1)
        assert not np.array_equal(first.rows, second.rows)


def test_a_client_of_iid_data_has_the_labels_of_all():
    labels = np.repeat(np.arange(10), 3000)
    found = counts(labels, D.IID().split(labels, 20))
    assert found.sum(1).tolist() == [1500] * 20
    assert np.abs(found / 1500 - 0.1).max() < 0.03


def test_dirichlet_draws_labels_by_the_clients_priors():
    # Far more samples than are used: no class runs out, and shares follow the Dirichlet law:
    # mean 1/C, variance (1/C)(1 − 1/C)/(Cα + 1), plus that of 200 draws.
    classes, alpha, clients = 5, 0.5, 2000
    labels = np.repeat(np.arange(classes), 400_000)
    rule = D.Dirichlet(alpha, sizes=D.Balanced(200))
    found = counts(labels, rule.split(labels, clients)) / 200
    mean = 1 / classes
    variance = mean * (1 - mean) / (classes * alpha + 1)
    drawn = variance + (mean * (1 - mean) - variance) / 200
    assert found.mean(0) == pytest.approx(np.full(classes, mean), abs=0.02)  # four deviations
    assert found.var(0).mean() == pytest.approx(drawn, rel=0.05)


def test_dirichlet_is_the_paper_s_procedure_turn_by_turn():
    """A sequential implementation, one turn after another, has the same distribution."""

    def sequentially(labels, clients, alpha, rng):
        classes = labels.max() + 1
        left = np.bincount(labels)
        prior = rng.dirichlet(np.full(classes, alpha), clients)
        found = np.zeros((clients, classes))
        for k in rng.permutation(np.repeat(np.arange(clients), len(labels) // clients)):
            mass = prior[k] * (left > 0)
            mass = mass if mass.sum() > 0 else left * 1.0
            c = rng.choice(classes, p=mass / mass.sum())
            left[c] -= 1
            found[k, c] += 1
        return found

    labels = np.repeat(np.arange(3), [4, 8, 12])  # classes so small that they run out
    rng = np.random.default_rng(0)
    wanted = np.array([sequentially(labels, 4, 0.5, rng) for _ in range(1500)])
    rule = D.Dirichlet(0.5)
    found = np.array([counts(labels, rule.split(labels, 4, seed)) for seed in range(1500)])
    assert found.mean((0, 1)) == pytest.approx(wanted.mean((0, 1)))
    assert found.var((0, 1)) == pytest.approx(wanted.var((0, 1)), rel=0.08)
    products = [np.einsum("nkc,nkd->cd", each, each) / 6000 for each in (found, wanted)]
    assert products[0] == pytest.approx(products[1], rel=0.08)
    alone = [(each > 0).sum(2) == 1 for each in (found, wanted)]  # clients with one class
    assert alone[0].mean() == pytest.approx(alone[1].mean(), abs=0.02)


def test_the_order_of_clients_gives_no_advantage():
    """Turns are in random order, so the first clients get no more of a scarce class."""
    labels = np.repeat(np.arange(2), [200, 1800])
    rule = D.Dirichlet(100.0)  # all clients want half of each class, but one class is scarce
    scarce = np.mean([counts(labels, rule.split(labels, 10, s))[:, 0] for s in range(40)], axis=0)
    assert scarce.min() > 15
    assert scarce.max() < 25


def test_samples_taken_from_the_remaining_ones_are_counted():
    labels = np.repeat(np.arange(2), [10, 30])
    rule = D.Dirichlet(1e-3)  # every client wants one class only
    for seed in range(20):
        split = rule.split(labels, 4, seed)
        found = counts(labels, split)
        mixed = found[(found > 0).all(1)]
        if not split.notes:
            continue
        outside = int(split.notes[0].split(" ")[0])
        # The ten samples of the first class suffice for one client: others take remaining ones.
        assert 0 < outside <= 30
        assert len(mixed) or outside % 10 == 0


def test_drawing_repeats_until_every_client_has_enough():
    labels = np.repeat(np.arange(4), 25)
    once = D.DirichletPerClass(0.3, draws=1, min_size=5)
    often = D.DirichletPerClass(0.3, draws=200, min_size=5)
    moved = [bool(once.split(labels, 4, seed).notes) for seed in range(30)]
    assert 5 < sum(moved) < 30
    # With enough draws, one of them fills all clients, and no sample is moved.
    assert not any(often.split(labels, 4, seed).notes for seed in range(30))
    first = D.DirichletPerClass(0.3, draws=1, min_size=0)
    for seed in range(30):
        if not moved[seed]:  # the first draw was good
            assert np.array_equal(
                often.split(labels, 4, seed).rows, first.split(labels, 4, seed).rows
            )


def test_dirichlet_per_class_shares_each_class_by_the_dirichlet_law():
    classes, alpha, clients = 400, 0.5, 8
    labels = np.repeat(np.arange(classes), 500)
    found = counts(labels, D.DirichletPerClass(alpha).split(labels, clients)) / 500
    mean = 1 / clients
    variance = mean * (1 - mean) / (clients * alpha + 1)
    assert found.sum(0) == pytest.approx(np.ones(classes))
    assert found.var() == pytest.approx(variance, rel=0.1)


def test_a_capped_client_gets_nothing_of_further_classes():
    labels = np.repeat(np.arange(10), 100)
    split = D.DirichletPerClass(0.1, capped=True, min_size=0).split(labels, 8)
    found = counts(labels, split)
    before = np.cumsum(found, axis=1) - found
    assert (found[before >= 1000 / 8] == 0).all()


def test_small_alpha_and_many_clients_are_fast_and_noted():
    labels = np.random.default_rng(0).integers(0, 10, 60_000)
    start = time.perf_counter()
    own = D.Dirichlet(0.01).split(labels, 1000)
    per_class = D.DirichletPerClass(0.01).split(labels, 1000)
    tiny = D.Dirichlet(1e-3).split(labels, 1000)
    assert time.perf_counter() - start < 10  # ten times the usual duration, for a busy machine
    assert own.sizes.tolist() == [60] * 1000
    assert per_class.sizes.min() >= 1
    assert "moved to them from the largest clients" in " ".join(per_class.notes)
    assert "taken from the remaining ones" in " ".join(tiny.notes)


def test_samples_are_moved_from_the_largest_clients_only():
    labels = np.zeros(100, dtype=int)
    rule = D.DirichletPerClass(1e-3, min_size=4, draws=1)
    before = D.DirichletPerClass(1e-3, min_size=0, draws=1).split(labels, 10).sizes
    after = rule.split(labels, 10).sizes
    assert before.max() > 90  # one client had nearly all samples
    assert sorted(after)[:9] == [4] * 9
    assert after.argmax() == before.argmax()


def test_two_classes_each_in_equal_disjoint_shards():
    labels = np.repeat(np.arange(10), [600, 700, 590, 610, 580, 542, 590, 620, 580, 590])
    split = D.Classes(2).split(labels, 100)
    found = counts(labels, split)
    assert ((found > 0).sum(1) == 2).all()
    assert set(found[found > 0]) == {542 // 20}
    assert ((found > 0).sum(0) == 20).all()  # every class has the same number of clients


@given(k=st.integers(1, 7), classes=st.integers(7, 12), clients=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_every_client_has_k_classes_and_classes_are_held_equally_often(k, classes, clients):
    labels = np.tile(np.arange(classes), 50 * clients)
    found = counts(labels, D.Classes(k).split(labels, clients))
    assert ((found > 0).sum(1) == k).all()
    held = (found > 0).sum(0)
    assert held.max() - held.min() <= 1


def test_classes_with_other_sizes_share_out_each_class_whole():
    labels = np.repeat(np.arange(4), [100, 200, 300, 400])
    split = D.Classes(2, sizes=[10, 20, 30, 40]).split(labels, 4)
    found = counts(labels, split)
    assert found.sum(0).tolist() == [100, 200, 300, 400]
    for c in range(4):
        k, m = np.flatnonzero(found[:, c])
        wanted = found[:, c].sum() * (k + 1) / (k + m + 2)
        assert abs(found[k, c] - wanted) <= 1


def test_sizes_follow_their_laws():
    even = D.Balanced().numbers(1003, 100, 0)
    assert even.tolist() == [10] * 100
    logs = np.log(D.LogNormal(0.5).numbers(10_000_000, 2000, 0))
    assert logs.std() == pytest.approx(0.5, rel=0.05)
    ranked = np.sort(D.PowerLaw(1.0).numbers(1_000_000, 100, 0))[::-1]
    assert ranked[0] / ranked[9] == pytest.approx(10, rel=0.01)
    # the ratio of FedAvg-nonIID's Table 2, 800/628
    sizes = D.PowerLaw().numbers(62_864, 100, 0)
    assert sizes.std() / sizes.mean() == pytest.approx(800 / 628, rel=0.02)
    assert D.LogNormal(0.3).numbers(100, 10, 0).sum() == 100
    assert (D.LogNormal(5.0).numbers(100, 10, 0, min_size=2) >= 2).all()


def test_which_client_is_largest_is_random():
    firsts = {int(D.PowerLaw(1.0).numbers(1000, 10, seed).argmax()) for seed in range(40)}
    assert len(firsts) > 5


def test_a_remainder_goes_to_the_first_classes():
    labels = np.tile(np.arange(6), 50)
    split = D.Classes(3, sizes=D.Balanced(10)).split(labels, 4)
    assert split.sizes.tolist() == [10] * 4
    for row in counts(labels, split):
        assert sorted(row[row > 0].tolist()) == [3, 3, 4]


def test_a_limited_client_gets_random_samples_of_all_its_own():
    chosen = [
        D.Natural(most=2).split(np.zeros(20), None, seed, ["a"] * 20).rows for seed in range(60)
    ]
    assert set(np.concatenate(chosen)) == set(range(20))


def test_owners_keep_their_kind():
    split = D.Natural().split(np.zeros(4), None, owners=[1, "1", np.int64(1), np.str_("b")])
    assert split.ids == [1, "1", "b"]
    assert split.sizes.tolist() == [2, 1, 1]
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    column = pandas.Series(["x", "y", "x"], dtype="string")
    assert D.Natural().split(np.zeros(3), None, owners=column).ids == ["x", "y"]


def test_natural_partitions_follow_the_owners():
    owners = ["b", "a", "b", "c", "a", "b", "b"]
    labels = np.zeros(7)
    split = D.Natural().split(labels, None, owners=owners)
    assert split.ids == ["a", "b", "c"]
    assert [split.of(k).tolist() for k in range(3)] == [[1, 4], [0, 2, 5, 6], [3]]
    fewer = D.Natural(min_size=2, most=3).split(labels, None, owners=owners)
    assert fewer.ids == ["a", "b"]
    assert fewer.sizes.tolist() == [2, 3]
    assert "1 of 3 owners with fewer than 2 samples are left out" in fewer.notes[0]
    chosen = [D.Natural().split(labels, 1, seed, owners).ids[0] for seed in range(30)]
    assert set(chosen) == {"a", "b", "c"}


def test_partitions_from_text():
    assert as_partition("iid") == D.IID()
    assert as_partition("dirichlet:0.3") == D.Dirichlet(0.3)
    assert as_partition("classes:3") == D.Classes(3)
    assert as_partition("dirichlet:0.3", "lognormal:0.5") == D.Dirichlet(
        0.3, sizes=D.LogNormal(0.5)
    )
    assert as_partition("iid", "balanced:50") == D.IID(sizes=D.Balanced(50))
    assert as_partition("classes:2", "power-law") == D.Classes(2, sizes=D.PowerLaw())


class ByLabel(D.Partition):
    """The example of `Partition`'s docstring."""

    def assign(self, targets, clients, rng):
        order = rng.permutation(len(targets))
        by_label = order[np.argsort(targets[order], kind="stable")]
        return np.array_split(by_label, clients)


def by_label(targets, clients, rng):
    return ByLabel().assign(targets, clients, rng)


@dataclass(frozen=True)
class FirstOf(D.Partition):
    share: float

    def assign(self, targets, clients, rng):
        return np.array_split(np.arange(int(self.share * len(targets))), clients)


class Empty(D.Partition):
    pass


def test_a_users_class_or_function_is_a_partition():
    labels = np.repeat(np.arange(4), 6)
    split = ByLabel().split(labels, 4)
    assert (counts(labels, split) == 6 * np.eye(4)).all()
    assert np.array_equal(split.rows, ByLabel().split(labels, 4).rows)
    assert not np.array_equal(split.rows, ByLabel().split(labels, 4, seed=1).rows)
    function = as_partition(by_label)
    assert np.array_equal(function.split(labels, 4).rows, split.rows)
    assert (str(ByLabel()), str(FirstOf(0.5)), str(function)) == (
        "ByLabel()",
        "FirstOf(0.5)",
        "by_label",
    )
    some = FirstOf(0.5).split(labels, 3)
    assert some.sizes.tolist() == [4, 4, 4]
    assert some.notes == ("12 of 24 samples stay unused by FirstOf(0.5).",)


def test_a_users_partition_shares_out_any_source():
    x, y = np.zeros((24, 2)), np.repeat(np.arange(4), 6)
    from_arrays = D.FederatedData.from_arrays(x, y, partition=ByLabel(), clients=4)
    assert [set(from_arrays.client(k)[1].tolist()) for k in range(4)] == [{0}, {1}, {2}, {3}]
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    data = D.digits(by_label, clients=30)
    assert data.name == "digits, by_label"
    assert data.describe().labels.per_client.max <= 3


def test_clients_that_a_users_partition_leaves_empty_are_left_out():
    class Some(D.Partition):
        min_size = 0

        def assign(self, targets, clients, rng):
            return [[2, 0], [], [1]]

    data = D.FederatedData.from_arrays(np.zeros((4, 1)), [0, 1, 0, 1], partition=Some(), clients=3)
    assert data.ids == [0, 2]
    assert "1 clients without samples are left out." in data.notes


LABELS = np.arange(20) % 4


def wrong(assigned, clients=2):
    return lambda: as_partition(lambda targets, clients, rng: assigned).split(LABELS, clients)


REFUSED = [
    (wrong([[0]]), "must return 2 arrays of sample numbers, one per client, but returned 1"),
    (wrong(None), "but returned NoneType"),
    (wrong([[0], [[1], [2]]]), "that of client 1 has shape [2, 1]"),
    (wrong([[0], [0.5]]), "that of client 1 has shape [1] and type float64"),
    (wrong([[0], np.ones(20, bool)]), "and type bool"),
    (wrong([[0], [20]]), "gives client 1 a sample number outside 0 … 19"),
    (wrong([[0], [-1]]), "gives client 1 a sample number outside 0 … 19"),
    (wrong([[0, 3], [3]]), "gives sample 3 to more than one client"),
    (wrong([[0], []]), "gives client 1 0 samples, but min_size is 1"),
    (lambda: as_partition(lambda: []).split(LABELS, 2), "<lambda> fails: TypeError"),
    (lambda: Empty().split(LABELS, 2), "Empty must implement assign(self, targets, clients, rng)"),
    (lambda: as_partition(ByLabel), "is the class ByLabel, but must be a partition such as"),
    (lambda: as_partition("dirichelt:0.3"), "did you mean 'dirichlet'?"),
    (lambda: as_partition("dirichlet:much"), "must have a number after the colon"),
    (lambda: as_partition("iid:3"), "takes no number"),
    (lambda: as_partition("dirichlet-per-class:1", "balanced"), "determines the sizes itself"),
    (lambda: as_partition("classes:2.5").split(LABELS, 2), "k is 2.5, but must be a whole number"),
    (lambda: as_partition(3), "must be a partition such as"),
    (lambda: D.Dirichlet(0), "alpha is 0, but must be above 0"),
    (lambda: D.Dirichlet(float("nan")), "must be a number above 0"),
    (lambda: D.IID(sizes="big"), "sizes is 'big'"),
    (lambda: D.IID(sizes=[3, 0]), "The size of client 1 is 0"),
    (lambda: D.IID(sizes=[3, 4]).split(LABELS, 3), "2 sizes are given for 3 clients"),
    (lambda: D.IID(sizes=[30, 4]).split(LABELS, 2), "need 34 samples, but there are 20"),
    (lambda: D.IID(min_size=6).split(LABELS, 5), "need 30 samples, but there are 20"),
    (lambda: D.IID().split(LABELS, 0), "clients is 0"),
    (lambda: D.IID().split(LABELS, 21), "21 clients with at least 1 samples each need 21"),
    (lambda: D.IID(sizes=D.Balanced(6)).split(LABELS, 5), "need 30 samples"),
    (lambda: D.Classes(5).split(LABELS, 2), "there are only 4"),
    (lambda: D.Classes(4).split(LABELS, 6), "has 5 samples for 6 clients, but each needs 1"),
    (lambda: D.Classes(4, sizes=D.PowerLaw()).split(LABELS, 6), "but each needs 1 of them"),
    (lambda: D.Dirichlet(1).split(LABELS / 2, 2), "use IID for other targets"),
    (lambda: D.Natural().split(LABELS, 2), "do not name the owner of each sample"),
    (lambda: D.Natural().split(LABELS, 9, owners=LABELS), "There are 4 owners"),
    (lambda: D.Natural().split([0, 1], 2, owners=[1.5, 2]), "A client's id is 1.5"),
    (lambda: D.Natural().split([0, 1], 2, owners=[None, 2]), "A client's id is None"),
    (lambda: D.Natural().split([0, 1], 2, owners=3), "owners must be a list"),
    (lambda: D.Natural(min_size=5, most=2), "most is 2, but must be a whole number of at least 5"),
    (lambda: D.Classes(2, sizes=D.Balanced(1)).split(LABELS, 2), "cannot have 2 classes"),
    (
        lambda: D.Classes(2, sizes=D.Balanced(4), min_size=5).split(LABELS, 2),
        "Clients of 4 samples cannot have 2 classes and at least 5 samples",
    ),
    (lambda: D.IID(sizes=[10.5, 2]), "The size of client 0 is 10.5"),
    (lambda: D.IID().split(LABELS, 2, seed="x"), "seed is 'x'"),
    (lambda: D.IID().split(LABELS, 2, seed=-1), "seed is -1"),
    (lambda: D.IID().split(3, 2), "must be an array"),
    (lambda: D.IID().split(LABELS, None), "clients=100"),
    (lambda: D.DirichletPerClass(1e308), "at most 1e+06"),
    (lambda: D.Natural().split(LABELS, 2, owners=[1]), "1 owners are given for 20 samples"),
]


@pytest.mark.parametrize(("action", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_impossible_partitions_raise_a_clear_error(action, words):
    with pytest.raises(ud.UndriftError) as error:
        action()
    assert words in str(error.value)


def test_dirichlet_sizes_have_an_equal_mix_of_labels_and_are_redrawn_until_nobody_has_too_few():
    labels = np.repeat(np.arange(10), 1000)
    for seed in range(5):
        split = D.IID(sizes=D.DirichletSizes(0.5), min_size=10).split(labels, 10, seed)
        assert split.sizes.sum() == 10_000 and split.sizes.min() >= 10
        assert split.sizes.std() > 0.3 * split.sizes.mean()  # Dirichlet(.5) is very unequal
        found, large = counts(labels, split), split.sizes > 500
        share = found[large] / split.sizes[large, None]
        assert np.abs(share - 0.1).max() < 0.06
    # Var of a share is (1/N)(1 − 1/N)/(Nα + 1): .015 for N = 10, α = .5.
    drawn = [D.DirichletSizes(0.5).weights(10, seed) for seed in range(400)]
    assert np.var(drawn) == pytest.approx(0.015, rel=0.15)
    law = D.DirichletSizes(0.5)
    redrawn = law.numbers(10_000, 10, 3, min_size=10)
    assert redrawn.min() > 10, "redrawn, not raised to the smallest size"


def test_cyclic_classes_are_those_of_niid_bench():
    labels = np.repeat(np.arange(10), 500)
    found = counts(labels, D.Classes(2, cyclic=True).split(labels, 10, 1))
    assert (found.sum(0) == 500).all(), "all samples are used"
    assert ((found > 0).sum(1) == 2).all() and (np.diag(found) > 0).all()
    holders = (found > 0).sum(0)
    assert holders.std() > 0, "the numbers of clients per class vary"
    for c in range(10):
        own = found[found[:, c] > 0, c]
        assert own.max() - own.min() <= 1, "equal shares"
    with pytest.raises(ud.UndriftError, match="leave sizes out"):
        D.Classes(2, sizes=D.PowerLaw(), cyclic=True)
