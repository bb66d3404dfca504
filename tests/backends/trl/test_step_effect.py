"""The rollouts that the KL of a step is estimated from."""

import pytest
import torch

from advsweep.backends.trl import steps


@pytest.mark.parametrize(
    ("rollouts", "chosen"),
    [
        # One in 32 of all, at least two and at most sixteen.
        (8, 2),
        (96, 3),
        (512, 16),
        (2048, 16),
    ],
)
def test_a_kl_is_of_rollouts_that_train_spread_over_the_step(rollouts, chosen):
    keep = torch.arange(rollouts) % 2 == 1
    places = steps._choose_kl_rollouts(keep)
    assert len(places) == chosen
    assert keep[places].all()
    assert places == sorted(set(places))
    assert places[-1] >= rollouts // 2


def test_a_step_in_which_nothing_trains_has_rollouts_all_the_same():
    assert steps._choose_kl_rollouts(torch.zeros(8, dtype=torch.bool)) == [0, 4]
