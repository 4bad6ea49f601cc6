"""The base of methods whose server adds an average of the clients' moves to its model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from undrift.core.method import Method
from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    ServerState,
    Upload,
)
from undrift.core.replies import Replies, Weight, q
from undrift.methods.server_optimizers import Plain, ServerOptimizer


class Averaging(Method):
    """A method whose server adds an average of the clients' moves to its model.

    Every such method composes with a server optimiser, which turns the average move into
    the step that is taken.
    """

    uploads: Mapping[str, Weight | tuple[Weight, ...]] = {"moved": q}
    server: ServerOptimizer = Plain()
    why_synchronous = "it averages moves that began at the same model"

    def init(self, x: Tensor) -> ServerState:
        return ServerState(x=x, **self.server.start(x))

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        return LocalProblem(start=down.x)

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        return Upload(moved=result.x - down.x), mine

    def weights_used(self, wanted: Tensor, a_norm: Tensor) -> Tensor | None:
        return wanted * a_norm  # who took more steps counts for more

    def move(self, server: ServerState, update: Tensor, replies: Replies) -> dict[str, Tensor]:
        """The server's next model, and what its optimiser remembers."""
        return self.server.step(server, update, replies.rate)
