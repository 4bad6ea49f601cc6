"""`AgreedRun`: a run as a site derives it from its own copy of the experiment.

It plans a client's work with the same code as the loops of a simulation and of the server, so that
an honest order and the site's own plan agree to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from undrift.compression.wire import coder_of
from undrift.core.clients import Roster
from undrift.core.messages import TrackedModels
from undrift.core.method import Method
from undrift.core.problem import Client, Work
from undrift.core.sampling import All, Cohort, Uniform, as_sampler
from undrift.core.uploads import UploadChain
from undrift.deploy import orders
from undrift.deploy.orders import EvaluationOrder, WorkOrder
from undrift.deploy.wire_format import InvalidMessage, TensorSpec, check_numbers, check_tensors
from undrift.engines.base import Job
from undrift.experiments.experiment import Experiment
from undrift.loops.cohorts import draw_cohort
from undrift.loops.evaluation_schedule import deployed_schedule
from undrift.loops.paces import AsTheyArrive, Deadline
from undrift.loops.planning import WorkPlanner
from undrift.loops.private_rounds import deployed_evaluation
from undrift.loops.spec import pace_of
from undrift.loops.upload_transforms import transforms_of
from undrift.methods.traffic import traffic_of
from undrift.privacy.clipping import CLIP
from undrift.privacy.secure.rounding import with_rounding
from undrift.utils.keys import generator


class AgreedRun:
    """One method with one seed, as the site's own experiment describes it.

    Parameters
    ----------
    experiment, label, seed
        the site's own experiment, and which of its runs this is
    name
        the name of the site
    roster
        the numbers of samples and weights of all sites, fixed for the run
    """

    def __init__(
        self, experiment: Experiment, label: str, seed: int, name: str, roster: orders.Roster
    ):
        self.name = name
        self.seed = seed
        self.rounds = experiment.rounds
        self.privacy = experiment.privacy_settings()
        evaluation = experiment.evaluation_settings()
        self.evaluation = deployed_evaluation(evaluation, self.privacy)
        methods = experiment.methods()
        self.method: Method = methods[label]
        self.pace = pace_of(self.method, experiment.pace_of(label))
        self.roster = WeightedRoster(roster, experiment.objective)
        self.tracked = TrackedModels.of(self.evaluation.models, self.method.own_model)
        local = experiment.local_of(label)
        compression = experiment.compression_settings()
        transforms = transforms_of(
            self.method, local, compression=compression, privacy=self.privacy
        )
        secure = experiment.secure_aggregation()
        if secure is not None and secure.rounds:
            transforms = with_rounding(
                transforms,
                self.method,
                secure.coding(len(self.roster)),
                feedback=compression is None or compression.feedback,
                clipped=self.privacy is not None and self.privacy.clip is not None,
            )
        chain = UploadChain(transforms)
        self.job = Job(self.roster, local, seed, self.tracked, chain)
        self.coder = coder_of(chain, seed)
        """encodes compressed uploads; None if they are sent as they are"""
        self.down = None if compression is None else compression.down
        """the compressor of downloads; None if they are sent as they are"""
        self._planner = WorkPlanner(self.job, experiment.limits())
        by_weight = all(method.draws_by_weight for method in methods.values())
        self.sampler = as_sampler(experiment.cohort(), by_weight)
        clients = self.replies_per_round if self.asynchronous else self.sampler.mean(self.roster)
        self.schedule = deployed_schedule(self.evaluation, self.roster, self.job.local, clients)

    @property
    def asynchronous(self) -> bool:
        """Whether the run folds replies as they arrive."""
        return isinstance(self.pace, AsTheyArrive)

    @property
    def budget(self) -> float | None:
        """The seconds to which the site cuts its work; None if it does all of it."""
        return self.pace.budget if isinstance(self.pace, Deadline) else None

    @property
    def at_once(self) -> int:
        """The number of clients at work at once, in asynchronous training."""
        assert isinstance(self.pace, AsTheyArrive)
        cohort = self.sampler.K if isinstance(self.sampler, Uniform) else None
        return self.pace.at_once(cohort, len(self.roster))

    @property
    def replies_per_round(self) -> int:
        """The number of ended trips that make a round, in asynchronous training."""
        assert isinstance(self.pace, AsTheyArrive)
        return self.at_once if self.pace.replies is None else self.pace.replies

    @property
    def max_orders(self) -> int:
        """The most orders to train that an honest server sends to one site."""
        return self.rounds * (self.replies_per_round if self.asynchronous else 1)

    @property
    def first_settings(self) -> dict[str, float]:
        """What the server sends to the upload transforms in the first round."""
        if self.privacy is None or CLIP not in self.job.uploads.settings():
            return {}
        assert self.privacy.first_clip is not None
        return {CLIP: self.privacy.first_clip}

    def diagnosed(self, order: WorkOrder) -> bool:
        """Whether the upload of an order has what the diagnostics of its round need.

        Private uploads have not.
        """
        if self.privacy is not None:
            return False
        return self.asynchronous or self.evaluated(order.round + 1)

    def evaluated(self, round: int) -> bool:
        """Whether the experiment evaluates the models after a round."""
        return self.schedule.due(round, self.rounds)

    def work(self, order: WorkOrder, max_attempts: int) -> tuple[Client, Work]:
        """The site's client with its work; `InvalidMessage` if the run has no such work.

        `max_attempts` bounds how far the launches of an often restarted server may run ahead.
        """
        _require(
            order.round < self.rounds,
            f"the experiment has {self.rounds} rounds, so there is no round {order.round + 1}",
        )
        if self.asynchronous:
            self._require_launch(order, max_attempts)
            cohort: Cohort = {self.name: 1}
        else:
            _require(order.turn == order.round, "the turn of a synchronous round must be the round")
            cohort = self.cohort(order.round, order.available)
        planned = self._planner.work(self.method, cohort, order.round, order.turn)
        for client, work in planned.items():
            if client.id == self.name:
                return client, work
        raise InvalidMessage(f"In round {order.round + 1} the site {self.name!r} has no work.")

    def _require_launch(self, order: WorkOrder, max_attempts: int) -> None:
        """Refuse a launch number that does not fit the round.

        As many trips have ended as rounds say, and at most `at_once` clients are under way besides
        this one. Each restart of the server may leave as many behind that never end.
        """
        _require(order.available is None, "asynchronous training has no cohorts")
        first = order.round * self.replies_per_round
        behind = self.at_once * (1 + min(order.terms.attempt, max_attempts))
        _require(
            first <= order.turn < first + self.replies_per_round + behind,
            f"the launch {order.turn} does not belong to round {order.round + 1}",
        )

    def cohort(self, round: int, available: tuple[str, ...] | None) -> Cohort:
        """The cohort of a round, drawn here: the server says only which sites are there."""
        mask = None
        if available is not None:
            unknown = [each for each in available if each not in self.roster.position]
            _require(not unknown, "a site that is said to be available is not in the experiment")
            mask = np.array([id in available for id in self.roster.ids])
        first = round == 0 and self.method.starts_with_all
        sampler = All() if first else self.sampler
        if self.privacy is not None and type(sampler) is not All:
            # The server's coins are secret, and the site learns only that it was drawn.
            return {self.name: 1}
        return draw_cohort(sampler, self.roster, self.seed, round, mask)

    def check_download(self, order: WorkOrder, x: Tensor, buffers: Mapping[str, Tensor]) -> None:
        """Refuse a download unless it has exactly what the method sends, in the model's shape."""

        def draw(purpose: str) -> float:
            return generator(self.seed, purpose, order.round).random()

        down = traffic_of(self.method, draw).down
        numbers, vectors = orders.split(order.download)
        wanted = {name for name, is_vector in down.items() if not is_vector}
        check_numbers(numbers, wanted | self.job.uploads.settings())
        check_tensors(vectors, {n: _spec(x) for n, is_vector in down.items() if is_vector})
        check_tensors(order.buffers, {name: _spec(value) for name, value in buffers.items()})

    def check_evaluation(
        self, order: EvaluationOrder, x: Tensor, buffers: Mapping[str, Tensor]
    ) -> None:
        """Refuse to measure a model that the experiment does not measure after this round."""
        _require(
            order.round <= self.rounds and self.evaluated(order.round),
            f"the experiment evaluates nothing after round {order.round}",
        )
        _require(
            order.model in self.evaluation.models,
            f"the experiment does not evaluate the model {order.model[:20]!r}",
        )
        # A model that has diverged is measured as in a simulation, so it need not be finite.
        check_tensors({"x": order.x}, {"x": _spec(x)}, finite=False)
        expected = {name: _spec(value) for name, value in buffers.items()}
        check_tensors(order.buffers, expected, finite=False)


class WeightedRoster(Roster):
    """All sites with the numbers of samples and the weights that the server announced."""

    def __init__(self, rows: orders.Roster, objective: str):
        sizes = torch.tensor([row[0] for row in rows.values()], dtype=torch.float64)
        super().__init__(list(rows), sizes, objective)
        announced = torch.tensor([rows[str(id)][1] for id in self.ids], dtype=torch.float64)
        self.derived = self.weights
        """the weights that follow from the numbers of samples"""
        self.weights = announced
        self.equal = bool((announced == announced[0]).all())
        self._numbers = self.sizes.numpy(), announced.numpy()


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.dtype, tuple(tensor.shape))


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise InvalidMessage(f"The order is not one of this experiment: {why}.")
