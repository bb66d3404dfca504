"""Evaluations that are asked for, where there are several ways to sample from the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from advsweep.config.settings import EvaluationSettings
from advsweep.errors import SamplerError
from advsweep.evaluation.standalone import Way, Weights, evaluate_weights
from advsweep.store import Store
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
def evaluated(store: Store) -> Callable[..., tuple[str | None, list[str]]]:
    """`evaluated(*WAYS)`: what sampled, and why other ways were given up."""

    def call(*ways: Way) -> tuple[str | None, list[str]]:
        reasons: list[str] = []
        weights = Weights("model:x", ways)
        made = evaluate_weights(store, weights, TASK, SETTINGS, on_change=reasons.append)
        return made.settings.get("sampler"), reasons

    return call


def test_the_first_way_that_the_weights_fit_is_taken(evaluated):
    assert evaluated(Way(unfit, "fast"), Way(silent)) == (None, ["too wide"])


def test_what_was_made_in_any_way_is_not_made_again(evaluated):
    assert evaluated(Way(silent)) == (None, [])
    assert evaluated(Way(unfit, "fast"), Way(unfit)) == (None, [])
    # Asked for in one way alone, it is another evaluation.
    assert evaluated(Way(silent, "fast")) == ("fast", [])
    assert evaluated(Way(unfit, "fast"), Way(unfit)) == ("fast", [])


def test_the_last_way_fails_as_it_does(evaluated):
    with pytest.raises(SamplerError, match="too wide"):
        evaluated(Way(unfit, "fast"), Way(unfit))
