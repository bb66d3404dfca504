"""Evaluations on request, where several methods can sample from the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from advsweep.config.settings import EvaluationSettings
from advsweep.errors import SamplerError
from advsweep.evaluation.standalone import EvaluationSubject, Method, evaluate_subject
from advsweep.store import Store, open_store
from advsweep.tasks import TASKS
from advsweep.tasks.base import Completions, Problem, Sampler, Task

SETTINGS = EvaluationSettings(n=2, k=(1,))
TASK = TASKS.build("countdown", levels=[0], held_out_per_level=2)


class Silent:
    """Answers nothing."""

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        return Completions(texts=[[""] * n for _ in problems])


def unfit(task: Task, settings: EvaluationSettings) -> Sampler:
    raise SamplerError("too wide")


def silent(task: Task, settings: EvaluationSettings) -> Sampler:
    return Silent()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "advsweep.db")) as opened:
        yield opened


@pytest.fixture
def evaluated(store: Store) -> Callable[..., tuple[str | None, list[str]]]:
    """`evaluated(METHODS)`: the sampler's name, and why other methods were given up."""

    def call(methods: dict[str | None, Method]) -> tuple[str | None, list[str]]:
        reasons: list[str] = []
        weights = EvaluationSubject("model:x", methods)
        made = evaluate_subject(store, weights, TASK, SETTINGS, on_change=reasons.append)
        return made.settings.get("sampler"), reasons

    return call


def test_uses_the_first_method_that_fits(evaluated):
    assert evaluated({"fast": unfit, None: silent}) == (None, ["too wide"])


def test_validation_problems_are_left_out(store):
    half = EvaluationSettings(n=2, k=(1,), select_on={"share": 0.5})
    weights = EvaluationSubject("model:x", {None: silent})
    assert len(evaluate_subject(store, weights, TASK, half).problem_ids) == 1


def test_does_not_repeat_an_evaluation_by_another_method(evaluated):
    assert evaluated({None: silent}) == (None, [])
    assert evaluated({"fast": unfit, None: unfit}) == (None, [])
    # With one method alone, it is another evaluation.
    assert evaluated({"fast": silent}) == ("fast", [])
    assert evaluated({"fast": unfit, None: unfit}) == ("fast", [])
