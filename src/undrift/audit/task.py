"""The task that an adapter gets: clients with data, a model, a loss and the local work.

Other Pythons load this file too, so it imports nothing of undrift, and PyTorch only when needed.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Task:
    """A federation on which an implementation runs.

    Client k has `sizes[k]` equal samples (inputs[k], targets[k]). The model is one vector w of P
    numbers, its output is inputs·w by component, and the loss is PyTorch's MSELoss. So every batch
    of a client has the same gradient, whatever the order of the samples, and the batch size decides
    only the number of steps.
    """

    sizes: list[int]
    inputs: list[list[float]]
    targets: list[list[float]]
    start: list[float]
    """the initial model"""
    lr: float
    """the clients' learning rate η"""
    epochs: int = 2
    batch_size: int = 4
    momentum: float = 0.0
    """of the clients' SGD; an adapter that cannot set it raises NotImplementedError"""
    cohort_size: int = 0
    """how many clients take part in every round"""
    parameters: dict[str, Any] = field(default_factory=dict)
    """the parameters of the method, such as {"mu": 0.5}"""

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return len(self.sizes)

    @property
    def batches(self) -> list[int]:
        """The number of batches in an epoch of each client; the last one may be smaller."""
        return [math.ceil(n / self.batch_size) for n in self.sizes]

    @property
    def steps(self) -> list[int]:
        """τ_k, the number of SGD steps of each client in a round."""
        return [self.epochs * batches for batches in self.batches]

    def gradient(self, client: int, w: Any) -> Any:
        """∇f_k(w), for a NumPy array or a tensor w."""
        a, t = (_like(w, each[client]) for each in (self.inputs, self.targets))
        return 2 / len(self.start) * a * (a * w - t)

    def data(self, client: int) -> tuple[Any, Any]:
        """The client's inputs and targets, two tensors [n, P]."""
        import torch

        n = self.sizes[client]
        inputs, targets = (
            torch.tensor([each[client]], dtype=torch.float64).repeat(n, 1)
            for each in (self.inputs, self.targets)
        )
        return inputs, targets

    def loader(self, client: int) -> Any:
        """A DataLoader over the client's samples."""
        from torch.utils.data import DataLoader, TensorDataset

        return DataLoader(TensorDataset(*self.data(client)), batch_size=self.batch_size)

    def model(self) -> Any:
        """The model as a PyTorch module with one parameter, `w`."""
        import torch

        class Scaled(torch.nn.Module):
            def __init__(self, start: list[float]):
                super().__init__()
                self.w = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))

            def forward(self, inputs: Any) -> Any:
                return inputs * self.w

        return Scaled(self.start)

    def loss(self) -> Any:
        """The loss as a PyTorch module."""
        import torch

        return torch.nn.MSELoss()

    def as_dict(self) -> dict[str, Any]:
        """The task as JSON values."""
        return asdict(self)


def _like(w: Any, values: list[float]) -> Any:
    """The values as an array or a tensor, as `w` is."""
    if hasattr(w, "new_tensor"):
        return w.new_tensor(values)
    import numpy as np

    return np.asarray(values)


def as_numbers(model: Any) -> list[float]:
    """The numbers of a model that an adapter gives back: a tensor, an array or a list."""
    if hasattr(model, "detach"):
        model = model.detach().cpu()
    if hasattr(model, "reshape"):
        model = model.reshape(-1).tolist()
    return [float(number) for number in model]
