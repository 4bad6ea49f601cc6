"""What travels between processes: one object, with its tensors beside it.

Ray shares arrays between all processes of a machine without copying them, but not what is inside
torch's own pickles: so tensors travel as arrays. What is sent comes from this program and goes to
workers that it started itself; nothing that anybody else wrote is ever unpacked.
"""

from __future__ import annotations

import io
import pickle
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from ray import cloudpickle
from ray.cloudpickle.cloudpickle import list_registry_pickle_by_value
from torch import Tensor

from undrift.utils.errors import UndriftError, first_line

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
    try:
        with _own_modules_sent():
            packer.dump(value)
    except Exception as error:  # whatever the user's objects say to it
        raise UndriftError(
            f"Something that the workers need cannot be sent to them: {first_line(error)}."
        ) from error
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


@contextmanager
def _own_modules_sent() -> Iterator[None]:
    """Send what comes from the user's own files as it is: workers need not have those files."""
    for name in sys.modules.keys() - _looked_at:
        _looked_at.add(name)
        if not _is_installed(name):
            _own.append(sys.modules[name])
    registered = list_registry_pickle_by_value() if _own else set()
    mine = [module for module in _own if module.__name__ not in registered]
    for module in mine:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in mine:
            cloudpickle.unregister_pickle_by_value(module)


_own: list[ModuleType] = []
_looked_at: set[str] = {"__main__"}
"""Names of modules; the program itself is always sent as it is."""


def _is_installed(name: str) -> bool:
    file = getattr(sys.modules[name], "__file__", None)
    if file is None or name.partition(".")[0] == __name__.partition(".")[0]:
        return True
    return any(Path(file).is_relative_to(place) for place in _PLACES)


_PLACES = {Path(place) for place in sysconfig.get_paths().values()}
_PLACES |= {Path(place) / "lib" for place in (sys.prefix, sys.base_prefix)}


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
