"""What a site brings: its model and its own data. The same file is on the server and every site."""

from zlib import crc32

import torch
from torch import Tensor, nn

FEATURES, CLASSES = 20, 10


def model() -> nn.Module:
    """The model that is trained: any nn.Module. The server draws its first weights."""
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def data(site: str) -> dict[str, tuple[Tensor, Tensor]]:
    """The data of one site, (inputs, targets); called at that site only, and kept there.

    Put the reading of your own files here, tensors or numpy arrays, such as

        table = np.load("/data/patients.npz")
        return {"train": (table["x"], table["y"]), "test": (table["x_test"], table["y_test"])}

    Without a test part: return inputs, targets. What follows makes data up from the site's name:
    the sites differ in size, in how often they see a class, and in where their inputs lie.
    """
    shared, own = torch.Generator().manual_seed(0), torch.Generator()
    own.manual_seed(crc32(site.encode()))
    centres = torch.randn(CLASSES, FEATURES, generator=shared)  # what all sites have in common

    samples = int(torch.randint(300, 900, (), generator=own))
    often = torch.rand(CLASSES, generator=own) ** 3 + 0.01
    targets = torch.multinomial(often, samples, replacement=True, generator=own)
    offset = 0.5 * torch.randn(FEATURES, generator=own)
    inputs = centres[targets] + offset + torch.randn(samples, FEATURES, generator=own)

    test = samples // 5
    return {"train": (inputs[test:], targets[test:]), "test": (inputs[:test], targets[:test])}
