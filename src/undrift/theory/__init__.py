"""Problems with known answers, closed forms, diagnostics, step sizes and bounds."""

from undrift.theory import bounds, consistency, fixed_points, heterogeneity, step_sizes
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
    "fixed_points",
    "heterogeneity",
    "random_composite",
    "random_quadratics",
    "step_sizes",
    "tridiagonal",
]
