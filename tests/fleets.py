"""Clients for the tests of devices, and what those tests ask again and again."""

import re

import numpy as np
import pytest
import torch

from undrift import UndriftError
from undrift.core.clients import Roster


def roster(ids, sizes=None):
    ids = list(range(ids)) if isinstance(ids, int) else ids
    return Roster(ids, torch.tensor([1] * len(ids) if sizes is None else sizes))


MANY = roster(20_000, [1 + (37 * k) % 20_000 for k in range(20_000)])
EVERYONE = np.arange(len(MANY))


def refuses(sentence, make):
    with pytest.raises(UndriftError, match=re.escape(sentence)):
        make()


def agree_for_one_and_all(windows, t, who):
    mask = windows.available(t)
    following = windows.next(t) if hasattr(windows, "next") else windows.next_available(t)
    for k in who:
        assert windows.is_available(k, t) == mask[k]
        assert windows.next_of(k, t) == following[k]
