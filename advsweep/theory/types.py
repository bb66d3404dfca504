"""What a check of a theorem is made of: its findings, and the verdict that they give."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from advsweep.report.claims.expressions import ClaimVerdict


class Relation(Enum):
    """How a computed number relates to the paper's."""

    EQUAL = "="
    AT_MOST = "≤"
    AT_LEAST = "≥"


@dataclass(frozen=True)
class Finding:
    """One comparison of a check.

    Attributes:
        quantity: what was computed, in words.
        got: the computed number; of several comparisons the one that fits worst.
        relation, expected: what the paper says about it.
        tolerance: the difference that rounding explains, or three standard errors.
        comparisons: how many numbers were compared.
    """

    quantity: str
    got: float
    relation: Relation
    expected: float
    tolerance: float = 1e-9
    comparisons: int = 1

    @property
    def excess(self) -> float:
        """By how much the number breaks the relation; at most 0 if it does not."""
        if not math.isfinite(self.got):
            return math.inf
        difference = self.got - self.expected
        return {
            Relation.EQUAL: abs(difference),
            Relation.AT_MOST: difference,
            Relation.AT_LEAST: -difference,
        }[self.relation]

    @property
    def holds(self) -> bool:
        return self.excess <= self.tolerance


def compare(
    quantity: str,
    got: Tensor,
    relation: Relation,
    expected: Tensor | float,
    tolerance: Tensor | float = 1e-9,
) -> Finding:
    """Compares tensors of one shape entry by entry, and returns the comparison that fits worst.

    Args:
        tolerance: one number, or one per entry, each above 0.
    """
    expected = got.new_tensor(expected) if isinstance(expected, float) else expected.to(got)
    expected, got = expected.expand_as(got).reshape(-1), got.reshape(-1)
    limits = (got.new_zeros(()) + tolerance).expand(got.shape if got.ndim else (1,))
    if isinstance(tolerance, Tensor):
        limits = tolerance.reshape(-1)
    findings = [
        Finding(quantity, g, relation, e, t, got.numel())
        for g, e, t in zip(got.tolist(), expected.tolist(), limits.tolist(), strict=True)
    ]
    # Among equally good fits the largest number says most.
    return max(findings, key=lambda f: (round(max(f.excess / f.tolerance, 0), 2), abs(f.got)))


@dataclass(frozen=True)
class TheoryCheck:
    """A theorem or closed form of a paper, and the computation that checks it.

    Attributes:
        id: the claim's id in the map of the papers' claims.
        paper: the paper's name and arXiv number.
        equation: where the paper states it.
        says: the statement, in our words.
        computes: what is computed to check it.
        find: computes the findings; all must hold.
        note: what the reader must know to read the verdict.
    """

    id: str
    paper: str
    equation: str
    says: str
    computes: str
    find: Callable[[], Sequence[Finding]]
    note: str = ""


@dataclass(frozen=True)
class TheoryResult:
    """The findings of a check."""

    check: TheoryCheck
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> ClaimVerdict:
        """HOLDS if all findings do, else CONTRADICTED."""
        held = all(finding.holds for finding in self.findings)
        return ClaimVerdict.HOLDS if held else ClaimVerdict.CONTRADICTED

    @property
    def deciding(self) -> Finding:
        """The first finding that does not hold, or the first of all."""
        return next((f for f in self.findings if not f.holds), self.findings[0])

    @property
    def comparisons(self) -> int:
        """How many numbers were compared."""
        return sum(finding.comparisons for finding in self.findings)
