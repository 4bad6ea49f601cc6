"""Images from files, read when a batch needs them, with random changes that are new every time.

    python examples/images_from_disk.py

The example draws its own images: circles and squares, a folder per client. Reading them needs
Pillow, which comes with matplotlib.
"""

import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.utils.data import Dataset

import undrift as ud

SIDE = 32


def draw(folder: Path, number: int, seed: int) -> None:
    """Draw circles (0) and squares (1) at random places, in the client's colour."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    colour = tuple(rng.integers(100, 256, 3).tolist())
    for k in range(number):
        image = Image.new("RGB", (SIDE, SIDE))
        x, y = rng.integers(2, 14, 2).tolist()
        shape = ImageDraw.Draw(image)
        (shape.ellipse if k % 2 == 0 else shape.rectangle)((x, y, x + 14, y + 14), colour)
        image.save(folder / f"{k:04d}-{k % 2}.png")


class Shapes(Dataset):
    """The images of a folder; the label is the last digit of a file's name."""

    def __init__(self, folder: Path):
        self.files = sorted(folder.glob("*.png"))
        self.targets = [int(file.stem[-1]) for file in self.files]  # for partitions and inspect

    def __len__(self) -> int:
        """The number of images."""
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        """An image, mirrored and brightened at random: undrift seeds these random numbers."""
        with Image.open(self.files[row]) as file:
            image = torch.from_numpy(np.array(file)).permute(2, 0, 1).float() / 255
        image = image.flip(-1) if random.random() < 0.5 else image
        return image * (0.7 + 0.6 * torch.rand(())), self.targets[row]


def main(rounds: int = 10, images: int = 100, workers: int = 2) -> ud.Result:
    """Draw the images of five clients, and train on them."""
    for k in range(5):
        draw(Path("shapes") / f"client {k}", images, seed=k)
    data = ud.data.FederatedData.from_clients(
        {folder.name: Shapes(folder) for folder in sorted(Path("shapes").iterdir())},
        lazy=ud.data.Lazy(workers=workers, prefetch=2, memory=200),
    ).with_test(0.2)
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 2)),
    )
    local = ud.Adam(lr=0.01, batch_size=16, drop_last=True)
    result = ud.train(ud.FedProx(mu=0.1), model=model, data=data, local=local, rounds=rounds)
    print(result.summary())
    return result


if __name__ == "__main__":
    main()
