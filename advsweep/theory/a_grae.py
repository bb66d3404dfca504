"""Checks of A-GRAE (arXiv:2602.05548): symmetry of advantages, and updates of logits."""

from __future__ import annotations

import torch
from torch import Tensor

from advsweep.diagnostics.masses import groups_by_count
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.theory.softmax import expected_update, logit_gradient, random_policies
from advsweep.theory.types import Finding, Relation, TheoryCheck, compare

_PAPER = "A-GRAE (arXiv:2602.05548)"
_SIZES = (2, 4, 8, 16)
_NO_WIDER = 1e-12


def _advantages(estimator: str, rewards: Tensor, **options: float) -> Tensor:
    return build_estimator(estimator, **options)(GroupBatch(rewards=rewards))


def _equal_sides() -> list[Finding]:
    findings = []
    for size in _SIZES:
        rewards = groups_by_count(size)
        advantages = _advantages("grpo", rewards)
        up = (advantages.abs() * rewards).sum(dim=1)
        down = (advantages.abs() * (1 - rewards)).sum(dim=1)
        findings.append(compare(f"Σ|A| of right answers, G = {size}", up, Relation.EQUAL, down))
    return findings


def _zero_sums() -> list[Finding]:
    generator = torch.Generator().manual_seed(4)
    findings = []
    for name in ("grpo", "dr_grpo", "dapo"):
        graded = torch.rand(200, 8, generator=generator, dtype=torch.float64)
        binary = groups_by_count(8)
        sums = _advantages(name, torch.cat((binary, graded))).sum(dim=1)
        findings.append(compare(f"Σ A of a group, {name}", sums, Relation.EQUAL, 0.0))
    return findings


def _groups_of_distinct() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Policies over 12 behaviours, 8 of them drawn once each, and the rewards of these."""
    generator = torch.Generator().manual_seed(5)
    cases = []
    for policy in random_policies(50, 12, seed=6):
        drawn = torch.randperm(12, generator=generator)[:8]
        rewards = torch.zeros(8, dtype=torch.float64)
        rewards[: int(torch.randint(1, 8, (), generator=generator))] = 1
        cases.append((policy, drawn, rewards))
    return cases


def _unsampled(estimator: str, **options: float) -> tuple[Tensor, Tensor]:
    """Returns the gradients of logits that were not drawn, and -Cπ of them."""
    gradients, expected = [], []
    for policy, drawn, rewards in _groups_of_distinct():
        advantages = _advantages(estimator, rewards[None], **options)[0]
        others = torch.ones_like(policy, dtype=torch.bool)
        others[drawn] = False
        gradients.append(logit_gradient(policy, drawn, advantages)[others])
        expected.append(-advantages.sum() * policy[others])
    return torch.cat(gradients), torch.cat(expected)


def _still() -> list[Finding]:
    gradients, _ = _unsampled("grpo")
    return [
        compare("gradient of a logit that was not drawn", gradients, Relation.EQUAL, 0.0, _NO_WIDER)
    ]


def _lifted() -> list[Finding]:
    gradients, expected = _unsampled("negative_dominant")
    return [
        compare("gradient of a logit that was not drawn", gradients, Relation.EQUAL, expected),
        compare("the least of them", gradients.min(), Relation.AT_LEAST, 0.0, _NO_WIDER),
    ]


def _reinforced() -> list[Finding]:
    # Behaviour 0 is wrong and has π = .97; 1 to 4 are wrong too, 5 to 7 are right.
    policy = torch.full((8,), 0.03 / 7, dtype=torch.float64)
    policy[0] = 0.97
    rewards = (torch.arange(8) > 4).double()
    drawn = torch.arange(8)
    gradients = {}
    for name in ("grpo", "negative_dominant"):
        advantages = _advantages(name, rewards[None])[0]
        gradients[name] = float(logit_gradient(policy, drawn, advantages)[0])
    advantages = _advantages("negative_dominant", rewards[None])[0]
    formula = float(advantages[0] - advantages.sum() * 0.97)
    few = torch.tensor([0.97, 0.02, 0.01], dtype=torch.float64)
    solved = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    mean = expected_update(build_estimator("negative_dominant"), few, solved, 8)
    return [
        Finding(
            "gradient of a wrong answer's logit at π = .97, negative-dominant",
            gradients["negative_dominant"],
            Relation.AT_LEAST,
            0.0,
            _NO_WIDER,
        ),
        Finding(
            "the same by A - Cπ",
            gradients["negative_dominant"],
            Relation.EQUAL,
            formula,
        ),
        Finding(
            "the same logit's gradient, GRPO", gradients["grpo"], Relation.AT_MOST, 0.0, _NO_WIDER
        ),
        Finding(
            "its mean over all groups of 8 at π = (.97, .02, .01), the last right",
            float(mean[0]),
            Relation.AT_MOST,
            0.0,
            _NO_WIDER,
        ),
    ]


def _peak(estimator: str, formula: str) -> list[Finding]:
    findings = []
    for size in _SIZES:
        rewards = groups_by_count(size)[1:-1]
        rate = rewards.mean(dim=1)
        expected = {
            "2√(p(1-p))": 2 * (rate * (1 - rate)).sqrt(),
            "√(1-p)": (1 - rate).sqrt(),
            "√p": rate.sqrt(),
        }[formula]
        sums = _advantages(estimator, rewards).abs().sum(dim=1)
        findings.append(
            compare(f"Σ|A| of {estimator}, G = {size}", sums, Relation.EQUAL, size * expected)
        )
    return findings


CHECKS = (
    TheoryCheck(
        "AG01",
        _PAPER,
        "Eq. 5, App. B.2",
        "right and wrong answers of a group have equal total weight",
        "Σ|A| of both sides for every number of right answers, G = 2 to 16",
        _equal_sides,
    ),
    TheoryCheck(
        "AG02",
        _PAPER,
        "Theorem 1, Eq. 9",
        "GRPO leaves the logits of behaviours that were not drawn where they are",
        "autograd through the clipped objective, 50 policies over 12 behaviours, 8 drawn",
        _still,
    ),
    TheoryCheck(
        "AG03",
        _PAPER,
        "Theorem 1, Eq. 36",
        "with positive advantages divided by 10, a behaviour that was not drawn rises by -Cπ",
        "the same policies and groups",
        _lifted,
    ),
    TheoryCheck(
        "AG04",
        _PAPER,
        "App. B.5, Eq. 35",
        "with C < 0 a wrong answer of high probability can rise",
        "autograd for a group of 8 different answers, 5 of them wrong",
        _reinforced,
        "It takes a group that draws an answer of π = .97 once. In the mean over groups the "
        "wrong answer falls, as the last finding says.",
    ),
    TheoryCheck(
        "AG05",
        _PAPER,
        "Theorem 2, Eq. 10",
        "Σ|A| of a group is 2G√(p(1-p)), with its peak at p = 1/2",
        "GRPO's advantages for every number of right answers, G = 2 to 16",
        lambda: _peak("grpo", "2√(p(1-p))"),
    ),
    TheoryCheck(
        "AG06",
        _PAPER,
        "Sec. 4.1, Table 1",
        "hard focus makes it G√(1-p), easy focus G√p",
        "advantages of both rules with γ = 1/2 for every number of right answers",
        lambda: [*_peak("hard_focused", "√(1-p)"), *_peak("easy_focused", "√p")],
    ),
    TheoryCheck(
        "AG22",
        _PAPER,
        "Sec. 4.4",
        "Dr. GRPO and DAPO keep the sum of advantages at 0",
        "Σ A for every number of right answers and for 200 groups of graded rewards",
        _zero_sums,
    ),
)
