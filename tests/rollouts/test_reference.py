"""Reference rollouts stand beside the policy's own, for the same prompts."""

from __future__ import annotations

from typing import Any

from advsweep.rollouts import ROLLOUTS

ROWS = [[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
REFERENCES = [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]


def test_every_group_gets_references_of_its_own_prompt(script: Any) -> None:
    source = script(ROWS, references=REFERENCES)
    collected = ROLLOUTS.build("reference").collect(source, 3)
    assert collected.groups.tolist() == [0, 1, 2]
    assert collected.ref_rewards.tolist() == REFERENCES
    assert (source.asked, source.referred) == ([3], [[0, 1, 2]])


def test_references_that_could_not_be_judged_leave_no_margin(script: Any) -> None:
    nan = float("nan")
    source = script([[0.0, 1.0], [nan, 1.0]], references=[[nan, 0.0], [0.0, nan]])
    collected = ROLLOUTS.build("reference").collect(source, 2)
    assert collected.ref_rewards.tolist() == [[0.0, 0.0], [0.0, 1.0]]


def test_the_reference_is_renewed_every_n_steps() -> None:
    def renewals(update_every: int) -> list[int]:
        policy = ROLLOUTS.build("reference", update_every=update_every)
        return [step for step in range(1, 61) if policy.renews_reference(step)]

    assert renewals(0) == []
    assert renewals(20) == [20, 40, 60]
    assert renewals(1) == list(range(1, 61))
