"""`advsweep.diagnostics.relatives`: which estimators are alike."""

from __future__ import annotations

import math

import pytest

from advsweep.diagnostics.relatives import find_relatives, gives_the_same
from advsweep.estimators import build_estimator


def relatives_of(name: str, *others: str, size: int = 8):
    return find_relatives(build_estimator(name), map(build_estimator, others), size)


def test_rloo_is_dr_grpo_times_g_over_g_minus_1():
    (dr_grpo,) = relatives_of("rloo", "dr_grpo")
    assert dr_grpo.cosine == pytest.approx(1)
    assert dr_grpo.is_multiple
    assert not dr_grpo.is_same
    assert dr_grpo.shown_factor == "8/7"
    (of_four,) = relatives_of("rloo", "dr_grpo", size=4)
    assert of_four.shown_factor == "4/3"


def test_cosine_of_two_formulas_by_hand():
    """G = 2: PSR gives 1 to right rollouts, RLOO 1 and -1 in the one mixed group.

    k = 0, 1, 2 count alike. PSR·RLOO = 1·1; |PSR|² = 0 + 1 + 2 = 3; |RLOO|² = 1 + 1 = 2.
    """
    (rloo,) = relatives_of("psr", "rloo", size=2)
    assert rloo.cosine == pytest.approx(1 / math.sqrt(6))
    assert rloo.factor == pytest.approx(1 / 2)
    # PSR less RLOO/2 is 1/2, 1/2 in the mixed group, 1 in the group of right answers.
    assert rloo.error == pytest.approx(1 / math.sqrt(2) * math.sqrt(2))


def test_the_nearest_is_first_and_those_without_rewards_are_left_out():
    names = [each.name for each in relatives_of("grpo", "psr", "intuitor", "rloo", "grpo_n")]
    assert names == ["rloo", "psr", "grpo_n"] or names[0] == "rloo"
    assert "intuitor" not in names


def test_the_order_of_rollouts_counts_once_per_number_of_right_answers():
    """GRPO-lead's kin that depend on the order are enumerated; each k has the same weight."""
    other = build_estimator("rloo")
    assert gives_the_same(build_estimator("rloo"), other, 8)
    assert not gives_the_same(build_estimator("dr_grpo"), other, 8)
    assert not gives_the_same(build_estimator("psr"), other, 8)
