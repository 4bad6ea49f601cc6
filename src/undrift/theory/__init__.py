"""Problems with known answers, closed forms, diagnostics, step sizes and bounds.

An example: the point FedAvg converges to, predicted and then found by training.

    problem = ud.theory.random_quadratics(4, 3)
    q = problem.weights("samples")
    local = ud.GD(lr=0.1, steps={0: 1, 1: 2, 2: 5, 3: 12})
    ud.theory.fixed_points.fedavg(problem.H, problem.b, q, 0.1, [1, 2, 5, 12])
    ud.train(ud.FedAvg(), problem=problem, local=local, rounds=500).x
"""

from undrift.theory import (
    bounds,
    consistency,
    feddyn,
    fedlga,
    fixed_points,
    heterogeneity,
    sharpness,
    step_sizes,
)
from undrift.theory.logistic import LogisticRegression
from undrift.theory.quadratics import (
    Quadratics,
    composite_optimum,
    distances,
    random_composite,
    random_quadratics,
    tridiagonal,
)

__all__ = [
    "LogisticRegression",
    "Quadratics",
    "bounds",
    "composite_optimum",
    "consistency",
    "distances",
    "feddyn",
    "fedlga",
    "fixed_points",
    "heterogeneity",
    "random_composite",
    "random_quadratics",
    "sharpness",
    "step_sizes",
    "tridiagonal",
]
