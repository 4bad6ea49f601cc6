"""A virtual clock and the asynchronous methods in plain NumPy, straight from their formulas.

An independent second implementation for the tests: nothing here comes from the library. Clients
are quadratics, f_k(x) = ½x'H_k x − b_k'x, and their devices never fail: one that starts at t has
replied at t + reading + units / speed + sending. Replies that arrive at the same time are taken in
in the order in which their clients set out, and then those start who start at that time.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True)
class Fleet:
    """Devices with known constants: units and bytes per second, seconds of latency each way."""

    speed: np.ndarray
    latency: np.ndarray
    down: np.ndarray
    up: np.ndarray

    def scaled(self, per_step):
        """The same in steps per second, given what a step of each client costs."""
        return replace(self, speed=self.speed / np.asarray(per_step))

    def reading(self, k, size):
        """The seconds until client k has received so many bytes."""
        return self.latency[k] + size / self.down[k]

    def computing(self, k, units):
        """The seconds client k needs for so many units of work."""
        return units / self.speed[k]

    def sending(self, k, size):
        """The seconds until so many bytes of client k have arrived."""
        return self.latency[k] + size / self.up[k]

    def reply_at(self, k, start, units, down, up):
        """When the reply of a client that starts at some time arrives."""
        return start + self.reading(k, down) + self.computing(k, units) + self.sending(k, up)


# ------------------------------------------------------------------------ asynchronous


def soft_threshold(x, t):
    """Prox of t|·|₁."""
    return np.sign(x) * np.maximum(np.abs(x) - t, 0.0)


def descend(H, b, x, lr, steps, z=0.0, mu=0.0):
    """Gradient descent on f + mu/2 |x − z|²."""
    for _ in range(steps):
        x = x - lr * (H @ x - b + mu * (x - z))
    return x


def constant(u):
    return 1.0


def polynomial(a):
    return lambda u: (1.0 + u) ** (-a)


def hinge(a, b):
    return lambda u: 1.0 if u <= b else 1.0 / (1.0 + a * (u - b))


class AsyncFedDR:
    """y_k += α(x̄ − x_k); x_k = prox(y_k); x̃ += q_k(x̂_k⁺ − x̂_k); x̄ = prox_{ηg}(x̃)."""

    needs = 1

    def __init__(self, fed, x0, eta, alpha, prox=lambda x, eta: x, lr=None):
        self.fed, self.eta, self.alpha, self.prox = fed, eta, alpha, prox
        self.lr, self.steps = lr, None  # gradient descent from x_k instead of the exact prox
        self.tilde, self.x = x0, prox(x0, eta)
        self.y = [x0 for _ in range(fed.size)]
        self.mine = [x0 for _ in range(fed.size)]
        self.hat = [x0 for _ in range(fed.size)]

    def work(self, k, read):
        """(y_k, x_k) of a client that read a model."""
        y = self.y[k] + self.alpha * (read - self.mine[k])
        H, b = self.fed.H[k], self.fed.b[k]
        if self.lr is not None:
            return y, descend(H, b, self.mine[k], self.lr, self.steps, y, 1 / self.eta)
        return y, np.linalg.solve(H + np.eye(len(y)) / self.eta, b + y / self.eta)

    def update(self, replies):
        """Fold a reply, (client, staleness, read, work)."""
        ((k, _, _, (y, x)),) = replies
        hat = 2 * x - y
        self.tilde = self.tilde + self.fed.q[k] * (hat - self.hat[k])
        self.x = self.prox(self.tilde, self.eta)
        self.y[k], self.mine[k], self.hat[k] = y, x, hat


class FedAsync:
    """x ← (1 − w)x + w·x_k with w = min(1, α·N·q_k·s(u))."""

    needs = 1

    def __init__(self, fed, x0, lr, steps, alpha, s, mu=0.0):
        self.fed, self.x = fed, x0
        self.lr, self.steps, self.alpha, self.s, self.mu = lr, steps, alpha, s, mu
        self.weights = []

    def work(self, k, read):
        """x_k of a client that read a model."""
        H, b = self.fed.H[k], self.fed.b[k]
        return descend(H, b, read, self.lr, self.steps, read, self.mu)

    def update(self, replies):
        """Fold a reply, (client, staleness, read, work)."""
        ((k, u, _, x),) = replies
        w = min(1.0, self.alpha * self.fed.size * self.fed.q[k] * self.s(u))
        self.weights.append(w)
        self.x = (1 - w) * self.x + w * x


class FedBuff:
    """x ← x + lr·(N/M) Σ q_k·s(u_k)·(x_k − the model it read)."""

    def __init__(self, fed, x0, lr, steps, M, s, server_lr=1.0):
        self.fed, self.x, self.needs = fed, x0, M
        self.lr, self.steps, self.s, self.server_lr = lr, steps, s, server_lr

    def work(self, k, read):
        """x_k of a client that read a model."""
        return descend(self.fed.H[k], self.fed.b[k], read, self.lr, self.steps)

    def update(self, replies):
        """Fold M replies, (client, staleness, read, work) each."""
        total = sum(self.fed.q[k] * self.s(u) * (x - read) for k, u, read, x in replies)
        self.x = self.x + self.server_lr * self.fed.size / len(replies) * total


@dataclass
class Done:
    """The totals of a round: what its pieces of work came to."""

    cohort: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    staleness: Counter = field(default_factory=Counter)
    updates: int = 0
    time: float = 0.0
    x: np.ndarray | None = None


@dataclass
class Trip:
    """A client at work: which model it read, of which version."""

    k: int
    number: int
    version: int
    read: np.ndarray


def asynchronous(
    method,
    fleet: Fleet,
    units: Callable[[int], float],
    size: int,
    rounds: int,
    pieces: int,
    max_delay: int | None = None,
    stale: str = "wait",
    launches: Callable[[float], list[int]] | None = None,
):
    """`rounds` times `pieces` pieces of work, folded as they arrive.

    `size` is the bytes of a model. `launches` says who sets out at a time; unless it is given,
    everyone is at work and starts again at once.
    """
    queue, held, buffer, number, version = [], [], [], 0, 0
    under_way: dict[int, Trip] = {}

    def launch(k, t):
        nonlocal number
        trip = Trip(k, number, version, method.x)
        under_way[k] = trip
        heapq.heappush(queue, (fleet.reply_at(k, t, units(k), size, size), number, trip))
        number += 1

    def must_wait(trip):
        """Whether the others, oldest first, would no longer all be in time after this one."""
        if max_delay is None or stale == "discard":
            return False
        others = sorted(f.version for f in under_way.values() if f is not trip)
        turns = range(version * method.needs + len(buffer) + 1, 10**9)
        return any(
            turn // method.needs - read > max_delay
            for turn, read in zip(turns, others, strict=False)
        )

    def take(trip, done, t):
        nonlocal version
        k, u = trip.k, version - trip.version
        del under_way[k]
        done.cohort.append(k)
        if max_delay is not None and u > max_delay:
            done.lost.append(k)
        else:
            done.staleness[u] += 1
            buffer.append((k, u, trip.read, method.work(k, trip.read)))
        if len(buffer) == method.needs:
            method.update(buffer)
            buffer.clear()
            version += 1
            done.updates += 1
        starting.append(k)

    found, starting = [], list(range(len(fleet.speed)))
    t = 0.0
    while len(found) < rounds:
        done = Done()
        while len(done.cohort) < pieces:
            ready = next((f for f in held if not must_wait(f)), None)
            if ready is not None:
                held.remove(ready)
                take(ready, done, t)
                continue
            if starting and not (queue and queue[0][0] == t):
                for k in starting if launches is None else launches(t):
                    launch(k, t)
                starting.clear()
            t, _, trip = heapq.heappop(queue)
            held.append(trip)
        done.time, done.x = t, method.x
        found.append(done)
    return found


# ------------------------------------------------------------------------- synchronous


@dataclass(frozen=True)
class Round:
    """Who is used in a round with how many steps, who is not, and when it is over."""

    used: list[int]
    lost: list[int]
    absent: list[int]
    steps: dict[int, int]
    time: float


def first_to_respond(fleet, asked, down, up, cohorts, K):
    """Rounds that end with the first K replies."""
    t, found = 0.0, []
    for cohort in cohorts:
        ends = sorted((fleet.reply_at(k, t, asked(k), down, up), k) for k in cohort)
        used = sorted(k for _, k in ends[:K])
        lost = sorted(k for _, k in ends[K:])
        t = ends[:K][-1][0]
        found.append(Round(used, lost, [], {k: asked(k) for k in used}, t))
    return found


def deadline_partial(fleet, asked, down, up, cohorts, seconds):
    """Every client does as many steps as fit; one that cannot do one step never replies."""
    t, found = 0.0, []
    for cohort in cohorts:
        steps = {}
        for k in cohort:
            left = seconds - fleet.reading(k, down) - fleet.sending(k, up)
            steps[k] = max(0, min(asked(k), math.floor(left * fleet.speed[k])))
        used = [k for k in cohort if steps[k] > 0]
        absent = [k for k in cohort if steps[k] == 0]
        last = max(fleet.reply_at(k, t, steps[k], down, up) for k in used)
        t = t + seconds if absent else last
        found.append(Round(used, [], absent, steps, t))
    return found


def deadline_dropped(fleet, asked, down, up, cohorts, seconds):
    """Clients that are not done at the deadline are lost."""
    t, found = 0.0, []
    for cohort in cohorts:
        ends = {k: fleet.reply_at(k, t, asked(k), down, up) for k in cohort}
        used = [k for k in cohort if ends[k] <= t + seconds]
        lost = [k for k in cohort if ends[k] > t + seconds]
        t = t + seconds if lost else max(ends.values())
        found.append(Round(used, lost, [], {k: asked(k) for k in used}, t))
    return found


def wait_for_all(fleet, asked, down, up, cohorts):
    """Rounds that end with the last reply."""
    return deadline_dropped(fleet, asked, down, up, cohorts, math.inf)
