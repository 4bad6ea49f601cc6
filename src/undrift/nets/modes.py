"""Which parts of a model train: all, but for those that the user left in evaluation mode.

Frozen parameters alone do not keep a BatchNorm from gathering statistics, nor a dropout from
drawing; in PyTorch that is what `part.eval()` says. It holds only beside a whole that is in
training mode: a model that is altogether in evaluation mode was merely used before.
"""

from __future__ import annotations

from torch import nn

RESTS = "_rests_in_training"


def mark_resting(module: nn.Module) -> None:
    """Remember which parts are in evaluation mode; copies know it too."""
    if module.training:
        for part in module.modules():
            if not part.training:
                setattr(part, RESTS, True)


def rests(module: nn.Module) -> bool:
    """Whether a part stays in evaluation mode."""
    return getattr(module, RESTS, False)


def forget_resting(module: nn.Module) -> nn.Module:
    """A model as any other, for its user."""
    for part in module.modules():
        if rests(part):
            delattr(part, RESTS)
    return module


def set_training(module: nn.Module) -> nn.Module:
    """Put a model into training mode, but for the parts that rest."""
    module.train()
    for part in module.modules():
        if rests(part):
            part.training = False
    return module
