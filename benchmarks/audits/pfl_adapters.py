"""Adapters for pfl (pfl-research): its algorithms on a PyTorch model, called as they are.

pip install "pfl[pytorch]==0.6.0"
undrift audit benchmarks/audits/pfl_adapters.py --python PYTHON
"""

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel


def module_of(task):
    """The task's model with the `loss` and `metrics` that pfl asks for."""
    module, loss = task.model().float(), task.loss()
    module.loss = lambda inputs, targets: loss(module(inputs), targets)
    module.metrics = lambda inputs, targets: {}
    return module


def rounds(task, algorithm, params):
    """A federation of pfl, and the function that runs its rounds."""
    module = module_of(task)

    def local_optimizer(parameters, lr=1.0):
        return torch.optim.SGD(parameters, lr=lr, momentum=task.momentum)

    central = torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, local_optimizer, central)
    local = NNTrainHyperParams(
        local_num_epochs=task.epochs,
        local_learning_rate=task.lr,
        local_batch_size=task.batch_size,
    )
    users = [[each.float() for each in task.data(k)] for k in range(task.clients)]
    waiting = []
    data = FederatedDataset(
        lambda k: Dataset(users[k], user_id=str(k)), user_sampler=lambda: waiting.pop(0)
    )
    backend = SimulatedBackend(training_data=data, val_data=data)
    number = 0

    def next_round(cohort):
        nonlocal number, model
        waiting[:] = [*cohort, *cohort]  # it draws users ahead
        (context, *_), model, _ = algorithm.get_next_central_contexts(model, number, params, local)
        number += 1
        found, metrics = backend.gather_results(model, algorithm, central_context=context)
        model, _ = algorithm.process_aggregated_statistics(context, metrics, model, found)
        return module.w

    return next_round


def common(task):
    """What all algorithms of pfl are given."""
    return {
        "central_num_iterations": 10**9,
        "evaluation_frequency": 10**9,
        "train_cohort_size": task.cohort_size,
        "val_cohort_size": None,
    }


def scaffold_params(task, gradient):
    """The settings of SCAFFOLD; `gradient` chooses option I."""
    return SCAFFOLDParams(
        **common(task),
        population=task.clients,
        use_gradient_as_control_variate=gradient,
        user_state_storage=InMemoryUserStateStorage(),
    )


def fedavg(task):
    """FedAvg."""
    return rounds(task, FederatedAveraging(), NNAlgorithmParams(**common(task)))


def fedprox(task):
    """FedProx."""
    return rounds(task, FedProx(), FedProxParams(**common(task), mu=task.parameters["mu"]))


def scaffold(task):
    """SCAFFOLD, option II."""
    return rounds(task, SCAFFOLD(), scaffold_params(task, gradient=False))


def scaffold_gradient(task):
    """SCAFFOLD, option I, with states in memory."""
    return rounds(task, SCAFFOLD(), scaffold_params(task, gradient=True))


for each in (fedavg, fedprox, scaffold, scaffold_gradient):
    each.library = "pfl"
    each.objective = "clients"  # a user's statistics have the weight 1
fedavg.method = "FedAvg"
fedprox.method, fedprox.parameters = "FedProx", {"mu": 0.5}
scaffold.method = "SCAFFOLD"
scaffold_gradient.method, scaffold_gradient.parameters = "SCAFFOLD", {"option": "I"}
