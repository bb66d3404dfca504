"""What was predicted of the sweep negative-weights before it was run.

A policy with advantages of λ for a right and -1 for a wrong answer, whose base solves a share p of
the prompts, pushes down with a mass of 1 - p and up with λp. The prediction: what breaks it is the
share n = (1 - p) / (1 - p + λp) of the pushing down, at steps that are long enough.

A policy is broken if its pass@1 ends below half of its base's.
"""

from __future__ import annotations

BROKEN = 0.5
"""The share of the base's pass@1 below which a policy counts as broken."""

LIMITS = {3e-5: 1.0, 1e-4: 0.95, 3e-4: 0.7, 1e-3: 0.5}
"""By learning rate: the largest share of the pushing down that does not break a policy."""


def negative_share(solve_rate: float, weight: float) -> float:
    """Return n for a solve rate p and a weight λ; inf: right answers alone."""
    down, up = 1 - solve_rate, weight * solve_rate
    return down / (down + up)


def is_broken(solve_rate: float, weight: float, lr: float) -> bool:
    return negative_share(solve_rate, weight) > LIMITS[lr]
