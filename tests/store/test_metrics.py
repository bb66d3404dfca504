"""Metric points and summaries in the store."""

from __future__ import annotations

import math
import sqlite3

import numpy as np
import pytest
from sqlalchemy import event

from advsweep.errors import StoreError
from advsweep.store import Owner


@pytest.fixture
def ids(store, new_run) -> list[int]:
    return store.runs.add([new_run(seed=i, steps=20) for i in range(3)])


def _same(a: object, b: object) -> bool:
    return repr(a) == repr(b)  # nan is nan


def test_points_are_sorted_by_name_and_step(store, ids):
    store.metrics.record(ids[0], [("reward/mean", 2, 9.0)])  # recorded again below
    store.metrics.record(ids[0], [("reward/mean", 2, 0.5), ("collapse/acr", 1, 0.25)])
    store.metrics.record(ids[0], [("reward/mean", 1, 0.125)])
    store.metrics.record(ids[1], [("reward/std", 1, 1.0)])
    store.metrics.record(ids[2], [])
    acr, first, second = (
        ("collapse/acr", 1, 0.25),
        ("reward/mean", 1, 0.125),
        ("reward/mean", 2, 0.5),
    )
    assert store.metrics.points(ids[0]) == [acr, first, second]
    assert store.metrics.points(ids[0], ["reward/mean", "unknown"]) == [first, second]
    assert store.metrics.names(ids[0]) == ["collapse/acr", "reward/mean"]
    assert store.metrics.names(ids[2]) == store.metrics.points(ids[2]) == []


def test_values_are_stored_exactly(store, ids):
    numbers = [0.1, 1e-308, 0.0, 1 / 3, math.inf, -math.inf, math.nan, 2**53]
    store.metrics.record(ids[0], [("x", step, value) for step, value in enumerate(numbers)])
    assert [repr(float(v)) for _, _, v in store.metrics.points(ids[0])] == [
        repr(float(v)) for v in numbers
    ]
    store.metrics.set_summaries(ids[0], {"nan": math.nan, "inf": math.inf})
    assert _same(store.metrics.summaries(ids), {ids[0]: {"inf": math.inf, "nan": math.nan}})


def test_truncate_removes_later_points_and_checkpoints(store, ids, tmp_path):
    for run_id in ids[:2]:
        store.leases.claim(run_id, Owner.current())
        store.leases.heartbeat(run_id, step=9)
        store.metrics.record(run_id, [(name, s, float(s)) for name in "xy" for s in range(1, 10)])
        for step in (4, 8):
            store.checkpoints.add(run_id, step, tmp_path / str(run_id) / str(step))
    store.metrics.truncate(ids[0], 4)
    assert store.metrics.points(ids[0]) == [
        (name, s, float(s)) for name in "xy" for s in range(1, 5)
    ]
    assert [c.step for c in store.checkpoints.select(ids[0])] == [4]
    assert len(store.metrics.points(ids[1])) == 18
    assert [run.step for run in store.runs.select(ids=ids)] == [4, 9, 0]


def test_curves_of_several_runs(store, ids):
    store.metrics.record(ids[0], [("x", s, s / 2) for s in (3, 1, 2)])
    store.metrics.record(ids[2], [("x", 5, math.nan), ("y", 1, 1.0)])
    store.metrics.record(ids[1], [("z", 1, math.inf), ("z", 2, -math.inf), ("z", 3, 0.1 + 0.2)])
    assert store.metrics.series(ids, "z")[ids[1]][1].tolist() == [math.inf, -math.inf, 0.1 + 0.2]
    curves = store.metrics.series(ids, "x")
    assert list(curves) == [ids[0], ids[2]]
    steps, values = curves[ids[0]]
    assert (steps.tolist(), values.tolist()) == ([1, 2, 3], [0.5, 1.0, 1.5])
    assert (steps.dtype, values.dtype) == (np.int64, np.float64)
    assert _same(curves[ids[2]][1].tolist(), [math.nan])
    assert store.metrics.series(ids, "w") == store.metrics.series([], "x") == {}


def test_means_of_stretches_of_steps(store, ids):
    values = [1.0, 3.0, math.nan, 5.0, math.inf, math.nan, 7.0]
    store.metrics.record(ids[0], [("x", 10 + 5 * i, v) for i, v in enumerate(values)])
    store.metrics.record(ids[1], [("x", 26, 2.0), ("x", 40, 4.0), ("y", 10, 9.0)])
    store.metrics.record(ids[2], [("x", 30, math.nan)])
    assert store.metrics.steps(ids, "x") == [10, 15, 20, 25, 26, 30, 35, 40]
    assert store.metrics.steps(ids[1:2], "x") == [26, 40]
    assert store.metrics.steps(ids, "w") == []
    means = store.metrics.stretch_means(ids, "x", [(10, 15), (20, 26), (30, 35), (40, 40)])
    # (1 + 3) / 2; 5 alone, without NaN; nothing finite at 30 and 35; 7 alone.
    expected = {ids[0]: [2.0, 5.0, math.nan, 7.0], ids[1]: [math.nan, 2.0, math.nan, 4.0]}
    assert _same({run_id: own.tolist() for run_id, own in means.items()}, expected)


def test_the_newest_values(store, ids):
    store.metrics.record(ids[0], [("x", 1, 1.0), ("x", 12, 2.0), ("y", 3, math.nan)])
    store.metrics.record(ids[1], [("y", 1, 5.0), ("z", 1, 6.0)])
    newest = store.metrics.last_values(ids, ["x", "y"])
    assert _same(newest, {ids[0]: {"x": 2.0, "y": math.nan}, ids[1]: {"y": 5.0}})


def test_means_over_the_first_and_the_last_steps(store, ids):
    # steps = 20: the last 10 are 11 to 20, of which the second run has but 11 and 12
    store.metrics.record(ids[0], [("x", s, float(s)) for s in range(1, 21)])
    store.metrics.record(ids[1], [("x", s, float(s)) for s in range(1, 13)])
    assert store.metrics.means(ids, "x") == {ids[0]: 10.5, ids[1]: 6.5}
    assert store.metrics.means(ids, "x", last=10) == {ids[0]: 15.5, ids[1]: 11.5}
    assert store.metrics.means(ids, "x", first=4) == {ids[0]: 2.5, ids[1]: 2.5}
    assert store.metrics.means(ids, "x", first=100) == {ids[0]: 10.5, ids[1]: 6.5}
    assert store.metrics.means(ids, "y") == {}


def test_means_do_not_depend_on_the_order_of_points(store, ids):
    # Added up one after another they come to 0 and to 2, and by any database to something else.
    values = [1.0, 1e100, 1.0, -1e100]
    store.metrics.record(ids[0], [("x", s, v) for s, v in enumerate(values, 1)])
    store.metrics.record(ids[1], [("x", s, v) for s, v in enumerate(sorted(values), 1)])
    assert store.metrics.means(ids, "x") == {ids[0]: 0.5, ids[1]: 0.5}


def test_summaries_are_replaced_by_name(store, ids):
    store.metrics.set_summaries(ids[0], {"pass@1": 0.5, "cost": 3.0})
    store.metrics.set_summaries(ids[0], {"pass@1": 0.75})
    store.metrics.set_summaries(ids[1], {})
    assert store.metrics.summaries(ids) == {ids[0]: {"cost": 3.0, "pass@1": 0.75}}


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_full_disk_loses_nothing_that_was_written(store, ids):
    """SQLite is given no more pages than it has, which it reports as a full disk."""
    batch = [(f"metric {i}", s, 1.0) for i in range(10) for s in range(1000)]
    store.metrics.record(ids[0], batch)

    @event.listens_for(store.database.writer, "checkout")
    def _limit(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {limit}")

    limit = 1  # which SQLite takes as: no more than there are
    with pytest.raises(StoreError, match=r"advsweep\.db: the disk is full.*are kept"):
        store.metrics.record(ids[1], batch)
    assert store.metrics.points(ids[1]) == []
    assert len(store.metrics.points(ids[0])) == len(batch)
    limit = 1_000_000
    store.metrics.record(ids[1], batch)
    assert len(store.metrics.points(ids[1])) == len(batch)
