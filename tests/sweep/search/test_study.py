"""Searches that are planned: what they are over, and what is known of their trials."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from advsweep.errors import ConfigError
from advsweep.store import Store
from advsweep.store.records import ValueState
from advsweep.sweep.search.study import Study, plan_search

RATE = "backend.learning_rate=tag(log,interval(0.01,8))"
Searches = Callable[..., Study]
PlanSearch = Callable[..., Study | None]


def test_a_trial_is_a_configuration_with_its_seeds(finished: Store, study: Searches) -> None:
    results = study().results(finished)
    assert [(r.number, r.state) for r in results] == [(i, ValueState.DONE) for i in range(5)]
    assert len({r.params["backend.learning_rate"] for r in results}) == 5
    for result, trial in zip(results, finished.trials.select("s"), strict=True):
        runs = [r for r in finished.runs.select() if r.config_hash == trial.config_hash]
        assert sorted(r.seed for r in runs) == [0, 1]
        assert {r.config["backend"]["learning_rate"] for r in runs} == set(result.params.values())
        scores = [
            e.scores([1])["pass@1"] for r in runs for e in finished.evaluations.select([r.id])[-1:]
        ]
        assert result.values == pytest.approx((sum(scores) / 2,))


FILE = """# @package _global_
defaults:
  - override /search: optuna
  - override /backend: fake
search: {trials: 2}
sweep:
  seeds: [3, 4]
  common:
    backend.learning_rate: tag(log,interval(0.01,8))
  blocks:
    - estimator: choice(grpo,power_alpha)
      group_size: 4
"""


@pytest.fixture
def in_file(tmp_path: Path, plan_quick: PlanSearch) -> Callable[..., Study | None]:
    """`in_file(text, *overrides)`: the search of a sweep file."""

    def plan(text: str, *overrides: str) -> Study | None:
        path = tmp_path / "experiment" / "tune.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return plan_quick("+experiment=tune", *overrides, config_dirs=[tmp_path])

    return plan


def test_a_sweep_file_may_search(in_file: Callable[..., Study | None]) -> None:
    study = in_file(FILE)
    assert study is not None
    assert (study.name, study.search.trials, study.seeds) == ("tune", 2, [3, 4])
    assert list(study.dimensions) == ["backend.learning_rate", "estimator"]
    assert [p.run.group_size for p in study.example.runs] == [4, 4]


def test_the_command_line_beats_a_file_that_searches(in_file: Callable[..., Study | None]) -> None:
    fixed = in_file(FILE, "estimator=grpo")
    assert fixed is not None
    assert list(fixed.dimensions) == ["backend.learning_rate"]
    other = in_file(FILE, "estimator=choice(fade,grpo)", "group_size=choice(4,8)")
    assert other is not None
    assert {key: d.values for key, d in other.dimensions.items()} == {
        "backend.learning_rate": (0.01, 8.0),
        "estimator": ("fade", "grpo"),
        "group_size": (4, 8),
    }
    assert in_file(FILE, "search=none") is None


@pytest.mark.parametrize(
    ("more", "overrides", "message"),
    [
        ("    - estimator: fade\n", [], "search: expected one block.* got 2"),
        ("      zip: {optimizer.lr: 'interval(1,2)'}\n", [], "not under zip or when"),
        ("      estimator.h_star: interval(0.1,0.5)\n", [], "grpo has no parameter 'h_star'"),
        ("      optimizer.lr: [1, 2]\n", [], "one configuration with its seeds, got one of 4 runs"),
        (
            "      when: [{if: {estimator: power_alpha}, optimizer.lr: [1, 2]}]\n",
            [],
            "one configuration with its seeds, got 3 for 2 of estimator",
        ),
        ("      exclude: [{estimator: power_alpha}]\n", [], "got 1 for 2 of estimator"),
        ("", ["evaluation.n=choice(4,8)"], "depend on evaluation"),
        ("", ["executor=slurm"], "executor whose runs are waited for"),
    ],
)
def test_what_does_not_fit_a_search_is_refused_before_it_starts(
    in_file: Callable[..., Study | None], more: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        in_file(FILE + more, *overrides)


def test_each_value_of_each_dimension_is_checked(study: Searches) -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.lr: expected > 0"):
        study("group_size=choice(4,8)", "optimizer.lr=choice(1,-1)")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "something to search over"),
        ([RATE, "group_size=4,8"], "one configuration with its seeds"),
        ([RATE, "search.metrics={pass@1:up}"], "search.metrics: expected one or two"),
    ],
)
def test_mistakes_are_refused(overrides: list[str], message: str, plan_quick: PlanSearch) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_quick("search=optuna", *overrides)


def test_the_search_that_is_shipped_can_be_planned() -> None:
    found = plan_search(["backend=fake", "+experiment=tune"])
    assert found is not None
    assert (found.name, found.search.trials, found.seeds) == ("tune", 20, [0, 1, 2])
    assert list(found.dimensions) == ["estimator.h_star", "group_size", "optimizer.lr"]
