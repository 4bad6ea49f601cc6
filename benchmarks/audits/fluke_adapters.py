"""Adapters for fluke: its servers and clients, connected by its channel, called as they are.

pip install fluke-fl==0.8.1
undrift audit benchmarks/audits/fluke_adapters.py --python PYTHON
"""

from fluke.algorithms import feddyn as dyn
from fluke.algorithms import fednova as nova
from fluke.algorithms import fedprox as prox
from fluke.algorithms import scaffold as scaf
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server


def rounds(task, server_class, client_class, server=None, weighted=True, **local):
    """A federation of fluke, and the function that runs its rounds."""
    if task.momentum:
        raise NotImplementedError("fluke's clients keep their momentum between rounds")
    clients = []
    for k in range(task.clients):
        inputs, targets = task.data(k)
        loader = FastDataLoader(
            inputs, targets, num_labels=1, batch_size=task.batch_size, skip_singleton=False
        )
        optimizer = OptimizerConfigurator({"name": "SGD", "lr": task.lr})
        clients.append(
            client_class(k, loader, None, optimizer, task.loss(), task.epochs, clipping=0, **local)
        )
    server = server_class(task.model(), None, clients, weighted=weighted, **(server or {}))
    for client in clients:
        client.set_channel(server.channel)
    if hasattr(server, "_send_weights"):  # FedDyn exchanges sample counts before the first round
        for client in clients:
            client._send_weight()
        server._send_weights(server._receive_weights())
        for client in clients:
            client._receive_weights()
    number = 0

    def next_round(cohort):
        nonlocal number
        number += 1
        eligible = [clients[k] for k in cohort]
        server.broadcast_model(eligible)
        for client in eligible:
            client.local_update(number)
        server.aggregate(eligible, server.receive_client_models(eligible, state_dict=False))
        return getattr(server, "cld_mdl", server.model).w  # FedDyn sends its cloud model

    return next_round


def fedavg(task):
    """FedAvg."""
    return rounds(task, Server, Client)


def fedprox(task):
    """FedProx."""
    return rounds(task, Server, prox.FedProxClient, mu=task.parameters["mu"])


def scaffold(task):
    """SCAFFOLD, option II."""
    return rounds(task, scaf.SCAFFOLDServer, scaf.SCAFFOLDClient, weighted=False)


def scaffold_weighted(task):
    """SCAFFOLD with the default weighted=True."""
    return rounds(task, scaf.SCAFFOLDServer, scaf.SCAFFOLDClient)


def fednova(task):
    """FedNova."""
    return rounds(task, nova.FedNovaServer, nova.FedNovaClient)


def feddyn(task):
    """FedDyn."""
    alpha = task.parameters["alpha"]
    return rounds(
        task, dyn.FedDynServer, dyn.FedDynClient, {"alpha": alpha}, weighted=False, alpha=alpha
    )


fedavg.method, fedavg.parameters = "FedAvg", {"scheme": "renormalised"}
fedprox.method = "FedProx"
fedprox.parameters = {"mu": 0.5, "scheme": "renormalised"}
scaffold.method, scaffold.objective = "SCAFFOLD", "clients"
scaffold_weighted.method = "SCAFFOLD"
fednova.method = "FedNova"
feddyn.method, feddyn.parameters = "FedDyn", {"alpha": 0.8}
for each in (fedavg, fedprox, scaffold, scaffold_weighted, fednova, feddyn):
    each.library = "fluke-fl"
