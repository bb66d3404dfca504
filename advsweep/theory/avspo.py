"""Checks of AVSPO (arXiv:2605.21125): collapse rate, virtual rewards and their bias."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from advsweep.diagnostics import collapse
from advsweep.diagnostics.masses import chances, groups_by_count
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.theory.softmax import random_policies, scores
from advsweep.theory.types import Finding, Relation, TheoryCheck, compare

_PAPER = "AVSPO (arXiv:2605.21125)"
_SIZES = (2, 4, 8, 16)
_RATES = (0.05, 0.25, 0.5, 0.75, 0.95)
_DRAWN = 20_000
_PROMPTS = 8


def _uniform_groups() -> list[Finding]:
    generator = torch.Generator().manual_seed(0)
    drawn, enumerated, expected = [], [], []
    for size in _SIZES:
        kinds = groups_by_count(size)
        collapsed = torch.tensor([collapse(kind[None]).acr for kind in kinds], dtype=torch.float64)
        for rate in _RATES:
            uniform = torch.rand(_DRAWN, size, generator=generator, dtype=torch.float64)
            drawn.append(collapse((uniform < rate).double()).acr)
            enumerated.append(float(chances(kinds, rate) @ collapsed))
            expected.append(rate**size + (1 - rate) ** size)
    formula = torch.tensor(expected, dtype=torch.float64)
    errors = 3 * (formula * (1 - formula) / _DRAWN).sqrt()
    exact = torch.tensor(enumerated, dtype=torch.float64)
    return [
        compare("ACR, enumerated over all groups", exact, Relation.EQUAL, formula, 1e-12),
        compare(
            f"ACR of {_DRAWN:,} random groups, within 3 standard errors",
            torch.tensor(drawn, dtype=torch.float64),
            Relation.EQUAL,
            formula,
            errors,
        ),
    ]


def _squared_advantages() -> list[Finding]:
    generator = torch.Generator().manual_seed(1)
    findings = []
    for eps in (1e-8, 1e-4, 0.1):
        rewards = torch.rand(200, 8, generator=generator, dtype=torch.float64)
        # From ordinary groups to nearly uniform ones.
        rewards *= torch.logspace(0, -6, 200, dtype=torch.float64)[:, None]
        advantages = build_estimator("grpo", eps=eps)(GroupBatch(rewards=rewards))
        sigma = rewards.std(dim=1, correction=0)
        findings.append(
            compare(
                f"Σ A² of random groups at ε = {eps:g}",
                advantages.square().sum(dim=1),
                Relation.EQUAL,
                8 * sigma**2 / (sigma + eps) ** 2,
            )
        )
    return findings


def _collapsed_batch(collapsed: int, size: int) -> Tensor:
    """Rewards of 8 groups; `collapsed` of them are all wrong and all right in turn."""
    rewards = torch.zeros(_PROMPTS, size, dtype=torch.float64)
    rewards[:, : size // 2] = 1
    for i in range(collapsed):
        rewards[i] = float(i % 2)
    return rewards


def _uniform_advantages() -> list[Finding]:
    spreads, wrong, right, sizes, bounds = [], [], [], [], []
    for size in (2, 4, 8):
        for collapsed in range(2, _PROMPTS + 1):
            # A threshold of 0 triggers in every step with a collapsed group.
            out = build_estimator("avspo", fixed_tau=0.0).compute(
                GroupBatch(rewards=_collapsed_batch(collapsed, size))
            )
            values = out.values[:collapsed]
            spreads.append(float((values - values[:, :1]).abs().max()))
            wrong.append(float(values[0::2].max()))
            right.append(float(values[1::2].min()))
            sizes.append(float(values.abs().max()))
            bounds.append(math.sqrt(out.info["virtual"] / size))

    def as_tensor(numbers: list[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64)

    return [
        compare("|A| over √(K/G)", as_tensor(sizes) / as_tensor(bounds), Relation.AT_MOST, 1.0),
        compare("largest A of all-wrong groups", as_tensor(wrong), Relation.AT_MOST, -1e-3),
        compare("smallest A of all-right groups", as_tensor(right), Relation.AT_LEAST, 1e-3),
        compare("spread of A within a uniform group", as_tensor(spreads), Relation.EQUAL, 0.0),
    ]


def _bias() -> list[Finding]:
    size = 8
    policies = random_policies(_PROMPTS, 6, seed=2)
    generator = torch.Generator().manual_seed(3)
    # Behaviours 0 to 2 are right, 3 to 5 are wrong.
    places = torch.randint(3, (_PROMPTS, size), generator=generator)
    norms, bounds = [], []
    for collapsed in range(_PROMPTS + 1):
        rewards = _collapsed_batch(collapsed, size)
        drawn = places + 3 * (rewards == 0)
        out = build_estimator("avspo", fixed_tau=0.0).compute(GroupBatch(rewards=rewards))
        change = out.values - build_estimator("grpo", eps=1e-8)(GroupBatch(rewards=rewards))
        per_prompt = torch.stack(
            [scores(policies[b])[drawn[b]].T @ change[b] for b in range(_PROMPTS)]
        )
        norms.append(float(per_prompt.norm()) / (_PROMPTS * size))
        largest = max(float(scores(policies[b]).norm(dim=1).max()) for b in range(_PROMPTS))
        bounds.append(collapsed / _PROMPTS * largest * math.sqrt(out.info["virtual"] / size))
    steps = torch.tensor(norms, dtype=torch.float64)
    limits = torch.tensor(bounds, dtype=torch.float64)
    return [
        Finding("difference of gradients, no uniform group", norms[0], Relation.EQUAL, 0.0, 1e-12),
        compare("difference over its bound", steps[1:] / limits[1:], Relation.AT_MOST, 1.0),
        compare("growth with a further uniform group", steps.diff(), Relation.AT_LEAST, 0.0, 1e-12),
    ]


CHECKS = (
    TheoryCheck(
        "AV10",
        _PAPER,
        "App. F",
        "a group of G binary rewards is uniform with chance p^G + (1-p)^G",
        "the collapse rate, enumerated and of random groups, for 5 rates and 4 group sizes",
        _uniform_groups,
    ),
    TheoryCheck(
        "AV26",
        _PAPER,
        "Prop. 4.2, Eq. 14",
        "the squared advantages of a group sum to Gσ²/(σ + ε)²",
        "GRPO's advantages on 600 random groups whose σ falls to 1e-7",
        _squared_advantages,
    ),
    TheoryCheck(
        "AV27",
        _PAPER,
        "Lemma B.2, Prop. B.3, Eq. 20-23",
        "a uniform group gets one advantage, below 0 if all fail and above 0 if all succeed, of "
        "size √(K/G) at most",
        "AVSPO's advantages for 2 to 8 uniform groups out of 8, G = 2, 4 and 8",
        _uniform_advantages,
    ),
    TheoryCheck(
        "AV28",
        _PAPER,
        "Prop. B.8, Eq. 33",
        "AVSPO's gradient is GRPO's without uniform groups, and differs by ACR C √(K/G) at most",
        "gradients of 8 softmax policies with 0 to 8 uniform groups",
        _bias,
        "The bound is in proportion to ACR at a fixed K; K itself rises with ACR.",
    ),
)
