"""Rare classes: a plain loss, class weights from all clients' counts, and the focal loss.

    python examples/imbalanced.py

Reads the CSV files of examples/clinics, with words and missing values; about one patient in ten is
readmitted. Accuracy hides who is found; AUC and balanced accuracy per clinic do not.
"""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import undrift as ud

PATIENTS = Path(__file__).parent / "clinics" / "patients"


def main(rounds=20):
    """Return the balanced accuracy on test samples by loss."""
    data = ud.data.FederatedData.from_folder(
        PATIENTS,
        target="readmitted",
        drop=["patient"],
        categories=["department"],
        dates={"admitted": ["month"]},
        missing="median",
        indicators=True,
        normalise="features",
    ).with_test(0.3, stratified=True)
    weights = data.class_weights().float()

    def weighted(outputs, targets):
        return (weights[targets] * F.cross_entropy(outputs, targets, reduction="none")).mean()

    def focal(outputs, targets):
        each = F.cross_entropy(outputs, targets, weights, reduction="none")
        right = outputs.softmax(1).gather(1, targets[:, None]).squeeze(1)
        return ((1 - right) ** 2 * each).mean()

    found = {}
    for name, loss in {"plain": None, "weighted": weighted, "focal": focal}.items():
        torch.manual_seed(0)
        result = ud.train(
            ud.FedAvg(),
            model=nn.Sequential(nn.Linear(data.encoding.features, 16), nn.ReLU(), nn.Linear(16, 2)),
            data=data,
            local=ud.SGD(lr=0.1, batch_size=20),
            rounds=rounds,
            metrics=["auc", "balanced_accuracy"],
            evaluate=ud.Evaluation(clients=True),
            **({} if loss is None else {"loss": loss}),
        )
        last = result.metrics
        worst = min(result.clients(), key=lambda row: row["test_auc"])
        print(
            f"{name:9} accuracy {last['test_accuracy']:.3f}, balanced "
            f"{last['test_balanced_accuracy']:.3f}, AUC {last['test_auc']:.3f}; worst clinic "
            f"{worst['client']} with AUC {worst['test_auc']:.3f}"
        )
        found[name] = last["test_balanced_accuracy"]
    return found


if __name__ == "__main__":
    main()
