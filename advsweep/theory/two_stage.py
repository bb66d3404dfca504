"""Checks of the two-stage view (arXiv:2510.04028): logits of a softmax, and pass@k."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from advsweep.diagnostics.masses import chances, groups_by_count
from advsweep.estimators import build_estimator
from advsweep.statistics import pass_at_k
from advsweep.theory.softmax import (
    expected_update,
    logit_gradient,
    mean_advantage,
    random_policies,
)
from advsweep.theory.types import Finding, Relation, TheoryCheck, compare

_PAPER = "two-stage view (arXiv:2510.04028)"
_SIZES = (2, 4, 6)
_STEP = 1e-6


def _one_draw() -> list[Finding]:
    learnt, own, others, finite = [], [], [], []
    for i, policy in enumerate(random_policies(50, 6, seed=8)):
        drawn, advantage = i % 6, 0.3 + 0.01 * i
        gradient = logit_gradient(
            policy, torch.tensor([drawn]), torch.tensor([advantage], dtype=torch.float64)
        )
        learnt.append(gradient)
        expected = -advantage * policy
        own.append(gradient[drawn] - advantage * (1 - policy[drawn]))
        expected = expected.index_fill(0, torch.tensor([drawn]), 0.0)
        others.append(gradient.index_fill(0, torch.tensor([drawn]), 0.0) - expected)
        finite.append(gradient - _finite_differences(policy, drawn, advantage))
    return [
        compare("own logit's gradient less A(1-π)", torch.stack(own), Relation.EQUAL, 0.0, 1e-12),
        compare(
            "other logits' gradients less -Aπ", torch.stack(others), Relation.EQUAL, 0.0, 1e-12
        ),
        compare(
            "gradients less finite differences of A log π",
            torch.stack(finite),
            Relation.EQUAL,
            0.0,
            1e-8,
        ),
    ]


def _finite_differences(policy: Tensor, drawn: int, advantage: float) -> Tensor:
    """Returns the derivatives of A log π(drawn) by the logits, as central differences."""
    shifts = _STEP * torch.eye(len(policy), dtype=policy.dtype)
    above = torch.log_softmax(policy.log() + shifts, dim=1)[:, drawn]
    below = torch.log_softmax(policy.log() - shifts, dim=1)[:, drawn]
    return advantage * (above - below) / (2 * _STEP)


def _cases() -> list[tuple[Tensor, Tensor]]:
    """Policies over 3 actions with random rewards of 0 to 1, all different."""
    generator = torch.Generator().manual_seed(9)
    rewards = torch.rand(12, 3, generator=generator, dtype=torch.float64)
    return list(zip(random_policies(12, 3, seed=10), rewards, strict=True))


def _expected_logits() -> list[Finding]:
    findings = []
    for name in ("dr_grpo", "grpo"):
        for size in _SIZES:
            got, printed = [], []
            for policy, rewards in _cases():
                estimator = build_estimator(name)
                means = mean_advantage(estimator, policy, rewards, size)
                got.append(expected_update(estimator, policy, rewards, size))
                printed.append(policy * (means - policy @ means))
            findings.append(
                compare(
                    f"expected change of logits, {name}, G = {size}",
                    torch.stack(got),
                    Relation.EQUAL,
                    torch.stack(printed),
                    1e-12,
                )
            )
    for size in _SIZES:
        ratios = []
        for policy, rewards in _cases():
            # The formula with r - E[r] for Â.
            plain = policy * (rewards - policy @ rewards)
            exact = expected_update(build_estimator("dr_grpo"), policy, rewards, size)
            ratios.append(exact / plain)
        findings.append(
            compare(
                f"the same over the formula with Â = r - E[r], G = {size}",
                torch.stack(ratios),
                Relation.EQUAL,
                1 - 1 / size,
            )
        )
    return findings


def _best_and_worst() -> list[Finding]:
    findings = []
    for name in ("dr_grpo", "grpo"):
        best, worst = [], []
        for policy, rewards in _cases():
            for size in _SIZES:
                change = expected_update(build_estimator(name), policy, rewards, size)
                best.append(change[rewards.argmax()])
                worst.append(change[rewards.argmin()])
        findings += [
            compare(
                f"best action's change, {name}", torch.stack(best), Relation.AT_LEAST, 0.0, 1e-15
            ),
            compare(
                f"worst action's change, {name}", torch.stack(worst), Relation.AT_MOST, 0.0, 1e-15
            ),
        ]
    return findings


def _pass_boundary() -> list[Finding]:
    ks = (2, 4, 8, 16, 32, 64, 128)
    got, formula = [], []
    for k in ks:
        kinds = groups_by_count(2 * k)
        # The estimate from 2k samples, in the mean over their number of right answers.
        estimates = torch.from_numpy(pass_at_k(2 * k, kinds.sum(dim=1).long().numpy(), k))
        got.append(float(chances(kinds, 1 / k) @ estimates))
        formula.append(1 - (1 - 1 / k) ** k)
    values = torch.tensor(got, dtype=torch.float64)
    return [
        compare("pass@k of an answer of π = 1/k", values, Relation.AT_LEAST, 1 - 1 / math.e),
        compare(
            "the same by 1 - (1 - 1/k)^k",
            values,
            Relation.EQUAL,
            torch.tensor(formula, dtype=torch.float64),
        ),
    ]


CHECKS = (
    TheoryCheck(
        "TS01",
        _PAPER,
        "Lemma 1",
        "a drawn token moves its own logit by ηA(1-π) and all others by -ηAπ",
        "autograd through the clipped objective, and finite differences, for 50 policies",
        _one_draw,
    ),
    TheoryCheck(
        "TS02",
        _PAPER,
        "Theorem 1",
        "the expected change of a logit is ηπ(v)[(1-π(v))Â(v) - Σ π(u)Â(u)]",
        "all groups of 2, 4 and 6 draws from 12 policies over 3 actions",
        _expected_logits,
        "Â(v) is the mean advantage of draws of v. With r(v) - E[r] in its place the formula "
        "is too large by the factor G/(G-1), since a sample is part of its own baseline.",
    ),
    TheoryCheck(
        "TS06",
        _PAPER,
        "App. C.4",
        "the best action's logit never falls in expectation, the worst one's never rises",
        "the same groups and policies, with and without the division by σ",
        _best_and_worst,
    ),
    TheoryCheck(
        "TS17",
        _PAPER,
        "Sec. 3.1, Remark 3",
        "an answer of probability 1/k is among k samples with chance 1 - 1/e at least",
        "the unbiased estimate of pass@k in the mean over 2k samples, k = 2 to 128",
        _pass_boundary,
        "1/k suffices and is not necessary: a smaller k needs less than 1/k.",
    ),
)
