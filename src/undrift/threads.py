"""How many threads torch uses inside an operator."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread for the block.

    Clients' batches are small: threads inside an operator cost more than they bring, and with
    one the result does not depend on how many the machine has.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
