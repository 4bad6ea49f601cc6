"""What a site does: it holds its own data, trains and evaluates on them, and says no more."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

import undrift
from undrift.core.clients import ClientStates, Roster
from undrift.core.messages import LAST, Assignment, Reply, TrackedModels
from undrift.core.method import INITIAL, Method
from undrift.core.problem import Keep
from undrift.core.targets import PARTS
from undrift.deploy.agreement import facts, first_difference
from undrift.deploy.payloads import Refused, decode, encode
from undrift.deploy.protocol import HELLO, LOOK, ORDER, WHO, WORK, Order, answer_to, order_from
from undrift.deploy.shelf import Shelf
from undrift.engines.base import Job, SimulationEngine
from undrift.engines.options import EngineOptions
from undrift.experiments.building import build_data, build_losses
from undrift.experiments.experiment import Experiment
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.errors import require_choice
from undrift.utils.threads import one_thread

MARGIN = 0.7
"""The share of a deadline that a site computes in; the rest is for the way."""


class Site:
    """One site of a deployment.

    Nothing that a server sends is ever run: it can only ask for what is in the site's own copy of
    the experiment.

    Parameters
    ----------
    experiment
        the site's copy of the experiment
    name
        which of the experiment's sites it is
    state
        the folder in which its client's state rests
    """

    def __init__(self, experiment: Experiment, name: str, state: Path):
        sites = experiment.data.parameters.get("sites", [])
        require_choice("The site", name, sites)
        self.name = name
        self.experiment = experiment
        self.data = build_data(experiment.with_settings({"data.sites": [name]}))
        self.shelf = Shelf(state)
        self._losses: dict[int, ModuleLosses] = {}
        self._engines: dict[tuple[str, int], tuple[Method, SimulationEngine]] = {}
        self._pace: float | None = None
        """seconds per step, as measured last"""

    def answer(self, request: bytes) -> bytes:
        """What the site answers to a request; one that cannot be met gets a sentence."""
        try:
            values, tensors = decode(request, ORDER)
            kind = values.get("kind")
            if kind == WHO:
                return encode({"site": self.name}, {})
            if kind == HELLO:
                return self._hello(values)
            if kind == WORK:
                return self._work(order_from(values, tensors))
            if kind == LOOK:
                return self._look(values, tensors)
            raise Refused(f"The site {self.name!r} cannot do {str(kind)[:40]!r}.")
        except Refused as error:
            return encode({"error": str(error)[:1000]}, {})
        except Exception as error:  # of the user's model or data, or what an engine made of it
            traceback.print_exc()
            kind = type(error.__cause__ or error).__name__  # its words may quote data
            return encode({"error": f"The site {self.name!r} failed by {kind}; see its log."}, {})

    def _hello(self, values: Mapping[str, Any]) -> bytes:
        """Who this is and how many samples it has; refuses a server with another experiment."""
        other = first_difference(facts(self.experiment), values.get("experiment"))
        _require(other is None, f"The site {self.name!r} has another experiment: {other}.")
        losses = self._losses_of(self.experiment.seeds[0])
        return encode(
            {
                "site": self.name,
                "undrift": undrift.__version__,
                "samples": {name: len(part) for name, part in self._parts().items()},
                "parameters": losses.dimension,
                "moving": sorted(losses.changing_buffers),
            },
            {},
        )

    def _work(self, order: Order) -> bytes:
        """Train as ordered; the new state is on the disk before the answer leaves."""
        _require(
            order.client.id == self.name,
            f"The site {self.name!r} was asked for the work of {order.client.id!r}.",
        )
        method, engine = self._engine(order.label, order.seed)
        losses = self._losses_of(order.seed)
        for name, value in order.download.items():
            wrong = isinstance(value, Tensor) and value.shape != losses.flat.x.shape
            _require(not wrong, f"The server sent {name!r} for another model.")
        states = self._states(method, order, losses)
        began = time.perf_counter()
        with one_thread():
            assignment = Assignment(order.client, order.work, order.download, order.buffers)
            if order.budget is not None:
                assignment = self._within(order.budget, method, engine, assignment, states)
            reply = self._reply(method, engine, assignment, states, order.diagnose)
        seconds = time.perf_counter() - began
        self._pace = seconds / max(1, reply.steps)
        if reply.wrong is None and states.kinds:
            states.put(self.name, reply.keep)
            kept = dict(states.get(self.name).items())
            about = order.run, self.name, order.version, order.base
            self.shelf.put(*about, kept, oldest=order.committed)
        return answer_to(order, reply, seconds)

    def _within(
        self,
        budget: float,
        method: Method,
        engine: SimulationEngine,
        assignment: Assignment,
        states: ClientStates,
    ) -> Assignment:
        """As many steps as fit into the time; the first time, one step is tried."""
        if self._pace is None:
            began = time.perf_counter()
            once = replace(assignment, work=replace(assignment.work, steps=1))
            self._reply(method, engine, once, states, diagnose=False)
            self._pace = time.perf_counter() - began
        managed = int(MARGIN * budget / self._pace)
        return replace(
            assignment,
            work=replace(assignment.work, steps=max(1, min(assignment.work.steps, managed))),
        )

    def _reply(
        self,
        method: Method,
        engine: SimulationEngine,
        assignment: Assignment,
        states: ClientStates,
        diagnose: bool,
    ) -> Reply:
        (reply,) = engine.replies(method, [assignment], states, diagnose)
        return reply

    def _states(self, method: Method, order: Order, losses: ModuleLosses) -> ClientStates:
        """What the client remembers: the state that the server accepted last."""
        kinds = method.kept() | ({LAST: INITIAL} if self._tracked().last else {})
        states = ClientStates(kinds, losses.initial())
        if kinds and order.base:
            _require(
                self.shelf.has(order.run, self.name, order.base),
                f"The site {self.name!r} does not have version {order.base} of its state any more.",
            )
            states.put(self.name, Keep(**self.shelf.load(order.run, self.name, order.base)))
        return states

    def _look(self, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
        """Metrics of a model on the site's own data, and of how many samples they are."""
        losses = self._losses_of(int(values.get("seed", 0)))
        x = tensors.get("x")
        _require(
            x is not None and x.shape == losses.flat.x.shape,
            f"The site {self.name!r} was asked to evaluate another model.",
        )
        assert x is not None
        buffers = {n.removeprefix("buffers "): v for n, v in tensors.items() if n != "x"}
        parts = [part for part in PARTS if part in values.get("parts", ())]
        metrics = losses.evaluate_own(0, x, buffers, parts)
        return encode({"site": self.name, "metrics": metrics}, {})

    def _engine(self, label: str, seed: int) -> tuple[Method, SimulationEngine]:
        if (label, seed) not in self._engines:
            _require(label in self.experiment.labels, f"There is no method {label[:60]!r} here.")
            method = self.experiment.of(label).build()
            losses = self._losses_of(seed)
            roster = Roster(losses.ids, losses.sizes)
            job = Job(roster, self.experiment.local_of(label), seed, self._tracked())
            options = self.experiment.engine.build()
            options = EngineOptions("serial") if options.name in ("ray", "auto") else options
            self._engines = {(label, seed): (method, options(losses, job))}
        return self._engines[label, seed]

    def _losses_of(self, seed: int) -> ModuleLosses:
        if seed not in self._losses:
            self._losses = {seed: build_losses(self.experiment, self.data, seed)}
        return self._losses[seed]

    def _tracked(self) -> TrackedModels:
        models = self.experiment.evaluation.build().models
        return TrackedModels(cohort="cohort" in models, last="all" in models)

    def _parts(self) -> dict[str, Any]:
        parts = {"train": self.data.train, "test": self.data.test}
        parts["validation"] = self.data.validation
        return {name: part for name, part in parts.items() if part is not None and len(part)}


def _require(condition: bool, sentence: str) -> None:
    """Refuse a request with a sentence that the server may read: it has nothing of the data."""
    if not condition:
        raise Refused(sentence)
