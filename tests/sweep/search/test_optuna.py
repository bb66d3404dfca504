"""The sampler: a function of its seed and of what is known, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from advsweep.errors import ConfigError
from advsweep.store.records import ValueState
from advsweep.sweep.search.optuna import (
    Dimension,
    OptunaSearch,
    TrialResult,
)

X = {"x": Dimension((0.0, 1.0), is_range=True)}


def done(number: int, x: float, *values: float) -> TrialResult:
    return TrialResult(number=number, params={"x": x}, state=ValueState.DONE, values=values)


def searched(search: OptunaSearch, score: Callable[[float], float], n: int) -> list[float]:
    """The points of a whole search over x."""
    results: list[TrialResult] = []
    for number in range(n):
        x = search.suggest(results, X, number)["x"]
        results.append(done(number, x, score(x)))
    return [result.params["x"] for result in results]


def test_the_same_results_give_the_same_point() -> None:
    results = [done(i, i / 12, i / 12) for i in range(12)]
    first, again = (OptunaSearch(startup=5).suggest(results, X, 12) for _ in range(2))
    assert first == again
    assert OptunaSearch(startup=5, seed=1).suggest(results, X, 12) != first
    assert OptunaSearch(startup=5).suggest(results, X, 12, attempt=1) != first


@pytest.mark.parametrize(("better", "target"), [("higher", 0.9), ("lower", 0.1)])
def test_the_search_goes_where_the_metric_is_better(better: str, target: float) -> None:
    # The metric is x itself. A uniform draw is within 0.2 of the good end 3 times of 15.
    search = OptunaSearch(metrics={"x": better}, startup=5)
    late = searched(search, lambda x: x, 20)[5:]
    assert sum(abs(x - target) <= 0.1 for x in late) >= 8


def test_the_best_of_one_metric() -> None:
    results = [done(0, 0.1, 1.0), done(1, 0.2, 3.0), done(2, 0.3, 2.0)]
    results.append(TrialResult(number=3, params={"x": 0.4}, state=ValueState.OPEN))
    assert [r.number for r in OptunaSearch().best(results, X)] == [1]
    lower = OptunaSearch(metrics={"cost/rollouts": "lower"})
    assert [r.number for r in lower.best(results, X)] == [0]
    assert OptunaSearch().best([], X) == []


@pytest.mark.parametrize("metrics", [{}, {"a": "up"}, dict.fromkeys("abc", "higher")])
def test_metrics_that_do_not_fit_are_refused(metrics: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="expected one or two metrics"):
        OptunaSearch(metrics=metrics)
