"""The metrics of the turns of episodes: how many, their collapse, and the credit they get."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from advsweep.diagnostics import StepRollouts, rollout_metrics, stacked_rollout_metrics
from advsweep.estimators import Advantages, GroupBatch, build_estimator

NAN = float("nan")


def turn_part(metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics of turns alone."""
    return {
        name: value for name, value in metrics.items() if name.startswith(("turns/", "credit/"))
    }


def metrics_of(batch: GroupBatch, name: str = "dr_grpo", **options: Any) -> dict[str, float]:
    """Return the metrics of turns of an estimator's advantages."""
    return turn_part(rollout_metrics(batch, build_estimator(name).compute(batch), **options))


# Rollouts a, b, c of one prompt and d, e and a masked one of another; -1: the environment's tokens.
WORKED = GroupBatch(
    rewards=torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, NAN]], dtype=torch.float64),
    mask=torch.tensor([[True, True, True], [True, True, False]]),
    lengths=torch.tensor([[3.0, 2.0, 2.0], [2.0, 1.0, 2.0]]),
    turn_of_token=torch.tensor(
        [
            [[0, -1, 1, 1], [0, -1, 1, -1], [0, 0, -1, -1]],
            [[0, -1, 1, -1], [0, -1, -1, -1], [0, -1, 1, -1]],
        ]
    ),
    turn_states=torch.tensor([[[1, 2], [1, 3], [1, 0]], [[1, 1], [2, 0], [2, 2]]]),
    turn_values=torch.tensor(
        [[[0.5, 0.75], [0.5, 0.25], [0.5, NAN]], [[0.25, NAN], [0.5, 9.0], [0.5, 0.5]]]
    ),
)


def test_worked_values() -> None:
    # dr_grpo: 1/3, -2/3, 1/3 and three times 0.
    # Truths: of a 3/4 - 1/2 and 1 - 3/4; of b 1/4 - 1/2 and 0 - 1/4; of c 1 - 1/2; of d none,
    # as its second value is unknown; of e 0 - 1/2.
    errors = {
        "a": (1 / 3 - 1 / 4) ** 2,  # of both turns
        "b": (-2 / 3 + 1 / 4) ** 2,  # of both turns
        "c": (1 / 3 - 1 / 2) ** 2,
        "e": (0 + 1 / 2) ** 2,
    }
    # The truths have mean 0 and squares 4/16 + 1/4 + 1/4; the six advantages sum to -1/3.
    covariance = (1 / 3 + 1 / 3 + 2 / 3 + 2 / 3) / 4 + 1 / 3 * 1 / 2
    spreads = (3 / 9 + 2 * 4 / 9 - (1 / 3) ** 2 / 6, 4 / 16 + 1 / 4 + 1 / 4)
    assert metrics_of(WORKED) == pytest.approx(
        {
            "turns/mean": (2 + 2 + 1 + 2 + 1) / 5,
            # State 1 before the first turns of a, b and c. Both turns of d are of one rollout, and
            # that with state 2 beside e is masked.
            "turns/company": 3 / 8,
            # The second prompt's turn 1 has no gradient, and its turn 2 one episode alone.
            "turns/collapsed/turn_1": 1 / 2,
            "turns/collapsed/turn_2": 0 / 1,
            "turns/collapsed": 1 / 3,
            "credit/share": 6 / 8,
            "credit/error/turn_1": (errors["a"] + errors["b"] + errors["c"] + errors["e"]) / 4,
            "credit/error/turn_2": (errors["a"] + errors["b"]) / 2,
            "credit/error": (2 * errors["a"] + 2 * errors["b"] + errors["c"] + errors["e"]) / 6,
            "credit/correlation": covariance / math.sqrt(spreads[0] * spreads[1]),
        }
    )


def test_a_batch_of_single_turns_has_the_metrics_that_it_had() -> None:
    fields = {"turn_of_token": None, "turn_states": None, "turn_values": None}
    assert metrics_of(replace(WORKED, **fields)) == {}


def test_what_a_batch_does_not_say_has_no_metric() -> None:
    names = metrics_of(replace(WORKED, turn_states=None, turn_values=None)).keys()
    assert names == {
        "turns/mean",
        "turns/collapsed",
        "turns/collapsed/turn_1",
        "turns/collapsed/turn_2",
    }
    # Values that were measured nowhere, as in a step that measures none.
    unknown = replace(WORKED, turn_values=torch.full((2, 3, 2), NAN))
    assert {n: v for n, v in metrics_of(unknown).items() if n.startswith("credit/")} == {
        "credit/share": 0
    }


def test_a_side_without_spread_has_an_error_and_no_correlation() -> None:
    # All advantages are 0; then all truths are 0.
    equal = replace(WORKED, rewards=torch.zeros(2, 3, dtype=torch.float64))
    assert metrics_of(equal)["credit/error"] > 0
    assert "credit/correlation" not in metrics_of(equal)
    rewards = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    known = rewards[..., None].expand(2, 3, 2)
    assert "credit/correlation" not in metrics_of(
        replace(WORKED, rewards=rewards, turn_values=known)
    )


def test_nothing_scorable_has_no_metric_of_turns() -> None:
    assert metrics_of(replace(WORKED, mask=torch.zeros(2, 3, dtype=torch.bool))) == {}


def random_episodes(
    seed: int, prompts: int, rollouts: int, most: int, dtype: torch.dtype = torch.float64
) -> GroupBatch:
    """Return random episodes of up to `most` turns, of which some values are not measured."""
    rng = np.random.default_rng(seed)
    shape = (prompts, rollouts)
    rows = []
    for _ in range(prompts * rollouts):
        row = []
        for turn in range(rng.integers(1, most + 1)):
            row += [turn] * int(rng.integers(1, 4)) + [-1] * int(rng.integers(0, 3))
        rows.append(row)
    width = max(map(len, rows))
    of_token = torch.tensor([row + [-1] * (width - len(row)) for row in rows]).view(*shape, -1)
    values = rng.random((*shape, most))
    values[rng.random(values.shape) < 0.3] = NAN
    per_turn = rng.integers(-1, 2, (*shape, most)) / 2
    # Turns of equal rewards, so that some have no gradient.
    per_turn[::3] = 0
    present = torch.arange(most) <= of_token.amax(-1)[..., None]
    given = torch.from_numpy(per_turn)
    outcomes = torch.from_numpy(rng.integers(0, 2, shape) * (np.arange(prompts) % 3 > 0)[:, None])
    return GroupBatch(
        rewards=(outcomes + given.where(present, 0).sum(-1)).to(dtype),
        lengths=(of_token >= 0).sum(-1).to(dtype),
        turn_of_token=of_token,
        turn_states=torch.from_numpy(rng.integers(0, 3, (*shape, most))),
        turn_rewards=given.to(dtype),
        turn_values=torch.from_numpy(values).to(dtype),
    )


def by_hand(batch: GroupBatch, values: np.ndarray) -> dict[str, float]:
    """Return the metrics of turns by loops over prompts, rollouts and turns."""
    of_token = batch.turn_of_token.numpy()
    prompts, rollouts = batch.rewards.shape
    episodes: dict[tuple[int, int], int] = {}
    for prompt in range(prompts):
        for rollout in range(rollouts):
            episodes[prompt, rollout] = of_token[prompt, rollout].max() + 1
    advantages: dict[tuple[int, int, int], float] = {}
    nonzero: dict[tuple[int, int], list[bool]] = {}
    truths: dict[tuple[int, int, int], float] = {}
    company = 0
    for (prompt, rollout), turns in episodes.items():
        given = batch.turn_rewards[prompt, rollout, :turns].tolist()
        given[-1] += batch.rewards[prompt, rollout].item() - sum(given)
        measured = [*batch.turn_values[prompt, rollout, :turns].tolist(), 0.0]
        for turn in range(turns):
            place = (prompt, rollout, turn)
            own = values[prompt, rollout][of_token[prompt, rollout] == turn]
            advantages[place] = own.mean()
            nonzero.setdefault((prompt, turn), []).append(bool((own != 0).any()))
            truth = given[turn] + measured[turn + 1] - measured[turn]
            if not math.isnan(truth):
                truths[place] = truth
            state = batch.turn_states[prompt, rollout, turn]
            company += any(
                (batch.turn_states[prompt, other, : episodes[prompt, other]] == state).any()
                for other in range(rollouts)
                if other != rollout
            )
    compared = {key: not any(flags) for key, flags in nonzero.items() if len(flags) > 1}
    errors = {place: (advantages[place] - truth) ** 2 for place, truth in truths.items()}
    expected = {
        "turns/mean": np.mean(list(episodes.values())),
        "turns/company": company / len(advantages),
        "turns/collapsed": np.mean(list(compared.values())),
        "credit/error": np.mean(list(errors.values())),
        "credit/share": len(truths) / len(advantages),
        "credit/correlation": np.corrcoef(
            [advantages[place] for place in truths], list(truths.values())
        )[0, 1],
    }
    for turn in range(max(episodes.values())):
        flags = [flag for (_, number), flag in compared.items() if number == turn]
        squares = [error for (_, _, number), error in errors.items() if number == turn]
        if flags:
            expected[f"turns/collapsed/turn_{turn + 1}"] = np.mean(flags)
        if squares:
            expected[f"credit/error/turn_{turn + 1}"] = np.mean(squares)
    return expected


@pytest.mark.parametrize("name", ["rloo", "gigpo", "turn_return"])
def test_random_episodes_have_the_numbers_of_loops_over_turns(name: str) -> None:
    for seed in range(5):
        batch = random_episodes(seed, prompts=6, rollouts=4, most=5)
        advantages = build_estimator(name).compute(batch)
        values = advantages.values
        if not advantages.per_token:
            values = values[..., None].expand(batch.turn_of_token.shape)
        found = turn_part(rollout_metrics(batch, advantages))
        assert found == pytest.approx(by_hand(batch, values.numpy()))
        assert 0 < found["turns/collapsed"] < 1


def test_masked_rollouts_count_as_if_they_were_not_there() -> None:
    batch = random_episodes(7, prompts=5, rollouts=4, most=4)
    mask = torch.ones(5, 4, dtype=torch.bool)
    mask[:, 2] = False
    rewards = batch.rewards.where(mask, NAN)
    masked = metrics_of(replace(batch, rewards=rewards, mask=mask), "rloo")
    left = batch.select(torch.arange(5), torch.tensor([[0, 1, 3]] * 5))
    assert masked == pytest.approx(metrics_of(left, "rloo"))


def test_the_order_of_rollouts_and_prompts_does_not_matter() -> None:
    batch = random_episodes(8, prompts=5, rollouts=4, most=4)
    generator = torch.Generator().manual_seed(1)
    shuffled = batch.select(
        torch.randperm(5, generator=generator),
        torch.stack([torch.randperm(4, generator=generator) for _ in range(5)]),
    )
    assert metrics_of(shuffled, "gigpo") == pytest.approx(metrics_of(batch, "gigpo"))


@pytest.mark.parametrize(("prompts", "rollouts"), [(3, 4), (40, 9)])
@pytest.mark.parametrize("name", ["rloo", "gigpo"])
def test_a_run_of_a_stack_has_the_metrics_it_has_alone(
    name: str, prompts: int, rollouts: int
) -> None:
    """To the bit, although other runs have longer episodes: up to 3, 21 and 12 turns."""
    parts = [
        random_episodes(seed, prompts, rollouts, most, torch.float32)
        for seed, most in enumerate((3, 21, 12))
    ]
    computed = [build_estimator(name).compute(part) for part in parts]
    whole = GroupBatch(
        rewards=torch.cat([part.rewards for part in parts]),
        lengths=torch.cat([part.lengths for part in parts]),
        turn_of_token=padded([part.turn_of_token for part in parts], -1),
        turn_states=padded([part.turn_states for part in parts], 0),
        turn_rewards=padded([part.turn_rewards for part in parts], 0),
        turn_values=padded([part.turn_values for part in parts], NAN),
    )
    values = [one.values for one in computed]
    joined = padded(values, 0) if computed[0].per_token else torch.cat(values)
    advantages = Advantages(values=joined, keep=torch.ones_like(whole.rewards, dtype=torch.bool))
    step = StepRollouts(batch=whole, advantages=advantages)
    together = stacked_rollout_metrics(step, [{}, {}, {}])
    for found, part, own in zip(together, parts, computed, strict=True):
        assert turn_part(found) == turn_part(rollout_metrics(part, own))


def padded(parts: list[torch.Tensor], filling: float) -> torch.Tensor:
    """Return all rows, filled up to the longest."""
    width = max(values.shape[-1] for values in parts)
    return torch.cat(
        [
            torch.nn.functional.pad(values, (0, width - values.shape[-1]), value=filling)
            for values in parts
        ]
    )


def test_credit_is_that_of_the_groups_trained_on() -> None:
    batch = random_episodes(9, prompts=6, rollouts=4, most=4)
    groups = torch.tensor([4, 1])
    trained = batch.select(groups)
    advantages = build_estimator("rloo").compute(trained)
    found = turn_part(rollout_metrics(batch, advantages, groups=groups))
    of_trained = turn_part(rollout_metrics(trained, advantages))
    for name, value in found.items():
        # How many turns there are, and which have company, is of all that was drawn.
        if name not in ("turns/mean", "turns/company"):
            assert value == of_trained[name]
    assert found["turns/mean"] == metrics_of(batch)["turns/mean"] != of_trained["turns/mean"]


def test_vine_agrees_with_the_values_that_it_is_made_of() -> None:
    batch = random_episodes(10, prompts=4, rollouts=3, most=4)
    whole = replace(batch, turn_values=batch.turn_values.nan_to_num(0.5))
    found = metrics_of(whole, "vine")
    assert found["credit/error"] == pytest.approx(0, abs=1e-12)
    assert found["credit/correlation"] == pytest.approx(1)
    assert found["credit/share"] == 1


def test_noise_of_values_adds_its_variance_to_the_error() -> None:
    """Values by K rollouts of reward 0 or 1 have the variance V(1 - V)/K."""
    rollouts = 4
    batch = random_episodes(11, prompts=4000, rollouts=4, most=3)
    generator = torch.Generator().manual_seed(2)
    exact = torch.rand(batch.turn_values.shape, generator=generator, dtype=torch.float64)
    drawn = torch.rand((rollouts, *exact.shape), generator=generator, dtype=torch.float64) < exact
    batch = replace(batch, turn_values=exact)
    estimated = replace(batch, turn_values=drawn.double().mean(dim=0))
    present = torch.arange(3) <= batch.turn_of_token.amax(-1)[..., None]
    variance = (exact * (1 - exact) / rollouts).where(present, 0)
    noise = (variance[..., :].sum() + variance[..., 1:].sum()) / present.sum()
    known = metrics_of(batch, "rloo")
    noisy = metrics_of(estimated, "rloo")
    assert noisy["credit/error"] - known["credit/error"] == pytest.approx(noise.item(), rel=0.1)
    following = torch.nn.functional.pad(exact.where(present, 0)[..., 1:], (0, 1))
    last = torch.arange(3) == batch.turn_of_token.amax(-1)[..., None]
    given = batch.turn_rewards.where(present, 0)
    outcomes = (batch.rewards - given.sum(-1))[..., None].where(last, 0)
    spread = (given + outcomes + following - exact)[present].var()
    lowered = known["credit/correlation"] * (spread / (spread + noise)).sqrt().item()
    assert noisy["credit/correlation"] == pytest.approx(lowered, rel=0.05)
