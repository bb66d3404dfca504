"""The countdown task: its verifier against plain Python, its parts, its corpus."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from advsweep.errors import ConfigError
from advsweep.tasks import TASKS
from advsweep.tasks.base import CorpusShares, Problem, Split
from advsweep.tasks.countdown import DIFFICULTIES, Countdown, keys
from advsweep.tasks.generated import Part, belongs


def uses_digits(problem: Problem, text: str) -> bool:
    """Plain Python's answer to whether a completion is an expression over the digits."""
    digits = problem.prompt.partition("=")[0]
    shape = re.fullmatch(r"[0-9]([+*-][0-9])*", text, flags=re.ASCII)
    return shape is not None and sorted(re.findall("[0-9]", text)) == sorted(digits)


def solves(problem: Problem, text: str) -> bool:
    target = int(problem.prompt[-3:-1])
    return uses_digits(problem, text) and eval(text) == target


def agrees(task: Countdown, problems: list[Problem], texts: list[str]) -> None:
    scores = task.score(problems, texts)
    assert scores.dtype == np.float64
    assert scores.tolist() == [float(solves(*pair)) for pair in zip(problems, texts, strict=True)]
    answers = task.answers(problems, texts)
    assert answers == [
        text if uses_digits(problem, text) else None
        for problem, text in zip(problems, texts, strict=True)
    ]


def test_known_answers(countdown: Countdown) -> None:
    problem = Problem("1/334=15", "343=15:", 1, {"signature": (2 << 12) + (1 << 16), "target": 15})
    right = ["3+4*3", "3*4+3", "4*3+3", "3+3*4"]
    readable = ["3+3+4", "3*3*4", "4-3-3"]
    unreadable = ["", "15", "3*4", "3*4+3+0", "34-3", "(3+4)*3", "3*4+3 ", " 3*4+3", "+3*4+3"]
    unreadable += ["3*4+3+", "3**4+3", "3*4+3\0", "\0", "3*4+3=15", "3×4+3", "٣*4+3", "3*4+3\n"]
    texts = right + readable + unreadable
    problems = [problem] * len(texts)
    assert countdown.score(problems, texts).tolist() == [1.0] * 4 + [0.0] * (len(texts) - 4)
    assert countdown.answers(problems, texts) == right + readable + [None] * len(unreadable)


def test_verifier_agrees_with_python_on_shuffled_solutions(countdown: Countdown) -> None:
    rng = np.random.default_rng(1)
    problems, texts = [], []
    for problem in countdown.draw(4000, rng):
        digits = rng.permutation(list(problem.prompt.partition("=")[0]))
        operators = [*rng.choice(list("+-*"), len(digits) - 1), ""]
        text = "".join(d + o for d, o in zip(digits, operators, strict=True))
        problems += [problem, problem]
        texts += [problem.reference["solution"], text]
    assert 4100 < countdown.score(problems, texts).sum() < 7600
    agrees(countdown, problems, texts)


@pytest.mark.parametrize("seed", range(2))
def test_problems_have_solutions_and_fitting_prompts(seed: int) -> None:
    task = Countdown(seed=seed, held_out_per_level=25)
    for split in Split:
        problems = task.problems(split)
        assert task.score(problems, [p.reference["solution"] for p in problems]).all()
        assert len({p.id for p in problems}) == len(problems)
        for p in problems:
            assert re.fullmatch(rf"[1-9]{{{DIFFICULTIES[p.level].numbers}}}=\d\d:", p.prompt)
            assert len(p.prompt) <= task.max_prompt_length
            assert len(p.reference["solution"]) < task.max_completion_length
    assert Counter(p.level for p in task.problems(Split.HELD_OUT)) == dict.fromkeys(range(7), 25)


def problem_keys(prompts: list[str]) -> set[tuple[str, str]]:
    return {("".join(sorted(prompt[:-4])), prompt[-3:-1]) for prompt in prompts}


def test_pretraining_training_and_held_out_prompts_are_disjoint() -> None:
    """Whatever the seeds of the three: the digits and the target alone decide."""
    train, held_out, pretraining = set(), set(), set()
    for seed in range(3):
        task = Countdown(seed=seed)
        train |= problem_keys([p.prompt for p in task.problems(Split.TRAIN)])
        held_out |= problem_keys([p.prompt for p in task.problems(Split.HELD_OUT)])
        pairs = task.pretraining_pairs(5000, np.random.default_rng(seed))
        pretraining |= problem_keys(pairs[0])
    assert min(map(len, [train, held_out, pretraining])) > 300
    assert not train & held_out
    assert not train & pretraining
    assert not held_out & pretraining


def test_parts_never_move() -> None:
    """A moved problem would be known to the base models that were trained before."""
    prompts = ["34=07:", "43=07:", "99=81:", "12=03:", "58=40:", "72=05:", "86=02:"]
    numbers = np.array([[int(digit) for digit in prompt[:2]] for prompt in prompts])
    key = keys(numbers, np.array([int(prompt[-3:-1]) for prompt in prompts]))
    found = {
        part: [p for p, inside in zip(prompts, belongs(key, part), strict=True) if inside]
        for part in Part
    }
    assert found == {
        Part.PRETRAINING: ["58=40:", "72=05:"],
        Part.TRAIN: ["34=07:", "43=07:", "99=81:", "12=03:"],
        Part.HELD_OUT: ["86=02:"],
    }


def test_training_problems_do_not_depend_on_the_held_out_number(countdown: Countdown) -> None:
    fewer = Countdown(held_out_per_level=3)
    assert len(fewer.problems(Split.HELD_OUT)) == 21
    assert fewer.problems(Split.TRAIN) == countdown.problems(Split.TRAIN)


def test_trained_levels_are_chosen(countdown: Countdown) -> None:
    task = Countdown(train_levels=(4, 2, 4))
    assert task.train_levels == (2, 4)
    assert {p.level for p in task.problems(Split.TRAIN)} == {2, 4}
    assert {p.level for p in task.draw(50, np.random.default_rng(0))} == {2, 4}
    assert task.problems(Split.HELD_OUT) == countdown.problems(Split.HELD_OUT)
    trained = [p for p in countdown.problems(Split.TRAIN) if p.level in (2, 4)]
    assert list(task.problems(Split.TRAIN)) == trained


def test_only_what_changes_the_corpus_is_in_its_identity(countdown: Countdown) -> None:
    same = Countdown(train_levels=(1,), train_per_level=3, held_out_per_level=2, seed=4)
    assert same.corpus_identity() == countdown.corpus_identity()
    fewer = Countdown(levels=(0, 1))
    assert fewer.corpus_identity() != countdown.corpus_identity()


def left_to_right(text: str) -> int:
    value = int(text[0])
    for operator, digit in zip(text[1::2], text[2::2], strict=True):
        value = eval(f"{value}{operator}{digit}")
    return value


def test_pretraining_corpus_has_the_asked_shares(countdown: Countdown) -> None:
    prompts, answers = countdown.pretraining_pairs(
        20_000, np.random.default_rng(5), shares=CorpusShares(random=0.1, mistaken=0.6)
    )
    assert len(prompts) == len(answers) == 20_000
    right = wrong_precedence = other = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        assert sorted(re.findall(r"\d", answer)) == sorted(prompt[:-4])
        target = int(prompt[-3:-1])
        if "*" not in answer:
            continue
        if eval(answer) == target != left_to_right(answer):
            right += 1
        elif left_to_right(answer) == target != eval(answer):
            wrong_precedence += 1
        elif target not in (eval(answer), left_to_right(answer)):
            other += 1
    # Where the two readings differ: .3 correct, .6 left to right, .1 random in all.
    assert 0.2 < right / (right + wrong_precedence + other) < 0.45
    assert 0.45 < wrong_precedence / (right + wrong_precedence + other) < 0.7
    assert 0.05 < other / (right + wrong_precedence + other) < 0.25


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"levels": []}, r"task\.levels: expected some of 0 to 6, got none"),
        ({"held_out_per_level": 26}, r"task\.held_out_per_level: expected >= 1 and <= 25, got 26"),
        (
            {"train_levels": []},
            r"task\.train_levels: expected null or some of levels = .* got \[\]",
        ),
        ({"levels": [1, 2], "train_levels": [0]}, r"some of levels = \[1, 2\], got \[0\]"),
        ({"level": [1]}, r"task\.level: countdown has no parameter 'level'; .*task\.levels"),
    ],
)
def test_bad_fields_are_refused(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TASKS.build({"name": "countdown", **values}, where="task")
