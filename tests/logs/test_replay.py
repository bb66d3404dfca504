from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from advsweep.diagnostics import rollout_metrics
from advsweep.diagnostics.difficulty import weight_noise, weight_variance_of_parts
from advsweep.errors import BatchError
from advsweep.estimators import ESTIMATORS, GroupBatch, build_estimator
from advsweep.logs.replay import LOGGED, Replay, replay
from advsweep.logs.rollout_records import GroupTurns, RolloutGroup, RolloutStep

NAN = math.nan


def step(number: int, *rewards: Sequence[float], prompts: str = "abcdefgh") -> RolloutStep:
    groups = [RolloutGroup(p, list(row)) for p, row in zip(prompts, rewards, strict=False)]
    return RolloutStep(number, groups)


def replayed(steps: Sequence[RolloutStep], *names: str, **options: Any) -> Replay:
    return replay(steps, {name: build_estimator(name) for name in names}, **options)


def test_the_statistics_of_a_step_by_hand() -> None:
    found = replayed([step(3, [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1])], "dr_grpo", "grpo")
    own = found.estimators["dr_grpo"].by_step
    # A = r - p: 0.75 and three times -0.25; twice 0.5 and -0.5; four times 0.
    assert own.zero_groups == [1 / 3]
    assert own.mass_success == pytest.approx((0.75 + 0.5 + 0.5) / 12)
    assert own.mass_failure == pytest.approx((3 * 0.25 + 0.5 + 0.5) / 12)
    # p = 7/12, q = 5/12, equal masses.
    assert own.sign_ratio == pytest.approx(7 / 5)
    # Weights 6/16, 1/2 and 0: (7/8)² / (9/64 + 16/64) = 49/25.
    assert own.effective_prompts == pytest.approx(49 / 25)
    # GRPO divides by σ = √3/4 and 1/2, so that Σ A² is 4 in both groups; Σ A A' is Σ d²/σ.
    both = 0.75 / (math.sqrt(3) / 4) + 1 / 0.5
    assert own.cosine == pytest.approx(both / math.sqrt(1.75 * 8))
    assert own.largest == [0.75]
    # w(k) = 3/8, 3/8, 1/2, 1/4, 0 at k = 0 to 4: 1/4 lies between, 3/8 goes on below.
    w = np.array([0.375, 0.375, 0.5, 0.25, 0.0])
    quarter = np.array([81, 108, 54, 12, 1]) / 256
    half = np.array([1, 4, 6, 4, 1]) / 16
    variances = [chance @ w**2 - (chance @ w) ** 2 for chance in (quarter, half)]
    assert own.weight_variance == pytest.approx(np.mean(variances) / ((0.375 + 0.5) / 2) ** 2)
    same = found.estimators["grpo"].by_step
    assert same.cosine == pytest.approx(1)
    assert same.largest == pytest.approx(math.sqrt(3))
    assert [*found.total().values()] == pytest.approx([3, 12, 7 / 12, 7 / 12, 1 / 3])
    assert (found.steps, found.lacking, found.refused, found.remarks) == ([3], {}, {}, [])


def test_the_statistics_of_all_steps_and_of_solve_rates_by_hand() -> None:
    steps = [step(1, [1, 0], [0, 0]), step(2, [1, 0], [1, 1], [0, 0], [1, 0])]
    found = replayed(steps, "reinforce")
    own = found.estimators["reinforce"]
    # A = r. Shares and masses are of all 6 groups and 12 rollouts, ...
    assert own.overall.zero_groups == pytest.approx(2 / 6)
    assert own.overall.mass_success == pytest.approx(5 / 12)
    assert own.overall.mass_failure == [0]
    assert math.isnan(own.overall.sign_ratio[0])
    # ... the sample size is a mean of the steps': 1, and (1/2 + 1 + 1/2)² / (1/4 + 1 + 1/4).
    assert own.by_step.effective_prompts == pytest.approx([1, 4 / 1.5])
    assert own.overall.effective_prompts == pytest.approx((1 + 4 / 1.5) / 2)
    # GRPO's advantages are ±1 in groups of both kinds: Σ A A' = 1, Σ A'² = 2, Σ A² = 1.
    assert own.by_step.cosine == pytest.approx([1 / math.sqrt(2), 2 / math.sqrt(4 * 4)])
    assert own.overall.largest == [1]
    assert found.rates is not None
    assert found.rates.tolist() == [0, 0.5, 1]
    assert found.rate_groups is not None
    assert found.rate_groups.tolist() == [2, 3, 1]
    by_rate = own.by_rate
    assert by_rate is not None
    assert by_rate.zero_groups == pytest.approx([1, 0, 0])
    assert by_rate.mass_success == pytest.approx([0, 0.5, 1])
    assert by_rate.effective_prompts == pytest.approx([NAN, 3, 1], nan_ok=True)
    # w(k) = 0, 1/2, 1: the mean of a draw is 1/2, of its square 3/8.
    assert by_rate.weight_variance == pytest.approx([NAN, (3 / 8 - 1 / 4) * 4, NAN], nan_ok=True)
    assert by_rate.cosine == pytest.approx([NAN, 1 / math.sqrt(2), NAN], nan_ok=True)
    assert by_rate.largest == pytest.approx([0, 1, 1])


def test_the_variance_of_a_part_is_that_of_the_whole_if_there_is_one() -> None:
    weights, solved = np.array([0.3, 0.7, 0.5, 0.0]), np.array([1, 2, 3, 4])
    rollouts = np.full(4, 4)
    (found,) = weight_variance_of_parts(weights, solved, rollouts, np.zeros(4, dtype=int), 1)
    assert found == pytest.approx(float(weight_noise(weights, solved, rollouts).variance))
    assert np.isnan(
        weight_variance_of_parts(
            weights[:1], solved[:1] * 0, rollouts[:1] * 0, np.zeros(1, dtype=int), 2
        )
    ).all()


def drawn(steps: int = 5, groups: int = 8, size: int = 4, seed: int = 0) -> list[RolloutStep]:
    random = np.random.default_rng(seed)
    return [
        RolloutStep(
            number,
            [
                RolloutGroup(f"p{random.integers(6)}", (random.random(size) < rate).tolist())
                for rate in random.beta(0.7, 0.9, groups)
            ],
        )
        for number in range(1, steps + 1)
    ]


def names() -> list[str]:
    return sorted(c.name for c in ESTIMATORS.classes() if not c.needs - {"prompt_ids"})


UNEVEN = [[1, 0, 0, 1, 1, 0], [1, 0], [0, 0, 1], [1, 1, 1, 1], [0, NAN, 1], [NAN, NAN]]


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("steps", [drawn(), [step(1, *UNEVEN), step(2, *UNEVEN[1:])]])
def test_a_step_has_the_metrics_that_our_backends_record(
    name: str, steps: list[RolloutStep]
) -> None:
    own = replayed(steps, name).estimators[name]
    estimator = build_estimator(name)
    for place, (number, groups) in enumerate(steps):
        size = max(len(g.rewards) for g in groups)
        table = torch.tensor([g.rewards + [NAN] * (size - len(g.rewards)) for g in groups])
        batch = GroupBatch(
            rewards=table.double(),
            mask=~table.isnan() if table.isnan().any() else None,
            prompt_ids=tuple(g.prompt for g in groups),
            step=number,
        )
        metrics = rollout_metrics(batch, estimator.compute(batch))
        expected = {
            "zero_groups": "collapse/acr_after",
            "mass_success": "mass/success",
            "mass_failure": "mass/failure",
            "sign_ratio": "mass/sign_ratio",
            "effective_prompts": "weight/effective_prompts",
            "weight_variance": "weight/variance",
        }
        for field, metric in expected.items():
            got = getattr(own.by_step, field)[place]
            assert got == pytest.approx(metrics.get(metric, NAN), abs=1e-12, nan_ok=True), field


def test_memory_starts_fresh_and_goes_from_step_to_step() -> None:
    steps = [step(1, [1, 0]), step(2, [1, 1]), step(3, [0, 0])]
    estimator = build_estimator("dcpo")
    first = replay(steps, {"dcpo": estimator}).estimators["dcpo"].by_step
    # The first visit is GRPO with the sample σ: (1 - 1/2) / (1/√2).
    assert first.largest[0] == pytest.approx(math.sqrt(0.5))
    assert first.zero_groups.tolist() == [0, 0, 0]
    assert estimator.state_dict() == {"visits": {}}
    alone = replayed(steps[1:2], "dcpo").estimators["dcpo"].by_step
    assert alone.zero_groups.tolist() == [1]
    again = replay(steps[::-1], {"dcpo": estimator}).estimators["dcpo"].by_step
    np.testing.assert_array_equal(first.largest, again.largest)


def test_estimators_without_their_inputs_are_listed() -> None:
    lengths = [
        RolloutStep(1, [RolloutGroup("", [1.0, 0.0], lengths=[2, 3])] * 2),
    ]
    found = replayed(lengths, "fade", "t2t", "dcpo", "entropy_shaped", "grpo")
    assert found.lacking == {
        "fade": ["token_entropy"],
        "dcpo": ["prompt_ids"],
        "entropy_shaped": ["token_entropies"],
    }
    assert list(found.estimators) == ["t2t", "grpo"]
    # Rollouts without lengths in any group: nobody has them.
    some = [RolloutStep(1, [*lengths[0].groups, RolloutGroup("", [1.0, 0.0])])]
    assert replayed(some, "t2t").lacking == {"t2t": ["lengths"]}


def test_inputs_of_the_dump_are_given() -> None:
    rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0]]).double()
    entropies = {"token_entropy": [0.3, 0.3]}
    groups = [RolloutGroup("p", row, inputs=entropies) for row in rewards.tolist()]
    own = replayed([RolloutStep(1, groups)], "fade").estimators["fade"].by_step
    batch = GroupBatch(rewards=rewards, token_entropy=torch.full_like(rewards, 0.3))
    metrics = rollout_metrics(batch, build_estimator("fade").compute(batch))
    assert own.mass_success == pytest.approx(metrics["mass/success"], abs=1e-12)


def test_advantages_that_the_trainer_logged_are_compared_too() -> None:
    # Dr. GRPO's, in groups of two sizes; the unscorable rollout had 0.
    groups = [
        RolloutGroup("a", [1.0, 0.0, 0.0, 0.0], advantages=[0.75, -0.25, -0.25, -0.25]),
        RolloutGroup("b", [1.0, 0.0, NAN], advantages=[0.5, -0.5, 0.0]),
    ]
    found = replayed([RolloutStep(1, groups)], "dr_grpo")
    assert list(found.estimators) == [LOGGED, "dr_grpo"]
    own, expected = found.estimators[LOGGED], found.estimators["dr_grpo"]
    for a, b in zip(own.by_step, expected.by_step, strict=True):
        assert a == pytest.approx(b)
    # One group without them: then they are not what the trainer did.
    groups.append(RolloutGroup("c", [1.0, 0.0]))
    assert list(replayed([RolloutStep(1, groups)], "dr_grpo").estimators) == ["dr_grpo"]


def test_steps_that_an_estimator_refuses_are_left_out_of_its_numbers() -> None:
    # A step of groups smaller than k, which is 4, and one with a reward of a half.
    steps = [step(1, [1, 0, 0, 0, 0]), step(2, [1, 0]), step(3, [1, 0.5, 0, 0, 0])]
    found = replayed(steps, "passk_analytic", "grpo", success_at=1)
    alone = replayed(steps[:1], "passk_analytic", success_at=1)
    assert found.refused["passk_analytic"].startswith("2 of 3 steps: ")
    own, whole = (r.estimators["passk_analytic"] for r in (found, alone))
    for field in ("zero_groups", "mass_success", "cosine", "largest", "effective_prompts"):
        first, *rest = getattr(own.by_step, field)
        assert [first] == getattr(whole.by_step, field)
        assert np.isnan(rest).all()
        assert getattr(own.overall, field) == getattr(whole.overall, field)
    assert "grpo" not in found.refused


def test_graded_rewards_have_solve_rates_with_a_threshold_alone() -> None:
    steps = [step(1, [0.1, 0.1, 0.1], [0.2, 0.5, 0.9])]
    found = replayed(steps, "grpo")
    own = found.estimators["grpo"]
    assert found.rates is None
    assert own.by_rate is None
    assert "set --success-at" in found.remarks[0]
    assert np.isnan(found.solve_rate).all()
    assert np.isnan(own.overall.sign_ratio).all()
    assert np.isnan(own.overall.weight_variance).all()
    # 0.9 is above the mean of its group; σ² is the mean of 0.333², 0.0333² and 0.367².
    mean = 1.6 / 3
    sigma = math.sqrt(sum((r - mean) ** 2 for r in (0.2, 0.5, 0.9)) / 3)
    assert own.overall.mass_success == pytest.approx((0.9 - mean) / sigma / 6)
    known = replayed(steps, "grpo", success_at=0.5)
    assert known.rates is not None
    assert known.rates.tolist() == pytest.approx([0, 2 / 3])
    assert known.solve_rate == pytest.approx(1 / 3)


def test_many_solve_rates_are_merged_into_tenths() -> None:
    rows = [[1] * solved + [0] * (20 - solved) for solved in range(21)]
    groups = [RolloutGroup(str(i), [float(r) for r in row]) for i, row in enumerate(rows)]
    found = replayed([RolloutStep(1, groups)], "grpo")
    assert found.rates is not None
    assert found.rate_groups is not None
    # 0 and 1 stay alone; (0, 0.1] has 0.05 and 0.1, the last 0.95.
    expected = [0, 0.075, 0.175, 0.275, 0.375, 0.475, 0.575, 0.675, 0.775, 0.875, 0.95, 1]
    assert found.rates == pytest.approx(expected)
    assert found.rate_groups.tolist() == [1, *[2] * 9, 1, 1]


def test_too_large_groups_and_empty_recordings_are_refused() -> None:
    large = RolloutGroup("x", [1.0] * 1025)
    with pytest.raises(BatchError, match="step 1: expected groups of up to 1,024 rollouts"):
        replayed([RolloutStep(1, [large])], "grpo")
    with pytest.raises(BatchError, match="expected rollouts of at least one step"):
        replayed([], "grpo")


def test_steps_without_a_scorable_rollout_have_no_numbers() -> None:
    found = replayed([step(1, [NAN, NAN]), step(2, [1, 0])], "grpo", "avspo")
    for own in found.estimators.values():
        assert np.isnan(own.by_step.mass_success[0])
        assert own.overall.mass_success == pytest.approx(0.5)
    assert found.groups.tolist() == [0, 1]


def assert_equal(first: Replay, second: Replay) -> None:
    assert first.estimators.keys() == second.estimators.keys()
    for label, own in first.estimators.items():
        other = second.estimators[label]
        for part in ("overall", "by_step", "by_rate"):
            a, b = getattr(own, part), getattr(other, part)
            for field in a._fields:
                x, y = getattr(a, field), getattr(b, field)
                np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9, err_msg=f"{label} {field}")


def test_prompts_are_names_and_nothing_else() -> None:
    hostile = ["=1+1", "\x1b]52;c;x\x07", "\ud800", "<script>", "../..", "a" * 10_000]
    rows = [[1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0]]
    groups = [RolloutGroup(p, list(map(float, r))) for p, r in zip(hostile, rows, strict=True)]
    plain = [g._replace(prompt=f"p{i}") for i, g in enumerate(groups)]
    every = names()
    first = replayed([RolloutStep(s, groups) for s in (1, 2)], *every)
    assert_equal(first, replayed([RolloutStep(s, plain) for s in (1, 2)], *every))


def episodes(scores: list[float], turns: list[int], **more: Any) -> RolloutGroup:
    return RolloutGroup("p", scores, turns=GroupTurns(turns, **more))


def test_turn_estimators_see_the_turns_of_a_dump() -> None:
    steps = [
        RolloutStep(1, [episodes([1, 0], [2, 2]), episodes([1, 1], [1, 2])]),
        RolloutStep(2, [episodes([0, 0], [1, 1])]),
    ]
    found = replayed(steps, "turn_return", "grpo", "gigpo", "turn_grpo")
    assert found.turn_rollouts is not None
    assert found.turn_rollouts.tolist() == [6, 3]
    # 1 - 0 and 0 - 1 at both turns of the first group. In the second the returns are equal, and
    # nobody shares the second turn; the third has no reward.
    of_turns = found.estimators["turn_return"].by_turn
    assert of_turns is not None
    assert of_turns.mean.tolist() == [0, 0]
    assert of_turns.mean_size.tolist() == pytest.approx([2 / 6, 2 / 3])
    assert of_turns.zero_groups.tolist() == pytest.approx([2 / 3, 0])
    # GRPO's ±1 is that of each turn.
    of_grpo = found.estimators["grpo"].by_turn
    assert of_grpo is not None
    assert of_grpo.mean_size.tolist() == pytest.approx([2 / 6, 2 / 3])
    assert found.lacking == {"gigpo": ["turn_states"], "turn_grpo": ["turn_rewards"]}


def test_rewards_and_states_of_turns_are_read_where_all_rollouts_have_them() -> None:
    told = {"rewards": [[0.5, 0.5], [0.0]], "states": [[1, 2], [1]]}
    found = replayed([RolloutStep(1, [episodes([1, 0], [2, 1], **told)])], "gigpo", "turn_grpo")
    assert not found.lacking
    group = GroupBatch(
        rewards=torch.tensor([[1.0, 0.0]], dtype=torch.float64),
        lengths=torch.tensor([[2.0, 1.0]]),
        turn_of_token=torch.tensor([[[0, 1], [0, -1]]]),
        turn_rewards=torch.tensor([[[0.5, 0.5], [0.0, 0.0]]]),
        turn_states=torch.tensor([[[1, 2], [1, 0]]]),
    )
    for name in ("gigpo", "turn_grpo"):
        values = build_estimator(name)(group)[0]
        of_turns = found.estimators[name].by_turn
        assert of_turns is not None
        expected = [float(values[:, 0].mean()), float(values[0, 1])]
        assert of_turns.mean.tolist() == pytest.approx(expected)


def test_rollouts_whose_turns_nobody_knows_have_one_turn() -> None:
    unknown = RolloutStep(1, [episodes([1, 0], [2, 2]), RolloutGroup("q", [1, 0])])
    found = replayed([unknown], "turn_return")
    assert found.turn_rollouts is None
    assert found.lacking == {"turn_return": ["lengths"]}


@pytest.mark.parametrize("turns", [2, 3])
def test_advantages_of_tokens_are_those_of_a_rollout_at_each_turn(turns: int) -> None:
    # Returns of tokens are 0.5 and 1, twice: around 0.75 they deviate by 1/4, and their variance is
    # 4/16 / 3. However many turns there are, a rollout has the mean 0, and (1/4)/√(1/12) of |A|.
    group = episodes([1, 1], [turns, turns])._replace(lengths=[2, 2])
    estimator = ESTIMATORS.build({"name": "reinforce_pp", "gamma": 0.5})
    found = replay([RolloutStep(1, [group])], {"discounted": estimator})
    of_turns = found.estimators["discounted"].by_turn
    assert of_turns is not None
    assert of_turns.mean.tolist() == pytest.approx([0.0] * turns)
    assert of_turns.mean_size.tolist() == pytest.approx([math.sqrt(12) / 4] * turns)
    assert of_turns.zero_groups.tolist() == [0] * turns
