"""What every rollout policy must do, tried on each that is registered."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from advsweep.components import option_of
from advsweep.errors import ConfigError
from advsweep.estimators import GroupBatch
from advsweep.estimators.batch import PER_PROMPT
from advsweep.rollouts import ROLLOUTS
from advsweep.rollouts.base import RolloutPolicy

ROWS = [[0.0, 1.0], [1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]


@pytest.fixture(params=ROLLOUTS.names())
def policy(request: pytest.FixtureRequest) -> RolloutPolicy:
    return ROLLOUTS.build(request.param)


def test_it_is_described(policy: RolloutPolicy) -> None:
    assert type(policy).__doc__
    assert all(option_of(field).help for field in dataclasses.fields(policy))


def test_it_chooses_groups_that_were_drawn_each_once(policy: RolloutPolicy, script: Any) -> None:
    source = script(ROWS, references=ROWS * 20)
    collected = policy.collect(source, 6)
    chosen = collected.groups.tolist()
    again = sum(map(len, source.repeated))
    assert sorted(chosen) == sorted(set(chosen))
    assert policy.draws_again or chosen == sorted(chosen)
    assert 0 <= min(chosen) <= max(chosen) < sum(source.asked) + again
    assert len(chosen) <= 6 + again
    assert bool(again) == policy.draws_again
    assert {0, 2} <= set(chosen), "the mixed groups are always trained on"


def test_it_provides_what_it_promises(policy: RolloutPolicy, script: Any) -> None:
    source = script(ROWS, references=ROWS * 20)
    collected = policy.collect(source, 6)
    fields = {field.name for field in dataclasses.fields(GroupBatch)}
    given = {name for name in fields if getattr(collected, name, None) is not None}
    # The batch of the source has the values that were measured.
    assert bool(source.measured) == policy.draws_values == ("turn_values" in policy.provides)
    assert given == policy.provides - {"turn_values"}
    for name in given:
        per_group = () if name in PER_PROMPT else (2,)
        assert getattr(collected, name).shape == (len(collected.groups), *per_group)


def test_references_are_drawn_by_those_that_say_so_alone(
    policy: RolloutPolicy, script: Any
) -> None:
    source = script(ROWS, references=ROWS * 20)
    policy.collect(source, 4)
    assert bool(source.referred) == policy.draws_references
    if not policy.draws_references:
        assert not any(policy.renews_reference(step) for step in range(1, 200))


def test_unscorable_rollouts_are_no_failures(policy: RolloutPolicy, script: Any) -> None:
    """A group of NaN and successes has collapsed as much as one of successes alone."""
    nan = float("nan")
    rows = [[nan, 1.0, 1.0], [nan, nan, nan], [nan, 0.0, 1.0]]
    whole = [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    first = policy.collect(script(rows, references=rows * 20), 3)
    second = policy.collect(script(whole, references=whole * 20), 3)
    assert torch.equal(first.groups, second.groups)
    if first.rollouts is not None:
        assert first.rollouts.shape == (3, 2)


def test_unknown_options_are_refused(policy: RolloutPolicy) -> None:
    with pytest.raises(ConfigError, match=f"{policy.name} has no parameter 'capacity'"):
        ROLLOUTS.build(policy.name, capacity=3)
