"""Personal models, and results per client: who gains from the federation, and who does not.

    python examples/personalisation.py

Ten clients have digits of few classes each. A shared model, a shared body with personal heads,
Ditto, and clients that train alone are measured on each client's own test samples (needs
scikit-learn).
"""

from torch import nn

import undrift as ud


class Net(nn.Module):
    """A body that all clients share, and a head that may be personal."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        """The scores of a batch."""
        return self.head(self.body(x))


def main(rounds=20):
    """Return the worst tenth of the clients' accuracies by approach."""
    pooled = ud.data.digits(partition="dirichlet:0.3", clients=10)
    data = ud.data.FederatedData(pooled.train, name="digits").with_test(0.25, by="client")
    local = ud.SGD(lr=0.1, batch_size=16)
    setting = {"model": Net(), "data": data, "local": local, "rounds": rounds}
    shared = ud.Evaluation(clients=True, every=rounds)
    own = ud.Evaluation(clients=True, every=rounds, models=["own"])
    heads = ud.Personal(["head.*"], first_epochs=2)
    results = {
        "FedAvg": ud.train(ud.FedAvg(), evaluate=shared, **setting),
        "FedRep": ud.train(ud.FedAvg(), evaluate=shared, personal=heads, **setting),
        "Ditto": ud.train(ud.Ditto(lam=0.5), evaluate=own, **setting),
        "alone": ud.alone(evaluate=own, **setting),
    }
    found = {}
    for name, result in results.items():
        rows = sorted(result.clients(), key=lambda row: row["test_accuracy"])
        found[name] = rows[0]["test_accuracy"]
        mean = sum(row["test_accuracy"] for row in rows) / len(rows)
        worst = f"client {rows[0]['client']} is worst with {found[name]:.3f}"
        print(f"{name:7} mean accuracy {mean:.3f}; {worst}; {result.bytes_up / 1e6:.2f} MB sent")
    return found


if __name__ == "__main__":
    main()
