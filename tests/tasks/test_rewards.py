"""Rewards: parts, their weights, what is unscorable."""

from __future__ import annotations

import numpy as np
import pytest

from advsweep.errors import ConfigError
from advsweep.tasks.countdown import Countdown
from advsweep.tasks.rewards import build_reward

RIGHT, WRONG, UNSCORABLE = 1.0, 0.0, np.nan


def rewarded(spec: object) -> Countdown:
    return Countdown(reward=spec)  # type: ignore[arg-type]


def values(spec: object, texts: list[str], verdicts: list[float], lengths: list[float]) -> list:
    reward = rewarded(spec)
    found = reward.rewards(texts, np.array(verdicts), np.array(lengths))
    scored = found[~np.isnan(found)]
    low, high = reward.reward_range
    assert ((scored >= low - 1e-12) & (scored <= high + 1e-12)).all()
    return found.tolist()


def test_accuracy_is_the_outcome() -> None:
    found = values("accuracy", ["a", "b", "c"], [RIGHT, WRONG, UNSCORABLE], [1, 1, 1])
    assert found == pytest.approx([1, 0, np.nan], nan_ok=True)
    assert rewarded("accuracy").is_binary
    assert not rewarded({"accuracy": 1}).is_shaped
    assert rewarded({"accuracy": 2}).is_shaped
    assert not rewarded({"accuracy": 2}).is_binary
    assert rewarded({"accuracy": 1, "format": -0.5}).reward_range == (-0.5, 1)


def test_accuracy_may_need_a_format() -> None:
    spec = {"name": "accuracy", "delimiter": "</think>"}
    assert values(spec, ["x</think>", "x", "</think>"], [RIGHT, RIGHT, WRONG], [1] * 3) == [1, 0, 0]
    assert rewarded(spec).is_binary
    assert rewarded(spec).is_shaped


def test_format_is_a_delimiter() -> None:
    texts = ["a\n</think>\nb", "a</think>b", "\n</think>\n\n</think>\n"]
    assert values("format", texts, [WRONG] * 3, [1] * 3) == [1, 0, 1]
    once = {"name": "format", "exactly_once": True}
    assert values(once, texts, [WRONG] * 3, [1] * 3) == [1, 0, 0]


def test_cosine_falls_for_correct_and_rises_for_wrong_answers() -> None:
    # u = 0: c_max = 1, w_min = -1. u = 1: c_min = 0.5, w_max = -0.5, and so beyond.
    # u = 1/2: halfway, 0.75 and -0.75. u = 1/3: cos = 1/2, so 0.5 + 0.5 * 0.75 = 0.875.
    lengths = [0, 1000, 5000, 500, 1000 / 3]
    assert values("cosine", [""] * 5, [RIGHT] * 5, lengths) == pytest.approx(
        [1, 0.5, 0.5, 0.75, 0.875]
    )
    assert values("cosine", [""] * 5, [WRONG] * 5, lengths) == pytest.approx(
        [-1, -0.5, -0.5, -0.75, -0.875]
    )


def test_overlong_answers_are_penalised_before_the_limit() -> None:
    # L = 100, B = 20: none up to 80, then (80 - n) / 20, -1 from 100 on.
    spec = {"name": "overlong", "length": 100, "buffer": 20}
    lengths = [1, 80, 81, 90, 100, 101]
    assert values(spec, [""] * 6, [RIGHT] * 6, lengths) == [0, 0, -0.05, -0.5, -1, -1]
    # L is what a completion can have, and B a fifth of it.
    (filled,) = rewarded("overlong").for_completions(512)._parts
    assert (filled.length, filled.buffer) == (512, 102)  # type: ignore[attr-defined]
    reward = rewarded({"accuracy": 1, "overlong": {"length": 9}})
    assert reward.for_completions(9).reward_range == (-1, 1)
    assert reward.for_completions(9).for_completions(9) == reward.for_completions(9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer": 20}, "task.reward.overlong.buffer: expected at most length = 9, got 20"),
        ({"length": 30}, "task.reward.overlong.length: expected less than 15, .* got 30"),
    ],
)
def test_a_penalty_that_never_comes_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rewarded({"accuracy": 1, "overlong": options}).for_completions(9)


def test_parts_are_values_before_their_weights() -> None:
    reward = rewarded({"accuracy": 2, "format": {"weight": -1, "delimiter": "!"}})
    shown = ["a!", "b!", ""], np.array([RIGHT, WRONG, UNSCORABLE]), np.ones(3)
    parts = reward.reward_parts(*shown)
    np.testing.assert_equal(parts, [[1, 1], [0, 1], [np.nan, np.nan]])
    np.testing.assert_equal(parts @ reward.part_weights, reward.rewards(*shown))


def test_a_sum_is_weighted_and_keeps_the_unscorable() -> None:
    spec = {"format": 1, "cosine": {"weight": 2, "length": 10}}
    texts = ["\n</think>\n", "", "\n</think>\n"]
    found = values(spec, texts, [RIGHT, WRONG, UNSCORABLE], [10, 0, 0])
    assert found == pytest.approx([1 + 2 * 0.5, -2, np.nan], nan_ok=True)
    reward = rewarded(spec)
    assert reward.reward_range == (-2, 3)
    assert not reward.is_binary
    assert rewarded(reward.reward) == reward


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "reward: expected some of accuracy, cosine, format, overlong, got none"),
        ("length", "reward: no reward is called 'length'"),
        ({"formt": 1}, r"reward\.formt: no reward is called 'formt'; did you mean 'format'"),
        ({"format": "much"}, r"reward\.format\.weight: expected a number, got 'much'"),
        ({"format": {"delimiter": ""}}, r"reward\.format\.delimiter: expected a text"),
    ],
)
def test_bad_rewards_are_refused(spec: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_reward(spec)
