"""Searches on the fake backend, and a store with a finished one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from advsweep.store import Store, open_store
from advsweep.sweep.retry_policy import Policy
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.search.study import Study, execute_search, plan_search

QUICK = [
    *("backend=fake", "executor=debug", "steps=6", "prompts_per_step=4"),
    *("task.held_out_per_level=2", "task.train_per_level=10"),
    *("evaluation.n=4", "evaluation.k=[1,4]", "evaluation.every=0"),
]
SEARCH = ["search=optuna", "search.trials=5", "search.startup=2", "seed=0,1"]
RATE = "backend.learning_rate=tag(log,interval(0.01,8))"

PlanSearch = Callable[..., Study | None]


@pytest.fixture(scope="session")
def plan_quick() -> PlanSearch:
    """`plan_quick(*overrides, **options)`: a search of quick runs, if the overrides choose one."""
    return lambda *overrides, **options: plan_search([*QUICK, *overrides], **options)


@pytest.fixture(scope="session")
def study(plan_quick: PlanSearch) -> Callable[..., Study]:
    """`study(*overrides)`: a search of 5 trials over the learning rate, with two seeds."""

    @functools.cache
    def plan(*overrides: str) -> Study:
        found = plan_quick(*SEARCH, RATE, *overrides, name="s")
        assert found is not None
        return found

    return plan


@pytest.fixture(scope="session")
def finished(
    study: Callable[..., Study], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """A store after an undisturbed search of five trials, one at a time; do not change it."""
    with open_store(str(tmp_path_factory.mktemp("search") / "advsweep.db")) as store:
        outcome = execute_search(
            study(), store, 2, lambda plan, policy: execute(plan, store, 2, policy=policy), Policy()
        )
        assert (outcome.done, outcome.skipped, outcome.exit_code) == (10, 0, 0)
        yield store
