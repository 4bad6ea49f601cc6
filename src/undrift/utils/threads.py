"""Thread settings for clients' work: one thread per operator, and subnormal numbers as zero."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread per operator for the block, and treat subnormal numbers as zero.

    Clients' batches are small, so several threads per operator cost more than they save; and with
    one thread the result does not depend on the number of cores. Once a model fits a client's
    data, gradients become subnormal, and products of such numbers can take a hundred times as
    long; compared with any model's weights they are zero.
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
    """Apply the settings of `one_thread` to the calling thread for good.

    Both settings belong to a thread, so every new thread needs this call.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def _flushed() -> bool:
    """Whether this thread treats subnormal numbers as zero; torch has no function for that."""
    return sys.float_info.min * 0.5 == 0.0
