"""The model and the data of a site. The server needs this file too, for the model."""

import csv
from pathlib import Path

import torch
from torch import Tensor, nn

FILES = Path(__file__).parent.parent / "hospitals"  # at a real site: the folder of its own file
MEAN = torch.tensor([58.0, 106.0, 128.0, 5.0])  # agreed in advance: no site sees another's data
SCALE = torch.tensor([15.0, 25.0, 15.0, 2.0])


def model() -> nn.Module:
    """The model to train. The server's initial weights are used everywhere."""
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


def data(site: str) -> dict[str, tuple[Tensor, Tensor]]:
    """The patients of one site; every fourth is a test sample."""
    with (FILES / f"{site}.csv").open(newline="") as file:
        _, *rows = csv.reader(file)  # the first line has the names of the columns
    values = torch.tensor([[float(value) for value in row] for row in rows])
    inputs, targets = (values[:, :-1] - MEAN) / SCALE, values[:, -1].long()
    test = torch.arange(len(rows)) % 4 == 0
    return {"train": (inputs[~test], targets[~test]), "test": (inputs[test], targets[test])}
