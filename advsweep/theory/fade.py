"""Checks of FADE (arXiv:2607.01490): masses of weights, and the change of entropy."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from advsweep.diagnostics import expected_masses, group_masses, masses, population_masses
from advsweep.diagnostics.masses import groups_by_count
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.theory.softmax import random_policies
from advsweep.theory.types import Finding, Relation, TheoryCheck, compare

_PAPER = "FADE (arXiv:2607.01490)"
_RATES = (0.1, 0.3, 0.5, 0.8)
_G = 8


def _tensor(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _split() -> list[Finding]:
    printed: dict[str, Callable[[float], tuple[float, float]]] = {
        "reinforce": lambda p: (p, 0.0),
        "dr_grpo": lambda p: (p * (1 - p), p * (1 - p)),
        "maxrl": lambda p: (1 - p, 1 - p),
        "grpo": lambda p: (math.sqrt(p * (1 - p)), math.sqrt(p * (1 - p))),
    }
    findings = []
    for name, formula in printed.items():
        estimator = build_estimator(name)
        got = [m for p in _RATES for m in population_masses(estimator, p)]
        findings.append(
            compare(
                f"m_S and m_F of {name}, large groups",
                _tensor(got),
                Relation.EQUAL,
                _tensor([m for p in _RATES for m in formula(p)]),
            )
        )
    factor = 1 - 1 / _G
    got = [m for p in _RATES for m in expected_masses(build_estimator("dr_grpo"), p, _G)]
    finite = [m for p in _RATES for m in (p * (1 - p) * factor,) * 2]
    findings.append(
        compare(
            f"m_S and m_F of dr_grpo, G = {_G}, by p(1-p)(1 - 1/G)",
            _tensor(got),
            Relation.EQUAL,
            _tensor(finite),
        )
    )
    generator = torch.Generator().manual_seed(11)
    drawn = (torch.rand(20_000, _G, generator=generator, dtype=torch.float64) < 0.3).double()
    advantages = build_estimator("dr_grpo")(GroupBatch(rewards=drawn))
    per_group = (advantages * drawn).mean(dim=1)
    error = 3 * float(per_group.std()) / math.sqrt(len(drawn))
    findings.append(
        Finding(
            "m_S of dr_grpo, 20,000 random groups at p = .3, within 3 standard errors",
            masses(advantages, drawn == 1).success,
            Relation.EQUAL,
            0.21 * factor,
            error,
            len(drawn),
        )
    )
    return findings


def _predicted(drift: float, covariance: float) -> float:
    """The change of entropy that Eq. 7 prints, per unit of the rate."""
    return drift - covariance


def _entropy_change() -> list[Finding]:
    """A natural-gradient step changes a tabular softmax's logits by η (A - E[A])."""
    rate = 1e-6
    got, printed, covariances = [], [], []
    for policy in random_policies(40, 8, seed=12):
        rewards = (torch.arange(8) % 2).double()
        solved = float(policy @ rewards)
        # The advantages of a large group of this solve rate.
        mass = population_masses(build_estimator("asym_grpo", delta=0.3), solved)
        advantages = rewards * mass.success / solved - (1 - rewards) * mass.failure / (1 - solved)
        log = policy.log()
        entropy = float(-(policy @ log))
        after = torch.softmax(log + rate * (advantages - policy @ advantages), dim=0)
        got.append((float(-(after @ after.log())) - entropy) / rate)
        mean = float(policy @ advantages)
        covariance = float(policy @ (advantages * log)) + mean * entropy
        printed.append(_predicted(mean * entropy, covariance))
        covariances.append(-covariance)
    return [
        compare(
            "change of entropy per unit of η, δ = .3",
            _tensor(got),
            Relation.EQUAL,
            _tensor(printed),
            1e-3,
        ),
        compare(
            "the same by -Cov(A, log π) alone",
            _tensor(got),
            Relation.EQUAL,
            _tensor(covariances),
            1e-3,
        ),
    ]


def _retry() -> list[Finding]:
    generator = torch.Generator().manual_seed(13)
    estimator = build_estimator("rloo")  # its expected mass is p(1-p) at every G
    weight = build_estimator("power_alpha", alpha=2.0)
    findings = []
    for rate in (0.2, 0.5, 0.7):
        failed = torch.rand(40_000, generator=generator, dtype=torch.float64) >= rate
        again = torch.rand(40_000, _G, generator=generator, dtype=torch.float64) < rate
        advantages = estimator(GroupBatch(rewards=again.double()))
        added = failed * (advantages * again).mean(dim=1)
        findings.append(
            Finding(
                f"mass of the retries at p = {rate:g}, within 3 standard errors",
                float(added.mean()),
                Relation.EQUAL,
                population_masses(weight, rate).success,
                3 * float(added.std()) / math.sqrt(len(added)),
                len(added),
            )
        )
    exact = [(1 - p) * expected_masses(estimator, p, _G).success for p in _RATES]
    findings.append(
        compare(
            "the same in expectation, by p(1-p)²",
            _tensor(exact),
            Relation.EQUAL,
            _tensor([p * (1 - p) ** 2 for p in _RATES]),
        )
    )
    return findings


def _single_success() -> list[Finding]:
    successes, failures, formula = [], [], []
    for k in (2, 4, 8):
        for p in _RATES:
            mass = expected_masses(build_estimator("passk_loo"), p, k)
            successes.append(k * mass.success)
            failures.append(mass.failure)
            formula.append(k * p * (1 - p) ** (k - 1))
    return [
        compare("k m_S, by k p(1-p)^(k-1)", _tensor(successes), Relation.EQUAL, _tensor(formula)),
        compare("m_F", _tensor(failures), Relation.EQUAL, 0.0),
    ]


def _analytic() -> list[Finding]:
    up, down, formula = [], [], []
    for size in (4, 8, 16):
        for k in range(1, size + 1):
            estimator = build_estimator("passk_analytic", k=k)
            for right in range(1, size):
                solved = 1 - math.comb(size - right, k) / math.comb(size, k)
                mass = group_masses(estimator, right, size)
                up.append(mass.success)
                down.append(mass.failure)
                formula.append(right / size * math.sqrt((1 - solved) / solved))
    rewards = groups_by_count(8)
    first = build_estimator("passk_analytic", k=1)(GroupBatch(rewards=rewards))
    return [
        compare("m_S, by p √((1-R)/R)", _tensor(up), Relation.EQUAL, _tensor(formula)),
        compare("m_F, by m_S", _tensor(down), Relation.EQUAL, _tensor(up)),
        compare(
            "A at k = 1, by GRPO's",
            first,
            Relation.EQUAL,
            build_estimator("grpo")(GroupBatch(rewards=rewards)),
        ),
    ]


def _median() -> list[Finding]:
    rewards = groups_by_count(_G)[1:-1]
    rate = rewards.mean(dim=1)
    advantages = build_estimator("mc_grpo")(GroupBatch(rewards=rewards))
    up = (advantages * rewards).mean(dim=1)
    down = -(advantages * (1 - rewards)).mean(dim=1)
    hard = rate <= 0.5
    return [
        compare("m_F of hard groups", down[hard], Relation.EQUAL, 0.0),
        compare("m_S of easy groups", up[~hard], Relation.EQUAL, 0.0),
        compare("m_S of hard groups, by p", up[hard], Relation.EQUAL, rate[hard]),
        compare("m_F of easy groups, by 1-p", down[~hard], Relation.EQUAL, 1 - rate[~hard]),
    ]


CHECKS = (
    TheoryCheck(
        "FA01",
        _PAPER,
        "Eq. 2-3, Sec. 8",
        "every weight has a success mass and a failure mass; those of mean GRPO are p(1-p)",
        "masses of four weights, of large groups, of groups of 8, and of random groups",
        _split,
        "Of groups of G the masses of mean GRPO are p(1-p)(1 - 1/G).",
    ),
    TheoryCheck(
        "FA03",
        _PAPER,
        "Eq. 7, Sec. 13",
        "a step changes entropy by η[(m_S - m_F)H - Cov(A, log π)]",
        "natural-gradient steps of 40 tabular policies with δ = .3",
        _entropy_change,
        "The step that the paper's assumption makes exact has the covariance term alone: a "
        "constant added to A does not change the expected gradient.",
    ),
    TheoryCheck(
        "FA22",
        _PAPER,
        "Sec. 9.2",
        "a retry of each failed attempt adds the mass p(1-p)² of power α = 2",
        "40,000 simulated retries at three solve rates, and the expected masses",
        _retry,
        "One failed attempt triggers its retry; a retry of groups that failed as a whole "
        "would add (1-p)^G p(1-p).",
    ),
    TheoryCheck(
        "FA24",
        _PAPER,
        "Sec. 8.4.1",
        "the leave-one-out pass@k weight has the masses kp(1-p)^(k-1) and 0",
        "expected masses for k = 2, 4 and 8 at four solve rates",
        _single_success,
    ),
    TheoryCheck(
        "FA25",
        _PAPER,
        "Sec. 8.4.2",
        "the analytic pass@k weight has equal masses p√((1-R)/R) and is GRPO at k = 1",
        "every k and number of successes of groups of 4, 8 and 16",
        _analytic,
    ),
    TheoryCheck(
        "FA26",
        _PAPER,
        "Sec. 8.6",
        "with a median baseline hard groups push successes alone, easy groups failures alone",
        "masses for every number of successes out of 8",
        _median,
        "True of a group's own share of successes. Groups of a prompt at p = .3 are at times "
        "easy, so that both masses are above 0 in expectation (.262 and .020 at G = 8).",
    ),
)
