"""FedDR and asyncFedDR."""

import warnings

from torch import Tensor

from undrift.core.method import INITIAL, Conditions, Method
from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    ServerState,
    Upload,
)
from undrift.core.regularizers import Regularizer
from undrift.core.replies import Replies, q
from undrift.theory.step_sizes import async_feddr, check_async_feddr
from undrift.utils.errors import require, require_choice, require_range, require_whole


class FedDR(Method):
    """Randomised Douglas–Rachford splitting (Tran-Dinh et al., NeurIPS 2021).

    Client k ∈ S:  y_k += α(x̄ − x_k);  x_k ≈ prox_{ηf_k}(y_k);  x̂_k = 2x_k − y_k. The server
    keeps x̃ = Σ q_k x̂_k over all clients and sends x̄ = prox_{ηg}(x̃). Converges to the optimum
    of F = Σ q_k f_k + g, with any g that has a prox.

    Parameters
    ----------
    eta
        η of the prox; below 1/L for a loss with L-Lipschitz gradient
    alpha
        α, the relaxation, between 0 and 2
    g
        the regulariser: None, `ud.L1`, `ud.L2` or `ud.Box`
    start
        "lazy": a client computes its first prox when it is first selected; "everyone": the first
        round is with all clients, as the paper initialises (with the offset of x̃ corrected)
    """

    keeps = {"y": INITIAL, "x": INITIAL}
    elementwise = True
    uploads = {"change": q}
    downloads_may_lag = True
    paper = "Tran-Dinh et al., FedDR, NeurIPS 2021"
    asynchronous = True
    why_synchronous = "start='everyone' begins with a round of all clients"

    def __init__(
        self,
        eta: float = 1.0,
        alpha: float = 1.0,
        g: Regularizer | None = None,
        start: str = "lazy",
    ):
        require_range("FedDR's eta", eta, above=0)
        require_range("FedDR's alpha", alpha, above=0, at_most=2)
        require_choice("FedDR's start", start, ("lazy", "everyone"))
        require(
            g is None or isinstance(g, Regularizer),
            f"FedDR's g is {g!r}, but must be None, L1(...), L2(...) or Box(...).",
        )
        self.eta = eta
        self.alpha = alpha
        self.g = g
        self.start = start
        self.starts_with_all = start == "everyone"
        self.asynchronous = not self.starts_with_all

    def _prox(self, x: Tensor) -> Tensor:
        return x if self.g is None else self.g.prox(x, self.eta)

    def init(self, x: Tensor) -> ServerState:
        # Lazy clients have x̂_k = x⁰, so x̃ = Σ q_k x̂_k = x⁰ holds without a round of all clients.
        return ServerState(x=x if self.starts_with_all else self._prox(x), x_tilde=x)

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        y = mine.y + self.alpha * (down.x - mine.x)
        return LocalProblem(start=mine.x, center=y, weight=1 / self.eta)

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        y = mine.y + self.alpha * (down.x - mine.x)
        x = result.x
        change = 2 * (x - mine.x) - (y - mine.y)  # x̂_k⁺ − x̂_k, with x̂ = 2x − y
        return Upload(change=change), Keep(y=y, x=x)

    def settle(self, keep: Keep, error: Upload, result: LocalResult, client: Client) -> Keep:
        return keep.replace(x=keep.x + error.change / 2)  # x̂_k = 2x_k − y_k, as the server has it

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        x_tilde = server.x_tilde + replies.sum("change", by=q)
        return ServerState(x=self._prox(x_tilde), x_tilde=x_tilde)


class AsyncFedDR(FedDR):
    """Asynchronous FedDR: each reply is folded when it arrives (Tran-Dinh et al., NeurIPS 2021).

    A client works with the x̄ it read when it started. Its reply updates the server as in FedDR,
    x̃ += q_k(x̂_k⁺ − x̂_k) and x̄ = prox_{ηg}(x̃), and it starts again from the new x̄. With delays up to
    τ it converges to the optimum of F for the computed step sizes, which are conservative.

    Parameters
    ----------
    eta, alpha
        η and α; by default they are computed from `smoothness`, `clients` and `delay` if these are
        given, and are 1 otherwise
    g
        the regulariser: None, `ud.L1`, `ud.L2` or `ud.Box`
    smoothness
        L, a Lipschitz constant of every ∇f_k
    clients
        n, the number of clients
    delay
        τ, the largest number of server updates between reading the model and replying
    """

    meant_asynchronous = True

    def __init__(
        self,
        eta: float | None = None,
        alpha: float | None = None,
        g: Regularizer | None = None,
        smoothness: float | None = None,
        clients: int | None = None,
        delay: int | None = None,
    ):
        if smoothness is not None:
            require_range("AsyncFedDR's smoothness", smoothness, above=0)
        if clients is not None:
            require_whole("AsyncFedDR's clients", clients, at_least=1)
        if delay is not None:
            require_whole("AsyncFedDR's delay", delay, at_least=0)
        if smoothness is not None and (eta is None or alpha is None):
            require(
                clients is not None and delay is not None,
                "AsyncFedDR computes eta and alpha from smoothness, clients and delay: give all "
                "three, or eta and alpha themselves.",
            )
            sizes = async_feddr(smoothness, clients, delay, alpha)  # type: ignore[arg-type]
            eta, alpha = sizes.eta if eta is None else eta, sizes.alpha
        super().__init__(1.0 if eta is None else eta, 1.0 if alpha is None else alpha, g)
        self.smoothness = smoothness
        self.clients = clients
        self.delay = delay

    def check(self, conditions: Conditions) -> None:
        super().check(conditions)
        if not conditions.asynchronous:
            return
        require(
            self.clients is None or self.clients == conditions.clients,
            f"AsyncFedDR's clients is {self.clients}, but there are {conditions.clients} clients: "
            f"its step sizes depend on that number, so give clients={conditions.clients}.",
        )
        if self.delay is not None and not (conditions.bounded and conditions.delay <= self.delay):
            warnings.warn(
                f"AsyncFedDR's step sizes are for delays up to {self.delay}, but nothing bounds "
                f"them: set max_delay = {self.delay} of the pace.",
                stacklevel=2,
            )
        delay = conditions.delay if self.delay is None else max(self.delay, conditions.delay)
        # If L is unknown, a tiny one satisfies every bound on η, so only α is checked.
        smoothness = 1e-9 / self.eta if self.smoothness is None else self.smoothness
        outside = check_async_feddr(smoothness, conditions.clients, delay, self.alpha, self.eta)
        if outside is not None:
            warnings.warn(outside, stacklevel=2)
