"""A search as a study of Optuna's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from advsweep.errors import ConfigError, NotFoundError
from advsweep.store import Store
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.search.execution import execute_search
from advsweep.sweep.search.export import to_optuna
from advsweep.sweep.search.study import plan_search

QUICK = [
    *("backend=fake", "executor=debug", "steps=6", "prompts_per_step=4"),
    *("task.held_out_per_level=2", "task.train_per_level=50"),
    *("evaluation.n=4", "evaluation.k=[1,4]", "evaluation.every=0"),
]


def test_a_search_becomes_a_study(store: Store, tmp_path: Path, plan: Callable[..., Plan]) -> None:
    rate = "backend.learning_rate=tag(log,interval(0.01,8))"
    search = plan_search([*QUICK, "search=optuna", "search.trials=3", rate], name="s")
    assert search is not None
    execute_search(search, store)
    results = search.results(store)
    for storage in (None, f"sqlite:///{tmp_path / 'optuna.db'}"):
        study = to_optuna(store, "s", storage=storage)
        assert study.study_name == "s"
        assert [(t.params, t.values) for t in study.trials] == [
            (r.params, list(r.values)) for r in results
        ]
        assert [t.user_attrs["runs"] for t in study.trials] == [[1], [2], [3]]
        assert study.best_value == max(r.values[0] for r in results)
        assert study.trials[0].distributions == {
            "backend.learning_rate": optuna.distributions.FloatDistribution(0.01, 8, log=True)
        }
    with pytest.raises(NotFoundError, match="no sweep 'z'; known: s"):
        to_optuna(store, "z")
    store.sweeps.add("plain", plan().spec)
    with pytest.raises(ConfigError, match="plain: expected a search"):
        to_optuna(store, "plain")
