"""Regression over clients of unequal size: squared error, with RMSE and r² beside it.

    python examples/regression.py

Targets that are floating-point numbers are values, so the loss is the mean squared error and nobody
speaks of accuracy. Own metrics are functions of (outputs, targets) over all samples of a part.
"""

import numpy as np
import torch
from torch import Tensor, nn

import undrift as ud


def stations(clients: int = 12, seed: int = 0) -> ud.data.FederatedData:
    """Weather stations: each has its own climate and its own number of days."""
    rng = np.random.default_rng(seed)
    slopes = rng.normal(size=5)
    found = {}
    for number in range(clients):
        days = int(rng.integers(20, 200))
        x = rng.normal(loc=rng.normal(size=5), size=(days, 5))
        y = (
            x @ slopes
            + 0.5 * np.sin(3 * x[:, 0])
            + 0.3 * rng.normal()
            + 0.2 * rng.normal(size=days)
        )
        found[f"station {number}"] = x.astype("float32"), y.astype("float32")[:, None]
    return ud.data.FederatedData.from_clients(found, name="stations").with_test(0.25)


def rmse(outputs: Tensor, targets: Tensor) -> Tensor:
    """The root of the mean squared error, in the unit of the targets."""
    return (outputs - targets).square().mean().sqrt()


def r2(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of the variance that is explained."""
    return 1 - (outputs - targets).square().mean() / targets.var(correction=0)


def main(rounds: int = 60, folder: str = ".") -> ud.Comparison:
    """Compare three methods, and write a report and a picture."""
    torch.manual_seed(0)
    results = ud.compare(
        [ud.FedAvg(), ud.FedNova(), ud.SCAFFOLD()],
        model=nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1)),
        data=stations(),
        local=ud.SGD(lr=0.05, batch_size=20, epochs=2),
        rounds=rounds,
        metrics={"rmse": rmse, "r2": r2},
    )
    print(results.summary())
    results.plot(f"{folder}/regression.png", metrics=["test_rmse", "test_r2"])
    results.report(f"{folder}/regression.html")
    return results


if __name__ == "__main__":
    main()
