"""Peak memory of an evaluation with a metric of one's own on a language model.

    python benchmarks/metric_memory.py [--megabytes 1500]

A bigram model with a vocabulary of 8000 words is evaluated on random text until its logits add up
to the given number of megabytes: first with the loss alone, then with a plain function as a metric,
then with a streaming one. The second column is the growth of the process's peak memory.
"""

import argparse
import resource

import torch
from torch import nn

from undrift.data.federated import FederatedData
from undrift.nets.metrics import Perplexity
from undrift.nets.module_losses import ModuleLosses

WORDS, LENGTH, BYTES = 8000, 32, 4


class Bigrams(nn.Module):
    """Scores `[n, words, length]` for the next word, from the word before."""

    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)

    def forward(self, x):
        return self.out(self.embedding(x)).transpose(1, 2)


def peak_megabytes() -> float:
    """The largest amount of memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def token_accuracy(outputs, targets):
    """The share of next words that are right."""
    return (outputs.argmax(1) == targets).double().mean()


def growth(megabytes: float) -> dict[str, float]:
    """The growth of the peak memory in megabytes by each kind of metric, in this order."""
    samples = int(megabytes * 1e6 / (WORDS * LENGTH * BYTES))
    g = torch.Generator().manual_seed(0)
    text = torch.randint(0, WORDS, (samples, LENGTH + 1), generator=g)
    data = FederatedData.from_clients([(text[:, :-1], text[:, 1:])])
    torch.manual_seed(0)
    model, found, before = Bigrams(), {}, 0.0
    kinds = {
        "loss alone": {},
        "a function": {"token_accuracy": token_accuracy},
        "a streaming metric": {"perplexity": Perplexity()},
    }
    for kind, metrics in kinds.items():
        losses = ModuleLosses(model, data, metrics=metrics)
        losses.evaluate(losses.initial(), losses.weights(), {})
        found[kind] = peak_megabytes() - before
        before = peak_megabytes()
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=1500)
    for kind, grown in growth(parser.parse_args().megabytes).items():
        print(f"{kind:20} {grown:8.0f} MB")
