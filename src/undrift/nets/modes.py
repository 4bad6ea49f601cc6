"""Which parts of a model train: all of them, except those that the user put into evaluation mode.

Freezing parameters does not stop a BatchNorm from updating its statistics, nor a dropout from
dropping; in PyTorch the user says so with `part.eval()`. undrift respects that only while the
model as a whole is in training mode: a model that is entirely in evaluation mode was most likely
just used for predictions before.
"""

from __future__ import annotations

from torch import nn

STAYS_IN_EVAL = "_undrift_stays_in_eval"
"""Attribute that marks a part; `deepcopy` and pickling keep it."""


def mark_eval_parts(module: nn.Module) -> None:
    """Mark the parts that the user put into evaluation mode; copies keep the marks."""
    if module.training:
        for part in module.modules():
            if not part.training:
                setattr(part, STAYS_IN_EVAL, True)


def stays_in_eval(module: nn.Module) -> bool:
    """Whether a part stays in evaluation mode while the model trains."""
    return getattr(module, STAYS_IN_EVAL, False)


def unmark_eval_parts(module: nn.Module) -> nn.Module:
    """Remove the marks and return the module, so that the user gets an ordinary model."""
    for part in module.modules():
        if stays_in_eval(part):
            delattr(part, STAYS_IN_EVAL)
    return module


def set_training(module: nn.Module) -> nn.Module:
    """Put a model into training mode, except the marked parts, and return it."""
    module.train()
    for part in module.modules():
        if stays_in_eval(part):
            part.training = False
    return module
