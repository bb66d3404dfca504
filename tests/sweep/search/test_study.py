"""Searches on the fake backend: trials, replicates, and going on after a death."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from advsweep.errors import ConfigError
from advsweep.store import Store, open_store
from advsweep.sweep.engine import execute
from advsweep.sweep.events import Outcome
from advsweep.sweep.plan import Plan
from advsweep.sweep.search.study import Study, plan_search, refuse_search
from advsweep.sweep.search.tpe import State

QUICK = [
    *("backend=fake", "executor=debug", "steps=6", "prompts_per_step=4"),
    *("task.held_out_per_level=2", "task.train_per_level=50"),
    *("evaluation.n=4", "evaluation.k=[1,4]", "evaluation.every=0"),
]
SEARCH = ["search=optuna", "search.trials=5", "search.startup=2", "seed=0,1"]
RATE = "backend.learning_rate=tag(log,interval(0.01,8))"


def study(*overrides: str) -> Study:
    found = plan_search([*QUICK, *SEARCH, RATE, *overrides], name="s")
    assert found is not None
    return found


def run(
    study: Study, store: Store, execute_plan: Callable[[Plan], Outcome] | None = None
) -> Outcome:
    return study.run(store, 2, execute_plan or (lambda plan: execute(plan, store, 2)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store after an undisturbed search of five trials."""
    store = open_store(str(tmp_path_factory.mktemp("search") / "advsweep.db"))
    outcome = run(study(), store)
    assert (outcome.done, outcome.skipped, outcome.exit_code) == (10, 0, 0)
    return store


def test_a_trial_is_a_configuration_with_its_seeds(finished: Store) -> None:
    results = study().results(finished)
    assert [(r.number, r.state) for r in results] == [(i, State.DONE) for i in range(5)]
    assert len({r.params["backend.learning_rate"] for r in results}) == 5
    for result, trial in zip(results, finished.trials("s"), strict=True):
        runs = [r for r in finished.runs() if r.config_hash == trial.config_hash]
        assert sorted(r.seed for r in runs) == [0, 1]
        assert {r.config["backend"]["learning_rate"] for r in runs} == set(result.params.values())
        scores = [e.scores([1])["pass@1"] for r in runs for e in finished.evaluations([r.id])[-1:]]
        assert result.values == pytest.approx((sum(scores) / 2,))


def test_the_best_trial_has_the_best_mean(finished: Store) -> None:
    values = [r.values[0] for r in study().results(finished)]
    best = study().best(finished)
    assert max(values) > min(values)
    assert {r.values[0] for r in best} == {max(values)}


def test_a_search_that_is_over_does_nothing(finished: Store) -> None:
    def refuse(plan: Plan) -> Outcome:
        raise AssertionError(plan)

    assert run(study(), finished, refuse).exit_code == 0
    assert len(finished.trials("s")) == 5


def test_a_search_that_was_killed_goes_on_as_it_would_have_gone(
    finished: Store, tmp_path: Path
) -> None:
    started = 0

    with open_store(str(tmp_path / "advsweep.db")) as store:

        def killed(plan: Plan) -> Outcome:
            nonlocal started
            started += 1
            if started == 3:
                [first, _] = plan.runs
                execute(replace(plan, runs=[first]), store, 1)
                raise KeyboardInterrupt
            return execute(plan, store, 2)

        with pytest.raises(KeyboardInterrupt):
            run(study(), store, killed)
        assert [r.state for r in study().results(store)] == [State.DONE, State.DONE, State.OPEN]
        outcome = run(study(), store)
        assert (outcome.done, outcome.skipped) == (5, 1)
        assert study().results(store) == study().results(finished)


def test_failed_trials_do_not_end_a_search(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "advsweep.db")) as store:
        failing = study("backend.fail_at=choice(0,3)", "search.trials=4", "seed=0")
        outcome = run(failing, store)
        states = [result.state for result in failing.results(store)]
        assert states.count(State.FAILED) == len(outcome.failed) >= 1
        assert len(states) == 4
        assert outcome.exit_code == 1


def test_pruned_trials_are_told_so(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "advsweep.db")) as store:
        rule = ("stopping=acr", "stopping.first=3", "stopping.threshold=1e-9", "stopping.runs=0")
        pruning = study(*rule, "search.trials=2", "seed=0")
        outcome = run(pruning, store)
        assert [r.state for r in pruning.results(store)] == [State.PRUNED] * len(outcome.pruned)
        assert (len(outcome.pruned), outcome.exit_code) == (2, 0)


def test_without_a_search_there_is_none() -> None:
    assert plan_search([*QUICK, "seed=0,1"]) is None
    assert plan_search([*QUICK, "group_size=choice(4,8)"]) is None
    assert plan_search([*QUICK, "group_size=choice(4,8)", "search=none"]) is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "something to search over"),
        ([RATE, "group_size=4,8"], "one configuration with its seeds"),
        ([RATE, "search.metrics={pass@1:up}"], "search.metrics: expected one or two"),
    ],
)
def test_mistakes_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_search([*QUICK, *SEARCH, *overrides])


def test_a_search_that_would_not_take_place_is_refused() -> None:
    with pytest.raises(ConfigError, match="something to search over"):
        refuse_search(study().example)
