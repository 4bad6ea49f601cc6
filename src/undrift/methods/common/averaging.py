"""The base class of methods whose server adds an average of the clients' moves to its model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from undrift.core.method import Conditions, Method
from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    ServerState,
    Upload,
)
from undrift.core.replies import Replies, Weight, draws, q, q_draws
from undrift.methods.common.schemes import SCHEMES, check_sampling
from undrift.methods.common.server_optimizers import Plain, ServerOptimizer


class Averaging(Method):
    """A method whose server adds an average of the clients' moves to its model.

    A client's move is its model after local work minus the model it received. A server optimiser
    turns the average move into the server's step, so every averaging method composes with momentum
    or Adam on the server. A subclass implements `fold` with `move`.
    """

    uploads: Mapping[str, Weight | tuple[Weight, ...]] = {"moved": q}
    server: ServerOptimizer = Plain()
    why_synchronous = "it averages moves that began at the same model"
    averages_moves = True
    downloads_may_lag = True

    def init(self, x: Tensor) -> ServerState:
        return ServerState(x=x, **self.server.start(x))

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        return LocalProblem(start=down.x)

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        return Upload(moved=result.x - down.x), mine

    def weights_used(self, wanted: Tensor, a_norm: Tensor) -> Tensor | None:
        return wanted * a_norm  # a client that takes more steps counts more

    def move(self, server: ServerState, update: Tensor, replies: Replies) -> dict[str, Tensor]:
        """The server's next x and the next state of its optimiser, from the average move."""
        return self.server.step(server, update, replies.rate)


class UniformAveraging(Averaging):
    """Averaging with the weights (N/K)q_k, which are unbiased under uniform sampling.

    K is the number of draws: a client that is drawn twice counts twice.
    """

    uploads: Mapping[str, Weight | tuple[Weight, ...]] = {"moved": q_draws}

    def check(self, conditions: Conditions) -> None:
        super().check(conditions)
        check_sampling(self.name, SCHEMES["II-delta"], conditions.participation, conditions.equal)

    def average(self, replies: Replies, name: str = "moved") -> Tensor:
        """(N/K) Σ_S q_k·upload_k."""
        average: Tensor = replies.clients / replies.weight(draws) * replies.sum(name, by=q_draws)
        return average
