"""Runs that learned nothing from their rewards."""

from __future__ import annotations

import math

import pytest

from advsweep.store.sanity import find_no_signal, run_list

ALL_WRONG = {"collapse/acr": 1.0, "collapse/all_wrong": 1.0, "reward/mean": 0.0}


def _found(store, new_run, *steps):
    """What is found of a run with these metrics, by step."""
    [run_id] = store.runs.add([new_run(0)])
    points = [
        (name, step, value)
        for step, values in enumerate(steps, start=1)
        for name, value in values.items()
    ]
    store.metrics.record(run_id, points)
    return find_no_signal(store, [run_id]).get(run_id)


@pytest.mark.parametrize(
    ("steps", "word"),
    [
        # Every step of a plain rollout policy trains on all groups.
        ([{"collapse/acr_after": 1.0, "cost/utilisation": 1.0}] * 2, "nothing"),
        # Policies that drop groups of equal rewards: some steps train on no group.
        ([{"cost/utilisation": 0.0}] * 2, "nothing"),
        ([{"cost/utilisation": 0.0}] * 199 + [{"collapse/acr_after": 0.0, "cost/utilisation": 1.0}],
         "hardly anything"),
        # Of 200 rollouts a step trains on one, which has an advantage.
        ([{"collapse/acr_after": 0.0, "cost/utilisation": 0.005, "cost/rollouts": 200.0}], None),
        # An estimator with advantages in groups of equal rewards.
        ([ALL_WRONG | {"collapse/acr_after": 0.0, "cost/utilisation": 1.0}], None),
        ([{"collapse/acr_after": 1.0, "cost/utilisation": 1.0},
          {"collapse/acr_after": 0.75, "cost/utilisation": 1.0}], None),
        # It learned in its first steps.
        ([{"collapse/acr_after": 0.0, "cost/utilisation": 1.0}] * 2
         + [{"collapse/acr_after": 1.0, "cost/utilisation": 1.0}] * 298, None),
        # Nothing was scored in one step.
        ([{"collapse/acr_after": math.nan, "cost/utilisation": 1.0},
          {"collapse/acr_after": 1.0, "cost/utilisation": 1.0}], "nothing"),
        # Another trainer recorded no advantages.
        ([ALL_WRONG], None),
        ([ALL_WRONG | {"cost/utilisation": 1.0}], None),
        ([ALL_WRONG | {"collapse/acr_after": 1.0}], "nothing"),
    ],
)  # fmt: skip
def test_what_counts_is_the_share_of_groups_with_advantages(store, new_run, steps, word):
    found = _found(store, new_run, *steps)
    assert found is None if word is None else found.startswith(f"{word} was learned")


@pytest.mark.parametrize(
    ("rewards", "part"),
    [
        (ALL_WRONG, "the rewards were equal within every group"),
        (ALL_WRONG, "try an easier task"),
        (ALL_WRONG | {"reward/truncated": 0.4}, "try an easier task"),
        (
            ALL_WRONG | {"reward/truncated": 0.97},
            "the token limit cut off 97% of the answers; try a larger generation.max_tokens",
        ),
        ({"collapse/acr": 1.0, "collapse/all_wrong": 0.0}, "try a harder task"),
        ({"collapse/acr": 0.3}, "no group had an advantage other than 0; check the estimator"),
        ({}, "no group had an advantage other than 0; check the estimator"),
    ],
)
def test_its_cause_is_read_from_the_rewards(store, new_run, rewards, part):
    nothing = {"collapse/acr_after": 1.0, "cost/utilisation": 1.0}
    assert part in _found(store, new_run, rewards | nothing)


@pytest.mark.parametrize(("share", "is_told"), [(0.0034, True), (0.49, True), (0.998, False)])
def test_a_first_step_that_rounding_undoes_is_told(store, new_run, share, is_told):
    learning = {"collapse/acr_after": 0.2, "cost/utilisation": 1.0}
    found = _found(store, new_run, learning | {"optim/weights_changed": share}, learning)
    assert (found is not None) == is_told
    if is_told:
        assert f"step 1 changed {share:.2%} of the weights that had a gradient" in found


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([3], "run 3"),
        ([3, 1], "runs 1, 3"),
        ([4, 3, 2, 9], "runs 2-4, 9"),
        (range(1, 60, 2), "runs 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23 and 18 more"),
    ],
)
def test_ids_are_listed_by_stretches(ids, expected):
    assert run_list(ids) == expected
