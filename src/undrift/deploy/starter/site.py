"""The model and the data of a site. The server needs this file too, for the model."""

from zlib import crc32

import torch
from torch import Tensor, nn

FEATURES, CLASSES = 20, 10


def model() -> nn.Module:
    """The model to train: any nn.Module. The server's initial weights are used everywhere."""
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def data(site: str) -> dict[str, tuple[Tensor, Tensor]]:
    """The data of one site, (inputs, targets). Called at that site only; the data stay there.

    Replace it by code that reads your own files, as tensors or numpy arrays:

        table = np.load("/data/patients.npz")
        return {"train": (table["x"], table["y"]), "test": (table["x_test"], table["y_test"])}

    Without test data, return inputs, targets. The code below generates data from the site's name:
    the sites differ in size, in the frequency of classes, and in the mean of their inputs.
    """
    shared, own = torch.Generator().manual_seed(0), torch.Generator()
    own.manual_seed(crc32(site.encode()))
    centres = torch.randn(CLASSES, FEATURES, generator=shared)  # the same at all sites

    samples = int(torch.randint(300, 900, (), generator=own))
    often = torch.rand(CLASSES, generator=own) ** 3 + 0.01
    targets = torch.multinomial(often, samples, replacement=True, generator=own)
    offset = 0.5 * torch.randn(FEATURES, generator=own)
    inputs = centres[targets] + offset + torch.randn(samples, FEATURES, generator=own)

    test = samples // 5
    return {"train": (inputs[test:], targets[test:]), "test": (inputs[:test], targets[:test])}
