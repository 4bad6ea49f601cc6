"""The baseline without communication: clients that train alone."""

from collections.abc import Mapping, Sequence

from undrift.core.method import INITIAL, Method
from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    ServerState,
    Upload,
)
from undrift.core.replies import Replies, Weight


class Alone(Method):
    """Every client trains its own model on its own data; nothing travels.

    The server's model stays the initial one. Evaluate the models "own".
    """

    keeps = {"x": INITIAL}
    elementwise = True
    own_model = "x"
    sends: Sequence[str] = ()
    uploads: Mapping[str, Weight | tuple[Weight, ...]] = {}
    converges_to = None
    paper = "the baseline without communication"

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        return LocalProblem(start=mine.x)

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        return Upload(), Keep(x=result.x)

    def settle(self, keep: Keep, error: Upload, result: LocalResult, client: Client) -> Keep:
        return keep  # nothing is sent

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        return server
