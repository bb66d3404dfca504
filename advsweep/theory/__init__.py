"""Exact checks of the papers' theorems and masses: `advsweep claims theory`.

Each check computes what a theorem or a closed form states, with the project's own estimators,
masses and objectives: by enumeration of all groups, by finite differences, or by Monte Carlo with a
fixed seed and a tolerance of three standard errors. Equality means 1e-9 unless a check says more.
"""

from __future__ import annotations

from advsweep.theory import a_grae, aapo, avspo, fade, fade_power, two_stage
from advsweep.theory.render import describe, render_theory
from advsweep.theory.types import Finding, Relation, TheoryCheck, TheoryResult

__all__ = [
    "CHECKS",
    "Finding",
    "Relation",
    "TheoryCheck",
    "TheoryResult",
    "check_theory",
    "describe",
    "render_theory",
]

CHECKS: tuple[TheoryCheck, ...] = (
    *avspo.CHECKS,
    *a_grae.CHECKS,
    *aapo.CHECKS,
    *two_stage.CHECKS,
    *sorted((*fade.CHECKS, *fade_power.CHECKS), key=lambda check: check.id),
)


def check_theory() -> list[TheoryResult]:
    """Runs all checks, in seconds on one core."""
    return [TheoryResult(check, tuple(check.find())) for check in CHECKS]
