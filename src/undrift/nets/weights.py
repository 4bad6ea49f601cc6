"""Writing and reading a module's weights as safetensors files.

Run folders keep final models in this form, and `weights=` of `ud.train` reads initial ones.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from undrift.utils.errors import UndriftError, require
from undrift.utils.files import written_whole


def save_weights(module: nn.Module, path: Path) -> None:
    """Write a module's parameters and buffers; tied tensors are written once."""
    values: dict[str, Tensor] = {}
    written: set[int] = set()
    for name, value in module.state_dict().items():
        if value.numel() == 0 or value.data_ptr() not in written:
            values[name] = value.contiguous()
            written.add(value.data_ptr())
    with written_whole(path) as partial:
        save_file(values, partial)


def load_weights(module: nn.Module, path: Path) -> None:
    """Read a module's parameters and buffers from a file that `save_weights` wrote."""
    require(path.is_file(), f"There is no file of initial weights at {path}.")
    try:
        found = load_file(path)
    except SafetensorError as error:
        raise UndriftError(f"{path} is not a safetensors file: {error}.") from None
    wanted = module.state_dict()
    places = {value.data_ptr() for name, value in wanted.items() if name in found}
    for name, value in wanted.items():
        if name not in found:
            require(value.data_ptr() in places, f"{path} has no weights for {name!r}.")
            continue  # it is tied to a tensor that the file has
        require(
            found[name].shape == value.shape,
            f"{path} has {name!r} of shape {list(found[name].shape)}, but the model's is "
            f"{list(value.shape)}.",
        )
    module.load_state_dict({n: found[n] for n in wanted if n in found}, strict=False)
