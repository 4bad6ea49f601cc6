"""Serializes objects for Ray: the pickled object, with its tensors beside it as NumPy arrays.

Ray shares NumPy arrays between all processes of a machine without copying them, but not the
tensors inside torch's own pickles. Objects travel only from this program to workers that it
started itself, and back: data that someone else wrote is never deserialized.
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

_SENT_AS = {torch.bfloat16: torch.int16}
"""Dtypes that NumPy does not have, with the dtype of equal size that they are sent as."""


@dataclass(frozen=True)
class SerializedObject:
    """An object as bytes, with the arrays of its tensors."""

    body: bytes
    arrays: list[np.ndarray]
    dtypes: list[torch.dtype]


def serialize(value: Any) -> SerializedObject:
    """Serialize an object; a tensor that it holds several times is sent once."""
    buffer = io.BytesIO()
    pickler = _TensorPickler(buffer)
    try:
        with _users_modules_by_value():
            pickler.dump(value)
    except Exception as error:  # any error of the user's objects
        raise UndriftError(
            f"An object that the workers need cannot be sent to them: {first_line(error)}."
        ) from error
    return SerializedObject(buffer.getvalue(), pickler.arrays, pickler.dtypes)


def deserialize(
    serialized: SerializedObject, device: torch.device | str = "cpu", shared: bool = False
) -> Any:
    """The object, with its tensors on a device.

    With `shared`, tensors on the CPU are views of the arrays, which are Ray's shared memory: they
    must not be written to.
    """
    tensors = [
        _tensor(array, dtype, shared).to(device)
        for array, dtype in zip(serialized.arrays, serialized.dtypes, strict=True)
    ]
    return _TensorUnpickler(io.BytesIO(serialized.body), tensors).load()


@contextmanager
def _users_modules_by_value() -> Iterator[None]:
    """Pickle functions and classes of the user's own files by value, not by name.

    Workers on other machines need not have those files.
    """
    for name in sys.modules.keys() - _examined:
        _examined.add(name)
        if not _is_installed(name):
            _users_modules.append(sys.modules[name])
    registered = list_registry_pickle_by_value() if _users_modules else set()
    unregistered = [each for each in _users_modules if each.__name__ not in registered]
    for module in unregistered:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in unregistered:
            cloudpickle.unregister_pickle_by_value(module)


_users_modules: list[ModuleType] = []
"""Imported modules that are not installed packages."""
_examined: set[str] = {"__main__"}
"""Names of modules already sorted; cloudpickle always sends `__main__` by value."""


def _is_installed(name: str) -> bool:
    """Whether a module belongs to Python, to undrift or to an installed package."""
    file = getattr(sys.modules[name], "__file__", None)
    if file is None or name.partition(".")[0] == __name__.partition(".")[0]:
        return True
    return any(Path(file).is_relative_to(folder) for folder in _INSTALL_FOLDERS)


_INSTALL_FOLDERS = {Path(folder) for folder in sysconfig.get_paths().values()}
_INSTALL_FOLDERS |= {Path(folder) / "lib" for folder in (sys.prefix, sys.base_prefix)}


class _TensorPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Replaces every plain tensor by its number in a list of arrays."""

    def __init__(self, file: io.BytesIO):
        super().__init__(file, protocol=5)
        self.arrays: list[np.ndarray] = []
        self.dtypes: list[torch.dtype] = []
        # The tensor is kept with its number: a freed tensor's id could be used by another one.
        self._numbers: dict[int, tuple[int, Tensor]] = {}

    def persistent_id(self, value: Any) -> int | None:
        """The number of a tensor in the list of arrays; None to pickle a value as usual."""
        if type(value) is not Tensor or value.requires_grad or value.layout != torch.strided:
            return None
        if id(value) not in self._numbers:
            plain = value.detach().cpu().contiguous()
            self.arrays.append(plain.view(_SENT_AS.get(plain.dtype, plain.dtype)).numpy())
            self.dtypes.append(plain.dtype)
            self._numbers[id(value)] = len(self.arrays) - 1, value
        return self._numbers[id(value)][0]


class _TensorUnpickler(pickle.Unpickler):
    """Replaces the numbers by tensors again."""

    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor]):
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> Tensor:
        return self._tensors[number]


def _tensor(array: np.ndarray, dtype: torch.dtype, shared: bool) -> Tensor:
    with warnings.catch_warnings():
        # Ray's shared memory is read-only, and `deserialize` tells its callers so.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        found = torch.from_numpy(array if shared else array.copy())
    return found.view(dtype) if found.dtype != dtype else found
