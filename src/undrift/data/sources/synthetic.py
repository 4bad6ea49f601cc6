"""Generated data for logistic regression: FedProx's synthetic(α, β) and FedDyn's four types."""

import numpy as np
import torch

from undrift.data.federated import FederatedData
from undrift.utils.errors import require_choice, require_range, require_whole
from undrift.utils.keys import generator

FEATURES, CLASSES = 60, 10


def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    clients: int = 30,
    seed: int = 0,
    iid: bool = False,
    most: int | None = None,
) -> FederatedData:
    """synthetic(α, β) of Li et al., MLSys 2020: 60 features, 10 classes, a power law of sizes.

    u_k ~ N(0, α), B_k ~ N(0, β);  W_k, b_k ~ N(u_k, 1);  m_k ~ N(B_k, 1);
    x ~ N(m_k, diag(j^−1.2));  y = argmax(W_k x + b_k);  n_k = ⌊lognormal(4, 2)⌋ + 50.
    Nine tenths of each client's samples are training samples, the others test samples. Because W_k
    and b_k have the same mean u_k, this mean shifts a client's scores for all classes equally and
    changes no label; α changes only the models' distance from zero.

    Parameters
    ----------
    alpha
        α, the standard deviation of u_k: how much the clients' models differ
    beta
        β, the standard deviation of B_k: how much the clients' inputs differ
    clients
        number of clients: 30 in FedProx, FedNova and FedDR, 100 in FedAvg-nonIID
    seed
        seed of all random numbers, which are drawn client by client
    iid
        whether all clients share one model and one distribution of inputs (synthetic-iid)
    most
        upper bound on n_k, for quick runs; the papers have none
    """
    require_range("alpha", alpha, at_least=0)
    require_range("beta", beta, at_least=0)
    require_whole("clients", clients, at_least=1)
    require_whole("seed", seed, at_least=0)
    if most is not None:
        require_whole("most", most, at_least=2)
    deviation = np.arange(1, FEATURES + 1) ** -0.6  # the square root of j^−1.2
    shared = generator(seed, "synthetic")
    shared_W = shared.normal(0, 1, (CLASSES, FEATURES))
    shared_b = shared.normal(0, 1, CLASSES)

    train, test = [], []
    for k in range(clients):
        rng = generator(seed, "synthetic", 0, k)
        n = int(rng.lognormal(4, 2)) + 50
        n = n if most is None else min(n, most)
        u, B = rng.normal(0, alpha), rng.normal(0, beta)
        W, b = rng.normal(u, 1, (CLASSES, FEATURES)), rng.normal(u, 1, CLASSES)
        mean = rng.normal(B, 1, FEATURES)
        if iid:
            W, b, mean = shared_W, shared_b, np.zeros(FEATURES)
        x = mean + deviation * rng.normal(0, 1, (n, FEATURES))
        y = np.argmax(x @ W.T + b, axis=1)
        pair = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)
        cut = int(0.9 * n)
        train.append((pair[0][:cut], pair[1][:cut]))
        test.append((pair[0][cut:], pair[1][cut:]))
    name = "synthetic(iid)" if iid else f"synthetic({alpha:g},{beta:g})"
    classes = [str(c) for c in range(CLASSES)]
    return FederatedData.from_clients(train, test, name, classes=classes)


def feddyn_synthetic(
    kind: int = 1,
    clients: int = 20,
    seed: int = 0,
    *,
    samples: float = 200,
    spread: float = 1.0,
) -> FederatedData:
    """FedDyn's synthetic data (App. A.1): 30 features, 5 classes, one kind of heterogeneity.

    W_k, b_k ~ N(μ_k, 1) with μ_k ~ N(0, γ_1);  x ~ N(ν_k, diag(j^−1.2)) with ν_k ~ N(B_k, 1) and
    B_k ~ N(0, γ_2);  y = argmax(W_k x + b_k);  n_k = ⌊lognormal(log 200, γ_3)⌋. Each type varies
    one of models, inputs and sizes; the others are equal for all clients: one pair W, b ~ N(0, 1),
    ν_k = 0, γ_3 = 0. There is no test part, because the paper reports the training loss.

    Parameters
    ----------
    kind
        0: homogeneous clients; 1: models differ; 2: inputs differ; 3: sizes differ
    clients
        number of clients
    seed
        seed of all random numbers, which are drawn client by client
    samples
        median number of samples of a client
    spread
        γ of the chosen type, a standard deviation; the paper does not state it
    """
    require_whole("kind", kind, at_least=0)
    require_choice("kind", str(kind), ("0", "1", "2", "3"))
    require_whole("clients", clients, at_least=1)
    require_whole("seed", seed, at_least=0)
    require_range("samples", samples, at_least=1)
    require_range("spread", spread, at_least=0, at_most=3)
    features, count = 30, 5
    deviation = np.arange(1, features + 1) ** -0.6
    shared = generator(seed, "feddyn-synthetic")
    shared_W, shared_b = shared.normal(0, 1, (count, features)), shared.normal(0, 1, count)
    pairs = []
    for k in range(clients):
        rng = generator(seed, "feddyn-synthetic", 0, k)
        n = int(rng.lognormal(np.log(samples), spread)) if kind == 3 else int(samples)
        mu, B = rng.normal(0, spread), rng.normal(0, spread)
        W, b = rng.normal(mu, 1, (count, features)), rng.normal(mu, 1, count)
        mean = rng.normal(B, 1, features)
        if kind != 1:
            W, b = shared_W, shared_b
        if kind != 2:
            mean = np.zeros(features)
        x = mean + deviation * rng.normal(0, 1, (max(n, 1), features))
        y = np.argmax(x @ W.T + b, axis=1)
        pairs.append((torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)))
    classes = [str(c) for c in range(count)]
    return FederatedData.from_clients(pairs, None, f"feddyn-synthetic({kind})", classes=classes)
