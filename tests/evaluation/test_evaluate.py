"""Evaluation counts what a sampler answers; identities say when a count can be reused."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from advsweep.config.settings import EvaluationSettings
from advsweep.config.validation import reported_problems
from advsweep.errors import AdvsweepWarning
from advsweep.evaluation.evaluate import (
    ProblemChoice,
    Questions,
    count,
    evaluation_identity,
    solve_rate_levels,
    spread_over_levels,
)
from advsweep.statistics import pass_at_k
from advsweep.tasks import TASKS
from advsweep.tasks.base import Completions, Problem, Split


@dataclass
class Scripted:
    """A sampler that gives each problem the same list of texts."""

    texts: Sequence[str]
    token_entropy: float | None = None

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        assert n == len(self.texts)
        known = None
        if self.token_entropy is not None:
            known = np.full(len(problems), self.token_entropy)
        return Completions(texts=[list(self.texts)] * len(problems), token_entropy=known)


def evaluate(sampler, task, settings):
    problems = reported_problems(task, settings)
    return count(sampler, Questions(task, settings, problems), settings.seed)


@pytest.fixture
def task():
    return TASKS.build("countdown")


def test_the_first_answer_to_a_problem_is_kept(task):
    settings = EvaluationSettings(n=2, k=(1,))
    text = "junk" + "x" * 5000
    for result in evaluate(Scripted([text, "1+1"]), task, settings):
        first = result.first
        assert first.answer.startswith("junk")
        assert (len(first.answer), first.length) == (2000, 5004)
        assert (first.read, first.reward) == (None, 0.0)


def test_correct_answers_are_counted(task):
    problems = list(task.problems(Split.HELD_OUT))
    solution = next(p for p in problems if p.level == 0)
    digits = solution.prompt.split("=")[0]
    answers = [f"{digits[0]}{op}{digits[1]}" for op in "+-*"]
    answers += [f"{digits[1]}{op}{digits[0]}" for op in "+-*"]
    expected = int(task.score([solution] * 6, answers).sum())
    assert expected >= 1
    results = evaluate(Scripted(answers, 0.25), task, EvaluationSettings(n=6, k=(1,)))
    [result] = [r.counts for r in results if r.counts.problem_id == solution.id]
    assert result.c == expected
    assert result.token_entropy == 0.25
    assert result.distinct == len(set(answers))
    # Six answers; equal digits make pairs of them coincide.
    entropy = math.log(6) if digits[0] != digits[1] else math.log(3)
    assert result.answer_entropy == pytest.approx(entropy)


def test_the_entropy_of_right_answers_is_of_these_alone(task, monkeypatch):
    """Three right answers of two kinds: -(2/3 ln 2/3 + 1/3 ln 1/3) = ln 3 - 2/3 ln 2."""
    monkeypatch.setattr(task, "score", lambda _, texts: np.tile([1.0, 1, 0, 1, np.nan], 140))
    monkeypatch.setattr(task, "answers", lambda _, texts: ["a", "a", "b", "c", None] * 140)
    result, *_ = (
        r.counts for r in evaluate(Scripted("aabc?"), task, EvaluationSettings(n=5, k=(1,)))
    )
    assert (result.n, result.c) == (4, 3)
    assert result.right_entropy == pytest.approx(math.log(3) - 2 / 3 * math.log(2))
    assert result.right_counts == [2, 1]


def test_some_problems_are_spread_over_the_split(task):
    problems = list(task.problems(Split.TRAIN))
    chosen = spread_over_levels(problems, 7)
    assert len(chosen) == 7
    assert {p.level for p in chosen} == {p.level for p in problems}
    assert spread_over_levels(problems, 10**6) == problems


@pytest.mark.security
@pytest.mark.parametrize(
    ("verifier", "gold", "right", "hanging"),
    [
        ({"name": "regex", "pattern": r"(?:a+)+$|is ([a-z]+)"}, "x", "is x", "a" * 60 + "!"),
        ("boxed_math", "x+1", r"\boxed{x+1}", r"\boxed{(x+1)^{99999}}"),
    ],
)
@pytest.mark.slow
def test_answers_that_hang_stay_in_the_count(verifier, gold, right, hanging, tmp_path):
    (tmp_path / "data.jsonl").write_text(json.dumps({"question": "a?", "answer": gold}))
    data = str(tmp_path / "data.jsonl")
    spec = {"name": "file", "data": data, "train_split": "", "verifier": verifier}
    task = TASKS.build({**spec, "deadline": 1.0, "workers": 2})
    sampler, settings = Scripted([right, *[hanging] * 3]), EvaluationSettings(n=4, k=(1,))
    with pytest.warns(AdvsweepWarning, match="3 of 4 answers count as wrong: it took more than"):
        [(result, _)] = evaluate(sampler, task, settings)
    assert (result.n, result.c, result.unscorable) == (4, 1, 0)
    assert float(pass_at_k(result.n, result.c, 1)) == pytest.approx(0.25)


def test_identity_depends_on_what_changes_the_counts(task):
    settings = EvaluationSettings(n=8, k=(1, 8))
    same = evaluation_identity("run@10", task, settings)
    assert same == evaluation_identity("run@10", task, EvaluationSettings(n=8, k=(1, 2), every=7))
    others = [
        evaluation_identity("run@11", task, settings),
        evaluation_identity("run@10", task, EvaluationSettings(n=9, k=(1, 8))),
        evaluation_identity("run@10", task, EvaluationSettings(n=8, k=(1, 8), temperature=0.5)),
        evaluation_identity("run@10", task, EvaluationSettings(n=8, k=(1, 8), seed=1)),
        evaluation_identity("run@10", TASKS.build("countdown", levels=[0]), settings),
    ]
    assert len({same, *others}) == 1 + len(others)


def test_what_came_later_leaves_earlier_identities_alone(task):
    settings = EvaluationSettings(n=8, k=(1, 8))
    material = {
        "revision": 1,
        "subject": "run@10",
        "task": task.identity(),
        "n": 8,
        "temperature": 1.0,
        "seed": 0,
    }
    same = hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()
    assert evaluation_identity("run@10", task, settings) == same
    cut = EvaluationSettings(n=8, k=(1, 8), top_p=0.95)
    others = {
        evaluation_identity("run@10", task, cut),
        evaluation_identity("run@10", task, settings, ProblemChoice(Split.TRAIN)),
        evaluation_identity("run@10", task, settings, sampler="vllm"),
        evaluation_identity("run@10", task, settings, ProblemChoice(Split.TRAIN, 3)),
    }
    assert len(others | {same}) == 5
    between = EvaluationSettings(n=16, k=(1, 16), n_between=8, train_problems=3).between()
    assert evaluation_identity("run@10", task, between) == same


def test_levels_of_solve_rates():
    rates = [1.0, 0.95, 0.94, 0.8, 0.79, 0.5, 0.49, 0.3, 0.29, 0.1, 0.09, 0.01, 0.009, 0.0]
    expected = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert solve_rate_levels(np.array(rates)).tolist() == expected
