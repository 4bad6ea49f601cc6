"""What travels between processes: one object, with its tensors beside it.

Ray shares arrays between all processes of a machine without copying them, but not what is inside
torch's own pickles: so tensors travel as arrays. What is sent comes from this program and goes to
workers that it started itself; nothing that anybody else wrote is ever unpacked.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from ray import cloudpickle
from torch import Tensor

_WIDE = {torch.bfloat16: torch.int16}
"""Types that numpy does not have, as what they travel."""


@dataclass(frozen=True)
class Parcel:
    """An object, packed."""

    body: bytes
    arrays: list[np.ndarray]
    types: list[torch.dtype]


def pack(value: Any) -> Parcel:
    """Pack an object; a tensor that it holds several times is packed once."""
    room = io.BytesIO()
    packer = _Packer(room)
    packer.dump(value)
    return Parcel(room.getvalue(), packer.arrays, packer.types)


def unpack(parcel: Parcel, device: torch.device | str = "cpu", shared: bool = False) -> Any:
    """The object, with its tensors on a device.

    Those that are `shared` are the very memory of the parcel, which nobody may write to.
    """
    tensors = [
        _tensor(array, dtype, shared).to(device)
        for array, dtype in zip(parcel.arrays, parcel.types, strict=True)
    ]
    return _Unpacker(io.BytesIO(parcel.body), tensors).load()


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO):
        super().__init__(file, protocol=5)
        self.arrays: list[np.ndarray] = []
        self.types: list[torch.dtype] = []
        self._packed: dict[int, tuple[int, Tensor]] = {}

    def persistent_id(self, value: Any) -> int | None:
        """The number of a tensor among those that travel beside the object."""
        if type(value) is not Tensor or value.requires_grad or value.layout != torch.strided:
            return None
        if id(value) not in self._packed:
            plain = value.detach().cpu().contiguous()
            self.arrays.append(plain.view(_WIDE.get(plain.dtype, plain.dtype)).numpy())
            self.types.append(plain.dtype)
            self._packed[id(value)] = len(self.arrays) - 1, value
        return self._packed[id(value)][0]


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor]):
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> Tensor:
        return self._tensors[number]


def _tensor(array: np.ndarray, dtype: torch.dtype, shared: bool) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        found = torch.from_numpy(array if shared else array.copy())
    return found.view(dtype) if found.dtype != dtype else found
