"""`advsweep.estimators.contract`: what is found by trying an estimator, in sentences."""

from __future__ import annotations

import pytest
import torch

from advsweep.estimators import build_estimator
from advsweep.estimators.contract import (
    changed_inputs,
    find_problem,
    list_properties,
    not_repeated,
    tried_rewards,
    wrong_form,
)
from advsweep.estimators.varied import complete_batch


def sentences_of(name: str, **options) -> dict[str, str]:
    found = list_properties(build_estimator(name, **options))
    return {each.name: each.sentence for each in found}


def test_rloo_in_sentences():
    found = sentences_of("rloo")
    assert found["equal rewards"] == "groups of equal rewards get 0"
    assert found["shift"] == "1/2 added to every reward changes nothing"
    assert found["scale"] == "rewards twice as large give advantages twice as large"
    # One of 8 is right: 1 less the mean of the others, 0.
    largest = "the largest |A| is 1, where 1 of 8 are right"
    assert found["degenerate groups"] == f"groups have at least 2 rollouts; {largest}"


def test_what_is_unlike_rloo_is_said():
    assert "all wrong 0, all right 1" in sentences_of("psr")["equal rewards"]
    assert "standardises" in sentences_of("grpo")["scale"]
    # σ = 0.331 of one right answer in 8; (1 - 1/8)/σ = 2.646.
    assert "the largest |A| is 2.65" in sentences_of("grpo")["degenerate groups"]
    assert "depend on the other groups" in sentences_of("reinforce_pp")["groups"]
    assert "of 0 and 1" in sentences_of("power_alpha")["shift"]


@pytest.mark.parametrize("name", ["rloo", "aapo", "avspo"])
def test_trying_changes_no_memory(name):
    estimator = build_estimator(name)
    before = estimator.state_dict()
    list_properties(estimator)
    for rewards in tried_rewards(estimator):
        assert find_problem(estimator, complete_batch(rewards)) == ""
    assert estimator.state_dict() == before


def test_problems_say_what_was_got():
    rewards = torch.tensor([[0.0, 1.0]])
    batch = complete_batch(rewards)
    assert "changed rewards" in changed_inputs({"rewards": rewards + 1}, batch)
    assert wrong_form(torch.zeros(2, 2), rewards).endswith("got [2, 2]")
    assert wrong_form(rewards.long(), rewards).endswith("as floats, got torch.int64")
    assert "got 0 and 1" in not_repeated(torch.zeros(1), torch.ones(1))
