"""Every method in plain NumPy, on quadratic clients, straight from the formulas of the papers.

An independent second implementation for the tests: nothing here comes from the library.
Each method is ``NAME(fed, local, x0, cohorts, **hyperparameters)`` and returns the list of the
server's models, one per round. ``cohorts[t]`` lists the clients of round t and is not empty.
A client listed twice is trained once; a method without client state counts it as often as it is
listed, a method with client state counts it once. No model is ever changed in place.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Federation:
    """Quadratic clients f_k(x) = 1/2 x'H_k x - b_k'x and the objective F = sum_k q_k f_k."""

    H: np.ndarray  # [N, d, d]
    b: np.ndarray  # [N, d]
    q: np.ndarray  # [N], sum 1

    @property
    def size(self):
        """N, the number of clients."""
        return len(self.q)

    def gradient(self, k, x):
        """The gradient of f_k at x, without weight decay."""
        return self.H[k] @ x - self.b[k]


@dataclass(frozen=True)
class Local:
    """What every client runs: full-batch gradient descent."""

    lr: float
    steps: Callable[[int, int], int]  # steps(k, t)
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip: float | None = None  # on the norm of s (grad f_k + wd x) + v
    factor: Callable[[int], float] = lambda s: 1.0  # step schedule gamma_s, s = 0, 1, ...
    rate: Callable[[int], float] = lambda t: 1.0  # the round's rate is lr * rate(t)
    own: Callable[[int], float] = lambda k: 1.0  # multiple of the round's rate
    exact: bool = False  # solve the local problem exactly instead

    def eta(self, t):
        """The nominal rate of round t."""
        return self.lr * self.rate(t)


class Run(NamedTuple):
    """What a client's local work gives."""

    x: np.ndarray
    norm_a1: float  # nan when the problem was solved exactly
    tau: int
    first_gradient: np.ndarray  # of f_k, with weight decay, at the start
    last_gradient: np.ndarray  # of f_k, with weight decay, used in the last step


def soft_threshold(x, t):
    """Prox of t |.|_1."""
    return np.sign(x) * np.maximum(np.abs(x) - t, 0.0)


# ------------------------------------------------------------------ the local problem


def run_local(fed, local, k, t, start, v=0.0, z=0.0, r=0.0, s=1.0, inside=False, sam=(0.0, 1.0)):
    """Minimise s f_k(x) + <v, x> + r/2 |x - z|^2 from start, and count |a_k|_1.

    The pull r (x - z) is inside the momentum buffer, as its minimiser asks, or outside it, as in
    the proximal updates of FedNova. sam = (rho, a) mixes in the gradient at x + rho g/|g|.
    """
    tau = local.steps(k, t)
    rho_sam, a = sam

    def data_gradient(x):
        g = fed.gradient(k, x)
        if rho_sam > 0:
            uphill = x + rho_sam * g / np.sqrt(g @ g)
            g = (1 - a) * g + a * fed.gradient(k, uphill)
        return g + local.weight_decay * x

    first = data_gradient(start)
    if local.exact:
        identity = np.eye(len(start))
        matrix = s * (fed.H[k] + local.weight_decay * identity) + r * identity
        x = np.linalg.solve(matrix, s * fed.b[k] - v + r * z)
        return Run(x, np.nan, tau, first, data_gradient(x))

    eta, rho = local.eta(t), local.momentum
    x, last = start, first
    buffer = np.zeros_like(start)
    c, norm_a1 = 0.0, 0.0
    for step in range(tau):
        gamma = local.factor(step) * local.own(k)
        last = data_gradient(x)
        g = s * last + v
        norm = np.linalg.norm(g)
        if local.clip is not None and norm > local.clip:
            g = g * (local.clip / norm)
        pull = r * (x - z)
        if inside:
            g, pull = g + pull, 0.0
        buffer = rho * buffer + g
        direction = g + rho * buffer if local.nesterov else buffer
        x = x - eta * gamma * (direction + pull)

        c = rho * c + 1.0
        gain = 1.0 + rho * c if local.nesterov else c
        norm_a1 = (1.0 - eta * gamma * r) * norm_a1 + gamma * gain
    return Run(x, norm_a1, tau, first, last)


def distinct(cohort):
    """The clients of a cohort, each once."""
    return list(dict.fromkeys(cohort))


def require_everyone(fed, cohort):
    """Refuse a cohort that is not all clients, each once."""
    if sorted(cohort) != list(range(fed.size)):
        raise ValueError("this method needs all clients in every round")


# -------------------------------------------------------------------------- FedAvg


def _train(fed, local, x, cohort, t, mu=0.0, s=None, **options):
    """Train every distinct client of the cohort from x on s_k f_k + mu/2 |. - x|^2."""
    return {
        k: run_local(fed, local, k, t, x, z=x, r=mu, s=1.0 if s is None else s[k], **options)
        for k in distinct(cohort)
    }


def _delta_update(fed, x, cohort, runs):
    """II-delta: (N/K) sum_S p_k (w_k - x), K the number of draws."""
    return fed.size / len(cohort) * sum(fed.q[k] * (runs[k].x - x) for k in cohort)


def fedavg(fed, local, x0, cohorts, scheme="II-delta", server_lr=1.0, mu=0.0, **options):
    """FedAvg with its sampling and averaging schemes (mu > 0: FedProx's clients)."""
    x, models = x0, []
    for t, cohort in enumerate(cohorts):
        scale = fed.size * fed.q if scheme == "transformed II" else None
        runs = _train(fed, local, x, cohort, t, mu, scale, **options)
        share = sum(fed.q[k] for k in cohort)
        weighted = sum(fed.q[k] * runs[k].x for k in cohort)
        mean = sum(runs[k].x for k in cohort) / len(cohort)
        if scheme == "full":
            require_everyone(fed, cohort)
            new = weighted
        elif scheme == "original":
            new = weighted + (1.0 - share) * x
        elif scheme in ("I", "transformed II"):
            new = mean
        elif scheme == "II":
            new = fed.size / len(cohort) * weighted
        elif scheme == "renormalised":
            new = weighted / share
        elif scheme == "II-delta":
            new = x + _delta_update(fed, x, cohort, runs)
        else:
            raise ValueError(f"unknown scheme {scheme!r}")
        x = x + server_lr * (new - x)
        models.append(x)
    return models


def distributed_sgd(fed, local, x0, cohorts, server_lr=1.0):
    """Every client of the cohort does one step, then II-delta."""
    one_step = replace(local, steps=lambda k, t: 1, exact=False)
    return fedavg(fed, one_step, x0, cohorts, "II-delta", server_lr)


def fedprox(fed, local, x0, cohorts, mu, scheme="II-delta", server_lr=1.0, inside=False):
    """r = mu, z = x; the server as FedAvg's."""
    return fedavg(fed, local, x0, cohorts, scheme, server_lr, mu, inside=inside)


def fedsam(fed, local, x0, cohorts, rho, scheme="II-delta", server_lr=1.0):
    """FedAvg whose steps follow the gradient at x + rho g/|g|."""
    return fedavg(fed, local, x0, cohorts, scheme, server_lr, sam=(rho, 1.0))


def fedavg_min(fed, local, x0, cohorts, server_lr=1.0):
    """Every client of the cohort runs the least number of steps in the cohort."""
    fewest = replace(local, steps=lambda k, t: min(local.steps(j, t) for j in cohorts[t]))
    return fedavg(fed, fewest, x0, cohorts, "II-delta", server_lr)


def fedavg_server(fed, local, x0, cohorts, kind, lr, beta1=0.9, beta2=0.99, tau=1e-3):
    """FedNova's server momentum, and Reddi et al. 2021, Algorithm 2, on the II-delta update."""
    x, models = x0, []
    momentum = np.zeros_like(x0)
    m, v = np.zeros_like(x0), np.full_like(x0, tau**2)
    for t, cohort in enumerate(cohorts):
        update = _delta_update(fed, x, cohort, _train(fed, local, x, cohort, t))
        if kind == "momentum":
            eta = local.eta(t)
            momentum = beta1 * momentum + update / eta
            x = x + lr * eta * momentum
        else:
            m = beta1 * m + (1.0 - beta1) * update
            square = update**2
            if kind == "adagrad":
                v = v + square
            elif kind == "yogi":
                v = v - (1.0 - beta2) * square * np.sign(v - square)
            elif kind == "adam":
                v = beta2 * v + (1.0 - beta2) * square
            else:
                raise ValueError(f"unknown server optimiser {kind!r}")
            x = x + lr * m / (np.sqrt(v) + tau)
        models.append(x)
    return models


# ------------------------------------------------------------------- control variates


def scaffold(fed, local, x0, cohorts, option="II", server_lr=1.0):
    """v = c - c_k; eta tau_k is eta |a_k|_1 in general."""
    if option not in ("I", "II"):
        raise ValueError(f"unknown option {option!r}")
    x, models = x0, []
    c = np.zeros_like(x0)
    c_k = np.zeros((fed.size, len(x0)))
    for t, cohort in enumerate(cohorts):
        clients = distinct(cohort)
        move, change = np.zeros_like(x0), np.zeros_like(x0)
        for k in clients:
            run = run_local(fed, local, k, t, x, v=c - c_k[k])
            if option == "I":
                new = run.first_gradient
            else:
                new = c_k[k] - c + (x - run.x) / (local.eta(t) * run.norm_a1)
            move = move + fed.q[k] * (run.x - x)
            change = change + fed.q[k] * (new - c_k[k])
            c_k[k] = new
        x = x + server_lr * fed.size / len(clients) * move
        c = c + change
        models.append(x)
    return models


def vrlsgd(fed, local, x0, cohorts):
    """v = -Delta_k, all clients; eta tau_k is eta |a_k|_1 in general."""
    x, models = x0, []
    correction = np.zeros((fed.size, len(x0)))
    for t, cohort in enumerate(cohorts):
        require_everyone(fed, cohort)
        runs = [run_local(fed, local, k, t, x, v=-correction[k]) for k in range(fed.size)]
        x = sum(fed.q[k] * runs[k].x for k in range(fed.size))
        for k, run in enumerate(runs):
            correction[k] = correction[k] + (x - run.x) / (local.eta(t) * run.norm_a1)
        models.append(x)
    return models


def scaffnew(fed, local, x0, cohorts, p, steps):
    """ProxSkip: steps[t] is the same geometric number for all; h_k += (p/eta)(x - x_k)."""
    x, models = x0, []
    h = np.zeros((fed.size, len(x0)))
    for t, cohort in enumerate(cohorts):
        require_everyone(fed, cohort)
        same = replace(local, steps=lambda k, t: steps[t])
        runs = [run_local(fed, same, k, t, x, v=-h[k]) for k in range(fed.size)]
        x = sum(fed.q[k] * runs[k].x for k in range(fed.size))
        for k, run in enumerate(runs):
            gain = local.eta(t) * run.norm_a1 / run.tau  # eta, for plain gradient steps
            h[k] = h[k] + p / gain * (x - run.x)
        models.append(x)
    return models


def last_moves(fed, local, x0, cohorts, rule, server_lr=1.0):
    """FedVARP and MIFA; y_k is the last move of client k divided by the rate of its round."""
    x, models = x0, []
    y = np.zeros((fed.size, len(x0)))
    for t, cohort in enumerate(cohorts):
        clients, eta = distinct(cohort), local.eta(t)
        new = {k: (run_local(fed, local, k, t, x).x - x) / eta for k in clients}
        before = fed.q @ y
        surprise = sum(fed.q[k] * (new[k] - y[k]) for k in clients)
        for k in clients:
            y[k] = new[k]
        if rule == "fedvarp":
            direction = before + fed.size / len(clients) * surprise
        elif rule == "mifa":
            direction = fed.q @ y
        else:
            raise ValueError(f"unknown rule {rule!r}")
        x = x + server_lr * eta * direction
        models.append(x)
    return models


# -------------------------------------------------------------- momentum on the clients


def fedcm(fed, local, x0, cohorts, alpha, server_lr=1.0):
    """Clients descend along alpha grad f_k + (1 - alpha) D; D is the last mean direction."""
    x, models = x0, []
    d = np.zeros_like(x0)
    for t, cohort in enumerate(cohorts):
        runs = {
            k: run_local(fed, local, k, t, x, v=(1.0 - alpha) * d, s=alpha)
            for k in distinct(cohort)
        }
        update = _delta_update(fed, x, cohort, runs)
        share = sum(fed.q[k] for k in cohort)
        work = sum(fed.q[k] * runs[k].norm_a1 for k in cohort) / share
        d = -update / (local.eta(t) * work)
        x = x + server_lr * update
        models.append(x)
    return models


def fedacg(fed, local, x0, cohorts, lam, beta):
    """Clients start at x + lam m and are pulled to it."""
    x, models = x0, []
    m = np.zeros_like(x0)
    for t, cohort in enumerate(cohorts):
        ahead, clients = x + lam * m, distinct(cohort)
        moves = {
            k: run_local(fed, local, k, t, ahead, z=ahead, r=beta, inside=True).x - ahead
            for k in clients
        }
        m = lam * m + fed.size / len(clients) * sum(fed.q[k] * moves[k] for k in clients)
        x = x + m
        models.append(x)
    return models


def fedexp(fed, local, x0, cohorts, eps, average=True):
    """The extrapolated step; the mean of the last two models is reported."""
    x, models = x0, []
    for t, cohort in enumerate(cohorts):
        clients = distinct(cohort)
        moves = {k: run_local(fed, local, k, t, x).x - x for k in clients}
        share = sum(fed.q[k] for k in clients)
        mean = sum(fed.q[k] * moves[k] for k in clients) / share
        squares = sum(fed.q[k] * moves[k] @ moves[k] for k in clients) / share
        rate = max(1.0, squares / (2.0 * (mean @ mean + eps)))
        new = x + rate * fed.size / len(clients) * share * mean
        models.append((new + x) / 2.0 if average else new)
        x = new
    return models


def mimelite(fed, local, x0, cohorts, beta, server_lr=1.0):
    """Clients descend along (1 - beta) grad f_k + beta m; m is fixed during a round."""
    x, models = x0, []
    m = np.zeros_like(x0)
    for t, cohort in enumerate(cohorts):
        clients = distinct(cohort)
        runs = {k: run_local(fed, local, k, t, x, v=beta * m, s=1.0 - beta) for k in clients}
        factor = fed.size / len(clients)
        gradient = factor * sum(fed.q[k] * runs[k].first_gradient for k in clients)
        x = x + server_lr * factor * sum(fed.q[k] * (runs[k].x - x) for k in clients)
        m = (1.0 - beta) * gradient + beta * m
        models.append(x)
    return models


# ------------------------------------------------------- personal models on the clients


def ditto(fed, local, x0, cohorts, lam, scheme="II-delta", server_lr=1.0, own=None):
    """Li et al. 2021, Algorithm 1: v_k descends f_k + lam/2 |v - x|^2, beside FedAvg.

    ``own``, a dict, receives the last personal model of every client.
    """
    v = dict.fromkeys(range(fed.size), x0)
    sent = [x0, *fedavg(fed, local, x0, cohorts, scheme, server_lr)]
    for t, cohort in enumerate(cohorts):
        for k in distinct(cohort):
            v[k] = run_local(fed, local, k, t, v[k], z=sent[t], r=lam, inside=True).x
    if own is not None:
        own.update(v)
    return sent[1:]


def pfedme(fed, local, x0, cohorts, lam, eta, R, beta, own=None):
    """Dinh et al. 2020, Algorithm 1, with the weights (N/K) q_k in the server's mean.

    theta_k approximates argmin f_k(theta) + lam/2 |theta - w_k|^2.
    """
    w, models = x0, []
    personal = dict.fromkeys(range(fed.size), x0)
    for t, cohort in enumerate(cohorts):
        clients, total = distinct(cohort), np.zeros_like(x0)
        for k in clients:
            w_k = w
            for _ in range(R):
                personal[k] = run_local(fed, local, k, t, w_k, z=w_k, r=lam, inside=True).x
                w_k = w_k - eta * lam * (w_k - personal[k])
            total = total + fed.q[k] * (w_k - w)
        w = w + beta * fed.size / len(clients) * total
        models.append(w)
    if own is not None:
        own.update(personal)
    return models


# ---------------------------------------------------------------------------- FedNova


def fednova(
    fed,
    local,
    x0,
    cohorts,
    mu=0.0,
    tau_eff=None,
    weights="II",
    variance_reduction=False,
    server_momentum=0.0,
):
    """Normalised averaging, with proximal term, variance reduction, server momentum."""
    if tau_eff is None:
        tau_eff = "steps" if mu > 0 else "progress"
    given = isinstance(tau_eff, float)
    if (not given and tau_eff not in ("progress", "steps")) or weights not in ("I", "II"):
        raise ValueError(f"unknown tau_eff {tau_eff!r} or weights {weights!r}")
    x, models = x0, []
    momentum = np.zeros_like(x0)
    d = np.zeros((fed.size, len(x0)))
    for t, cohort in enumerate(cohorts):
        eta = local.eta(t)
        drawn = distinct(cohort) if variance_reduction else cohort
        d_bar = fed.q @ d
        v = {k: d_bar - d[k] for k in drawn}  # all zero without variance reduction
        runs = {k: run_local(fed, local, k, t, x, v=v[k], z=x, r=mu) for k in distinct(drawn)}
        if weights == "I":
            w = [1.0 / len(drawn) for k in drawn]
        else:
            w = [fed.q[k] * fed.size / len(drawn) for k in drawn]

        normalised = {k: (run.x - x) / run.norm_a1 for k, run in runs.items()}
        work = {k: run.norm_a1 if tau_eff == "progress" else run.tau for k, run in runs.items()}
        effective = sum(w_k * work[k] for w_k, k in zip(w, drawn, strict=True)) / sum(w)
        effective = tau_eff if given else effective
        total = sum(w_k * normalised[k] for w_k, k in zip(w, drawn, strict=True))
        if variance_reduction:
            for k in drawn:
                d[k] = -normalised[k] / eta - v[k]
        momentum = server_momentum * momentum + effective * total / eta
        x = x + eta * momentum
        models.append(x)
    return models


# ----------------------------------------------------------------------------- FedDyn


def feddyn(fed, local, x0, cohorts, alpha):
    """Dynamic regularisation, alpha_k = alpha / (N q_k)."""
    x, models = x0, []
    h = np.zeros_like(x0)
    h_k = np.zeros((fed.size, len(x0)))
    for t, cohort in enumerate(cohorts):
        clients = distinct(cohort)
        ends = []
        for k in clients:
            alpha_k = alpha / (fed.size * fed.q[k])
            theta = run_local(fed, local, k, t, x, v=-h_k[k], z=x, r=alpha_k, inside=True).x
            h_k[k] = h_k[k] - alpha_k * (theta - x)
            ends.append(theta)
        h = h - alpha / fed.size * sum(theta - x for theta in ends)
        x = sum(ends) / len(clients) - h / alpha
        models.append(x)
    return models


def fedspeed(fed, local, x0, cohorts, lam, rho, a, cohort_only=False):
    """Prox-correction with sharpness-aware gradients; lam_k = lam N q_k."""
    x, models = x0, []
    g = np.zeros((fed.size, len(x0)))
    for t, cohort in enumerate(cohorts):
        clients, ends = distinct(cohort), {}
        for k in clients:
            pull = 1 / (lam * fed.size * fed.q[k])
            problem = {"v": -g[k], "z": x, "r": pull, "inside": True}
            ends[k] = run_local(fed, local, k, t, x, sam=(rho, a), **problem).x
            g[k] = g[k] - pull * (ends[k] - x)
        averaged = clients if cohort_only else range(fed.size)
        correction = sum(fed.size * fed.q[k] * g[k] for k in averaged) / len(averaged)
        x = sum(ends.values()) / len(clients) - lam * correction
        models.append(x)
    return models


# ------------------------------------------------------------------------ splitting


def fedpd(fed, local, x0, cohorts, eta, talks=None):
    """FedPD, all clients; the server averages at the end of round t if talks[t]."""
    server, models = x0, []
    centre = np.tile(x0, (fed.size, 1))  # x0_k
    dual = np.zeros((fed.size, len(x0)))  # lambda_k
    for t, cohort in enumerate(cohorts):
        require_everyone(fed, cohort)
        for k in range(fed.size):
            x = run_local(
                fed, local, k, t, centre[k], v=dual[k], z=centre[k], r=1.0 / eta, inside=True
            ).x
            dual[k] = dual[k] + (x - centre[k]) / eta
            centre[k] = x + eta * dual[k]
        if talks is None or talks[t]:
            server = fed.q @ centre
            centre = np.tile(server, (fed.size, 1))
        models.append(server)
    return models


def fedadmm(fed, local, x0, cohorts, rho):
    """The server's model is sum_k q_k (x_k + lambda_k / rho) over all clients."""
    x, models = x0, []
    own = np.tile(x0, (fed.size, 1))  # x_k
    dual = np.zeros((fed.size, len(x0)))  # lambda_k
    for t, cohort in enumerate(cohorts):
        for k in distinct(cohort):
            own[k] = run_local(fed, local, k, t, x, v=dual[k], z=x, r=rho, inside=True).x
            dual[k] = dual[k] + rho * (own[k] - x)
        x = fed.q @ (own + dual / rho)
        models.append(x)
    return models


def fedsplit(fed, local, x0, cohorts, eta, average="full"):
    """FedSplit; the inactive are frozen, x is the mean of all z_k or of the active."""
    if average not in ("full", "all", "act"):
        raise ValueError(f"unknown average {average!r}")
    x, models = x0, []
    z = np.tile(x0, (fed.size, 1))
    u = np.tile(x0, (fed.size, 1))  # a client's last prox point, where the solver starts
    for t, cohort in enumerate(cohorts):
        if average == "full":
            require_everyone(fed, cohort)
        clients = distinct(cohort)
        for k in clients:
            u[k] = run_local(fed, local, k, t, u[k], z=2.0 * x - z[k], r=1.0 / eta, inside=True).x
            z[k] = z[k] + 2.0 * (u[k] - x)
        counted = clients if average == "act" else list(range(fed.size))
        x = fed.q[counted] @ z[counted] / fed.q[counted].sum()  # the q_k of all sum to 1
        models.append(x)
    return models


def feddr(fed, local, x0, cohorts, eta, alpha, prox=None, start="lazy"):
    """FedDR; with start='everyone' cohorts[0] is the initialisation by all clients."""
    if start not in ("lazy", "everyone"):
        raise ValueError(f"unknown start {start!r}")
    if prox is None:

        def prox(x, eta):
            return x

    models = []
    y = np.tile(x0, (fed.size, 1))
    own = np.tile(x0, (fed.size, 1))  # x_k
    hat = np.tile(x0, (fed.size, 1))  # 2 x_k - y_k
    x_tilde = x0
    x_bar = prox(x_tilde, eta)
    for t, cohort in enumerate(cohorts):
        initialising = start == "everyone" and t == 0
        if initialising:
            require_everyone(fed, cohort)
        for k in distinct(cohort):
            if not initialising:
                y[k] = y[k] + alpha * (x_bar - own[k])
            own[k] = run_local(fed, local, k, t, own[k], z=y[k], r=1.0 / eta, inside=True).x
            new = 2.0 * own[k] - y[k]
            x_tilde = x_tilde + fed.q[k] * (new - hat[k])
            hat[k] = new
        x_bar = prox(x_tilde, eta)
        models.append(x_bar)
    return models


# ----------------------------------------------------------------------------- FedLGA


def fedlga(
    fed,
    local,
    x0,
    cohorts,
    expected,
    form="literal",
    damping=1.0,
    cap=False,
    gradient="mean",
    server_lr=1.0,
):
    """Correct the updates of clients short of the expected steps; means over draws."""
    if form not in ("literal", "diagonal", "extrapolate", "none"):
        raise ValueError(f"unknown form {form!r}")
    if gradient not in ("mean", "last"):
        raise ValueError(f"unknown gradient {gradient!r}")
    x, models = x0, []
    for t, cohort in enumerate(cohorts):
        runs = _train(fed, local, x, cohort, t)
        deltas = {k: run.x - x for k, run in runs.items()}
        complete = [k for k in cohort if runs[k].tau >= expected]  # draws, as all of the below
        slow = [k for k in runs if runs[k].tau < expected]
        corrected = dict(deltas)
        if form == "extrapolate":
            for k in slow:
                corrected[k] = deltas[k] * expected / runs[k].tau
        elif form != "none" and complete:  # no complete client: no target
            target = x + sum(deltas[k] for k in complete) / len(complete)
            for k in slow:
                if gradient == "mean":
                    g = -deltas[k] / (local.eta(t) * runs[k].tau)
                else:
                    g = runs[k].last_gradient
                strength = damping
                if cap and abs(damping) * (g @ g) > 1.0:
                    strength = np.sign(damping) / (g @ g)
                gap = target - runs[k].x
                product = g * (g @ gap) if form == "literal" else g * g * gap
                corrected[k] = deltas[k] + strength * product
        x = x + server_lr * sum(corrected[k] for k in cohort) / len(cohort)
        models.append(x)
    return models
