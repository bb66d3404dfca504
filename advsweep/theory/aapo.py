"""Checks of AAPO (arXiv:2505.14264): the clipped margin and the bounds of a step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from advsweep.diagnostics.masses import groups_by_count
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.theory.softmax import (
    chance_of_groups,
    every_group,
    random_policies,
    scores,
)
from advsweep.theory.types import Finding, Relation, TheoryCheck, compare

_PAPER = "AAPO (arXiv:2505.14264)"
_LOW, _HIGH = -0.2, 0.28


def _advantages(rewards: Tensor, references: Tensor) -> Tensor:
    return build_estimator("aapo")(GroupBatch(rewards=rewards, ref_rewards=references))


def _uniform(outcome: float) -> tuple[Tensor, Tensor]:
    """Advantages of a uniform group of 8 against references with 0 to 8 successes, and these."""
    references = groups_by_count(8)
    return _advantages(torch.full_like(references, outcome), references), references


def _near_the_optimum() -> list[Finding]:
    findings = []
    for name, outcome in (("all-right", 1.0), ("all-wrong", 0.0)):
        values, _ = _uniform(outcome)
        findings.append(
            compare(f"|A| of an {name} group", values.abs(), Relation.AT_MOST, _HIGH, 1e-12)
        )
    values, _ = _uniform(1.0)
    reached = float(values.max())
    findings.append(Finding("the largest of them", reached, Relation.EQUAL, _HIGH, 1e-12))
    return findings


def _solved_group() -> list[Finding]:
    values, references = _uniform(1.0)
    solved = torch.ones_like(references)
    plain = build_estimator("grpo")(GroupBatch(rewards=solved))
    return [
        compare(
            "A of right answers, all G right",
            values,
            Relation.EQUAL,
            _HIGH * (1 - references),
            1e-12,
        ),
        compare("the same by GRPO", plain, Relation.EQUAL, 0.0, 1e-12),
    ]


def _bounded() -> list[Finding]:
    size, behaviours = 4, 3
    sharp = math.sqrt(size - 1) + _HIGH
    # The smallest σ of a mixed group of binary rewards.
    printed = 1 / (math.sqrt(size - 1) / size) + _HIGH
    groups = every_group(behaviours, size)
    largest, steps, floors = [], [], []
    for i, policy in enumerate(random_policies(60, behaviours, seed=7)):
        rewards = torch.tensor([1.0, 0.0, float(i % 2)], dtype=torch.float64)
        references = torch.full((len(groups), size), float(i % 3 == 0), dtype=torch.float64)
        advantages = _advantages(rewards[groups], references)
        score = scores(policy)
        gradients = torch.einsum("gi,giv->gv", advantages, score[groups]) / size
        largest.append(float(advantages.abs().max()))
        steps.append(float(gradients.norm(dim=1).max() / score.norm(dim=1).max()))
        losses = -(policy.log()[groups] * advantages).mean(dim=1)
        floors.append(float(chance_of_groups(policy, groups) @ losses))
    bound = torch.tensor(largest, dtype=torch.float64)
    return [
        compare(f"|A|, G = {size}, printed B = {printed:.4g}", bound, Relation.AT_MOST, printed),
        compare("|A| by the sharp bound √(G-1) + .28", bound, Relation.AT_MOST, sharp),
        compare(
            "norm of a step over ηM",
            torch.tensor(steps, dtype=torch.float64),
            Relation.AT_MOST,
            sharp,
        ),
        compare(
            "expected loss",
            torch.tensor(floors, dtype=torch.float64),
            Relation.AT_LEAST,
            -sharp * math.log(behaviours),
        ),
    ]


CHECKS = (
    TheoryCheck(
        "AA12",
        _PAPER,
        "Sec. 5.2",
        "in a uniform group the weight of an answer is the clipped margin, .28 at most",
        "AAPO's advantages of uniform groups of 8 against every number of right references",
        _near_the_optimum,
    ),
    TheoryCheck(
        "AA13",
        _PAPER,
        "Sec. 5.2",
        "a solved group still pushes up the answers whose references are wrong",
        "AAPO's and GRPO's advantages of solved groups of 8",
        _solved_group,
    ),
    TheoryCheck(
        "AA14",
        _PAPER,
        "Theorem 1, App. B",
        "a step has norm ηMB at most, and the expected loss is -B log V at least",
        "all groups of 4 over 3 answers, 60 random policies, right and wrong references",
        _bounded,
        "The printed B divides by the smallest σ, which the paper lets be 0; the check takes "
        "the smallest σ of a mixed group, and the sharp bound. The floor is that of the "
        "expected loss; the loss of a single group has none.",
    ),
)
