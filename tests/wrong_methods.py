"""Methods with one mistake each, most of them found in other libraries.

`undrift verify` must catch every mistake.
"""

import undrift as ud
from undrift.core.replies import draws
from undrift.methods.common.schemes import SCHEMES, check_sampling


class DetachedRegulariser(ud.FedProx):
    """The pull is computed, but never reaches the gradient."""

    def __init__(self, mu: float = 0.5):
        super().__init__(mu)

    def problem(self, down, mine, client):
        pulled = super().problem(down, mine, client)
        return ud.LocalProblem(start=pulled.start, scale=pulled.scale)


class ReversedSign(ud.SCAFFOLD):
    """c_k − c instead of c − c_k: it doubles the drift instead of removing it."""

    def problem(self, down, mine, client):
        return ud.LocalProblem(start=down.x, linear=mine.c - down.c)


class WeightsNotOne(ud.FedNova):
    """Multiplies the update by the number of clients, so that its weights do not sum to one."""

    def fold(self, server, replies):
        new = super().fold(server, replies)
        return new.replace(x=server.x + (new.x - server.x) * replies.count / 2)


class ConfusedNK(ud.FedDyn):
    """Lowers h by the mean over the cohort instead of |S|/N times that mean."""

    def __init__(self, alpha: float = 1.0):
        super().__init__(alpha)

    def fold(self, server, replies):
        moved = replies.mean("moved")
        h = server.h - self.alpha * moved
        return ud.ServerState(x=server.x + moved - h / self.alpha, h=h)


class ConfusedControl(ud.SCAFFOLD):
    """Multiplies the cohort's change of c by N/K, which is right for x only."""

    def fold(self, server, replies):
        new = super().fold(server, replies)
        return new.replace(c=server.c + (new.c - server.c) / replies.share)


class DividedByAll(ud.FedAvg):
    """Divides the cohort's sum by N instead of K."""

    converges_to = None

    def fold(self, server, replies):
        new = super().fold(server, replies)
        return new.replace(x=server.x + (new.x - server.x) * replies.share)


class NormalisedBySteps(ud.FedNova):
    """Divides the move by τ_k instead of ‖a_k‖₁."""

    def finish(self, down, mine, result, client):
        upload, mine = super().finish(down, mine, result, client)
        return upload.replace(direction=(result.x - down.x) / result.steps), mine


class StepsInsteadOfANorm(ud.SCAFFOLD):
    """Divides by K·η, which is wrong as soon as there is momentum."""

    def finish(self, down, mine, result, client):
        moved = result.x - down.x
        c = mine.c - down.c - moved / (result.rate * result.steps)
        return ud.Upload(moved=moved, c_change=c - mine.c), ud.Keep(c=c)


class BatchesOfEqualSize(ud.SCAFFOLD):
    """Counts ⌊n/B⌋ batches in an epoch and so forgets the smaller last one."""

    def finish(self, down, mine, result, client):
        moved = result.x - down.x
        steps = 2 * (client.samples // 4) if client.samples % 4 else result.a_norm
        c = mine.c - down.c - moved / (result.rate * steps)
        return ud.Upload(moved=moved, c_change=c - mine.c), ud.Keep(c=c)


class BuffersAsParameters(ud.FedAvg):
    """Averages BatchNorm statistics with the weights of parameters."""

    def fold_buffers(self, buffers, means):
        return {name: buffers[name] + 2 * (means[name] - buffers[name]) for name in buffers}


class Biased(ud.Method):
    """A user's own plain mean, which claims to converge to the optimum."""

    uploads = {"moved": (draws,)}

    def problem(self, down, mine, client):
        return ud.LocalProblem(start=down.x)

    def finish(self, down, mine, result, client):
        return ud.Upload(moved=result.x - down.x), mine

    def fold(self, server, replies):
        return ud.ServerState(x=server.x + replies.mean("moved", by=draws))


class Honest(Biased):
    """The plain mean without a claim; it is right for equally weighted clients only."""

    converges_to = None
    draws_by_weight = True

    def check(self, conditions):
        super().check(conditions)
        check_sampling(self.name, SCHEMES["I"], conditions.participation, conditions.equal)


class Crashing(Biased):
    """Raises in the middle of a round."""

    def fold(self, server, replies):
        raise RuntimeError("size mismatch\nand more")


class Unfinished(ud.Method):
    """Has no fold."""

    def problem(self, down, mine, client):
        return ud.LocalProblem(start=down.x)

    def finish(self, down, mine, result, client):
        return ud.Upload(), mine


class NeedsArgument(Biased):
    """Cannot be made without an argument."""

    converges_to = None

    def __init__(self, gain: float):
        self.gain = gain

    def fold(self, server, replies):
        return ud.ServerState(x=server.x + self.gain * replies.mean("moved", by=draws))


ready = NeedsArgument(1.0)
NotAMethod = dict


class PulledToItself(ud.Ditto):
    """The centre of the pull is the client's own model, so that it never feels the server's."""

    def __init__(self, lam: float = 0.7):
        super().__init__(lam)

    def next_problem(self, down, mine, solved, client):
        return ud.LocalProblem(start=mine.v, center=mine.v, weight=self.lam)


class ForgottenOwnModel(ud.Ditto):
    """The personal work starts at the server's model, as if the client had none of its own."""

    def __init__(self, lam: float = 0.7):
        super().__init__(lam)

    def next_problem(self, down, mine, solved, client):
        return ud.LocalProblem(start=down.x, center=down.x, weight=self.lam)


class SendsOwnModel(ud.Ditto):
    """Uploads the move of the personal model."""

    def finish(self, down, mine, result, client):
        (v,) = result.later
        return ud.Upload(moved=v - down.x), ud.Keep(v=v)


class MixesInOwnModel(ud.Ditto):
    """Uploads something that depends on the kept personal model."""

    def finish(self, down, mine, result, client):
        upload, keep = super().finish(down, mine, result, client)
        return ud.Upload(moved=upload.moved + 0.01 * mine.v), keep


class EnvelopeReversed(ud.PFedMe):
    """w_k moves away from the personal model."""

    def __init__(self, lam: float = 2.0, eta: float = 0.1, R: int = 3, beta: float = 0.8):
        super().__init__(lam, eta, R, beta)

    def finish(self, down, mine, result, client):
        upload, keep = super().finish(down, mine, result, client)
        return ud.Upload(moved=-upload.moved), keep


class EnvelopeOfOneClient(EnvelopeReversed):
    """The pull is λ/N instead of λ."""

    def problem(self, down, mine, client):
        return ud.LocalProblem(start=down.x, center=down.x, weight=self.lam / 4)

    def finish(self, down, mine, result, client):
        return ud.PFedMe.finish(self, down, mine, result, client)
