"""Fine-tuning the head of a model whose body is frozen: what is frozen does not travel.

    python examples/fine_tuning.py

A small network has learned the digits 0 to 4. Clients hold the digits 5 to 9, and train nothing but
a new head. Needs scikit-learn, which brings the digits; in a clone:
pip install -c constraints.txt '.[data]'.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import undrift as ud


def digits() -> tuple[Tensor, Tensor]:
    """Images of 8 × 8 pixels, and what they show."""
    found = load_digits()
    return torch.tensor(found.images[:, None] / 16).float(), torch.tensor(found.target)


class Model(nn.Module):
    """A body that turns images into features, and a head that names them."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(16 * 9, 64), nn.ReLU()),
        )
        self.head = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of five classes."""
        return self.head(self.body(x))


def pretrained(steps: int) -> Model:
    """A model that knows 0 to 4, by plain PyTorch."""
    torch.manual_seed(0)
    model, (x, y) = Model(), digits()
    x, y = x[y < 5], y[y < 5]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        batch = torch.randint(len(y), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    return model


def main(rounds: int = 40, steps: int = 200) -> dict[str, ud.Result]:
    """Train the head alone, and everything, and compare what they send."""
    x, y = digits()
    data = ud.data.FederatedData.from_arrays(
        *(x[y >= 5], y[y >= 5] - 5), partition="dirichlet:0.3", clients=10, seed=0
    ).with_test(0.25)
    head = pretrained(steps)
    head.body.requires_grad_(False)  # its parameters neither train nor travel
    head.body.eval()  # and BatchNorm keeps the statistics that it has learned
    local = ud.SGD(lr=0.05, batch_size=20, epochs=2)
    found = {}
    for label, model in {"head": head, "everything": pretrained(steps)}.items():
        result = ud.train(ud.SCAFFOLD(), model=model, data=data, local=local, rounds=rounds)
        print(f"{label}: {result.x.numel():,} parameters travel", result.summary(), sep="\n")
        found[label] = result
    found["head"].save("fine-tuned.safetensors")  # body and head
    return found


if __name__ == "__main__":
    main()
