"""Collapsed trainings: what counts, since when, and what does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.statistics.curves import collapse_onset


def curve(*pieces: tuple[float, int]) -> np.ndarray:
    return np.concatenate([np.full(steps, value) for value, steps in pieces])


def test_a_fall_to_half_with_more_unsolved_groups_is_a_collapse() -> None:
    # Rewards of .4 for 50 steps, then .1 for 30. The mean over 10 steps, of which the last k are
    # low, is .4 - .03 k: above .2 up to k = 6, so that the last such window ends at step 56.
    rewards = curve((0.4, 50), (0.1, 30))
    assert collapse_onset(rewards, curve((0.2, 50), (0.6, 30))) == 56


@pytest.mark.parametrize(
    ("rewards", "all_wrong"),
    [
        # It falls to .25, above half of .4.
        (curve((0.4, 50), (0.25, 30)), curve((0.2, 50), (0.6, 30))),
        # The unsolved groups do not become more: a harder part of the data, say.
        (curve((0.4, 50), (0.1, 30)), curve((0.2, 50), (0.25, 30))),
        # It recovers.
        (curve((0.4, 50), (0.1, 30), (0.4, 10)), curve((0.2, 50), (0.6, 30), (0.2, 10))),
        # Too short to judge.
        (curve((0.4, 15), (0.0, 14)), curve((0.2, 15), (1.0, 14))),
        # There is nothing to lose.
        (curve((0.0, 80)), curve((1.0, 80))),
        (curve((np.nan, 80)), curve((np.nan, 80))),
    ],
)
def test_what_is_no_collapse(rewards: np.ndarray, all_wrong: np.ndarray) -> None:
    assert collapse_onset(rewards, all_wrong) is None


@given(st.lists(st.floats(0, 1), min_size=30, max_size=90), st.floats(0.1, 10))
def test_the_scale_of_rewards_does_not_matter(values: list[float], scale: float) -> None:
    rewards = np.round(np.array(values), 3)
    all_wrong = 1 - rewards
    found = collapse_onset(rewards, all_wrong)
    if found is not None:
        assert 10 <= found < len(values)
        means = np.lib.stride_tricks.sliding_window_view(rewards, 10).mean(axis=1)
        assert means[found - 10] > means.max() / 2 >= means[found - 9 :].max()
    # Powers of two scale without rounding.
    assert collapse_onset(rewards * 2.0 ** round(np.log2(scale)), all_wrong) == found
