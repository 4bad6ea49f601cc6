"""Methods over seeds, with a figure for a paper: mean and standard deviation.

    python examples/compare_over_seeds.py

Every seed has its own data, initial weights, cohorts and batches; within a seed all methods see the
same. The figure is as wide as a column or a page of a paper, as PDF with text that stays text.
"""

import torch

import undrift as ud


def data(seed: int) -> ud.data.FederatedData:
    """Thirty clients, whose models and inputs differ."""
    return ud.data.synthetic(alpha=1, beta=1, clients=30, seed=seed, most=200)


def model(seed: int) -> torch.nn.Module:
    """Its weights are drawn, so the seed must say which."""
    torch.manual_seed(seed)
    return ud.models.mlp(60, 20, classes=10)


def main(rounds: int = 60, seeds: int = 5) -> ud.Comparison:
    """Run all, print a table, and draw the figures."""
    results = ud.compare(
        {
            "FedAvg": ud.FedAvg(),
            "FedProx": ud.FedProx(mu=0.1),
            "SCAFFOLD": ud.SCAFFOLD(),
            "FedDyn": ud.FedDyn(alpha=0.3),
        },
        seeds=range(seeds),
        model=model,
        data=data,
        local=ud.SGD(lr=0.05, batch_size=10, epochs=2),
        rounds=rounds,
        cohort=10,
        objective="clients",
    )
    print(results.summary())
    results.plot("accuracy.pdf", metrics=["test_accuracy"], width="column")
    results.plot("both.pdf", metrics=["objective", "test_accuracy"], width="page")
    results.plot("bytes.png", metrics=["test_accuracy"], against="bytes", width="column")
    return results


if __name__ == "__main__":
    main()
