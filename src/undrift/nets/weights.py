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

MODEL_FILE = "model.safetensors"
"""The trained model in the folder of a run."""


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
    """Read a module's parameters and buffers from a file that `save_weights` wrote.

    The path may also be a run folder with one finished run, or the folder of one run in it.
    """
    path = weights_file(path)
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


def weights_file(path: Path) -> Path:
    """The file itself, or the model file of the only run in a folder."""
    if path.is_file():
        return path
    require(path.is_dir(), f"There is no file of initial weights and no run folder at {path}.")
    patterns = (MODEL_FILE, f"seed-*/{MODEL_FILE}", f"*/seed-*/{MODEL_FILE}")
    found = sorted(file for pattern in patterns for file in path.glob(pattern))
    require(
        bool(found),
        f"{path} has no {MODEL_FILE}: it is not the folder of a finished run.",
    )
    folders = ", ".join(str(file.parent.relative_to(path)) for file in found[:20])
    more = " …" if len(found) > 20 else ""
    require(len(found) == 1, f"{path} has {len(found)} runs: name one of {folders}{more}.")
    return found[0]
