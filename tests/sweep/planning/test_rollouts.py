"""The rollout policy that a plan chooses for an estimator, where nobody has chosen one."""

from __future__ import annotations

import pytest

from advsweep.errors import ConfigError
from advsweep.sweep.planning.plan import make_plan


def planned(*words: str) -> tuple[list[str], list[str]]:
    """Return the rollout policy of each run of a plan, and its warnings."""
    plan = make_plan(words)
    return [each.run.rollout.name for each in plan.runs], list(plan.warnings)


def test_an_estimator_gets_the_rollouts_that_it_needs() -> None:
    names, warnings = planned("estimator=rloo,aapo,remax")
    assert names == ["plain", "reference", "greedy"]
    said = " ".join(warnings)
    assert "rollout: reference, as estimator 'aapo' needs ref_rewards" in said
    assert "rollout: greedy, as estimator 'remax' needs greedy_rewards" in said


def test_values_of_turns_are_measured_for_vine() -> None:
    assert planned("estimator=vine", "task=walks")[0] == ["vine"]


def test_another_choice_stays() -> None:
    with pytest.raises(ConfigError, match="needs ref_rewards"):
        planned("estimator=aapo", "rollout=filter_drop")


def test_what_no_policy_gives_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs turn_states"):
        planned("estimator=gigpo")
