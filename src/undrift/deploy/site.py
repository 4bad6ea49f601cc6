"""A site: it holds its own data, trains and evaluates on them, and answers the server's requests.

The transport hands each request to `Site.answer` and sends back the bytes that it returns.
`undrift.deploy.policy` decides which requests are carried out.
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
from undrift.compression.wire import UploadCoder
from undrift.core.clients import ClientStates, Roster
from undrift.core.messages import LAST, PERSONAL, Assignment, Reply
from undrift.core.method import INITIAL
from undrift.core.problem import Keep, Work
from undrift.deploy.agreement import facts, first_difference
from undrift.deploy.downloads.memory import DownloadMemory, LacksVector
from undrift.deploy.orders import (
    DESCRIBE,
    EVALUATE,
    IDENTIFY,
    SECURE,
    STATISTICS,
    WORK,
    EvaluationOrder,
    RunTerms,
    WorkOrder,
    parse_evaluation_order,
    parse_work_order,
    split,
)
from undrift.deploy.policy.agreed_run import AgreedRun
from undrift.deploy.policy.audit import (
    DONE,
    FAILED,
    REFUSED,
    AuditLog,
    described,
    in_words,
    logged_request,
)
from undrift.deploy.policy.gate import Approve, Gate
from undrift.deploy.policy.ledger import Ledger
from undrift.deploy.policy.limits import LIMITS_FILE, Limits, secret_key
from undrift.deploy.policy.time_limit import TookTooLong, time_limit
from undrift.deploy.protocol import (
    LACKS,
    MAX_REQUEST_BYTES,
    encode_work_answer,
    sent_tensors,
)
from undrift.deploy.secure.messages import StageOrder, parse_stage_order
from undrift.deploy.secure.site_rounds import SecureRounds, SiteIdentity
from undrift.deploy.site_data.agreed import NOTHING_AGREED, wanted
from undrift.deploy.site_data.answering import SiteStatistics
from undrift.deploy.site_data.own_models import OwnModels
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

    A site never executes code that the server sends. It does only the work and the evaluations of
    its own copy of the experiment, each once, within its own limits, and logs every request.

    Parameters
    ----------
    experiment
        the site's copy of the experiment
    name
        which of the experiment's sites this is
    state
        the folder for the states of its client, its ledger and its audit log
    limits
        the site's own limits; None for the defaults
    approve
        asks a person before the first order of a run; None to ask nobody
    identity
        the site's own key and the other sites' public keys, for secure aggregation; None if it has
        no certificates
    """

    masks_uploads = True
    """whether uploads are masked if the experiment asks for it; a dry run shows them without"""

    def __init__(
        self,
        experiment: Experiment,
        name: str,
        state: Path,
        limits: Limits | None = None,
        approve: Approve | None = None,
        identity: SiteIdentity | None = None,
    ):
        sites = experiment.data.parameters.get("sites", [])
        require_choice("The site", name, sites)
        self.name = name
        self.experiment = experiment
        self.limits = Limits() if limits is None else limits
        for label in self.limits.methods or []:
            require_choice(f"One of methods in {LIMITS_FILE}", label, experiment.labels)
        data = build_data(experiment.with_settings({"data.sites": [name]}), encode=False)
        self.data = data
        """the site's data; tables have inputs once the sites have agreed on their encoding"""
        self._agreed = NOTHING_AGREED
        self._agreed_run: str | None = None
        """the run whose agreement `data` follow"""
        self.state_files = StateFiles(state)
        # Two sites of one machine may share a state folder, but neither a ledger nor a log.
        self.audit = AuditLog(state / name)
        self.doing: str | None = None
        """the order that is being carried out, in words; None between orders"""
        self._accepted = False
        """whether the request that is being answered is an accepted order"""
        self._secret = self.limits.secret_bytes()
        self._ledger = Ledger(state / name)
        self._own_models = OwnModels(state / name)
        self._downloads = DownloadMemory()
        needed = wanted(experiment)
        self._statistics = SiteStatistics(name, needed, data, state / name, self.limits, approve)
        samples = len(self.data.train)
        self._gate = Gate(experiment, name, samples, self.limits, self._ledger, approve)
        self._secure: SecureRounds | None = None
        settings = experiment.secure_aggregation()
        if settings is not None and identity is not None:
            self._secure = SecureRounds(name, settings, identity, self._ledger)
        self._losses: dict[int, ModuleLosses] = {}
        self._engines: dict[str, SimulationEngine] = {}
        self._seconds_per_step: dict[str, float] = {}
        """by method, as measured in its last order"""

    def answer(self, request: bytes) -> bytes:
        """The answer to a request; one that cannot be met is answered with an error sentence."""
        asked: dict[str, Any] = {"kind": "invalid"}
        try:
            values, tensors = decode(request, MAX_REQUEST_BYTES)
            asked = logged_request(values)
            self.doing = in_words(asked)
            return self._answer(values, tensors, asked)
        except InvalidMessage as error:
            self.audit.request(REFUSED, {**asked, "reason": str(error)})
            more = {LACKS: True} if isinstance(error, LacksVector) else {}
            return encode({"error": str(error)[:1000], **more}, {})
        except TookTooLong:
            reason = f"it took longer than {self.limits.max_seconds:g} s, its limit max_seconds"
            self._log_failure({**asked, "reason": reason})
            return encode({"error": f"The site {self.name!r} ended the work: {reason}."}, {})
        except Exception as error:  # in the user's model or data, or caused by it in an engine
            # The type only: the message may quote data, which must not leave the site.
            kind = type(error.__cause__ or error).__name__
            if self._log_failure({**asked, "reason": kind}):
                traceback.print_exc()
            return encode({"error": f"The site {self.name!r} failed with {kind}; see its log."}, {})
        finally:
            self.doing = None
            self._accepted = False

    def log_refusal(self, sentence: str) -> bool:
        """Log a request that was refused before it was read; False if there is a flood of them."""
        return self.audit.request(REFUSED, {"kind": "unverified", "reason": sentence})

    def _log_failure(self, what: Mapping[str, Any]) -> bool:
        """Log an order that failed; False if it was not accepted and there is a flood of them."""
        if not self._accepted:
            return self.audit.request(FAILED, what)
        self.audit.order(FAILED, what)
        return True

    def _answer(
        self, values: Mapping[str, Any], tensors: Mapping[str, Tensor], asked: Mapping[str, Any]
    ) -> bytes:
        kind = values.get("kind")
        if kind == WORK:
            return self._work(parse_work_order(values, tensors))
        if kind == EVALUATE:
            return self._evaluate(parse_evaluation_order(values, tensors))
        if kind == STATISTICS:
            return self._give_statistics(values, asked)
        if kind == SECURE:
            answer = self._stage(parse_stage_order(values, tensors))
        elif kind == IDENTIFY:
            answer = encode({"site": self.name}, {})
        elif kind == DESCRIBE:
            answer = self._describe(values)
        else:
            raise InvalidMessage(
                f"The site {self.name!r} does not know requests of kind {str(kind)[:40]!r}."
            )
        self.audit.request(DONE, {**asked, "bytes": len(answer)})
        return answer

    def _stage(self, order: StageOrder) -> bytes:
        """Take a stage of secure aggregation."""
        run = self._admit_run(order.terms)
        return encode(self._secure_rounds().answer(order, run), {})

    def _secure_rounds(self) -> SecureRounds:
        """The site's part in secure aggregation; refused if the site takes no part in it."""
        if self._secure is None:
            lacking = "its own experiment does not ask for it"
            if self.experiment.secure_aggregation() is not None:
                lacking = "it was started without --certs, and needs keys"
            raise InvalidMessage(
                f"The site {self.name!r} takes no part in secure aggregation: {lacking}."
            )
        return self._secure

    def _masking(self, order: WorkOrder) -> SecureRounds | None:
        """What masks the upload of an order; None if uploads are sent as they are."""
        if self.experiment.secure_aggregation() is not None and self.masks_uploads:
            return self._secure_rounds()
        _require(
            order.sealed is None,
            f"The site {self.name!r} has an experiment without secure aggregation.",
        )
        return None

    def _describe(self, values: Mapping[str, Any]) -> bytes:
        """The site's numbers of samples and its model; fails if the experiments differ."""
        self._require_same_experiment(values)
        if values.get("agreed") is not None:
            self._statistics.accept(values.get("run"), values["agreed"])
            self._use_agreement(str(values["run"]))
        losses = self.losses_of(self.experiment.seeds[0])
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

    def _give_statistics(self, values: Mapping[str, Any], asked: Mapping[str, Any]) -> bytes:
        """Sums and counts of the training samples, by which sites agree before a run."""
        self._require_same_experiment(values)
        found = self._statistics.answer(values.get("run"), values.get("question"))
        answer = encode({"site": self.name, "statistics": found}, {})
        # Like an order it always has its line in the log: it tells something about the data.
        sent = {"stage": values["question"]["stage"], "fields": sorted(found), "bytes": len(answer)}
        self.audit.order(DONE, {**asked, "sent": sent})
        return answer

    def _require_same_experiment(self, values: Mapping[str, Any]) -> None:
        difference = first_difference(facts(self.experiment), values.get("experiment"))
        _require(
            difference is None, f"The site {self.name!r} has another experiment: {difference}."
        )

    def _use_agreement(self, run: str) -> None:
        """Encode the site's data as the sites of a run agreed."""
        if self._agreed_run != run:
            self.data, self._agreed = self._statistics.of_run(run)
            self._agreed_run = run
            self._losses, self._engines = {}, {}

    # Training

    def _work(self, order: WorkOrder) -> bytes:
        """Do a client's work, write its new state to disk, and return the answer."""
        run = self._admit_run(order.terms)
        client, work = run.work(order, self.limits.max_attempts)
        losses = self.losses_of(run.seed)
        order = self._downloads.with_vectors(order, run.down, run.seed, losses.initial())
        run.check_download(order, losses.initial(), losses.initial_buffers())
        states = self._states(run, order, losses)
        self._require_in_time(order, work)
        secure = self._masking(order)
        if secure is not None:
            secure.require_ready(order, run)
        admitted = self._gate.admit_work(order, run, client, work, states.get(self.name))
        self._accepted = True
        if self._secret is not None:
            work = replace(work, key=secret_key(self._secret, order.terms.key, work.key))
        assignment = Assignment(client, work, order.download, order.buffers)
        began = time.perf_counter()
        with time_limit(self.limits.max_seconds), one_thread():
            if admitted.steps is not None:
                # The same answer as before, however fast the site is now.
                assignment = _with_steps(assignment, admitted.steps)
            elif run.budget is not None:
                assignment = self._within(run.budget, run, order, assignment, states)
            # Diagnostics have the norm of a single upload, which masks are to hide.
            diagnosed = run.diagnosed(order) and secure is None
            reply = self._reply(run, order, assignment, states, diagnosed)
        seconds = time.perf_counter() - began
        self._seconds_per_step[order.terms.label] = seconds / max(1, reply.steps)
        if run.budget is not None and admitted.steps is None:
            steps = assignment.work.steps
            self._ledger.add_steps(order.terms, order.turn, admitted.digest, steps)
        masked = None
        if secure is not None and reply.wrong is None:
            masked = secure.masked(order, run, client, reply)
        if reply.wrong is None and states.kinds:
            self._keep(order, states, reply, admitted.repeated)
        answer = encode_work_answer(order, reply, work, run.coder, masked)
        self._log_work(order, reply, work, run.coder, seconds, len(answer))
        return answer

    def _require_in_time(self, order: WorkOrder, work: Work) -> None:
        """Refuse work that would take too long at the speed of the last order."""
        known = self._seconds_per_step.get(order.terms.label, 0.0)
        _require(
            known * work.steps <= self.limits.max_seconds,
            f"The site {self.name!r} would need {known * work.steps:.0f} s for {work.steps} steps, "
            f"more than its limit max_seconds, {self.limits.max_seconds:g} s.",
        )

    def _within(
        self,
        budget: float,
        run: AgreedRun,
        order: WorkOrder,
        assignment: Assignment,
        states: ClientStates,
    ) -> Assignment:
        """The assignment with as many steps as fit into `budget` seconds, at least one.

        Before a method's first order it takes one step, without keeping it, to measure the speed.
        """
        if order.terms.label not in self._seconds_per_step:
            began = time.perf_counter()
            self._reply(run, order, _with_steps(assignment, 1), states, diagnose=False)
            self._seconds_per_step[order.terms.label] = time.perf_counter() - began
        fitting = int(COMPUTING_SHARE * budget / self._seconds_per_step[order.terms.label])
        least = max(1, self._gate.smallest_steps(run))
        return _with_steps(assignment, min(assignment.work.steps, max(least, fitting)))

    def _reply(
        self,
        run: AgreedRun,
        order: WorkOrder,
        assignment: Assignment,
        states: ClientStates,
        diagnose: bool,
    ) -> Reply:
        engine = self._engine(run, order.terms)
        (reply,) = engine.replies(run.method, [assignment], states, diagnose)
        return reply

    def _states(
        self, run: AgreedRun, order: WorkOrder | EvaluationOrder, losses: ModuleLosses
    ) -> ClientStates:
        """The client's state of an order: the one that the server accepted last."""
        kinds: dict[str, str | Tensor] = {**run.method.kept(), **run.job.uploads.init()}
        kinds |= dict(run.job.local.keeps)
        kinds |= {LAST: INITIAL} if run.tracked.last else {}
        personal = losses.initial_personal()
        kinds |= {} if personal is None else {PERSONAL: personal}
        states = ClientStates(kinds, losses.initial())
        if kinds and order.base:
            key = order.terms.key
            _require(
                self.state_files.has(key, self.name, order.base),
                f"The site {self.name!r} has lost version {order.base} of its state.",
            )
            states.put(self.name, Keep(**self.state_files.load(key, self.name, order.base)))
        return states

    def _keep(self, order: WorkOrder, states: ClientStates, reply: Reply, repeated: bool) -> None:
        """Write the client's new state to disk.

        Before the answer leaves: a version that the server accepts must survive a crash here.
        """
        if repeated and self.state_files.has(order.terms.key, self.name, order.version):
            return
        states.put(self.name, reply.keep)
        self.state_files.put(
            order.terms.key,
            self.name,
            order.version,
            order.base,
            dict(states.get(self.name).items()),
            oldest=order.committed,
            keep_newer=repeated,
        )

    def _log_work(
        self,
        order: WorkOrder,
        reply: Reply,
        work: Work,
        coder: UploadCoder | None,
        seconds: float,
        size: int,
    ) -> None:
        numbers, _ = split(reply.upload)
        sent = {} if reply.wrong is not None else described(_logged_tensors(reply, work, coder))
        self.audit.order(
            DONE,
            {
                **logged_request({"kind": WORK, **order.terms.values(), "round": order.round}),
                "turn": order.turn,
                "computed": {
                    "steps": reply.steps,
                    "gradients": reply.evaluations,
                    "seconds": round(seconds, 3),
                },
                "sent": {"tensors": sent, "numbers": numbers, "bytes": size},
                "masked": order.sealed is not None,
                "wrong": reply.wrong,
            },
        )

    # Evaluation

    def _evaluate(self, order: EvaluationOrder) -> bytes:
        """Metrics of a model of the experiment on the site's own data."""
        run = self._admit_run(order.terms)
        losses = self.losses_of(run.seed)
        run.check_evaluation(order, losses.initial(), losses.initial_buffers())
        self._gate.admit_evaluation(order)
        self._accepted = True
        began = time.perf_counter()
        with time_limit(self.limits.max_seconds):
            state = self._states(run, order, losses).get(self.name)
            x = self._own_models.measured(order, run, losses, state)
            metrics = losses.evaluate_own(0, x, order.buffers, run.evaluation.parts)
        seconds = time.perf_counter() - began
        # A metric may be undefined on a site's samples, as the AUC of a single class is.
        sent = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        answer = encode({"site": self.name, "metrics": sent}, {})
        self.audit.order(
            DONE,
            {
                **logged_request({"kind": EVALUATE, **order.terms.values(), "round": order.round}),
                "model": order.model,
                "computed": {"parts": list(run.evaluation.parts), "seconds": round(seconds, 3)},
                "sent": {"metrics": sent, "bytes": len(answer)},
            },
        )
        return answer

    # What requests need

    def _admit_run(self, terms: RunTerms) -> AgreedRun:
        """The run of an order, as agreed; a new run is logged with the site's place in it."""
        new = terms.run not in self._ledger.runs
        run = self._gate.admit_run(terms)
        self._use_agreement(terms.run)
        if new:
            place = run.roster.position[self.name]
            self.audit.order(
                DONE,
                {
                    "kind": "run",
                    "run": terms.run,
                    "samples": {"own": len(self.data.train), "roster": terms.roster[self.name][0]},
                    "weight": {
                        "by_samples": float(run.roster.derived[place]),
                        "roster": terms.roster[self.name][1],
                    },
                },
            )
        return run

    def _engine(self, run: AgreedRun, terms: RunTerms) -> SimulationEngine:
        if terms.key not in self._engines:
            losses = self.losses_of(terms.seed)
            # The engine has the losses of this site's client only.
            roster = Roster(losses.ids, losses.sizes)
            job = Job(roster, run.job.local, terms.seed, run.tracked, run.job.uploads)
            options = self.experiment.engine.build()
            if options.name in ("ray", "auto", "tuned"):
                options = EngineOptions("serial", precision=options.precision)
            self._engines = {terms.key: options(losses, job)}
        return self._engines[terms.key]

    def losses_of(self, seed: int) -> ModuleLosses:
        """The loss of the site's client, with the initial model of a seed."""
        if seed not in self._losses:
            counts = self._agreed.class_counts
            self._losses = {seed: build_losses(self.experiment, self.data, seed, counts)}
            self._engines = {}
        return self._losses[seed]

    def _parts(self) -> dict[str, Any]:
        parts = {"train": self.data.train, "test": self.data.test}
        parts["validation"] = self.data.validation
        return {name: part for name, part in parts.items() if part is not None and len(part)}


def _with_steps(assignment: Assignment, steps: int) -> Assignment:
    return replace(assignment, work=replace(assignment.work, steps=steps))


def _logged_tensors(reply: Reply, work: Work, coder: UploadCoder | None) -> dict[str, Tensor]:
    """The tensors that were sent, by the names that the audit log has."""
    found = sent_tensors(reply, work, coder)
    return {name.partition(" ")[2]: value for name, value in found.items()}


def _require(condition: bool, sentence: str) -> None:
    """Refuse a request. The server gets the sentence, so it must not quote data."""
    if not condition:
        raise InvalidMessage(sentence)
