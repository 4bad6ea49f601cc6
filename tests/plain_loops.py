"""Federated averaging as a plain PyTorch loop, for tests of models and data of every kind.

It knows undrift only by the batches that clients go through, so that both train on the same ones.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from undrift.core.losses import objective_weights
from undrift.local.solvers import batches
from undrift.utils.keys import hashes, keys

ROUNDS = 2


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def fedavg(
    model,
    clients,
    loss_of,
    optimizer,
    batch_size,
    epochs=1,
    seed=0,
    rounds=ROUNDS,
    drop_last=False,
    states=None,
    mu=0.0,
):
    """The parameters after some rounds in which every client takes part.

    Parameters
    ----------
    clients
        by id, a pair: the number of samples, and a function (rows, round, epoch) → batch
    loss_of
        (model, batch) → the mean loss over the batch
    optimizer
        parameters → a torch optimizer, new for every client and round
    states
        a dictionary, if the optimizers' states are kept from round to round
    mu
        the weight of FedProx' term (μ/2)|x − start|², added to the loss
    """
    model = deepcopy(model).train()
    order = sorted(clients)
    sizes = torch.tensor([clients[id][0] for id in order])
    q = objective_weights(sizes, "samples")
    for round in range(rounds):
        start = parameters_to_vector(trainable(model)).detach().clone()
        mean = torch.zeros_like(start, dtype=torch.float64)
        drawn = keys(seed, "batches", round, hashes(order)).tolist()
        for id, weight, key in zip(order, q.tolist(), drawn, strict=True):
            samples, batch_of = clients[id]
            vector_to_parameters(start.clone(), trainable(model))
            solver = optimizer(trainable(model))
            if states is not None and id in states:
                solver.load_state_dict(states[id])
            stream = batches(samples, batch_size, key)
            steps = -(-samples // batch_size)
            for epoch in range(epochs):
                for _ in range(steps):
                    rows = next(stream)
                    rows = range(samples) if rows is None else rows.tolist()
                    if drop_last and len(rows) < min(batch_size, samples):
                        continue
                    solver.zero_grad()
                    loss = loss_of(model, batch_of(rows, round, epoch))
                    moved = parameters_to_vector(trainable(model)) - start
                    (loss + mu / 2 * moved.square().sum()).backward()
                    solver.step()
            if states is not None:
                states[id] = deepcopy(solver.state_dict())
            mean += weight * parameters_to_vector(trainable(model)).detach().double()
        vector_to_parameters(mean.to(start.dtype), trainable(model))
    return parameters_to_vector(trainable(model)).detach()


def parameters_of(result):
    """The trainable parameters of undrift's final model."""
    return parameters_to_vector(trainable(result.model())).detach()
