"""Exact checks of the papers' theorems and closed forms: what they are made of.

A check computes what a theorem states, with advsweep's own estimators, masses and objectives: by
enumeration of all groups, by finite differences, or by Monte Carlo with a fixed seed and a
tolerance of three standard errors. Equality means 1e-9 unless a check says more. `map.yaml` has
the statement of each check in words, and where its paper makes it.

Theorems about logits are checked on small softmax policies over V behaviours (one-token answers).
Rewards belong to behaviours; a group is G behaviours drawn with repetition; all is float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from advsweep.estimators import Estimator, GroupBatch, build_estimator
from advsweep.objectives import OBJECTIVES
from advsweep.objectives.base import LossInputs

Numbers = Tensor | Sequence[float] | float


@dataclass(frozen=True)
class Finding:
    """A comparison of computed numbers with the paper's.

    Attributes:
        quantity: what was computed, in words.
        got, expected, tolerance: of the numbers that fit worst.
        relation: what the paper says: `=`, `≤` or `≥`.
        comparisons: how many numbers were compared.
    """

    quantity: str
    got: float
    relation: str
    expected: float
    tolerance: float
    comparisons: int = 1

    @property
    def excess(self) -> float:
        """By how much the number breaks the relation; at most 0 if it does not."""
        difference = self.got - self.expected
        if not math.isfinite(self.got):
            return math.inf
        return {"=": abs(difference), "≤": difference, "≥": -difference}[self.relation]

    @property
    def holds(self) -> bool:
        return self.excess <= self.tolerance


def compare(
    quantity: str, got: Numbers, relation: str, expected: Numbers, tolerance: Numbers = 1e-9
) -> Finding:
    """Compare numbers one by one, and return the comparison that fits worst."""
    values = [torch.as_tensor(v, dtype=torch.float64) for v in (got, expected, tolerance)]
    rows = [row.reshape(-1).tolist() for row in torch.broadcast_tensors(*values)]
    findings = [
        Finding(quantity, g, relation, e, t, len(rows[0])) for g, e, t in zip(*rows, strict=True)
    ]
    # Among equally good fits the largest number says most.
    return max(findings, key=lambda f: (round(max(f.excess / f.tolerance, 0), 2), abs(f.got)))


@dataclass(frozen=True)
class Check:
    """The computation that checks a claim of a paper; it holds if all its findings do.

    Attributes:
        computes: what is computed.
        note: what the reader must know to read the verdict.
    """

    id: str
    computes: str
    note: str
    find: Callable[[], Iterable[Finding]]

    def run(self) -> tuple[bool, Finding, int]:
        """Return the verdict, the finding that decides it, and how many numbers were compared."""
        findings = list(self.find())
        deciding = next((f for f in findings if not f.holds), findings[0])
        return deciding.holds, deciding, sum(f.comparisons for f in findings)


CHECKS: dict[str, Check] = {}
"""The checks by the id of their claim; the modules `exact_advantages` and `exact_fade` fill it."""


def check(
    id: str, computes: str, note: str = ""
) -> Callable[..., Callable[..., Iterable[Finding]]]:
    """Register a function that yields findings as the check of a claim."""

    def register(find: Callable[[], Iterable[Finding]]) -> Callable[[], Iterable[Finding]]:
        CHECKS[id] = Check(id, computes, note, find)
        return find

    return register


def build(name: str, **options: object) -> Estimator:
    return build_estimator(name, **options)


def advantages(name: str, rewards: Tensor, **options: object) -> Tensor:
    """Return an estimator's advantages of groups, of the shape of their rewards."""
    return build(name, **options)(GroupBatch(rewards=rewards))


def groups_by_count(size: int) -> Tensor:
    """Return a group of binary rewards for each number of successes, 0 to `size`."""
    return torch.ones(size + 1, size, dtype=torch.float64).tril(-1)


def chances(size: int, rate: float) -> Tensor:
    """Return the probability of each number of successes out of `size`."""
    counts = torch.arange(size + 1, dtype=torch.float64)
    return (
        torch.distributions.Binomial(size, torch.tensor(rate, dtype=torch.float64))
        .log_prob(counts)
        .exp()
    )


def random_policies(count: int, behaviours: int, seed: int) -> Tensor:
    """Draw logits from a normal distribution of deviation 1.5, and return the softmax."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, behaviours, generator=generator, dtype=torch.float64)
    return torch.softmax(1.5 * logits, dim=-1)


def scores(policy: Tensor) -> Tensor:
    """Return ∇_z log π(u) = 1[u] - π for each behaviour u: `[behaviours, logits]`."""
    return torch.eye(len(policy), dtype=policy.dtype) - policy


def logit_gradient(policy: Tensor, drawn: Tensor, weights: Tensor) -> Tensor:
    """Return Σᵢ Aᵢ ∇_z log π(uᵢ) of a group, by autograd through the clipped objective.

    The objective is on-policy, so that its ratio is 1 and its clip does nothing.
    """
    logits = policy.log().clone().requires_grad_()
    log_probs = torch.log_softmax(logits, dim=0)[drawn][:, None]
    inputs = LossInputs(
        log_probs=log_probs,
        old_log_probs=log_probs.detach(),
        completion_mask=torch.ones_like(log_probs, dtype=torch.bool),
        advantages=weights,
        rollouts=len(drawn),
        tokens=len(drawn),
    )
    (gradient,) = torch.autograd.grad(OBJECTIVES.build("clipped").loss(inputs).loss, logits)
    return -len(drawn) * gradient


def every_group(behaviours: int, size: int) -> Tensor:
    """Return all V^G groups of drawn behaviours: `[groups, rollouts]`."""
    return torch.cartesian_prod(*[torch.arange(behaviours)] * size).reshape(-1, size)


def expected_update(estimator: Estimator, policy: Tensor, rewards: Tensor, size: int) -> Tensor:
    """Return E[(1/G) Σᵢ Aᵢ ∇_z log π(uᵢ)], enumerated over all groups."""
    groups = every_group(len(policy), size)
    values = estimator(GroupBatch(rewards=rewards[groups]))
    weighted = policy[groups].prod(dim=1)[:, None] * values / size
    per_behaviour = torch.zeros_like(policy).index_add(0, groups.reshape(-1), weighted.reshape(-1))
    return per_behaviour @ scores(policy)


def mean_advantage(estimator: Estimator, policy: Tensor, rewards: Tensor, size: int) -> Tensor:
    """Return Â(u), the mean advantage of a rollout that drew u, over the others' draws."""
    groups = every_group(len(policy), size)
    values = estimator(GroupBatch(rewards=rewards[groups]))[:, 0]
    weighted = policy[groups].prod(dim=1) * values
    return torch.zeros_like(policy).index_add(0, groups[:, 0], weighted) / policy
