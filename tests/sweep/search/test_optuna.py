"""The sampler: a function of its seed and of what is known, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from advsweep.errors import ConfigError
from advsweep.sweep.search.optuna import (
    ChoiceDimension,
    OptunaSearch,
    RangeDimension,
    TrialResult,
    TrialState,
)

X = {"x": RangeDimension(0.0, 1.0)}
SPACE = {
    "x": RangeDimension(1e-5, 1e-1, log=True),
    "n": RangeDimension(1, 4),
    "e": ChoiceDimension(("a", None, 3)),
}


def done(number: int, x: float, *values: float) -> TrialResult:
    return TrialResult(number=number, params={"x": x}, state=TrialState.DONE, values=values)


def searched(search: OptunaSearch, score: Callable[[float], float], n: int) -> list[float]:
    """The points of a whole search over x."""
    results: list[TrialResult] = []
    for number in range(n):
        x = search.suggest(results, X, number)["x"]
        results.append(done(number, x, score(x)))
    return [result.params["x"] for result in results]


def test_points_are_of_the_space() -> None:
    results: list[TrialResult] = []
    seen: list[dict[str, Any]] = []
    for number, state in enumerate(list(TrialState) * 3):
        point = OptunaSearch(startup=4).suggest(results, SPACE, number)
        seen.append(point)
        values = (0.5,) if state is TrialState.DONE else ()
        results.append(TrialResult(number=number, params=point, state=state, values=values))
    assert all(1e-5 <= p["x"] <= 1e-1 for p in seen)
    assert {p["n"] for p in seen} <= {1, 2, 3, 4}
    assert {p["e"] for p in seen} == {"a", None, 3}
    assert len({p["x"] for p in seen}) == 18


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
    results.append(TrialResult(number=3, params={"x": 0.4}, state=TrialState.OPEN))
    assert [r.number for r in OptunaSearch().best(results, X)] == [1]
    lower = OptunaSearch(metrics={"cost/rollouts": "lower"})
    assert [r.number for r in lower.best(results, X)] == [0]
    assert OptunaSearch().best([], X) == []


def test_the_front_of_two_metrics() -> None:
    search = OptunaSearch(metrics={"pass@1": "higher", "entropy/answer": "higher"})
    results = [done(0, 0.1, 0.9, 0.1), done(1, 0.2, 0.5, 0.5), done(2, 0.3, 0.4, 0.4)]
    assert [r.number for r in search.best(results, X)] == [0, 1]
    assert 0 <= search.suggest(results, X, 3)["x"] <= 1


@pytest.mark.parametrize("metrics", [{}, {"a": "up"}, dict.fromkeys("abc", "higher")])
def test_metrics_that_do_not_fit_are_refused(metrics: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="expected one or two metrics"):
        OptunaSearch(metrics=metrics)
