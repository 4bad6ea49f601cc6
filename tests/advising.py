"""Small federations whose advice is known."""

import torch

import undrift as ud


def labelled(clients, each=12, skewed=False, seed=0):
    """Four classes apart from each other; all at every client, or one class for each client."""
    generator = torch.Generator().manual_seed(seed)
    number = torch.arange(clients * each)
    y = number // each % 4 if skewed else number % 4
    x = 2 * torch.eye(4)[y] + 0.5 * torch.randn(len(y), 4, generator=generator)
    pairs = zip(x.split(each), y.split(each), strict=True)
    return ud.data.FederatedData.from_clients(list(pairs))


def asked(clients=12, skewed=False, **options):
    """The arguments of a small question."""
    usual = {
        "model": ud.models.logistic(4, 4),
        "data": labelled(clients, skewed=skewed),
        "local": ud.SGD(lr=0.1, batch_size=4, epochs=2),
        "rounds": 60,
    }
    return usual | options


def names(advice):
    return [method.name for method in advice.recommended]
