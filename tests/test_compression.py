"""Compression: what arrives, how it travels, what it costs, and where methods end with it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from looping import asynchronous, synchronous
from undrift.compression import QSGD, Compression, Compressor, RandomK, Sign, TopK
from undrift.compression.compressor import InvalidEncoding
from undrift.compression.packing import pack, unpack
from undrift.engines import EngineOptions
from undrift.nets.module_losses import ModuleLosses

COMPRESSORS = [TopK(0.1), TopK(1.0), RandomK(0.3), RandomK(1.0), QSGD(2), QSGD(4, 8), Sign()]
LOSSY = [TopK(0.1), RandomK(0.3), QSGD(4, 8), Sign()]
QUADRATICS = ud.theory.random_quadratics(clients=5, dimension=12, seed=1)
LOCAL = ud.SGD(lr=0.05, batch_size=5, steps=3)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def vectors(size, seed, dtype):
    g = torch.Generator().manual_seed(seed)
    v = torch.randn(size, generator=g, dtype=dtype) * 10.0 ** (seed % 7 - 3)
    v[torch.rand(size, generator=g) < 0.2] = 0.0
    return v


@settings(deadline=None)
@given(
    compressor=st.sampled_from(COMPRESSORS),
    size=st.integers(1, 200),
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    damped=st.booleans(),
    factor=st.sampled_from([1.0, 0.3, 7.3]),
)
def test_what_is_encoded_is_decoded_to_the_bit(compressor, size, seed, dtype, damped, factor):
    (sent,) = compressor.approximate(vectors(size, seed, dtype)[None], [seed], damped)
    if factor != 1:  # clipping scales what compression gave
        sent = compressor.representable(sent[None] * factor)[0]
    parts = compressor.encode(sent, seed)
    layout = compressor.layout(size, dtype)
    assert {n: (v.dtype, tuple(v.shape)) for n, v in parts.items()} == layout
    assert sum(v.nbytes for v in parts.values()) == compressor.encoded_bytes(size, dtype)
    again = compressor.decode(parts, size, dtype, seed)
    assert again.dtype == dtype
    assert torch.equal(again, sent)


@settings(deadline=None)
@given(
    st.integers(1, 20).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.integers(0, 2**n - 1), max_size=50))
    )
)
def test_packed_numbers_are_unpacked(case):
    width, numbers = case
    data = pack(torch.tensor(numbers, dtype=torch.int64), width)
    assert len(data) == math.ceil(len(numbers) * width / 8)
    assert unpack(data, len(numbers), width).tolist() == numbers


@pytest.mark.parametrize("compressor", [TopK(1.0), RandomK(1.0)])
def test_ratio_one_changes_no_bit(compressor):
    v = vectors(50, 3, torch.float32)
    assert torch.equal(bits(compressor.approximate(v[None], [1])[0]), bits(v))
    for engine in ("serial", "vectorised"):
        plain, same = (model_run(ud.SCAFFOLD(), each, engine) for each in (None, compressor))
        assert torch.equal(bits(plain.server.x), bits(same.server.x))
        assert plain.records[-1].bytes_up == same.records[-1].bytes_up


@pytest.mark.parametrize("compressor", [RandomK(0.25), QSGD(2, 16), QSGD(3)])
def test_unbiased_operators_are_unbiased(compressor):
    """Means of 20000 draws are within 5 standard errors in each of 40 coordinates.

    A right operator fails with probability below 40·5.8e-7 = 2.3e-5; the draws are seeded.
    """
    assert compressor.unbiased
    v = vectors(40, 11, torch.float64)
    drawn = compressor.approximate(v.expand(20000, -1), range(20000))
    error = drawn.std(0) / math.sqrt(20000)
    assert bool(((drawn.mean(0) - v).abs() <= 5 * error + 1e-12).all())
    square = (drawn - v).square().sum(1).mean()
    assert 0 < square <= compressor.variance(40) * v.square().sum() * 1.02
    damped = compressor.approximate(v.expand(20000, -1), range(20000), damped=True)
    share = (damped - v).square().sum(1).mean() / v.square().sum()
    assert share <= 1 - 0.98 * compressor.damping(40)


@settings(deadline=None)
@given(st.integers(1, 100), st.integers(0, 10**6))
def test_biased_operators_shrink_the_error_as_the_papers_say(size, seed):
    v = vectors(size, seed, torch.float64)
    square = v.square().sum()
    top = TopK(0.1)
    left = (top.approximate(v[None], [0])[0] - v).square().sum()
    assert left <= (1 - top.kept(size) / size) * square * (1 + 1e-12)
    left = (Sign().approximate(v[None], [0])[0] - v).square().sum()
    assert float(left) == pytest.approx(
        float(square - v.abs().sum() ** 2 / size), abs=1e-9 + 1e-9 * float(square)
    )


def test_invalid_encodings_are_refused_in_a_sentence():
    size, top, q, sign = 20, TopK(0.2), QSGD(3, 8), Sign()
    v = vectors(size, 1, torch.float32)
    good = top.encode(top.approximate(v[None], [0])[0], 0)
    places = unpack(good["indices"], 4, 5)

    def refused(compressor, parts, said):
        with pytest.raises(InvalidEncoding, match=said):
            compressor.decode(parts, size, torch.float32, 0)

    for wrong in (places.flip(0), places.clone().fill_(3), torch.tensor([1, 2, 3, 25])):
        refused(top, {**good, "indices": pack(wrong, 5)}, "indices must increase and be below 20")
    trailing = good["indices"].clone()
    trailing[-1] |= 0x80
    refused(top, {**good, "indices": trailing}, "bits after its last index")
    good = q.encode(q.approximate(v[None], [0])[0], 0)
    refused(q, {**good, "codes": pack(torch.full((20,), 7), 3)}, "codes must be at most 6")
    for scale in (-1.0, math.nan, math.inf):
        refused(q, {**good, "scales": torch.full((3,), scale)}, "scales must be finite")
        refused(
            sign,
            {"codes": pack(torch.zeros(20, dtype=torch.int64), 1), "scales": torch.tensor([scale])},
            "scale must be finite",
        )


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("compressor", [TopK(0.1), QSGD(4), Sign()])
def test_a_broken_upload_stays_broken(compressor, value):
    """It must be rejected, not rounded to something harmless."""
    v = vectors(30, 2, torch.float32)
    v[7] = value
    assert not bool(compressor.approximate(v[None], [0]).isfinite().all())


# Methods


def distance(method, compression, rounds, local, cohort=None):
    sampler = ud.All() if cohort is None else ud.Uniform(cohort)
    run = synchronous(
        method,
        QUADRATICS,
        local,
        sampler,
        rounds,
        objective="clients",
        evaluation=ud.Evaluation(every=10**6),
        compression=compression,
    )
    for _ in run.rounds():
        pass
    return float((run.server.x - QUADRATICS.optimum(QUADRATICS.weights("clients"))).norm())


def test_with_feedback_top_k_reaches_the_optimum_where_it_fails_without():
    decaying = ud.GD(lr=ud.Exponential(0.15, 0.994), steps=1)
    assert distance(ud.DistributedSGD(), None, 800, decaying) < 1e-3
    found = {
        feedback: distance(
            ud.DistributedSGD(), Compression(TopK(0.25), feedback=feedback), 800, decaying
        )
        for feedback in (True, False)
    }
    assert found[True] < 0.01
    assert found[False] > 0.3


@pytest.mark.parametrize(
    "method", [ud.SCAFFOLD(), ud.FedDyn(alpha=0.5), ud.FedDR(eta=0.5)], ids=lambda m: m.name
)
@pytest.mark.parametrize("compressor", [TopK(0.25), RandomK(0.5), QSGD(4)], ids=repr)
def test_compressed_methods_with_state_still_reach_the_optimum(method, compressor):
    local = ud.GD(lr=0.1, steps=5) if method.name == "SCAFFOLD" else ud.Exact()
    assert distance(method, Compression(compressor), 400, local) < 1e-6


def test_a_residual_beside_mirrored_state_would_count_twice():
    """Why such methods have none: SCAFFOLD diverges with it."""
    from undrift.compression.uploads import CompressUploads

    chain = [CompressUploads(TopK(0.25), ["moved", "c_change"], residual=True)]
    run = synchronous(
        ud.SCAFFOLD(), QUADRATICS, ud.GD(lr=0.05, steps=5), ud.All(), 300,
        objective="clients", evaluation=ud.Evaluation(every=10**6), transforms=chain,
    )  # fmt: skip
    for _ in run.rounds():
        pass
    assert float(run.server.x.norm()) > 1e3
    kept = Compression(TopK(0.25)).transforms(ud.SCAFFOLD())[0].init()
    assert kept == {}
    assert Compression(TopK(0.25)).transforms(ud.Ditto())[0].init() == {"@residual moved": ud.ZERO}


@pytest.mark.parametrize("compressor", [TopK(0.25), QSGD(4)], ids=repr)
def test_compressed_downloads_end_at_the_same_point(compressor):
    local = ud.GD(lr=0.1, steps=1)
    for method in (ud.DistributedSGD(), ud.SCAFFOLD()):
        assert distance(method, Compression(down=compressor), 400, local) < 1e-6


# Engines, bytes, resuming


def model_run(method, compression, engine="serial", rounds=4, **options):
    g = torch.Generator().manual_seed(5)
    clients = [
        (torch.randn(n, 6, generator=g), torch.randint(3, (n,), generator=g))
        for n in (12, 9, 20, 15)
    ]
    data = ud.data.FederatedData.from_clients(clients)
    model = torch.nn.Linear(6, 3)
    torch.nn.init.constant_(model.weight, 0.1)
    torch.nn.init.zeros_(model.bias)
    from undrift.compression import as_compression

    run = synchronous(
        method,
        ModuleLosses(model, data),
        LOCAL,
        options.pop("sampler", ud.Uniform(3)),
        rounds,
        engine=EngineOptions(engine),
        compression=as_compression(compression),
        **options,
    )
    list(run.rounds())
    return run


@pytest.mark.parametrize("compressor", LOSSY, ids=repr)
@pytest.mark.parametrize("method", [ud.FedAvg(), ud.SCAFFOLD(), ud.FedNova()], ids=repr)
def test_engines_agree_and_count_the_encoded_bytes(compressor, method):
    both = Compression(compressor, compressor)
    one, other = (model_run(method, both, engine) for engine in ("serial", "vectorised"))
    torch.testing.assert_close(one.server.x, other.server.x, rtol=1e-4, atol=1e-6)
    for mine, theirs in zip(one.records, other.records, strict=True):
        assert (mine.bytes_up, mine.bytes_down) == (theirs.bytes_up, theirs.bytes_down)
    encoded = compressor.encoded_bytes(21, torch.float32)
    up = one.records[1].bytes_up
    assert all(up[name] == 3 * encoded for name in method.sums())
    assert one.records[1].bytes_down["x"] == 3 * 84  # the first download is whole


def test_clients_that_missed_rounds_get_what_they_missed():
    down = TopK(0.1)
    encoded = down.encoded_bytes(21, torch.float32)
    cohorts = ud.Fixed([[0, 1], [0, 1], [0, 2], [0, 1]])
    run = model_run(ud.FedAvg(), Compression(down=down), sampler=cohorts)
    received = [record.bytes_down["x"] for record in run.records[1:]]
    # Two whole, two differences, one and a whole vector, one and the two that client 1 lacks.
    assert received == [2 * 84, 2 * encoded, encoded + 84, encoded + 2 * encoded]


def test_the_clock_counts_encoded_bytes():
    devices = ud.Devices(speed=1e9, up=1.0, down=1e12)
    times = [
        model_run(ud.FedAvg(), each, devices=devices).records[1].virtual_seconds
        for each in (None, TopK(0.1))
    ]
    encoded = TopK(0.1).encoded_bytes(21, torch.float32)
    assert times == pytest.approx([84.0, encoded], rel=1e-3)


def trained(method, compression, **options):
    g = torch.Generator().manual_seed(5)
    clients = [
        (torch.randn(n, 6, generator=g), torch.randint(3, (n,), generator=g)) for n in (12, 9, 20)
    ]
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3)
    with torch.no_grad():
        model.weight.fill_(0.1)
        model.bias.zero_()
    call = ud.resume if "folder" in options else ud.train
    first = [options.pop("folder")] if "folder" in options else []
    return call(
        *first,
        method,
        model=model,
        data=ud.data.FederatedData.from_clients(clients),
        local=LOCAL,
        cohort=2,
        engine="serial",
        compression=compression,
        progress=False,
        **options,
    )


@pytest.mark.parametrize("method", [ud.FedAvg(), ud.SCAFFOLD()], ids=repr)
def test_a_resumed_run_has_the_same_bits(method, tmp_path):
    both = Compression(QSGD(3, 8), RandomK(0.3))
    whole = trained(method, both, rounds=6)
    trained(method, both, rounds=3, out=tmp_path)
    again = trained(method, both, rounds=6, folder=tmp_path)
    assert torch.equal(bits(whole.x), bits(again.x))
    assert [r.bytes_down for r in whole.records] == [r.bytes_down for r in again.records]


def test_undefined_combinations_are_refused():
    with pytest.raises(ud.UndriftError, match="uploads models, not changes"):
        distance(ud.FedPD(), Compression(TopK(0.1)), 1, ud.GD(lr=0.1, steps=1))
    with pytest.raises(ud.UndriftError, match=r"FedDyn does not declare .downloads_may_lag"):
        distance(ud.FedDyn(alpha=0.5), Compression(down=TopK(0.1)), 1, ud.Exact())
    with pytest.raises(ud.UndriftError, match="only in synchronous rounds"):
        asynchronous(
            ud.FedBuff(), QUADRATICS, ud.GD(lr=0.1, steps=1), ud.All(), 1,
            compression=Compression(down=TopK(0.1)),
        )  # fmt: skip
    with pytest.raises(ud.UndriftError, match="compression needs a compressor"):
        Compression()
    with pytest.raises(ud.UndriftError, match=r"compression is 0.01, but must be a compressor"):
        ud.train(ud.FedAvg(), problem=QUADRATICS, local=ud.GD(lr=0.1, steps=1), compression=0.01)
    for wrong in (lambda: TopK(0), lambda: TopK(1.5), lambda: QSGD(1), lambda: QSGD(17)):
        with pytest.raises(ud.UndriftError, match="must be"):
            wrong()


def test_asynchronous_runs_compress_uploads():
    run = asynchronous(
        ud.FedBuff(), QUADRATICS, ud.GD(lr=0.05, steps=2), ud.All(), 3,
        compression=Compression(TopK(0.25)),
    )  # fmt: skip
    list(run.rounds())
    encoded = TopK(0.25).encoded_bytes(12, QUADRATICS.initial().dtype)
    assert run.records[-1].bytes_up == {"moved": 5 * encoded}


class Halves(Compressor):
    """A compressor of a user: the first half of the coordinates."""

    def approximate(self, rows, keys, damped=False):
        found = rows.clone()
        found[:, rows.shape[1] // 2 :] = 0
        return found

    def layout(self, size, dtype):
        from undrift.compression.compressor import Layout

        return {"values": Layout(dtype, (size // 2,))}

    def encode(self, vector, key):
        return {"values": vector[: len(vector) // 2]}

    def decode(self, parts, size, dtype, key):
        return torch.cat([parts["values"], torch.zeros(size - size // 2, dtype=dtype)])


def test_a_compressor_of_the_users_own():
    run = model_run(ud.FedAvg(), Halves())
    assert run.records[-1].bytes_up == {"moved": 3 * 10 * 4}
