"""The models that only a site has: personal parameters, own models, and fine-tuned ones.

A site measures them on its own data, and keeps the measured ones as files, for use at the site.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from undrift.core.messages import LAST, PERSONAL
from undrift.core.problem import Keep
from undrift.deploy.orders import EvaluationOrder
from undrift.deploy.policy.agreed_run import AgreedRun
from undrift.deploy.state_files import make_folder
from undrift.loops.measuring import OWN_MODELS, tuned
from undrift.nets.module_losses import ModuleLosses
from undrift.nets.weights import save_weights
from undrift.utils.files import slug

FOLDER = "models"
"""The folder of a site's own models, beside its ledger."""


class OwnModels:
    """The own models of a site.

    Parameters
    ----------
    folder
        the site's part of the state folder
    """

    def __init__(self, folder: Path):
        self._folder = folder / FOLDER

    def measured(
        self, order: EvaluationOrder, run: AgreedRun, losses: ModuleLosses, state: Keep
    ) -> Tensor:
        """The model that an order measures: the one it brings, or one that only this site has.

        `state` is the client's state that the order names. A model of the site's own is also
        written to disk, in place of the one that was measured before.
        """
        x = order.x
        kept = run.method.own_model or (LAST if run.tracked.last else None)
        if order.model == "tuned":
            x = tuned(losses, 0, run.evaluation.tune, x, order.buffers, order.round, run.seed)
        elif order.model == "own" and kept is not None:
            x = getattr(state, kept)
        if losses.personal is not None:
            x = torch.cat([x, getattr(state, PERSONAL)])
        if order.model in OWN_MODELS or losses.personal is not None:
            make_folder(self._folder)
            save_weights(losses.module_with(x, order.buffers), self._folder / file_name(order))
        return x


def file_name(order: EvaluationOrder) -> str:
    """The name of the file of an own model, such as FedAvg-seed-0-server.safetensors."""
    return f"{slug(order.terms.label)}-seed-{order.terms.seed}-{order.model}.safetensors"
