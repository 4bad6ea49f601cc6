"""A new method in 30 lines, checked against facts before it is compared with others.

undrift verify examples/own_method.py:Dane
python examples/own_method.py
"""

import undrift as ud
from undrift.verify import explanations, load, verify


class Dane(ud.Method):
    """FedDANE (Li et al., Asilomar 2019), with gradients that the clients remember.

    A client minimises f_k(x) + <g − g_k, x> + (μ/2)|x − x_server|², where g_k is its gradient where
    it last saw the model, and g the mean of all of these. At the optimum nobody wants to move.
    """

    sends = ("x", "g")  # what travels to the clients
    keeps = ("g",)  # what a client remembers; it starts at zero
    uploads = {"moved": ud.q, "change": ud.q}  # what travels back, added up with weights q_k

    def __init__(self, mu: float = 0.5):
        self.mu = mu  # μ: pull towards the server's model

    def init(self, x):
        """The server's first state."""
        return ud.ServerState(x=x, g=0 * x)

    def problem(self, down, mine, client):
        """What a client minimises; its gradient at the start is asked for."""
        ask = ("first_gradient",)
        pull = {"center": down.x, "weight": self.mu}
        return ud.LocalProblem(start=down.x, linear=down.g - mine.g, ask=ask, **pull)

    def finish(self, down, mine, result, client):
        """What it uploads, and what it keeps."""
        g = result.first_gradient
        return ud.Upload(moved=result.x - down.x, change=g - mine.g), ud.Keep(g=g)

    def fold(self, server, replies):
        """The server's next state, from sums over the clients that replied."""
        x = server.x + replies.mean("moved", by=ud.q)
        return ud.ServerState(x=x, g=server.g + replies.sum("change", by=ud.q))


def main(rounds: int = 40) -> ud.Comparison:
    """Verify from Python, then compare."""
    outcomes = list(verify([load(f"{__file__}:Dane")]))
    print(*explanations(outcomes) or ["Every fact holds."], sep="\n")
    results = ud.compare(
        [ud.FedAvg(), ud.SCAFFOLD(), Dane(mu=0.1)],
        model=ud.models.logistic(60, 10),
        data=ud.data.synthetic(alpha=1, beta=1, clients=30, seed=0, most=200),
        local=ud.SGD(lr=0.03, batch_size=10, epochs=2),
        rounds=rounds,
        cohort=10,
        objective="clients",
    )
    print(results.summary())
    return results


if __name__ == "__main__":
    main()
