"""Bandits: their tables, and how answers are read and scored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from advsweep.errors import ConfigError
from advsweep.tasks import TASKS
from advsweep.tasks.bandit import Bandit, Toy
from advsweep.tasks.base import Split


def solve_rates(task: Any) -> Any:
    policy = np.exp(task.arms.logits)
    return (policy * task.arms.correct).sum(axis=1) / policy.sum(axis=1)


def test_every_prompt_has_the_success_rate_of_its_level() -> None:
    task = Bandit(rates=(0.9, 0.3, 0.02), levels=(0, 2), prompts_per_level=5)
    assert task.arms.levels.tolist() == [0] * 5 + [2] * 5
    assert solve_rates(task) == pytest.approx([0.9] * 5 + [0.02] * 5)
    assert (task.arms.correct.sum(axis=1) == task.correct).all()
    assert (task.arms.rewards == task.arms.correct).all()


def test_rates_scatter_around_their_level() -> None:
    task = Bandit(
        rates=(0.3,), levels=(0,), prompts_per_level=2000, behaviours=4, correct=1, jitter=0.5
    )
    rates = solve_rates(task)
    log_odds = np.log(rates / (1 - rates))
    # Standard errors of mean and deviation: 0.011 and 0.008.
    assert log_odds.mean() == pytest.approx(np.log(0.3 / 0.7), abs=0.045)
    assert log_odds.std() == pytest.approx(0.5, abs=0.03)


def test_a_level_is_the_same_beside_any_others() -> None:
    alone, all_levels = Bandit(levels=(2,)).arms, Bandit().arms
    assert np.array_equal(all_levels.logits[all_levels.levels == 2], alone.logits)
    assert np.array_equal(all_levels.rewards[all_levels.levels == 2], alone.rewards)
    assert not np.array_equal(Bandit(levels=(2,), seed=1).arms.logits, alone.logits)


def test_ability_shifts_the_log_odds_of_every_level() -> None:
    """Odds of 9 and 1/4, three times as large: 27 and 3/4."""
    task = Bandit(rates=(0.9, 0.2), levels=(0, 1), prompts_per_level=2, ability=np.log(3))
    assert solve_rates(task) == pytest.approx([27 / 28] * 2 + [3 / 7] * 2)
    plain = Bandit(rates=(0.9, 0.2), levels=(0, 1), prompts_per_level=2)
    assert np.array_equal(task.arms.correct, plain.arms.correct)


def test_common_behaviours_are_correct_for_every_prompt() -> None:
    arms = Bandit(correct=8, common=3).arms
    assert arms.correct[:, :3].all()
    assert (arms.correct.sum(axis=1) == 8).all()
    assert not arms.correct[:, 3:].all(axis=0).any()
    assert len({tuple(row) for row in arms.correct.tolist()}) == len(arms.correct)
    assert solve_rates(Bandit(rates=(0.3,), levels=(0,), common=8)) == pytest.approx([0.3] * 8)


def test_some_levels_are_trained_and_all_are_held_out() -> None:
    task = Bandit(levels=(1, 3, 4), train_levels=(4, 1), prompts_per_level=2)
    assert task.train_rows.tolist() == [0, 1, 4, 5]
    assert [p.reference["row"] for p in task.problems(Split.TRAIN)] == [0, 1, 4, 5]
    assert [p.level for p in task.problems(Split.HELD_OUT)] == [1, 1, 3, 3, 4, 4]
    drawn = task.draw(8, np.random.default_rng(0))
    assert sorted(problem.reference["row"] for problem in drawn) == [0, 0, 1, 1, 4, 4, 5, 5]
    assert Bandit(levels=(1, 3), prompts_per_level=2).train_rows.tolist() == [0, 1, 2, 3]


def test_held_out_problems_ask_for_the_same_behaviours_under_other_names() -> None:
    task = Bandit()
    train, held_out = task.problems(Split.TRAIN), task.problems(Split.HELD_OUT)
    assert not {p.id for p in train} & {p.id for p in held_out}
    assert [(p.level, p.reference) for p in train] == [(p.level, p.reference) for p in held_out]
    solutions = [p.reference["solution"] for p in held_out]
    assert task.score(held_out, solutions).tolist() == [1.0] * len(held_out)


def test_answers_are_numbers_of_behaviours() -> None:
    task = Bandit(rates=(0.5,), levels=(0,), prompts_per_level=1, behaviours=3, correct=1)
    (problem,) = task.problems(Split.TRAIN)
    texts = ["0", "1", "2", "3", "-1", "01", "", "no"]
    scores = task.score([problem] * len(texts), texts)
    assert scores[:3].tolist() == task.arms.correct[0].astype(float).tolist()
    assert scores[3:].tolist() == [0.0] * 5
    assert task.answers([problem] * len(texts), texts) == ["0", "1", "2"] + [None] * 5


def test_no_prompt_is_drawn_again_before_all_were() -> None:
    task = Bandit(rates=(0.5,), levels=(0,), prompts_per_level=4)
    drawn = [problem.reference["row"] for problem in task.draw(10, np.random.default_rng(0))]
    assert sorted(drawn[:4]) == sorted(drawn[4:8]) == [0, 1, 2, 3]
    assert len(drawn) == 10
    assert len(set(drawn[8:])) == 2


def test_the_toy_has_three_actions_and_graded_rewards() -> None:
    toy = Toy()
    assert np.exp(toy.arms.logits) == pytest.approx(np.array([[0.5, 0.1, 0.4]]))
    assert Toy(temperature=5.0).arms.logits / 5 == pytest.approx(toy.arms.logits)
    assert toy.arms.correct.tolist() == [[False, True, False]]
    assert toy.is_shaped
    assert not toy.is_binary
    assert toy.reward_range == (0.0, 1.0)
    (problem,) = toy.problems(Split.TRAIN)
    verdicts = toy.score([problem] * 4, ["0", "1", "2", "?"])
    assert verdicts.tolist() == [0.0, 1.0, 0.0, 0.0]
    rewards = toy.rewards(["0", "1", "2", "?"], verdicts, np.ones(4))
    assert rewards.tolist() == [0.5, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "bandit", "levels": []}, "task.levels: expected some of 0 to 6, got none"),
        ({"name": "bandit", "rates": [0.5, 1.0]}, "task.rates: expected > 0 and < 1, got 1"),
        ({"name": "bandit", "correct": 64}, "task.correct: .* fewer than behaviours = 64, got 64"),
        ({"name": "bandit", "common": 9}, "task.correct: expected at least common = 9 .* got 8"),
        (
            {"name": "bandit", "levels": [0, 2], "train_levels": [2, 3]},
            r"task.train_levels: expected some of levels = \[0, 2\], got \[2, 3\]",
        ),
        ({"name": "toy", "probabilities": [0.5, 0.5]}, "expected one for each of 3 actions"),
        ({"name": "toy", "probabilities": [0.5, 0.1, 0.1]}, "expected a sum of 1, got 0.7"),
        ({"name": "toy", "action_rewards": [1, 1, 1]}, "expected at least two different rewards"),
    ],
)
def test_refusals_name_the_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TASKS.build(values, where="task")
