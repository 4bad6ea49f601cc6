"""Scaffnew (ProxSkip)."""

import math
from collections.abc import Sequence

from torch import Tensor

from undrift.core.method import INITIAL, NUMBER, ZERO, Draw, Method
from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    ServerState,
    Upload,
)
from undrift.core.replies import Replies, q
from undrift.utils.errors import require_range


class Scaffnew(Method):
    """ProxSkip for federated learning (Mishchenko et al., ICML 2022), for full participation.

    After each step all clients communicate with probability p, so that a round has the same random
    number of steps for everyone, τ ~ Geometric(p). A client corrects its gradients by −h_k, which
    it learns from the average: h_k += (p/η)(x⁺ − x_k). Converges to the optimum.

    Parameters
    ----------
    p
        the probability of communication after a step, above 0 and at most 1; a round has 1/p steps
        on average, whatever the local work says
    """

    keeps = {"h": ZERO, "x": INITIAL, "inverse": NUMBER}  # inverse = p/η, of the last round
    elementwise = True
    uploads = {"moved": q}
    needs_all = True
    needs_steps = True
    draws_steps = True
    paper = "Mishchenko et al., ProxSkip: Local Gradient Steps Provably Accelerate, ICML 2022"
    why_synchronous = "it is defined only with every client in every round"

    def __init__(self, p: float = 0.1):
        require_range("Scaffnew's p", p, above=0, at_most=1)
        self.p = p

    def steps(self, planned: Sequence[int], draw: Draw) -> Sequence[int]:
        u = draw("scaffnew steps")
        tau = 1 if self.p == 1 else 1 + math.floor(math.log1p(-u) / math.log1p(-self.p))
        return [tau] * len(planned)

    def _h(self, down: Download, mine: Keep) -> Tensor:
        return mine.h + (down.x - mine.x) * mine.inverse

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        return LocalProblem(start=down.x, linear=-self._h(down, mine))

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        step = result.rate * result.a_norm / result.steps  # η, or its mean gain with momentum
        keep = Keep(h=self._h(down, mine), x=result.x, inverse=self.p / step)
        return Upload(moved=result.x - down.x), keep

    def settle(self, keep: Keep, error: Upload, result: LocalResult, client: Client) -> Keep:
        return keep.replace(x=keep.x + error.moved)

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        return ServerState(x=server.x + replies.sum("moved", by=q))
