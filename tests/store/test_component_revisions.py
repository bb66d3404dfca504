"""Which runs are alike but for a component, and how runs are listed."""

from __future__ import annotations

from typing import Any

import pytest

from advsweep.store import NewRun, Store
from advsweep.store.sanity import alike, run_list


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([3], "run 3"),
        ([3, 1], "runs 1, 3"),
        ([4, 3, 2, 9], "runs 2-4, 9"),
        (range(1, 60, 2), "runs 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23 and 18 more"),
    ],
)
def test_ids_are_listed_by_stretches(ids, expected):
    assert run_list(ids) == expected


def _add(store: Store, config: dict[str, Any], number: int) -> int:
    new = NewRun(
        identity=f"{number:064x}",
        config_hash=f"{number:064x}",
        seed=config["seed"],
        config=config,
        steps=10,
        estimator=config["estimator"]["name"],
        backend="fake",
    )
    return store.runs.add([new])[0]


def test_the_rest_of_the_config_must_agree(store):
    wanted = {
        "estimator": {"name": "avspo", "count": "power"},
        "optimizer": {"name": "adamw", "lr": 0.1},
        "backend": {"name": "fake", "threads": 2},
        "evaluation": {"n": 4},
        "seed": 1,
    }
    old = {
        **wanted,
        "estimator": {"name": "avspo"},
        "backend": {"name": "fake", "threads": 1},
        "evaluation": {"n": 8},
    }
    others = [
        {**old, "optimizer": {"name": "adamw", "lr": 0.2}},
        {**old, "backend": {"name": "tiny"}},
        {**old, "seed": 2},
    ]
    for number, config in enumerate([old, *others]):
        _add(store, config, number)
    runs = store.runs.select(newest_first=False)
    assert [run.id for run in alike(runs, [wanted], "estimator")] == [1]
    assert [run.id for run in alike(runs, [wanted], "estimator", but=["seed"])] == [1, 4]
    assert alike(runs, [], "estimator") == []
