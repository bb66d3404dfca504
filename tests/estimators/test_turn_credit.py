"""Estimators with an advantage per turn: values on paper, released code, what they leave out."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator
from tests.estimators.random_episodes import of_turns, random_episodes, turn_rows

NAN = math.nan

# One prompt. The first episode: a token, one of the environment, two tokens; 1/4 for the first turn
# and 3/4 at the end. The second: a token, and nothing. The third: two turns of a token; 1/2 for the
# first, taken away at the second. Their first states are equal, and so are the second ones.
EPISODES = GroupBatch(
    rewards=torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64),
    lengths=torch.tensor([[3.0, 1.0, 2.0]]),
    turn_of_token=torch.tensor([[[0, -1, 1, 1], [0, -1, -1, -1], [0, -1, 1, -1]]]),
    turn_rewards=torch.tensor([[[0.25, 0.0], [0.0, 9.0], [0.5, -0.5]]], dtype=torch.float64),
    turn_states=torch.tensor([[[5, 6], [5, 7], [5, 6]]]),
    turn_values=torch.tensor([[[0.5, 0.75], [0.25, 9.0], [0.5, 0.25]]], dtype=torch.float64),
)

SAMPLE = math.sqrt(1 / 3)  # sample σ of 1, 0, 0, and of other numbers that are 1 apart so

# Rows are the turns: the first episode's two, the second's one, the third's two.
VALUES: list[tuple[str, dict[str, Any], list[float]]] = [
    # Returns of the first turns 1, 0, 0; of the second ones 3/4 and -1/2. Less the others' mean.
    ("turn_return", {}, [1.0, 1.25, -0.5, -0.5, -1.25]),
    # 1/4 + 1/2 · 3/4 = 5/8, 0, 1/2 - 1/2 · 1/2 = 1/4.
    ("turn_return", {"gamma": 0.5}, [0.5, 1.25, -0.4375, -0.0625, -1.25]),
    ("by_turn", {"base": "rloo"}, [1.0, 1.25, -0.5, -0.5, -1.25]),
    # Less the mean of the state's own: 1, 0, 0 at the first, 3/4 and -1/2 at the second.
    ("by_turn", {"base": "dr_grpo", "group": "state"}, [2 / 3, 0.625, -1 / 3, -1 / 3, -0.625]),
    # r + V' - V: 1/4 + 3/4 - 1/2, 3/4 - 3/4; 0 - 1/4; 1/2 + 1/4 - 1/2, -1/2 - 1/4.
    ("vine", {}, [0.5, 0.0, -0.25, 0.25, -0.75]),
    # 1/4 + 3/8 - 1/2, 1/2 + 1/8 - 1/2.
    ("vine", {"gamma": 0.5}, [0.125, 0.0, -0.25, 0.125, -0.75]),
    # Outcomes 3/4, 0, 0: ±(1, -1/2, -1/2)·(1/2)/(3/4 σ) = 2/3, -1/3, -1/3 over SAMPLE. Turn rewards
    # 1/4, 0, 1/2 are 0, -1, 1 times their σ; 0, -1/2 are ±1/√2. The whole reward of the second
    # episode, which has one turn, is -1/3 over SAMPLE.
    (
        "turn_grpo",
        {"eps": 0.0},
        [
            2 / 3 / SAMPLE,
            2 / 3 / SAMPLE + 1 / math.sqrt(2),
            -1 / 3 / SAMPLE,
            -1 / 3 / SAMPLE + 1,
            -1 / 3 / SAMPLE - 1 / math.sqrt(2),
        ],
    ),
    # λ = 2, and the second episode's turn reward of 0 is -1 times its σ.
    (
        "turn_grpo",
        {"eps": 0.0, "lam": 2.0, "one_turn": "parts"},
        [
            2 / 3 / SAMPLE,
            2 / 3 / SAMPLE + math.sqrt(2),
            -1 / 3 / SAMPLE - 2,
            -1 / 3 / SAMPLE + 2,
            -1 / 3 / SAMPLE - math.sqrt(2),
        ],
    ),
    # Last rewards 3/4, 0, -1/2: mean 1/12, sums of squares (64 + 1 + 49)/144 = 114/144.
    (
        "multi_step_grpo",
        {"eps": 0.0},
        [(8 / 12) / math.sqrt(57) * 12] * 2
        + [(-1 / 12) / math.sqrt(57) * 12]
        + [(-7 / 12) / math.sqrt(57) * 12] * 2,
    ),
    (
        "multi_step_grpo",
        {"eps": 0.0, "step_norm": True},
        [4 / math.sqrt(57)] * 2 + [-1 / math.sqrt(57)] + [-3.5 / math.sqrt(57)] * 2,
    ),
    # Whole rewards 1, 0, 0 count 2, 1 and 2 times: mean 2/5. Returns at the first state 1, 0, 0, at
    # the second 3/4 and -1/2 around 1/8.
    (
        "gigpo",
        {"f_norm": "1", "gamma": 1.0},
        [3 / 5 + 2 / 3, 3 / 5 + 5 / 8, -2 / 5 - 1 / 3, -2 / 5 - 1 / 3, -2 / 5 - 5 / 8],
    ),
    (
        "gigpo",
        {"f_norm": "1", "gamma": 1.0, "omega": 0.5, "count": "episodes"},
        [2 / 3 + 1 / 3, 2 / 3 + 5 / 16, -1 / 3 - 1 / 6, -1 / 3 - 1 / 6, -1 / 3 - 5 / 16],
    ),
    # Of 1, 1, 0, 0, 0 the sample σ is √(6/5/4) = √.3; ±5/8 are ±1/√2 times theirs.
    (
        "gigpo",
        {"gamma": 1.0, "eps": 0.0},
        [
            0.6 / math.sqrt(0.3) + 2 / 3 / SAMPLE,
            0.6 / math.sqrt(0.3) + 1 / math.sqrt(2),
            -0.4 / math.sqrt(0.3) - 1 / 3 / SAMPLE,
            -0.4 / math.sqrt(0.3) - 1 / 3 / SAMPLE,
            -0.4 / math.sqrt(0.3) - 1 / math.sqrt(2),
        ],
    ),
]


@pytest.mark.parametrize(
    ("name", "options", "expected"), VALUES, ids=lambda value: str(value)[:40].replace(" ", "")
)
def test_worked_values(name: str, options: dict[str, Any], expected: list[float]) -> None:
    values = build_estimator(name, **options)(EPISODES)
    assert of_turns(EPISODES, values) == pytest.approx(expected, abs=1e-12)
    assert (values != 0).any()
    assert not values[EPISODES.turn_of_token < 0].any()


# Released code, turn by turn


def returns_of(rewards: list[float], gamma: float) -> float:
    found = 0.0
    for reward in reversed(rewards):
        found = reward + gamma * found
    return found


def normalised(numbers: Iterable[float], one: float, eps: float | None) -> float:
    """(x - mean)/(σ + ε) with torch.std's σ; without ε, x - mean."""
    listed = list(numbers)
    centred = one - statistics.fmean(listed)
    if eps is None:
        return centred
    return centred / ((statistics.stdev(listed) if len(listed) > 1 else 1.0) + eps)


def verl_agent(rows: list[dict[str, Any]], *, std: bool, once: bool) -> list[float]:
    """`compute_gigpo_outcome_advantage` on rows of turns, with γ = .95 and ω = 1."""
    eps = 1e-6 if std else None
    of_prompt = defaultdict(list)
    of_state = defaultdict(list)
    seen = set()
    for row in rows:
        row["return"] = returns_of(row["rewards"][row["turn"] :], 0.95)
        of_state[row["prompt"], row["state"]].append(row["return"])
        key = (row["prompt"], row["rollout"])
        if not (once and key in seen):
            of_prompt[row["prompt"]].append(row["whole"])
        seen.add(key)
    return [
        normalised(of_prompt[row["prompt"]], row["whole"], eps)
        + normalised(of_state[row["prompt"], row["state"]], row["return"], eps)
        for row in rows
    ]


def multi_turn_agent(rows: list[dict[str, Any]], *, lam: float) -> list[float]:
    """`_assign_advantages` of MT-GRPO: outcome, and before the first result the turn reward."""
    first_turns = [row for row in rows if row["turn"] == 0]
    of_prompt = defaultdict(lambda: defaultdict(list))
    for row in first_turns:
        for key in ("given", "outcome", "whole"):
            of_prompt[row["prompt"]][key].append(row[key])
    turn_reward = {(row["prompt"], row["rollout"]): row["given"] for row in first_turns}

    advantages = []
    for row in rows:
        lists = of_prompt[row["prompt"]]
        if row["turns"] == 1:
            advantages.append(normalised(lists["whole"], row["whole"], 1e-4))
            continue
        advantage = normalised(lists["outcome"], row["outcome"], 1e-4)
        if row["turn"] == 0:
            given = turn_reward[row["prompt"], row["rollout"]]
            advantage += lam * normalised(lists["given"], given, 1e-4)
        advantages.append(advantage)
    return advantages


def trinity(rows: list[dict[str, Any]], *, step_norm: bool, batch: bool) -> list[float]:
    """`StepWiseGRPOAdvantageFn.process`: the last step's reward to all steps."""
    of_prompt = defaultdict(list)
    for row in rows:
        if row["turn"] == row["turns"] - 1:
            of_prompt[row["prompt"]].append(row["reward"])
    sigma = statistics.stdev([reward for rewards in of_prompt.values() for reward in rewards])
    advantages = []
    for row in rows:
        last = row["rewards"][-1]
        rewards = of_prompt[row["prompt"]]
        score = normalised(rewards, last, 1e-6)
        if batch:
            score = normalised(rewards, last, None) / (sigma + 1e-6)
        advantages.append(score / row["turns"] if step_norm else score)
    return advantages


def vine_ppo(rows: list[dict[str, Any]]) -> list[float]:
    """`_compute_step_advantages`, without a missing value."""
    advantages = []
    for row in rows:
        values = [*row["values"], 0.0]
        turn = row["turn"]
        advantages.append(row["reward"] + values[turn + 1] - values[turn])
    return advantages


RELEASED: list[tuple[str, dict[str, Any], Callable[[list[dict[str, Any]]], list[float]]]] = [
    ("gigpo", {}, lambda rows: verl_agent(rows, std=True, once=False)),
    ("gigpo", {"f_norm": "1"}, lambda rows: verl_agent(rows, std=False, once=False)),
    ("gigpo", {"count": "episodes"}, lambda rows: verl_agent(rows, std=True, once=True)),
    ("multi_step_grpo", {}, lambda rows: trinity(rows, step_norm=False, batch=False)),
    ("multi_step_grpo", {"step_norm": True}, lambda r: trinity(r, step_norm=True, batch=False)),
    ("multi_step_grpo", {"scope": "batch"}, lambda r: trinity(r, step_norm=False, batch=True)),
    ("vine", {}, vine_ppo),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "options", "released"),
    RELEASED,
    ids=lambda value: getattr(value, "__name__", str(value))[:30],
)
def test_it_is_the_released_code(
    name: str, options: dict[str, Any], released: Callable[..., list[float]], seed: int
) -> None:
    batch = random_episodes(seed)
    found = of_turns(batch, build_estimator(name, **options)(batch))
    assert found == pytest.approx(released(turn_rows(batch)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("lam", [0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_two_turns_of_mt_grpo_are_the_released_code(seed: int, lam: float) -> None:
    batch = random_episodes(seed, most_turns=2)
    # Its turn reward is that of the call of a tool, and none is given for the answer.
    assert batch.turn_rewards is not None
    later = batch.turn_rewards[..., 1:].sum(dim=-1)
    first = torch.nn.functional.pad(batch.turn_rewards[..., :1], (0, 3))
    batch = dataclasses.replace(batch, rewards=batch.rewards - later, turn_rewards=first)
    found = of_turns(batch, build_estimator("turn_grpo", lam=lam)(batch))
    assert found == pytest.approx(multi_turn_agent(turn_rows(batch), lam=lam), rel=1e-9, abs=1e-9)


# Identities that their docstrings state


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("spec", "preset"),
    [
        ({"name": "turn_grpo"}, "trl"),
        ({"name": "multi_step_grpo"}, "verl"),
        ({"name": "gigpo", "omega": 0.0, "count": "episodes"}, "verl"),
    ],
)
def test_without_rewards_of_turns_it_is_grpo(spec: dict[str, Any], preset: str, seed: int) -> None:
    batch = random_episodes(seed)
    assert batch.turn_rewards is not None
    assert batch.turn_of_token is not None
    batch = dataclasses.replace(batch, turn_rewards=torch.zeros_like(batch.turn_rewards))
    whole = build_estimator("grpo", preset=preset)(batch)[..., None].where(
        batch.turn_of_token >= 0, 0.0
    )
    torch.testing.assert_close(build_estimator(spec)(batch), whole, rtol=1e-9, atol=1e-9)


def test_gigpo_of_single_turns_before_one_state_is_twice_grpo() -> None:
    batch = random_episodes(0, most_turns=1)
    assert batch.turn_states is not None
    batch = dataclasses.replace(batch, turn_states=torch.zeros_like(batch.turn_states))
    rewards = build_estimator("grpo", std="sample", eps=1e-6)(batch)
    found = build_estimator("gigpo")(batch)
    expected = 2 * rewards[..., None].where(found != 0, 0.0)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


# Conventions


def alone(reward: float) -> GroupBatch:
    return GroupBatch(
        rewards=torch.tensor([[reward]], dtype=torch.float64),
        lengths=torch.ones(1, 1),
        turn_states=torch.zeros(1, 1, 1, dtype=torch.int64),
    )


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("gigpo", {}, 0.0),
        ("gigpo", {"singleton": "reward", "eps": 0.25}, 0.8),  # 1/(1 + 1/4)
        ("gigpo", {"singleton": "reward", "eps": 0.25, "f_norm": "1"}, 1.0),
        ("multi_step_grpo", {}, 0.0),
        ("multi_step_grpo", {"singleton": "reward", "eps": 0.25}, 0.8),
    ],
)
def test_the_only_rollout_of_a_group(name: str, options: dict[str, Any], expected: float) -> None:
    assert build_estimator(name, **options)(alone(1.0)).item() == pytest.approx(expected)


def test_population_and_sample_deviations_differ_by_the_count() -> None:
    # Two episodes of a turn each, 1 and 0: ±1/2 over 1/2, and over 1/√2.
    batch = GroupBatch(
        rewards=torch.tensor([[1.0, 0.0]], dtype=torch.float64),
        lengths=torch.ones(1, 2),
        turn_rewards=torch.zeros(1, 2, 1),
        turn_states=torch.zeros(1, 2, 1, dtype=torch.int64),
    )
    for name, factor in (("gigpo", 2), ("turn_grpo", 1), ("multi_step_grpo", 1)):
        for std, expected in (("population", 1.0), ("sample", 1 / math.sqrt(2))):
            values = build_estimator(name, std=std, eps=0.0)(batch)
            assert values.flatten().tolist() == pytest.approx(
                [factor * expected, -factor * expected]
            )


def test_groups_with_little_spread_can_be_left_out_of_an_update() -> None:
    batch = GroupBatch(
        rewards=torch.tensor([[1.0, 0.0], [1.0, 1.0]]),
        lengths=torch.ones(2, 2),
    )
    # The σ of 1 and 0 is 1/√2.
    for threshold, kept in ((None, [1, 1]), (0.0, [1, 0]), (0.8, [0, 0])):
        estimator = build_estimator("multi_step_grpo", threshold=threshold)
        assert estimator.compute(batch).keep.tolist() == [[bool(one)] * 2 for one in kept]


def test_company_is_the_share_of_turns_whose_state_another_rollout_has() -> None:
    assert EPISODES.turn_states is not None
    states = EPISODES.turn_states.clone()
    # The third episode comes twice to a state that no other has; first states stay together.
    states[0, 2, 1] = 8
    batch = dataclasses.replace(EPISODES, turn_states=states)
    assert build_estimator("gigpo").compute(batch).info == {"company": pytest.approx(3 / 5)}
    states[0, 2] = 8
    assert build_estimator("gigpo").compute(batch).info == {"company": pytest.approx(2 / 5)}


def test_a_state_without_company_leaves_the_advantage_of_the_episode() -> None:
    assert EPISODES.turn_states is not None
    batch = dataclasses.replace(EPISODES, turn_states=torch.arange(6).view(1, 3, 2))
    plain = build_estimator("gigpo", omega=0.0)(batch)
    assert torch.equal(build_estimator("gigpo")(batch), plain)
    # A state that one rollout comes to twice is a group of its own turns.
    twice = batch.turn_states.clone()
    twice[0, 0] = 9
    again = dataclasses.replace(batch, turn_states=twice)
    computed = build_estimator("gigpo").compute(again)
    assert computed.info == {"company": 0.0}
    assert (computed.values[0, 0] != plain[0, 0]).any()


def test_an_outcome_that_is_rounding_is_none() -> None:
    # .1 + .2 is not .3 in binary: what is left of .3 is no outcome to standardise.
    batch = GroupBatch(
        rewards=torch.tensor([[0.1 + 0.2, 0.3]], dtype=torch.float64),
        lengths=torch.full((1, 2), 2.0),
        turn_of_token=torch.tensor([[[0, 1], [0, 1]]]),
        turn_rewards=torch.tensor([[[0.1, 0.2], [0.1, 0.2]]], dtype=torch.float64),
    )
    assert not build_estimator("turn_grpo", eps=0.0)(batch).any()


# Values that were not measured


def test_an_episode_without_a_value_at_its_first_turn_is_left_out() -> None:
    values = torch.tensor([[[0.5, 0.75], [NAN, NAN], [NAN, 0.25]]])
    computed = build_estimator("vine").compute(dataclasses.replace(EPISODES, turn_values=values))
    assert computed.keep.tolist() == [[True, False, False]]
    assert not computed.values[0, 1:].any()
    assert computed.values.isfinite().all()


def test_last_turns_without_a_value_get_0() -> None:
    values = torch.tensor([[[0.5, NAN], [0.25, NAN], [0.5, NAN]]])
    computed = build_estimator("vine").compute(dataclasses.replace(EPISODES, turn_values=values))
    assert computed.keep.all()
    # V of the second turns is their reward, 3/4 and -1/2: 1/4 + 3/4 - 1/2, 1/2 - 1/2 - 1/2.
    assert of_turns(EPISODES, computed.values) == pytest.approx([0.5, 0, -0.25, -0.5, 0])


def test_short_episodes_may_lack_the_values_of_their_last_turns_too() -> None:
    batch = random_episodes(0)
    assert batch.turn_values is not None
    values = batch.turn_values.clone()
    values[..., 1:] = NAN
    computed = build_estimator("vine").compute(dataclasses.replace(batch, turn_values=values))
    assert computed.keep.all()
    # V of the second turn is the return from there: R - V is left to the first.
    expected = [0 if row["turn"] else row["whole"] - row["values"][0] for row in turn_rows(batch)]
    assert of_turns(batch, computed.values) == pytest.approx(expected)


# Bad input


@pytest.mark.parametrize(
    ("name", "field", "wrong", "says"),
    [
        (
            "gigpo",
            "turn_states",
            None,
            "needs turn_states, .* lacks; a task .* states",
        ),
        (
            "turn_grpo",
            "turn_rewards",
            None,
            "needs turn_rewards, .* lacks; a task .* turns",
        ),
        ("vine", "turn_values", None, "needs turn_values, which the batch lacks; rollout=vine"),
        ("gigpo", "turn_states", torch.zeros(1, 3, 2), "turn_states: expected whole numbers"),
        ("gigpo", "turn_states", torch.zeros(1, 3, 1).long(), "expected at least 2 turns"),
        ("gigpo", "turn_states", torch.zeros(1, 3).long(), "turn_states: expected the shape"),
        ("turn_return", "turn_rewards", torch.full((1, 3, 2), NAN), "turn_rewards: .* finite"),
        ("vine", "turn_values", torch.full((1, 3, 2), math.inf), "turn_values: .* infinity"),
    ],
)
def test_what_is_wrong_with_the_turns_of_a_batch_is_said(
    name: str, field: str, wrong: torch.Tensor | None, says: str
) -> None:
    with pytest.raises(BatchError, match=says) as caught:
        build_estimator(name)(dataclasses.replace(EPISODES, **{field: wrong}))
    assert "\n" not in str(caught.value)
