"""Training data with flipped labels, for the attack that poisons data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import replace

import torch

from undrift.core.clients import Roster
from undrift.core.losses import Federation
from undrift.data.federated import FederatedData
from undrift.nets.module_losses import ModuleLosses
from undrift.robust.attacks import Attack, LabelFlip
from undrift.utils.errors import UndriftError, require


def poisoned_losses(
    losses: Callable[[int], Federation], attack: Attack | None
) -> Callable[[int], Federation]:
    """The function that returns the losses of a seed, with the attackers' labels flipped."""
    if not isinstance(attack, LabelFlip):
        return losses

    def changed(seed: int) -> Federation:
        honest = losses(seed)
        if not isinstance(honest, ModuleLosses):
            raise UndriftError("LabelFlip needs a model and data, not an analytic problem.")
        roster = Roster(honest.ids, honest.sizes)
        data = with_flipped_labels(honest.data, attack.attackers(roster, seed))
        module, loss, metrics, personal = honest.constructor_arguments()
        return ModuleLosses(module, data, loss, metrics, None, honest.device, personal, honest.step)

    return changed


def with_flipped_labels(data: FederatedData, clients: Collection[Hashable]) -> FederatedData:
    """The same data, with y ↦ C − 1 − y in the training data of some clients."""
    part = data.train
    require(
        part.lazy is None and isinstance(part.y, torch.Tensor),
        "LabelFlip needs labels in memory, but these data are read when they are needed.",
    )
    labels = part.y
    assert isinstance(labels, torch.Tensor)
    require(
        not labels.is_floating_point() and labels.ndim == 1,
        "LabelFlip needs targets that are classes, one whole number per sample.",
    )
    count = len(data.classes) if data.classes is not None else int(labels.max()) + 1
    require(
        len(part.rows.unique()) == len(part.rows),
        "LabelFlip is not defined where clients share samples: an honest client would get the "
        "wrong labels, too.",
    )
    flipped = labels.clone()
    for place, client in enumerate(data.ids):
        if client in clients:
            rows = part.of(place)
            flipped[rows] = count - 1 - flipped[rows]
    return FederatedData(
        replace(part, y=flipped),
        data.test,
        data.ids,
        data.name,
        validation=data.validation,
        classes=data.classes,
        notes=data.notes,
        augmentations=data.augmentations,
        tabular=data.tabular,
    )
