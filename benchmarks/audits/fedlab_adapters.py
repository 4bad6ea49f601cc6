"""Adapters for FedLab: its server handlers and serial client trainers, called as they are.

pip install fedlab==1.3.0
undrift audit benchmarks/audits/fedlab_adapters.py --python PYTHON
"""

from fedlab.contrib.algorithm import fedavg as avg
from fedlab.contrib.algorithm import feddyn as dyn
from fedlab.contrib.algorithm import fednova as nova
from fedlab.contrib.algorithm import fedprox as prox
from fedlab.contrib.algorithm import scaffold as scaf


class Data:
    """FedLab asks its data set for the loader of a client."""

    def __init__(self, task):
        self.task = task

    def get_dataloader(self, id, batch_size):
        return self.task.loader(id)


def rounds(task, handler_class, trainer_class, server=None, **local):
    """A federation of FedLab, and the function that runs its rounds."""
    if task.momentum:
        raise NotImplementedError("FedLab's trainers take no momentum")
    handler = handler_class(task.model(), 10**9, task.cohort_size / task.clients)
    handler.num_clients = task.clients
    if server is not None:
        handler.setup_optim(**server)
    trainer = trainer_class(task.model(), task.clients)
    trainer.setup_dataset(Data(task))
    trainer.setup_optim(task.epochs, task.batch_size, task.lr, **local)
    trainer.criterion = task.loss()  # setup_optim sets cross-entropy

    def next_round(cohort):
        trainer.local_process(handler.downlink_package, cohort)
        for upload in trainer.uplink_package:
            handler.load(upload)
        return handler.model_parameters

    return next_round


def fedavg(task):
    """FedAvg."""
    return rounds(task, avg.FedAvgServerHandler, avg.FedAvgSerialClientTrainer)


def fedprox(task):
    """FedProx."""
    mu = task.parameters["mu"]
    return rounds(task, prox.FedProxServerHandler, prox.FedProxSerialClientTrainer, mu=mu)


def scaffold(task):
    """SCAFFOLD, option II."""
    return rounds(task, scaf.ScaffoldServerHandler, scaf.ScaffoldSerialClientTrainer, {"lr": 1.0})


def feddyn(task):
    """FedDyn."""
    alpha = {"alpha": task.parameters["alpha"]}
    return rounds(task, dyn.FedDynServerHandler, dyn.FedDynSerialClientTrainer, alpha, **alpha)


def fednova(task):
    """FedNova with the default option."""
    return rounds(task, nova.FedNovaServerHandler, nova.FedNovaSerialClientTrainer, {})


def fednova_uniform(task):
    """FedNova with the option "uniform"."""
    option = {"option": "uniform"}
    return rounds(task, nova.FedNovaServerHandler, nova.FedNovaSerialClientTrainer, option)


for adapter in (fedavg, fedprox, scaffold, feddyn, fednova, fednova_uniform):
    adapter.library = "fedlab"
    adapter.objective = "clients"  # all clients have the same weight
fedavg.method = "FedAvg"
fedprox.method, fedprox.parameters = "FedProx", {"mu": 0.5}
scaffold.method = "SCAFFOLD"
feddyn.method, feddyn.parameters = "FedDyn", {"alpha": 0.8}
fednova.method = fednova_uniform.method = "FedNova"
