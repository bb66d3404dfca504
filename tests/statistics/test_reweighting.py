"""Changes of a policy by importance sampling, against policies whose answers are counted."""

from __future__ import annotations

import numpy as np
import pytest

from advsweep.statistics.reweighting import answer_changes

# Sixteen rollouts that hold each of four answers as often as π says: sums over them are exact.
POLICY = np.array([8, 4, 2, 2]) / 16
CHANGED = np.array([0.25, 0.25, 0.25, 0.25])
ANSWERS = np.repeat([0, 1, 2, 3], [8, 4, 2, 2])
RIGHT = np.isin(ANSWERS, [0, 3])


def changes(policy, changed, answers, right, k=3):
    every = [np.arange(len(answers))]
    return answer_changes(np.log(policy)[answers], np.log(changed)[answers], right, every, k)


def test_worked_values():
    found = changes(POLICY, CHANGED, ANSWERS, RIGHT)
    # p = (8 + 2)/16 = .625 becomes .5
    assert found.log_odds == pytest.approx([np.log(0.5 / 0.5) - np.log(0.625 / 0.375)])
    assert found.pass_at_1 == pytest.approx([-0.125])
    # 1 - .5³ - (1 - .375³) = .052734 - .125
    assert found.pass_at_k == pytest.approx([0.375**3 - 0.125])
    # .5 log 2 + .25 log 1 + 2 · .125 log .5
    assert found.kl == pytest.approx([0.25 * np.log(2)])
    # w = 1/2, 1, 2, 2: (Σw)²/Σw² = 16²/(2 + 4 + 8 + 8), of 16
    assert found.sample_share == pytest.approx([16**2 / 22 / 16])


def test_prompts_are_apart_and_in_order():
    twice = np.concatenate([ANSWERS, ANSWERS])
    right = np.concatenate([RIGHT, ~RIGHT])
    prompts = [np.arange(16), np.arange(16, 32)]
    found = answer_changes(np.log(POLICY)[twice], np.log(CHANGED)[twice], right, prompts, 3)
    alone = changes(POLICY, CHANGED, ANSWERS, RIGHT)
    assert found.log_odds == pytest.approx([alone.log_odds[0], -alone.log_odds[0]])
    assert found.pass_at_1 == pytest.approx([-0.125, 0.125])


@pytest.mark.parametrize("right", [np.zeros(16, dtype=bool), np.ones(16, dtype=bool)])
def test_rollouts_that_are_all_alike_tell_nothing_of_odds(right):
    found = changes(POLICY, CHANGED, ANSWERS, right)
    assert np.isnan(found.log_odds[0])
    assert found.pass_at_1 == found.pass_at_k == [0.0]


def test_large_changes_do_not_overflow():
    before = np.array([-3000.0, -10.0, -2.0])
    after = np.array([-2.0, -10.0, -1500.0])
    found = answer_changes(before, after, np.array([True, False, False]), [np.arange(3)], 2)
    # log e²⁹⁹⁸ - log((e⁰ + e⁻¹⁴⁹⁸)/2)
    assert found.log_odds == pytest.approx([2998 + np.log(2)])
    assert found.pass_at_1 == pytest.approx([2 / 3])
    back = answer_changes(after, before, np.array([True, False, False]), [np.arange(3)], 2)
    assert back.pass_at_1 == pytest.approx([-1 / 3])
