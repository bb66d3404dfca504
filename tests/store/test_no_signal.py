"""Runs that learned nothing from their rewards."""

from __future__ import annotations

import math

import pytest

from advsweep.store.sanity import NoSignal, find_no_signal

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
    ("steps", "share"),
    [
        # Every step of a plain rollout policy trains on all groups.
        ([{"collapse/acr_after": 1.0, "cost/utilisation": 1.0}] * 2, 0.0),
        # Policies that drop groups of equal rewards: some steps train on no group.
        ([{"cost/utilisation": 0.0}] * 2, 0.0),
        ([{"cost/utilisation": 0.0}] * 199 + [{"collapse/acr_after": 0.0, "cost/utilisation": 1.0}],
         0.005),
        # An estimator with advantages in groups of equal rewards.
        ([ALL_WRONG | {"collapse/acr_after": 0.0, "cost/utilisation": 1.0}], None),
        ([{"collapse/acr_after": 1.0, "cost/utilisation": 1.0},
          {"collapse/acr_after": 0.75, "cost/utilisation": 1.0}], None),
        # It learned in its first steps.
        ([{"collapse/acr_after": 0.0, "cost/utilisation": 1.0}] * 2
         + [{"collapse/acr_after": 1.0, "cost/utilisation": 1.0}] * 298, None),
        # Nothing was scored in one step.
        ([{"collapse/acr_after": math.nan, "cost/utilisation": 1.0},
          {"collapse/acr_after": 1.0, "cost/utilisation": 1.0}], 0.0),
        # Another trainer recorded no advantages.
        ([ALL_WRONG], None),
        ([ALL_WRONG | {"cost/utilisation": 1.0}], None),
        ([ALL_WRONG | {"collapse/acr_after": 1.0}], 0.0),
    ],
)  # fmt: skip
def test_what_counts_is_the_share_of_groups_with_advantages(store, new_run, steps, share):
    found = _found(store, new_run, *steps)
    assert (None if found is None else found.with_advantages) == (
        share if share is None else pytest.approx(share, abs=1e-12)
    )


def test_its_cause_is_read_from_the_rewards(store, new_run):
    nothing = {"collapse/acr_after": 1.0, "cost/utilisation": 1.0}
    found = _found(store, new_run, ALL_WRONG | nothing, ALL_WRONG | nothing)
    assert found == NoSignal(0.0, equal=1.0, wrong=1.0)
    assert "try an easier task or a larger group_size" in found.text


@pytest.mark.parametrize(
    ("signal", "part"),
    [
        (NoSignal(0.0, 1.0, 0.0), "nothing was learned: the rewards were equal"),
        (NoSignal(0.0, 1.0, 0.0), "try a harder task"),
        (NoSignal(0.004, 0.996, 0.99), "hardly anything was learned: the rewards were"),
        (NoSignal(0.0, 0.3, 0.3), "nothing was learned from the rewards: no group had an"),
        (NoSignal(0.004, 0.3, 0.3), "fewer than 1% of the groups had an advantage"),
        (NoSignal(0.0, math.nan, math.nan), "check the estimator's fields"),
    ],
)
def test_the_sentence_names_cause_and_remedy(signal, part):
    assert part in signal.text
