"""The turns of a batch: what they are, their returns, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, Groups, build_estimator
from advsweep.estimators.turns import Turns

if TYPE_CHECKING:
    from torch import Tensor

# One prompt. The first episode: a token, one of the environment, two tokens, the end. The second:
# a single turn of a token.
OF_TOKEN = torch.tensor([[[0, -1, 1, 1, -1], [0, -1, -1, -1, -1]]])
REWARDS = torch.tensor([[1.0, 0.0]])


def turns(**fields: Any) -> Turns:
    given = {"rewards": REWARDS, "turn_of_token": OF_TOKEN, **fields}
    return Turns(Groups(GroupBatch(**given)))


def test_turns_and_their_tokens_are_counted() -> None:
    found = turns()
    assert found.counts.tolist() == [[2, 1]]
    assert found.present.tolist() == [[[True, True], [True, False]]]
    assert found.token_counts.tolist() == [[[1, 2], [1, 0]]]


def test_a_rollout_that_does_not_count_has_no_turn() -> None:
    found = turns(mask=torch.tensor([[True, False]]))
    assert found.counts.tolist() == [[2, 0]]


def test_what_turns_did_not_give_is_the_outcome_of_the_last_turn() -> None:
    # The reward 1 has .25 for the first turn: .75 are given at the end.
    found = turns(turn_rewards=torch.tensor([[[0.25, 0.0], [0.0, 9.0]]]))
    assert found.outcomes.tolist() == [[0.75, 0.0]]
    assert found.rewards.tolist() == [[[0.25, 0.75], [0.0, 0.0]]]
    # .25 + .5 x .75
    assert found.returns(0.5).tolist() == [[[0.625, 0.75], [0.0, 0.0]]]


def test_the_reward_of_an_episode_without_turn_rewards_is_its_outcome() -> None:
    assert turns().returns().tolist() == [[[1.0, 1.0], [0.0, 0.0]]]


def test_a_batch_without_turns_has_one_turn_a_rollout() -> None:
    found = Turns(Groups(GroupBatch(rewards=REWARDS, lengths=torch.tensor([[2.0, 3.0]]))))
    assert found.of_token.tolist() == [[[0, 0, -1], [0, 0, 0]]]
    assert found.returns().tolist() == [[[1.0], [0.0]]]


def test_numbers_of_turns_are_spread_to_tokens_and_back() -> None:
    found = turns()
    numbers = torch.tensor([[[3.0, 5.0], [7.0, 9.0]]])
    spread = found.spread(numbers)
    assert spread.tolist() == [[[3, 0, 5, 5, 0], [7, 0, 0, 0, 0]]]
    assert found.means(spread).tolist() == [[[3, 5], [7, 0]]]
    assert found.means(torch.tensor([[2.0, 4.0]])).tolist() == [[[2, 2], [4, 0]]]


def test_an_advantage_per_token_is_0_at_tokens_of_the_environment() -> None:
    entropies = torch.tensor([[[0.4, 9.0, 0.2, 0.2, 9.0], [0.4, 9.0, 9.0, 9.0, 9.0]]])
    batch = GroupBatch(
        rewards=REWARDS,
        lengths=torch.tensor([[3.0, 1.0]]),
        turn_of_token=OF_TOKEN,
        token_entropies=entropies,
    )
    values = build_estimator("entropy_shaped")(batch)
    assert (values != 0).tolist() == (OF_TOKEN >= 0).tolist()


WRONG: dict[str, tuple[Tensor, str]] = {
    "no turn": (torch.tensor([[[0], [-1]]]), "rollout 1 of prompt 0"),
    "a gap": (torch.tensor([[[0, 2], [0, -1]]]), "from 0 in order"),
    "back": (torch.tensor([[[0, 1, 0], [0, -1, -1]]]), "from 0 in order"),
    "not from 0": (torch.tensor([[[1, 1], [0, -1]]]), "from 0 in order"),
    "more tokens": (torch.tensor([[[0, 0], [0, 0]]]), "add up"),
    "no whole numbers": (torch.zeros(1, 2, 1), "whole numbers"),
    "another shape": (torch.tensor([[0, 0]]), "shape"),
}


@pytest.mark.parametrize("what", WRONG)
def test_turns_that_are_no_episodes_are_refused(what: str) -> None:
    of_token, says = WRONG[what]
    lengths = torch.tensor([[2.0, 1.0]])
    batch = GroupBatch(rewards=REWARDS, turn_of_token=of_token, lengths=lengths)
    with pytest.raises(BatchError, match=says):
        build_estimator("entropy_shaped")(
            GroupBatch(**{**vars(batch), "token_entropies": torch.zeros(1, 2, 3)})
        )


def test_an_input_with_fewer_turns_than_an_episode_is_refused() -> None:
    with pytest.raises(BatchError, match="turn_rewards: expected at least 2 turns"):
        turns(turn_rewards=torch.zeros(1, 2, 1)).returns()
