"""`by_turn`: the turn form of estimators of all kinds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from advsweep.errors import BatchError, ConfigError
from advsweep.estimators import GroupBatch, build_estimator, estimator_names
from advsweep.estimators.varied import complete_batch, drawn_batch
from tests.estimators.random_episodes import of_turns, random_episodes, turn_rows


def turn_forms(group: str) -> dict[str, Any]:
    """The turn form of every estimator that has one, by the base's name."""
    found = {}
    for name in estimator_names():
        try:
            found[name] = build_estimator("by_turn", base=name, group=group)
        except ConfigError:
            continue
    return found


BASES = sorted(turn_forms("turn"))


def single_turns(masked: bool) -> GroupBatch:
    """Rollouts of a turn each, before one state."""
    rewards = drawn_batch(6, 8, 1, 10).rewards.double()
    # A group whose turns before the state are the batch's last row.
    batch = complete_batch(rewards)
    of_token = batch.turn_of_token
    assert of_token is not None
    mask = torch.ones_like(rewards, dtype=torch.bool)
    mask[1, 2] = False
    return dataclasses.replace(
        batch,
        mask=mask if masked else None,
        turn_of_token=of_token.clamp(max=0),
        turn_states=torch.zeros(6, 8, 1, dtype=torch.int64),
        turn_rewards=torch.zeros(6, 8, 1, dtype=torch.float64),
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("group", ["turn", "state"])
@pytest.mark.parametrize("name", BASES)
def test_rollouts_of_one_turn_get_what_the_base_gives(name: str, group: str, masked: bool) -> None:
    batch = single_turns(masked)
    base = build_estimator(name)
    form = build_estimator("by_turn", base=name, group=group)
    assert batch.turn_of_token is not None
    inside = batch.turn_of_token >= 0
    for _ in range(2):  # those with a memory once more
        expected = base.compute(batch)
        found = form.compute(batch)
        assert torch.equal(found.values, expected.values[..., None].where(inside, 0.0))
        assert torch.equal(found.keep, expected.keep)
        assert found.info == {**expected.info, "company": 1.0}
    whole = dataclasses.replace(batch, turn_of_token=None, turn_rewards=None)
    assert torch.equal(build_estimator(form.plain())(whole), build_estimator(form.plain())(batch))


@pytest.mark.parametrize("gamma", [1.0, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_over_rloo_it_is_turn_return(seed: int, gamma: float) -> None:
    batch = random_episodes(seed)
    found = build_estimator("by_turn", base="rloo", gamma=gamma)(batch)
    expected = build_estimator("turn_return", gamma=gamma)(batch)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["psr", "power_alpha", "grpo", "quantile", "passk_loo"])
@pytest.mark.parametrize("group", ["turn", "state"])
def test_a_group_of_turns_is_a_group_of_the_base(name: str, group: str) -> None:
    """Each group of turns by itself, as a batch of one prompt."""
    options: Mapping[str, Any] = {"passk_loo": {"k": 1}}.get(name, {})
    batch = random_episodes(0)
    assert batch.turn_rewards is not None
    # Binary returns, for those that are defined for nothing else.
    given = torch.zeros_like(batch.turn_rewards)
    batch = dataclasses.replace(
        batch, rewards=batch.rewards.floor().clamp(max=1), turn_rewards=given
    )
    rows = turn_rows(batch)
    found = of_turns(
        batch, build_estimator("by_turn", base={"name": name, **options}, group=group)(batch)
    )
    key = "turn" if group == "turn" else "state"
    for prompt, value in {(row["prompt"], row[key]) for row in rows}:
        places = [i for i, row in enumerate(rows) if (row["prompt"], row[key]) == (prompt, value)]
        rewards = torch.tensor([[rows[place]["whole"] for place in places]], dtype=torch.float64)
        expected = build_estimator(name, **options)(GroupBatch(rewards=rewards))
        assert [found[place] for place in places] == pytest.approx(expected[0].tolist(), abs=1e-12)


def test_lengths_and_names_of_prompts_are_those_of_turns() -> None:
    batch = random_episodes(1)
    form = build_estimator("by_turn", base="dcpo")
    form.compute(batch)
    assert batch.turn_of_token is not None
    most = batch.turn_of_token.amax(dim=(1, 2)).tolist()
    names = {f"problem-{p}, turn {t}" for p, last in enumerate(most) for t in range(last + 1)}
    assert set(form.state_dict()["base"]["visits"]) == names
    # `opo` weighs by lengths: those of a turn's tokens.
    found = of_turns(batch, build_estimator("by_turn", base="opo")(batch))
    rows = turn_rows(batch)
    places = [i for i, row in enumerate(rows) if (row["prompt"], row["turn"]) == (2, 1)]
    tokens = [(batch.turn_of_token[2, rows[i]["rollout"]] == 1).sum().item() for i in places]
    assert tokens == [2, 1, 2, 1]
    returns = [sum(rows[i]["rewards"][1:]) for i in places]
    baseline = sum(n * g for n, g in zip(tokens, returns, strict=True)) / sum(tokens)
    assert [found[i] for i in places] == pytest.approx([g - baseline for g in returns])


def test_what_a_base_leaves_out_of_an_episode_gets_nothing() -> None:
    # The first turns' returns are 1 and 0; the second turn is one alone, and so collapsed.
    batch = GroupBatch(
        rewards=torch.tensor([[1.0, 0.0], [1.0, 1.0]]),
        lengths=torch.tensor([[2.0, 1.0], [1.0, 1.0]]),
        turn_of_token=torch.tensor([[[0, 1], [0, -1]], [[0, -1], [0, -1]]]),
    )
    base = {"name": "filter_drop", "base": "reinforce"}
    computed = build_estimator("by_turn", base=base).compute(batch)
    assert computed.values.tolist()[0] == [[1, 0], [0, 0]]
    assert computed.keep.tolist() == [[True, True], [False, False]]
    assert computed.info == {"company": pytest.approx(4 / 5)}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"base": "kl_in_reward"}, "'kl_in_reward' reads token_kl per token"),
        ({"base": "gigpo"}, "one advantage per rollout"),
        ({"base": "psr", "gamma": 0.9}, "gamma: expected 1 with base 'psr'"),
        ({"group": "step"}, "group: expected"),
    ],
)
def test_bases_without_a_turn_form_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        build_estimator("by_turn", **options)
    assert "\n" not in str(caught.value)


def test_groups_of_states_need_states() -> None:
    batch = dataclasses.replace(random_episodes(0), turn_states=None)
    with pytest.raises(BatchError, match="needs turn_states"):
        build_estimator("by_turn", group="state")(batch)
    assert build_estimator("by_turn")(batch).any()
