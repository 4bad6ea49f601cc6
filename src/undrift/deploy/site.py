"""A site: it holds its own data, trains and evaluates on them, and answers the server's requests.

The transport hands each request to `Site.answer` and sends back the bytes that it returns.
"""

from __future__ import annotations

import math
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
from undrift.deploy.protocol import (
    DESCRIBE,
    EVALUATE,
    IDENTIFY,
    MAX_REQUEST_BYTES,
    WORK,
    WorkRequest,
    encode_work_answer,
    parse_work_request,
)
from undrift.deploy.state_files import StateFiles
from undrift.deploy.wire_format import InvalidMessage, decode, encode
from undrift.engines.base import Job, SimulationEngine
from undrift.engines.options import EngineOptions
from undrift.experiments.building import build_data, build_losses
from undrift.experiments.experiment import Experiment
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.errors import require_choice
from undrift.utils.threads import one_thread

COMPUTING_SHARE = 0.7
"""The share of a deadline that a site plans to compute for; the rest is for the transport."""


class Site:
    """One site of a deployment.

    A site never executes code that the server sends: the server can only ask for what is in the
    site's own copy of the experiment.

    Parameters
    ----------
    experiment
        the site's copy of the experiment
    name
        which of the experiment's sites this is
    state
        the folder for the states of its client
    """

    def __init__(self, experiment: Experiment, name: str, state: Path):
        sites = experiment.data.parameters.get("sites", [])
        require_choice("The site", name, sites)
        self.name = name
        self.experiment = experiment
        self.data = build_data(experiment.with_settings({"data.sites": [name]}))
        self.state_files = StateFiles(state)
        self._losses: dict[int, ModuleLosses] = {}
        self._engines: dict[tuple[str, int], tuple[Method, SimulationEngine]] = {}
        self._seconds_per_step: float | None = None
        """as measured in the last work request"""

    def answer(self, request: bytes) -> bytes:
        """The answer to a request; one that cannot be met is answered with an error sentence."""
        try:
            values, tensors = decode(request, MAX_REQUEST_BYTES)
            kind = values.get("kind")
            if kind == IDENTIFY:
                return encode({"site": self.name}, {})
            if kind == DESCRIBE:
                return self._describe(values)
            if kind == WORK:
                return self._work(parse_work_request(values, tensors))
            if kind == EVALUATE:
                return self._evaluate(values, tensors)
            raise InvalidMessage(
                f"The site {self.name!r} does not know requests of kind {str(kind)[:40]!r}."
            )
        except InvalidMessage as error:
            return encode({"error": str(error)[:1000]}, {})
        except Exception as error:  # in the user's model or data, or caused by it in an engine
            traceback.print_exc()
            # The type only: the message may quote data, which must not leave the site.
            kind = type(error.__cause__ or error).__name__
            return encode({"error": f"The site {self.name!r} failed with {kind}; see its log."}, {})

    def _describe(self, values: Mapping[str, Any]) -> bytes:
        """The site's numbers of samples and its model; fails if the experiments differ."""
        difference = first_difference(facts(self.experiment), values.get("experiment"))
        _require(
            difference is None, f"The site {self.name!r} has another experiment: {difference}."
        )
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

    def _work(self, request: WorkRequest) -> bytes:
        """Do a client's work, write its new state to disk, and return the answer."""
        _require(
            request.client.id == self.name,
            f"The site {self.name!r} received a request for the client {request.client.id!r}.",
        )
        method, engine = self._engine(request.label, request.seed)
        losses = self._losses_of(request.seed)
        for name, value in request.download.items():
            wrong = isinstance(value, Tensor) and value.shape != losses.flat.x.shape
            _require(not wrong, f"The server's {name!r} does not have the shape of the model here.")
        states = self._states(method, request, losses)
        began = time.perf_counter()
        with one_thread():
            assignment = Assignment(request.client, request.work, request.download, request.buffers)
            if request.budget is not None:
                assignment = self._within(request.budget, method, engine, assignment, states)
            reply = self._reply(method, engine, assignment, states, request.diagnose)
        seconds = time.perf_counter() - began
        self._seconds_per_step = seconds / max(1, reply.steps)
        if reply.wrong is None and states.kinds:
            states.put(self.name, reply.keep)
            kept = dict(states.get(self.name).items())
            # Before the answer leaves: a version that the server accepts must survive a crash here.
            self.state_files.put(
                request.run,
                self.name,
                request.version,
                request.base,
                kept,
                oldest=request.committed,
            )
        return encode_work_answer(request, reply)

    def _within(
        self,
        budget: float,
        method: Method,
        engine: SimulationEngine,
        assignment: Assignment,
        states: ClientStates,
    ) -> Assignment:
        """The assignment with as many steps as fit into `budget` seconds, at least one.

        Before the first work request it takes one step, without keeping it, to measure the speed.
        """
        if self._seconds_per_step is None:
            began = time.perf_counter()
            once = replace(assignment, work=replace(assignment.work, steps=1))
            self._reply(method, engine, once, states, diagnose=False)
            self._seconds_per_step = time.perf_counter() - began
        steps = min(assignment.work.steps, int(COMPUTING_SHARE * budget / self._seconds_per_step))
        return replace(assignment, work=replace(assignment.work, steps=max(1, steps)))

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

    def _states(self, method: Method, request: WorkRequest, losses: ModuleLosses) -> ClientStates:
        """The state that the client starts from: the one that the server accepted last."""
        _, engine = self._engine(request.label, request.seed)
        kinds = method.kept() | engine.job.uploads.init()
        kinds |= {LAST: INITIAL} if self._tracked().last else {}
        states = ClientStates(kinds, losses.initial())
        if kinds and request.base:
            _require(
                self.state_files.has(request.run, self.name, request.base),
                f"The site {self.name!r} has lost version {request.base} of its state.",
            )
            kept = self.state_files.load(request.run, self.name, request.base)
            states.put(self.name, Keep(**kept))
        return states

    def _evaluate(self, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
        """Metrics of a model on the site's own data."""
        losses = self._losses_of(int(values.get("seed", 0)))
        x = tensors.get("x")
        _require(
            x is not None and x.shape == losses.flat.x.shape,
            f"The model to evaluate does not have the shape of the model of site {self.name!r}.",
        )
        assert x is not None
        buffers = {n.removeprefix("buffers "): v for n, v in tensors.items() if n != "x"}
        parts = [part for part in PARTS if part in values.get("parts", ())]
        metrics = losses.evaluate_own(0, x, buffers, parts)
        # A metric may be undefined on a site's samples, as the AUC of a single class is.
        sent = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        return encode({"site": self.name, "metrics": sent}, {})

    def _engine(self, label: str, seed: int) -> tuple[Method, SimulationEngine]:
        if (label, seed) not in self._engines:
            _require(
                label in self.experiment.labels,
                f"The experiment of site {self.name!r} has no method {label[:60]!r}.",
            )
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
    """Refuse a request. The server gets the sentence, so it must not quote data."""
    if not condition:
        raise InvalidMessage(sentence)
