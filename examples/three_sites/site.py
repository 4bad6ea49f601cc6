"""What a site brings: its model and its own data. The same file is on the server and every site."""

import csv
from pathlib import Path

import torch
from torch import Tensor, nn

FILES = Path(__file__).parent.parent / "hospitals"  # at a real site: where its own file is
MEAN = torch.tensor([58.0, 106.0, 128.0, 5.0])  # agreed on beforehand: no site sees the others'
SCALE = torch.tensor([15.0, 25.0, 15.0, 2.0])


def model() -> nn.Module:
    """The model that is trained. The server draws its first weights."""
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


def data(site: str) -> dict[str, tuple[Tensor, Tensor]]:
    """One site's patients; every fourth is for test."""
    with (FILES / f"{site}.csv").open(newline="") as file:
        _, *rows = csv.reader(file)  # the first line has the columns' names
    values = torch.tensor([[float(value) for value in row] for row in rows])
    inputs, targets = (values[:, :-1] - MEAN) / SCALE, values[:, -1].long()
    test = torch.arange(len(rows)) % 4 == 0
    return {"train": (inputs[~test], targets[~test]), "test": (inputs[test], targets[test])}
