"""The exact checks of the papers' theorems: their verdicts, and that each of them can fail."""

from __future__ import annotations

import math

import exact
import exact_advantages
import exact_fade
import pytest
import torch
from exact import CHECKS, Finding, compare

from advsweep.estimators import build_estimator
from advsweep.statistics import pass_at_k

CONTRADICTED = {"FA03", "FA16"}
# Checks that build no estimator have mutations of their own, below.
WITHOUT_ESTIMATOR = {"AV10", "TS01", "TS17"}
# Bounds and comparisons of two estimators, which the general mutation may still satisfy.
MUTATED_APART = {"AA14", "AG04", "AV28"}


def holds(id):
    return CHECKS[id].run()[0]


@pytest.mark.parametrize("id", CHECKS)
def test_the_verdict_of_each_check(id):
    assert holds(id) is (id not in CONTRADICTED)


@pytest.mark.parametrize(
    "id", sorted(set(CHECKS) - WITHOUT_ESTIMATOR - MUTATED_APART - CONTRADICTED)
)
def test_a_wrong_estimator_is_noticed(monkeypatch, id):
    """Advantages depend wrongly on the group's mean, and do not sum to 0."""

    def build(name, **options):
        estimator = build_estimator(name, **options)
        own = estimator._advantages

        def wrong(groups, info):
            # Failures rise and successes fall where many succeed.
            mean = groups.rewards.mean(dim=1, keepdim=True)
            return own(groups, info) * (1.1 - 2 * mean) + 0.1 * (groups.rewards - 0.3)

        estimator._advantages = wrong
        return estimator

    monkeypatch.setattr(exact, "build_estimator", build)
    assert not holds(id)


@pytest.mark.parametrize(
    ("id", "mutated", "replacement", "factor"),
    [
        ("AA14", "aapo", "aapo", 1.01),
        # GRPO in the place of the rule: C is 0.
        ("AG04", "negative_dominant", "grpo", 1.0),
        ("AV28", "avspo", "avspo", 1.01),
    ],
)
def test_a_wrong_bound_is_noticed(monkeypatch, id, mutated, replacement, factor):
    def build(name, **options):
        if name != mutated:
            return build_estimator(name, **options)
        estimator = build_estimator(replacement, **options)
        own = estimator._advantages
        estimator._advantages = lambda groups, info: factor * own(groups, info)
        return estimator

    monkeypatch.setattr(exact, "build_estimator", build)
    assert not holds(id)


def test_wrong_collapse_rates_gradients_and_pass_at_k_are_noticed(monkeypatch):
    def wrong(rewards):
        # The all-right groups are forgotten.
        return float((rewards.amax(dim=1) == 0).double().mean())

    own = exact.logit_gradient
    monkeypatch.setattr(exact_advantages, "collapse_rate", wrong)
    monkeypatch.setattr(exact_advantages, "logit_gradient", lambda *given: 1.01 * own(*given))
    monkeypatch.setattr(exact_advantages, "pass_at_k", lambda *given: 0.98 * pass_at_k(*given))
    assert not any(map(holds, WITHOUT_ESTIMATOR))


def test_contradicted_checks_hold_without_what_is_wrong(monkeypatch):
    # The change of entropy without its drift, and the required signal at its own break-even.
    monkeypatch.setattr(exact_fade, "predicted_change", lambda drift, covariance: -covariance)
    monkeypatch.setattr(exact_fade, "break_even", lambda rate: 2.25)
    assert all(map(holds, CONTRADICTED))


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
    assert ratio == pytest.approx(exact_fade.break_even(0.25), abs=1e-9)
    assert ratio == pytest.approx(1.4707, abs=1e-4)


@pytest.mark.parametrize(
    ("relation", "got", "expected"),
    [
        *(("=", 1.05, True), ("=", 0.85, False), ("≤", 0.2, True), ("≤", 1.2, False)),
        *(("≥", 1.2, True), ("≥", 0.8, False), ("≥", math.nan, False), ("≤", -math.inf, False)),
    ],
)
def test_a_finding_holds_within_its_tolerance(relation, got, expected):
    assert Finding("x", got, relation, 1.0, 0.1).holds is expected


def test_the_worst_of_several_comparisons_decides():
    finding = compare("x", [1.0, 2.0, 3.5], "=", torch.tensor([1.0, 2.2, 3.6]), [0.1, 0.5, 0.01])
    assert (finding.got, finding.tolerance, finding.comparisons) == pytest.approx((3.5, 0.01, 3))
    assert not finding.holds


def test_expected_updates_agree_with_random_draws():
    policy = exact.random_policies(1, 3, seed=0)[0]
    rewards = torch.tensor([0.2, 1.0, 0.0], dtype=torch.float64)
    expected = exact.expected_update(build_estimator("grpo"), policy, rewards, 4)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.multinomial(policy, 4 * 50_000, True, generator=generator).reshape(-1, 4)
    values = exact.advantages("grpo", rewards[drawn])
    steps = torch.einsum("gi,giv->gv", values, exact.scores(policy)[drawn]) / 4
    errors = 4 * steps.std(dim=0) / math.sqrt(len(steps))
    assert torch.all((steps.mean(dim=0) - expected).abs() < errors)
