"""Your own sampler, schedule, augmentation and callback, each in a few lines.

    python examples/own_parts.py

Needs scikit-learn, which brings the digits; in a clone: pip install -c constraints.txt '.[data]'.
"""

import torch

import undrift as ud


class LargestFirst(ud.Sampler):
    """Chooses the K available clients with the most samples."""

    participation = "fixed"

    def __init__(self, K):
        self.K = K

    def draw(self, roster, seed, round, among=None):
        """Return the cohort of a round: ids with how often each was drawn."""
        sizes = roster.sizes.numpy().copy()
        if among is not None:
            sizes[~among] = 0
        largest = [k for k in (-sizes).argsort()[: self.K] if sizes[k] > 0]
        return {roster.ids[k]: 1 for k in sorted(largest)}


class Brightness(ud.data.Augmentation):
    """Makes training images brighter or darker, anew in every epoch."""

    def draw(self, samples, rng):
        """Return the factors of a batch; rng depends on seed, round and client."""
        return torch.from_numpy(rng.uniform(0.7, 1.3, samples))

    def apply(self, x, drawn):
        """Return the changed images."""
        return x * drawn.to(x).reshape(-1, *[1] * (x.ndim - 1))


class Patience:
    """Keeps the best model, and ends a run that has not improved for some evaluations."""

    def __init__(self, metric, evaluations):
        self.metric, self.left, self.most = metric, evaluations, evaluations
        self.best, self.model = float("-inf"), None

    def __call__(self, run, record):
        """Look at a round; True ends the run."""
        if self.metric not in record.metrics:
            return False
        value = record.metrics[self.metric]
        self.left = self.most if value > self.best else self.left - 1
        if value > self.best:
            self.best, self.model = value, run.model()
        return self.left == 0


def main(rounds=60, evaluations=3):
    """Train until the test accuracy rests, and return the result and the callback."""
    patience = Patience("test_accuracy", evaluations)
    result = ud.train(
        ud.FedAvg(),
        model=ud.models.mlp(64, 32, classes=10),
        data=ud.data.digits(partition="dirichlet:0.5", clients=12).augmented(Brightness()),
        local=ud.SGD(lr=lambda round: 0.2 * 0.5 ** (round // 20), batch_size=16),
        rounds=rounds,
        cohort=LargestFirst(6),
        evaluate=ud.Evaluation(every=2),
        callbacks=[patience],
    )
    print(f"best {patience.best:.3f}, ended after round {result.records[-1].round}")
    return result, patience


if __name__ == "__main__":
    main()
