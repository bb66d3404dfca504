"""Detection of trainings whose policy collapsed, from their curves."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

WINDOW = 10
"""Steps over which curves are averaged."""

FALLEN = 0.5
"""Share of its highest mean reward below which a policy has fallen."""

RISEN = 0.1
"""Rise of the share of all-wrong groups that must come with it."""


def collapse_onset(
    rewards: Float[np.ndarray, " steps"], all_wrong: Float[np.ndarray, " steps"]
) -> int | None:
    """Return after how many steps a training's policy collapsed; None if it did not.

    It collapsed if, over the last 10 steps, the mean reward is at most half of its highest
    running mean, and the share of groups without a success is at least .1 above that at the
    height. It began after the last step whose running mean was above half of the height.
    Trainings of fewer than 30 steps, or without a positive reward, count as not collapsed.

    Source: A-GRAE (arXiv:2602.05548), App. D.3: fully unsolved questions that rise in a late
    stage, with a significant decrease of performance, in some of the runs of one configuration.

    Departures: the paper counts collapsed runs and gives no criterion; this one is ours.

    Args:
        rewards: mean reward of each step; NaN where no rollout was scored.
        all_wrong: share of groups without a success, of the same steps.
    """
    if len(rewards) < 3 * WINDOW:
        return None
    reward, wrong = _running_mean(rewards), _running_mean(all_wrong)
    if np.isnan(reward).all() or math.isnan(reward[-1]):
        return None
    height = int(np.nanargmax(reward))
    has_fallen = reward[height] > 0 and reward[-1] <= FALLEN * reward[height]
    if not has_fallen or not wrong[-1] >= wrong[height] + RISEN:
        return None
    # The running mean at index i is over the steps i + 1 to i + WINDOW.
    return int(np.flatnonzero(reward > FALLEN * reward[height])[-1]) + WINDOW


def _running_mean(values: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " windows"]:
    windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        means: Float[np.ndarray, " windows"] = np.nanmean(windows, axis=1)
    return means
