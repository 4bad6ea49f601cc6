"""Decoding inverts encoding, and rejects every other message with a sentence, at little cost."""

import json
import math
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from undrift.deploy.wire_format import (
    MAX_DEPTH,
    MAX_DIMENSIONS,
    MAX_HEADER_BYTES,
    TYPES,
    InvalidMessage,
    TensorSpec,
    check_numbers,
    check_tensors,
    decode,
    encode,
    size_bytes,
)
from undrift.utils.errors import UndriftError

QUICK = settings(max_examples=150, deadline=None)
MOST = 1 << 30
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
NUMBERS = st.one_of(
    st.integers(1 - 2**64, 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)
KINDS = st.tuples(
    st.sampled_from([*TYPES.values()]), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 99)
)
TENSORS = st.dictionaries(TEXTS, KINDS, max_size=4).map(
    lambda kinds: {name: made(*kind) for name, kind in kinds.items()}
)


def made(dtype, shape, seed=0):
    """A tensor of random bytes; those of bools are 0 or 1."""
    g = torch.Generator().manual_seed(seed)
    top = 2 if dtype == torch.bool else 256
    length = math.prod(shape) * dtype.itemsize
    content = torch.randint(0, top, (length,), generator=g, dtype=torch.uint8)
    return content.view(dtype).reshape(shape)


def content(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def same(mine, theirs):
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == theirs[name].dtype and tensor.shape == theirs[name].shape
        assert content(tensor) == content(theirs[name])


def message(header, data=b"", length=None):
    """A message with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def described(dtype="F32", shape=(2,), offsets=(0, 8), **others):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **others}


def with_values(text="{}", **tensors):
    return {"__metadata__": {"values": text}, **tensors}


def refusal(data, most=MOST):
    """The sentence with which a message is rejected."""
    with pytest.raises(InvalidMessage) as caught:
        decode(data, most)
    sentence = str(caught.value)
    assert sentence.startswith("The message is rejected: ") and sentence.endswith(".")
    assert len(sentence) < 160 and sentence.isprintable()
    return sentence


# Round trips


@QUICK
@given(st.dictionaries(TEXTS, PLAIN, max_size=4), TENSORS)
def test_values_and_tensors_of_every_kind_arrive(values, tensors):
    tensors.pop("__metadata__", None)
    data = encode(values, tensors)
    found, arrived = decode(data, len(data))
    assert repr(sorted(found.items())) == repr(sorted(values.items()))  # 1, 1.0 and True differ
    same(tensors, arrived)
    same(tensors, safetensors.torch.load(data))


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(-0.0)
@example(5e-324)
@example(0.1 + 0.2)
def test_floats_arrive_exactly(number):
    found = decode(encode({"a": [number]}, {}), MOST)[0]["a"][0]
    assert type(found) is float and found.hex() == number.hex()


def test_tied_strided_and_tracked_tensors_arrive_as_their_values():
    x = torch.arange(6.0).reshape(2, 3)
    z = torch.tensor([1 + 2j])
    sent = {
        "x": x,
        "again": x,
        "part": x[1],
        "turned": x.T,
        "wide": torch.ones(1).expand(3),
        "parameter": nn.Parameter(torch.ones(2)),
        "conjugate": z.conj(),
        "negative": z.conj().imag,
        "number": torch.tensor(3),
    }
    found = decode(encode({}, sent), MOST)[1]
    for name, tensor in sent.items():
        assert torch.equal(found[name], tensor.detach())
        assert not found[name].requires_grad
    found["x"].zero_()
    assert torch.equal(found["again"], x) and torch.equal(found["part"], x[1])


def test_what_arrives_may_be_written_to_and_is_not_the_message():
    data = encode({}, {"x": torch.zeros(3), "y": torch.zeros(3)})
    first = decode(data, MOST)[1]
    first["x"].add_(1)
    assert not first["y"].any() and not decode(data, MOST)[1]["x"].any()


def test_the_size_is_that_of_the_tensors():
    sent = {"a": torch.ones(3, 4), "b": torch.ones(5, dtype=torch.bfloat16), "c": torch.tensor(1)}
    expected = {name: TensorSpec(t.dtype, tuple(t.shape)) for name, t in sent.items()}
    data = encode({"loss": 0.5}, sent)
    assert size_bytes(expected) == 3 * 4 * 4 + 5 * 2 + 8
    assert len(data) == 8 + int.from_bytes(data[:8], "little") + size_bytes(expected)
    check_tensors(decode(data, size_bytes(expected) + MAX_HEADER_BYTES + 8)[1], expected)


# Messages that cannot be encoded


def nested(depth):
    """Values nested to this depth."""
    inner = []
    for _ in range(depth - 2):
        inner = [inner]
    return {"a": inner}


@pytest.mark.parametrize(
    ("values", "tensors", "why"),
    [
        ({"a": math.nan}, {}, "not finite"),
        ({"a": [{"b": math.inf}]}, {}, "not finite"),
        ({"a": 2**64}, {}, "more than 64 bits"),
        ({"a": -(2**64)}, {}, "more than 64 bits"),
        ({"a": (1, 2)}, {}, "tuple is not a type of plain values"),
        ({"a": np.int64(3)}, {}, "int64 is not a type of plain values"),
        ({"a": torch.ones(1)}, {}, "Tensor is not a type of plain values"),
        ({"a": {1: 2}}, {}, "a name is not text"),
        ({"a": "\ud800"}, {}, "not valid Unicode"),
        ({"\udc00": 1}, {}, "not valid Unicode"),
        (nested(MAX_DEPTH + 1), {}, "nested deeper"),
        ({"a": "x" * MAX_HEADER_BYTES}, {}, "the limit is 1 MB"),
        ({}, {"__metadata__": torch.ones(1)}, "its name is reserved"),
        ({}, {"\ud800": torch.ones(1)}, "not valid Unicode"),
        ({}, {"a": torch.ones(1, dtype=torch.complex128)}, "its type is complex128"),
        ({}, {"a": torch.ones(3).to_sparse()}, "it is sparse"),
        ({}, {"a": torch.ones([1] * (MAX_DIMENSIONS + 1))}, "dimensions"),
    ],
)
def test_what_cannot_be_sent_is_an_error_of_ours(values, tensors, why):
    with pytest.raises(UndriftError, match=why) as caught:
        encode(values, tensors)
    assert not isinstance(caught.value, InvalidMessage)


def test_values_may_be_nested_as_deep_as_is_said():
    assert decode(encode(nested(MAX_DEPTH), {}), MOST)[0] == nested(MAX_DEPTH)


# Messages that are rejected

GOOD = encode({"round": 3}, {"x": torch.arange(2.0)})


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is truncated"),
        (b"\2\0\0\0\0\0\0", "it is truncated"),
        (GOOD[:40], "it is truncated"),
        (message(b"{}", length=10 * 10**9), "its header is longer than 1 MB"),
        (message(b"{}", length=2**64 - 1), "its header is longer than 1 MB"),
        (message(b"{}", length=MAX_HEADER_BYTES), "it is truncated"),
        (message(b" " * (MAX_HEADER_BYTES + 1)), "its header is longer than 1 MB"),
        (message(b""), "it has no header"),
        (message([]), "it has no header"),
        (message(b" {}"), "it has no header"),
        (message(b"\xef\xbb\xbf{}"), "it has no header"),
        (message("{}".encode("utf-16")), "its header is not text"),
        (message(b'{"\xff": 1}'), "its header is not text"),
        (message(b"{"), "the JSON of its header is invalid"),
        (message(b"{} {}"), "the JSON of its header is invalid"),
        (message(b'{"a": ' + b"[" * 200_000), "the JSON of its header is invalid"),
        (message(b'{"a": ' + b"9" * 5000 + b"}"), "the JSON of its header is invalid"),
        (message(b'{"a": NaN}'), "a number is not finite"),
        (message(b'{"a": 1e999}'), "a number is not finite"),
        (message(b'{"a": 1, "a": 2}'), "a name is repeated"),
        (message({}), "it has no values"),
        (message({"__metadata__": None}), "it has no values"),
        (message({"__metadata__": {}}), "it has no values"),
        (message({"__metadata__": {"values": "{}", "more": "{}"}}), "it has no values"),
        (message({"__metadata__": {"values": {}}}), "its values are not text"),
        (message(with_values("")), "its values are not a JSON object"),
        (message(with_values("3")), "its values are not a JSON object"),
        (message(with_values("[]")), "its values are not a JSON object"),
        (message(with_values("{]")), "the JSON of its values is invalid"),
        (message(with_values('{"a": ' + "[" * 200_000)), "the JSON of its values is invalid"),
        (message(with_values('{"a": ' + "9" * 5000 + "}")), "the JSON of its values is invalid"),
        (message(with_values('{"a": NaN}')), "a number is not finite"),
        (message(with_values('{"a": -Infinity}')), "a number is not finite"),
        (message(with_values('{"a": 1e999}')), "a number is not finite"),
        (message(with_values(f'{{"a": {2**64}}}')), "an integer has more than 64 bits"),
        (message(with_values(f'{{"a": [{-(2**64)}]}}')), "an integer has more than 64 bits"),
        (message(with_values('{"a": 1, "a": 1}')), "a name is repeated"),
        (message(with_values('{"a": "\\ud800"}')), "a text is not valid Unicode"),
        (message(with_values('{"\\ud800": 1}')), "a text is not valid Unicode"),
        (message(with_values(json.dumps(nested(MAX_DEPTH + 1)))), "a value is nested deeper than"),
        (message(with_values(json.dumps(nested(500)))), "a value is nested deeper than"),
    ],
)
def test_a_message_that_is_none_is_refused(data, why):
    assert why in refusal(data)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (3, "is not described"),
        ({}, "is not described"),
        (described(more=1), "is not described"),
        (described("F99"), "has an unknown type"),
        (described(["F32"]), "has an unknown type"),
        (described("f32"), "has an unknown type"),
        (described("F4"), "has an unknown type"),
        (described(shape=[-2]), "has an invalid shape"),
        (described(shape=[2.0]), "has an invalid shape"),
        (described(shape=[True, 2]), "has an invalid shape"),
        (described(shape=[[2]]), "has an invalid shape"),
        (described(shape=[1] * MAX_DIMENSIONS + [2]), "has an invalid shape"),
        (described(shape=[0, 2**62, 2**62], offsets=(0, 0)), "has an invalid shape"),
        (described(shape=[10**30]), "has an invalid shape"),
        (described(shape=[10**12]), "does not have the length of its shape"),
        (described(shape=[10**12], offsets=(0, 4 * 10**12)), "are not as long as its data"),
        (described(shape=[3]), "does not have the length of its shape"),
        (described(offsets=(0,)), "has invalid data_offsets"),
        (described(offsets=(0, 4, 8)), "has invalid data_offsets"),
        (described(offsets=(-8, 0)), "has invalid data_offsets"),
        (described(offsets=(8, 0)), "has invalid data_offsets"),
        (described(offsets=(0, 8.0)), "has invalid data_offsets"),
        (described(offsets=(0, "8")), "has invalid data_offsets"),
        (described(offsets=(4, 12)), "does not begin where"),
        (described(shape=[1], offsets=(0, 4)), "are not as long as its data"),
        (described("BOOL", [8]), "has a bool that is neither 0 nor 1"),
    ],
)
def test_a_tensor_that_is_none_is_refused(entry, why):
    assert why in refusal(message(with_values(x=entry), b"\2" * 8))


def test_tensors_that_overlap_or_leave_a_gap_are_refused():
    for second in ([0, 8], [4, 12], [12, 20]):
        header = with_values(x=described(), y=described(offsets=second))
        assert "tensor 'y' does not begin where" in refusal(message(header, b"\0" * 20))
    # A repeated name would let one tensor hide another.
    twice = json.dumps(with_values(x=described()))[:-1] + f', "x": {json.dumps(described())}}}'
    assert "repeated" in refusal(message(twice.encode(), b"\0" * 8))


def test_a_message_that_is_too_long_is_refused():
    assert decode(GOOD, len(GOOD))[0] == {"round": 3}
    sentence = refusal(GOOD, len(GOOD) - 1)
    assert f"it has {len(GOOD)} B, but the limit is {len(GOOD) - 1} B" in sentence
    refusal(GOOD + b"\0")


def test_names_of_a_peer_are_cut():
    for name in ("x" * 9000, "\x1b[31m\u202e" * 900, "\U000e0001" * 900):
        sentence = refusal(message(with_values(**{name: 3})))
        assert "x" * 41 not in sentence
    assert "'\\ud800'" in refusal(message(with_values(**{"\ud800": described()}), b"\0" * 8))


# Fuzzing

STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.sampled_from([2**31, 2**63, 2**64, 10**12, 10**30, -(10**12)]),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(-1, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
ENTRIES = st.one_of(
    STRANGE,
    st.fixed_dictionaries(
        {
            "dtype": st.one_of(st.sampled_from([*TYPES, "F4", "F128", ""]), STRANGE),
            "shape": st.one_of(st.lists(st.one_of(st.integers(0, 3), STRANGE)), STRANGE),
            "data_offsets": st.one_of(
                st.lists(st.one_of(st.integers(0, 24), STRANGE), min_size=2, max_size=2), STRANGE
            ),
        },
        optional={"more": STRANGE},
    ),
)
LAID = st.lists(st.tuples(st.sampled_from([*TYPES]), st.lists(st.integers(0, 3), max_size=3)))
VALUES = st.one_of(
    st.just("{}"),
    st.dictionaries(st.text(max_size=3), STRANGE, max_size=3).map(json.dumps),
    st.integers(0, 2000).map(lambda deep: '{"a": ' + "[" * deep + "]" * deep + "}"),
    st.text('{}[]",:0123456789eE.-\\u \tntrufals', max_size=20),
    STRANGE,
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "__metadata__": st.one_of(st.fixed_dictionaries({"values": VALUES}), STRANGE),
        "x": ENTRIES,
        "y": ENTRIES,
    },
)
LENGTHS = st.one_of(
    st.integers(0, 400),
    st.sampled_from([MAX_HEADER_BYTES, MAX_HEADER_BYTES + 1, 10**10, 2**63, 2**64 - 1]),
)
RICH = encode(
    {"round": 3, "loss": 0.125, "names": ["a", None, True], "deep": {"é": [[1.5]]}},
    {
        "x": torch.arange(6.0).reshape(2, 3),
        "flags": torch.tensor([True, False]),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "none": torch.empty(0, 4),
        "count": torch.tensor(7),
    },
)


def survives(data):
    """The message is rejected, or encoding what it decodes to gives an equal message."""
    try:
        values, tensors = decode(data, 10_000_000)
    except InvalidMessage as refused:
        sentence = str(refused)
    else:
        sentence = ""
    if sentence:
        assert len(sentence) < 160 and sentence.isprintable()
        return False
    assert sum(tensor.nbytes for tensor in tensors.values()) <= len(data)
    again, arrived = decode(encode(values, tensors), MOST)
    assert repr(sorted(again.items())) == repr(sorted(values.items()))
    same(tensors, arrived)
    same(tensors, safetensors.torch.load(data))  # nothing is taken that others would refuse
    return True


@QUICK
@given(st.binary(max_size=400))
def test_random_bytes(data):
    survives(data)
    survives(len(data).to_bytes(8, "little") + data)


@settings(max_examples=300, deadline=None)
@given(HEADERS, st.binary(max_size=24), st.one_of(st.none(), LENGTHS), st.integers(0, 8))
def test_random_headers(header, data, length, spaces):
    survives(message(json.dumps(header).encode() + b" " * spaces, data, length))


@QUICK
@given(LAID, st.randoms(use_true_random=False), st.integers(-1, 1), st.booleans())
def test_headers_that_are_nearly_right(kinds, random, off, twice):
    """Tensors in any order, of which one may be wrong by a byte or repeated."""
    entries, end = [], 0
    for place, (name, shape) in enumerate(kinds):
        length = math.prod(shape) * TYPES[name].itemsize
        entries.append((f"t{place}", described(name, shape, (end, end + length))))
        end += length
    random.shuffle(entries)
    if off and entries:
        random.choice(entries)[1]["data_offsets"][random.randrange(2)] += off
    if twice:
        entries += entries[:1]
    entries.append(("__metadata__", {"values": "{}"}))
    parts = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries)
    header = "{" + ", ".join(parts) + "}"
    taken = survives(message(header.encode(), b"\1" * end))
    assert taken == (not kinds or not (off or twice))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_messages_that_were_damaged(source):
    data = bytearray(RICH)
    for _ in range(source.draw(st.integers(1, 3))):
        at = source.draw(st.integers(0, max(len(data) - 1, 0)))
        how = source.draw(st.sampled_from(["flip", "byte", "cut", "remove", "insert"]))
        if how == "flip" and data:
            data[at] ^= 1 << source.draw(st.integers(0, 7))
        elif how == "byte" and data:
            data[at] = source.draw(st.integers(0, 255))
        elif how == "cut":
            del data[at:]
        elif how == "remove":
            del data[at : at + source.draw(st.integers(1, 9))]
        else:
            data[at:at] = source.draw(st.binary(min_size=1, max_size=9))
    survives(bytes(data))


def test_every_single_bit_and_every_end_of_a_message():
    taken = 0
    for at in range(len(RICH)):
        assert not survives(RICH[:at])
        for bit in range(8):
            data = bytearray(RICH)
            data[at] ^= 1 << bit
            taken += survives(bytes(data))
    assert taken > 100  # those in the numbers of a tensor or in a text


FULL = 60_000
NASTY = {
    "a header of 10 GB": message(b"{}", length=10 * 10**9),
    "a shape of 10^12": message(with_values(x=described(shape=[10**12])), b"\0" * 8),
    "offsets of 4 TB": message(with_values(x=described("U8", [2**42], (0, 2**42))), b"\0" * 8),
    "an empty tensor": message(with_values(x=described(shape=[0, 2**60], offsets=(0, 0)))),
    "many lists": message(with_values('{"a":[' + "[]," * (FULL // 3) + "0]}")),
    "many lists in the header": message(b'{"a":[' + b"[]," * (FULL // 3) + b"0]}"),
    "many dictionaries": message(with_values('{"a":[' + "{}," * (FULL // 3) + "0]}")),
    "deep lists": message(b'{"a":' + b"[" * FULL),
    "deep dictionaries": message(b'{"a":' * (FULL // 5)),
    "a long shape": message(with_values(x=described(shape=[1] * (FULL // 4)))),
    "long sides": message(with_values(x=described(shape=[10**1000] * 60))),
    "a long number": message(b'{"a":' + b"9" * FULL + b"}"),
    "a long fraction": message(with_values('{"a":0.' + "9" * FULL + "}")),
    "many numbers": message(with_values('{"a":[' + "1e5," * (FULL // 4) + "0]}")),
    "a long name": message(with_values(**{"\U000e0001" * (FULL // 12): 3})),
    "a long text": message(
        json.dumps(with_values('{"a":"' + "x" * FULL + '"}'), ensure_ascii=False).encode()
    ),
    "many tensors": message(
        with_values(**{f"{k}": described("U8", [0], (0, 0)) for k in range(FULL // 70)})
    ),
}


@pytest.mark.parametrize("name", NASTY)
def test_nothing_that_arrives_takes_much_memory(name):
    data = NASTY[name]
    assert len(data) < 1.5 * FULL
    tracemalloc.start()
    with suppress(InvalidMessage):
        decode(data, MOST)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000 + 40 * len(data)


def test_a_large_message_is_held_twice_at_most():
    data = encode({}, {"x": torch.zeros(5_000_000), "y": torch.zeros(10, dtype=torch.bool)})
    tracemalloc.start()
    decode(data, MOST)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.1 * len(data)


# Expected tensors and numbers

EXPECTED = {"x": TensorSpec(torch.float32, (2, 3)), "n": TensorSpec(torch.int64, ())}


def fitting(**others):
    return {"x": torch.ones(2, 3), "n": torch.tensor(1), **others}


def test_tensors_that_were_asked_for_pass():
    check_tensors(fitting(), EXPECTED)
    check_tensors({}, {})
    check_tensors(
        {"x": torch.tensor([math.nan])}, {"x": TensorSpec(torch.float32, (1,))}, finite=False
    )


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        (fitting(y=torch.ones(1)), "Tensor 'y' was not asked for."),
        ({"x": torch.ones(2, 3)}, "Tensor 'n' is missing."),
        (
            fitting(x=torch.ones(2, 3).double()),
            "Tensor 'x' has the type float64, but must have float32.",
        ),
        (fitting(x=torch.ones(3, 2)), "Tensor 'x' has the shape [3, 2], but must have [2, 3]."),
        (fitting(x=torch.ones(6)), "Tensor 'x' has the shape [6], but must have [2, 3]."),
        (fitting(n=torch.tensor([1])), "Tensor 'n' has the shape [1], but must have []."),
        (fitting(x=torch.full((2, 3), math.inf)), "Tensor 'x' has values that are not finite."),
    ],
)
def test_tensors_that_were_not_asked_for_are_refused(tensors, sentence):
    with pytest.raises(InvalidMessage) as caught:
        check_tensors(tensors, EXPECTED)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e5m2]
)
def test_one_value_that_is_not_finite_is_enough(dtype, bad):
    x = torch.ones(9).to(dtype)
    expected = {"x": TensorSpec(dtype, (9,))}
    check_tensors({"x": x}, expected)
    x[4] = bad
    with pytest.raises(InvalidMessage, match="'x' has values that are not finite"):
        check_tensors({"x": x}, expected)


def test_sentences_stay_short():
    for tensors in ({"x" * 9000: torch.ones(1)}, fitting(x=torch.ones([1] * 64))):
        with pytest.raises(InvalidMessage) as caught:
            check_tensors(tensors, EXPECTED)
        assert len(str(caught.value)) < 120


def test_numbers_that_were_asked_for_pass():
    found = check_numbers({"b": 2, "a": 0.5}, ["a", "b"])
    assert found == {"a": 0.5, "b": 2.0} and type(found["b"]) is float
    assert check_numbers({}, ()) == {}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"a": 1, "b": 1}, "The number 'b' was not asked for."),
        ({}, "The number 'a' is missing."),
        ({"a": True}, "'a' is a bool, but must be a number."),
        ({"a": "1"}, "'a' is a str, but must be a number."),
        ({"a": None}, "'a' is a NoneType, but must be a number."),
        ({"a": math.nan}, "'a' is not a finite number."),
        ({"a": -math.inf}, "'a' is not a finite number."),
        ({"a": 10**400}, "'a' is too large."),
    ],
)
def test_numbers_that_were_not_asked_for_are_refused(values, sentence):
    with pytest.raises(InvalidMessage) as caught:
        check_numbers(values, ["a"])
    assert str(caught.value) == sentence
