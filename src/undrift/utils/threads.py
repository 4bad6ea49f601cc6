"""How threads compute: one inside an operator, and without numbers too small to be normal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread for the block, and with subnormal numbers as zero.

    Clients' batches are small: threads inside an operator cost more than they bring, and with
    one the result does not depend on how many the machine has. Once a client fits its data, its
    gradients fall below the smallest normal number, on which products can take a hundred times as
    long; next to any model's weights they are nothing.
    """
    threads, flushed = torch.get_num_threads(), _flushed()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushed)


def prepare_thread() -> None:
    """Let the calling thread compute like that from now on: both are settings of a thread."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def _flushed() -> bool:
    """Whether subnormal results are zero already; torch does not tell."""
    return sys.float_info.min * 0.5 == 0.0
