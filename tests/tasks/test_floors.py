"""Floors: pass@k of their rates, and the floors of countdown and of bandits."""

from __future__ import annotations

import itertools

import pytest

from advsweep.tasks.bandit import Bandit
from advsweep.tasks.base import Floor, Split
from advsweep.tasks.countdown import Countdown


def test_pass_at_k() -> None:
    floor = Floor("guess", "", {"a": 0.0, "b": 0.5, "c": 1.0, "d": 1e-12})
    assert floor.pass_at(1, ["b", "a"]) == pytest.approx([0.5, 0.0])
    assert floor.pass_at(3, ["a", "b", "c"]) == pytest.approx([0.0, 0.875, 1.0])
    # (1 - p)^k would round to 1 - 64 x 1.000089e-12.
    assert floor.pass_at(64, ["d"])[0] == pytest.approx(64e-12, rel=1e-9)
    with pytest.raises(KeyError):
        floor.pass_at(1, ["e"])


@pytest.mark.parametrize("split", Split)
def test_countdown_guess_equals_all_expressions(countdown: Countdown, split: Split) -> None:
    floor = countdown.floors(split)["guess"]
    problems = countdown.problems(split)
    assert floor.rates.keys() == {p.id for p in problems}
    for problem in problems[:: len(problems) // 12]:
        digits = problem.prompt.partition("=")[0]
        texts = [
            "".join(itertools.chain(*itertools.zip_longest(order, operators, fillvalue="")))
            for order in itertools.permutations(digits)
            for operators in itertools.product("+-*", repeat=len(digits) - 1)
        ]
        right = sum(eval(text) == problem.reference["target"] for text in texts)
        assert floor.rates[problem.id] == pytest.approx(right / len(texts), rel=1e-12)
        assert right > 0


def test_bandit_guess_is_the_share_of_correct_behaviours() -> None:
    task = Bandit(behaviours=64, correct=8)
    for split in Split:
        rates = task.floors(split)["guess"].rates
        assert rates.keys() == {p.id for p in task.problems(split)}
        assert set(rates.values()) == {0.125}
