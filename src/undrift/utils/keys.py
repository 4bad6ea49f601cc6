"""Random numbers as a function of (seed, purpose, round, client id).

No global generator is read, and none stays changed. Users' code that draws from a global one (a
Dataset's augmentation, dropout) finds it seeded for a block, and restored after it. So neither the
order of work, nor the number of workers, nor earlier work in the process changes a random number.
"""

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from numbers import Integral
from threading import RLock, local
from typing import Any

import numpy as np
import torch

from undrift.utils.errors import UndriftError, require_type

HASHED_AT_ONCE = 65536
"""Number of client ids whose hashes are in memory as bytes at a time."""


def key(seed: int, purpose: str, round: int = 0, client: Hashable = "") -> int:
    """A 128-bit number that depends on its four arguments and on nothing else."""
    text = repr((int(seed), purpose, int(round), client))
    return int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "little")


def generator(
    seed: int, purpose: str, round: int = 0, client: Hashable = ""
) -> np.random.Generator:
    """A NumPy generator for one purpose, round and client."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, round, client)))


def generators(
    seed: int, purpose: str, round: int, clients: Iterable[Hashable]
) -> Iterator[np.random.Generator]:
    """The `generator` of each client in turn: one object, set to the next client's key."""
    found = _KeyedGenerator()
    for client in clients:
        yield found.at(key(seed, purpose, round, client))


def borrowed_generator(
    seed: int, purpose: str, round: int = 0, client: Hashable = ""
) -> np.random.Generator:
    """The same as `generator`, valid until this thread's next call."""
    if not hasattr(_of_thread, "generator"):
        _of_thread.generator = _KeyedGenerator()
    found: _KeyedGenerator = _of_thread.generator
    return found.at(key(seed, purpose, round, client))


class _KeyedGenerator:
    """A generator that is set to one key after another.

    Making a generator takes about ten times as long as setting its key.
    """

    def __init__(self) -> None:
        self._bits = np.random.Philox(key=0)
        self._generator, self._fresh = np.random.Generator(self._bits), self._bits.state

    def at(self, number: int) -> np.random.Generator:
        """The generator at the start of a key's numbers."""
        key = np.array([number % 2**64, number >> 64], dtype=np.uint64)
        self._fresh["state"]["key"] = key
        self._bits.state = self._fresh
        return self._generator


_of_thread = local()
"""each thread's borrowed generator"""


def plain_id(id: Any) -> int | str:
    """A client's id as int or str, so that equal ids get equal random numbers.

    NumPy's integers and strings have other reprs, and keys are hashes of reprs.
    """
    if isinstance(id, Integral) and not isinstance(id, bool):
        return int(id)
    require_type("A client's id", id, str, "a whole number or a string")
    try:
        id.encode()
    except UnicodeEncodeError:
        raise UndriftError(f"The client's id {id!r} cannot be encoded as UTF-8.") from None
    return str(id)


def plain_ids(ids: Sequence[Any]) -> list[Hashable]:
    """The ids of clients as `plain_id` gives them; a million whole numbers take no time."""
    if isinstance(ids, range) or set(map(type, ids)) == {int}:
        return list(ids)
    return [plain_id(id) for id in ids]


def hashes(clients: Sequence[Hashable]) -> np.ndarray:
    """A 64-bit hash of each client id, from which `keys` and `uniforms` serve many clients.

    It is the lower half of `key(0, "client", 0, client)`, without a call for each client.
    """
    found = np.empty(len(clients), dtype=np.uint64)
    for first in range(0, len(clients), HASHED_AT_ONCE):
        some = clients[first : first + HASHED_AT_ONCE]
        texts = (f"(0, 'client', 0, {client!r})".encode() for client in some)
        digests = b"".join([blake2b(text, digest_size=16).digest() for text in texts])
        found[first : first + len(some)] = np.frombuffer(digests, dtype="<u8")[::2]
    return found


def keys(seed: int, purpose: str, round: int, hashed: np.ndarray) -> np.ndarray:
    """A 64-bit key for each client, from the hashes of their ids."""
    return _mixed(hashed ^ np.uint64(key(seed, purpose, round) % 2**64))


def uniforms(seed: int, purpose: str, round: int, hashed: np.ndarray) -> np.ndarray:
    """A uniform number in [0, 1) for each client, from the hashes of their ids."""
    return (keys(seed, purpose, round, hashed) >> np.uint64(11)) * 2.0**-53


def draw_of_round(seed: int, round: int) -> Callable[[str], float]:
    """A function that gives the random number in [0, 1) of a round for each purpose."""
    return lambda purpose: float(generator(seed, purpose, round).random())


def orders(keys: np.ndarray, first: int, number: int, samples: int) -> np.ndarray:
    """Random permutations of 0 … samples − 1, `[keys, number, samples]`.

    Each key has a sequence of permutations, and the i-th is a function of the key and i alone.
    This returns those with i from `first` to `first + number − 1`.
    """
    numbered = np.arange(first, first + number, dtype=np.uint64)[:, None] << np.uint64(32)
    counters = numbered | np.arange(samples, dtype=np.uint64)
    with np.errstate(over="ignore"):
        random = _mixed(keys[:, None, None] + counters * np.uint64(0x9E3779B97F4A7C15))
    return random.argsort(axis=-1)


def _mixed(z: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64: distinct 64-bit numbers become pseudo-random ones."""
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


@contextmanager
def torch_generator_set_to(number: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators for the block, for code that uses them (Dropout).

    The generators of the CPU and of `device` get their former states back after the block.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    elif device.type == "mps":
        generators.append(torch.mps._get_default_mps_generator())
    before = [each.get_state() for each in generators]
    for each in generators:
        each.manual_seed(number % 2**63)
    try:
        yield
    finally:
        for each, state in zip(generators, before, strict=True):
            each.set_state(state)


def sample_seeds(key: int, rows: Sequence[int]) -> list[int]:
    """A 64-bit seed for each sample, from a key and the sample's row."""
    with np.errstate(over="ignore"):
        spread = (np.asarray(rows, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        return _mixed(spread ^ np.uint64(key % 2**64)).tolist()


def seed_global_generators(seed: int) -> None:
    """Seed the global generators of torch (CPU), NumPy and Python with a 64-bit number.

    Only for blocks of `global_generators_kept`, and for processes that have no other use for them.
    """
    torch.default_generator.manual_seed(seed >> 1)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002  a user's code reads the global generator
    random.seed(seed)


_one_block_at_a_time = RLock()
"""Global generators belong to all threads, so that only one thread may seed them at a time."""


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Give the global generators of torch (CPU), NumPy and Python their states back at the end."""
    with _one_block_at_a_time:
        before = torch.default_generator.get_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
        try:
            yield
        finally:
            torch.default_generator.set_state(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
            random.setstate(before[2])
