"""The checks of theorems: their verdicts, and that each of them can fail."""

from __future__ import annotations

import math

import pytest
import torch

import advsweep.estimators
from advsweep.report import ClaimVerdict
from advsweep.statistics import pass_at_k
from advsweep.theory import CHECKS, TheoryResult, a_grae, aapo, avspo, fade, fade_power, two_stage
from advsweep.theory import softmax as softmax_module
from advsweep.theory.types import Finding, Relation, compare

BY_ID = {check.id: check for check in CHECKS}
CONTRADICTED = {"FA03", "FA16"}
# Checks that build no estimator have mutations of their own.
WITHOUT_ESTIMATOR = {"AV10", "TS01", "TS17"}
# Bounds and comparisons of two estimators, which the general mutation may still satisfy.
MUTATED_APART = {"AA14", "AG04", "AV28"}


def verdict(id: str) -> ClaimVerdict:
    return TheoryResult(BY_ID[id], tuple(BY_ID[id].find())).verdict


def test_there_are_27_checks_with_a_source_each():
    assert len(CHECKS) == len(BY_ID) == 27
    assert all(c.paper and c.equation and c.says and c.computes for c in CHECKS)


@pytest.mark.parametrize("id", BY_ID)
def test_the_verdict_of_each_check(id):
    expected = ClaimVerdict.CONTRADICTED if id in CONTRADICTED else ClaimVerdict.HOLDS
    assert verdict(id) is expected


@pytest.fixture
def mutated(monkeypatch):
    """Estimators whose advantages depend wrongly on the group's mean, and do not sum to 0."""

    def build(name, **options):
        estimator = advsweep.estimators.build_estimator(name, **options)
        own = estimator._advantages

        def wrong(groups, info):
            # Failures rise and successes fall where many succeed.
            mean = groups.rewards.mean(dim=1, keepdim=True)
            return own(groups, info) * (1.1 - 2 * mean) + 0.1 * (groups.rewards - 0.3)

        estimator._advantages = wrong
        return estimator

    for module in (avspo, a_grae, aapo, two_stage, fade, fade_power):
        monkeypatch.setattr(module, "build_estimator", build)


@pytest.mark.parametrize(
    "id", sorted(set(BY_ID) - WITHOUT_ESTIMATOR - MUTATED_APART - CONTRADICTED)
)
def test_a_wrong_estimator_is_noticed(mutated, id):
    assert verdict(id) is ClaimVerdict.CONTRADICTED


@pytest.mark.parametrize(
    ("id", "module", "mutated_name", "replacement", "factor"),
    [
        ("AA14", aapo, "aapo", "aapo", 1.01),
        # GRPO in the place of the rule: C is 0.
        ("AG04", a_grae, "negative_dominant", "grpo", 1.0),
        ("AV28", avspo, "avspo", "avspo", 1.01),
    ],
)
def test_a_wrong_bound_is_noticed(monkeypatch, id, module, mutated_name, replacement, factor):
    def build(name, **options):
        if name != mutated_name:
            return advsweep.estimators.build_estimator(name, **options)
        estimator = advsweep.estimators.build_estimator(replacement, **options)
        own = estimator._advantages
        estimator._advantages = lambda groups, info: factor * own(groups, info)
        return estimator

    monkeypatch.setattr(module, "build_estimator", build)
    assert verdict(id) is ClaimVerdict.CONTRADICTED


def test_a_wrong_collapse_rate_is_noticed(monkeypatch):
    class Wrong:
        def __init__(self, rewards):
            # The all-right groups are forgotten.
            self.acr = float((rewards.amax(dim=1) == 0).double().mean())

    monkeypatch.setattr(avspo, "collapse", Wrong)
    assert verdict("AV10") is ClaimVerdict.CONTRADICTED


def test_a_wrong_gradient_is_noticed(monkeypatch):
    own = softmax_module.logit_gradient
    monkeypatch.setattr(two_stage, "logit_gradient", lambda *given: 1.01 * own(*given))
    assert verdict("TS01") is ClaimVerdict.CONTRADICTED


def test_a_wrong_estimate_of_pass_at_k_is_noticed(monkeypatch):
    monkeypatch.setattr(two_stage, "pass_at_k", lambda n, c, k: 0.98 * pass_at_k(n, c, k))
    assert verdict("TS17") is ClaimVerdict.CONTRADICTED


def test_the_change_of_entropy_holds_without_its_drift(monkeypatch):
    monkeypatch.setattr(fade, "_predicted", lambda drift, covariance: -covariance)
    assert verdict("FA03") is ClaimVerdict.HOLDS


def test_the_required_signal_holds_at_its_own_break_even(monkeypatch):
    monkeypatch.setattr(fade_power, "_break_even", lambda rate: 2.25)
    assert verdict("FA16") is ClaimVerdict.HOLDS


def test_the_break_even_of_two_prompts_by_hand():
    # In units of the noise the weights are w√v, the signals s/√v, v = 1/(p(1-p)): with the
    # vectors of α = 1 and 3 normed, both steps are as good where the signal bisects them.
    v = [1 / (0.25 * 0.75), 4.0]
    vectors = []
    for alpha in (1, 3):
        w = [0.25 * 0.75**alpha * math.sqrt(v[0]), 0.5 ** (1 + alpha) * 2]
        vectors.append([x / math.hypot(*w) for x in w])
    bisector = [a + b for a, b in zip(*vectors, strict=True)]
    ratio = bisector[0] * math.sqrt(v[0]) / (bisector[1] * math.sqrt(v[1]))
    assert ratio == pytest.approx(fade_power._break_even(0.25), abs=1e-9)
    assert ratio == pytest.approx(1.4707, abs=1e-4)


@pytest.mark.parametrize(
    ("relation", "got", "holds"),
    [
        (Relation.EQUAL, 1.05, True),
        (Relation.EQUAL, 0.85, False),
        (Relation.AT_MOST, 0.2, True),
        (Relation.AT_MOST, 1.2, False),
        (Relation.AT_LEAST, 1.2, True),
        (Relation.AT_LEAST, 0.8, False),
        (Relation.AT_LEAST, math.nan, False),
        (Relation.AT_MOST, -math.inf, False),
    ],
)
def test_a_finding_holds_within_its_tolerance(relation, got, holds):
    assert Finding("x", got, relation, 1.0, 0.1).holds is holds


def test_the_worst_of_several_comparisons_decides():
    got, expected = torch.tensor([1.0, 2.0, 3.5]), torch.tensor([1.0, 2.2, 3.6])
    finding = compare("x", got, Relation.EQUAL, expected, torch.tensor([0.1, 0.5, 0.01]))
    assert (finding.got, finding.tolerance, finding.comparisons) == pytest.approx((3.5, 0.01, 3))
    assert not finding.holds


def test_expected_updates_agree_with_random_draws():
    policy = softmax_module.random_policies(1, 3, seed=0)[0]
    rewards = torch.tensor([0.2, 1.0, 0.0], dtype=torch.float64)
    estimator = advsweep.estimators.build_estimator("grpo")
    exact = softmax_module.expected_update(estimator, policy, rewards, 4)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.multinomial(policy, 4 * 50_000, True, generator=generator).reshape(-1, 4)
    advantages = softmax_module.group_advantages(estimator, rewards, drawn)
    steps = torch.einsum("gi,giv->gv", advantages, softmax_module.scores(policy)[drawn]) / 4
    errors = 4 * steps.std(dim=0) / math.sqrt(len(steps))
    assert torch.all((steps.mean(dim=0) - exact).abs() < errors)
