"""A worker's statements, compiled ahead of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.interfaces import CacheStats

from advsweep.store import Status, Store
from advsweep.sweep.exit_codes import DONE
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.scheduler.scheduled_runs import schedule_runs
from advsweep.sweep.worker.main import work
from advsweep.sweep.worker.warm_up import warm_up

Planner = Callable[..., Plan]


@contextmanager
def compiled() -> Iterator[list[str]]:
    """The statements that are compiled meanwhile."""
    found: list[str] = []

    def note(
        _connection: Any, _cursor: Any, statement: str, _values: Any, run: Any, _: Any
    ) -> None:
        if run.compiled is not None and run.cache_hit is not CacheStats.CACHE_HIT:
            found.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def test_after_a_rehearsal_a_run_compiles_nothing(plan: Planner, store: Store) -> None:
    [unit] = schedule_runs(plan(), store, force=False)
    [record] = store.runs.select(ids=[unit.run_id])
    warm_up(store)
    with compiled() as statements:
        assert work(store, record, (), None) == DONE
    assert statements == []


def test_a_rehearsal_leaves_no_trace(plan: Planner, store: Store) -> None:
    [unit] = schedule_runs(plan(), store, force=False)
    warm_up(store)
    [record] = store.runs.select()
    assert (record.id, record.status) == (unit.run_id, Status.PENDING)
    assert store.evaluations.select([record.id]) == []
    # What it called its metrics is not taken for what they are called here.
    store.metrics.record(record.id, [("b", 1, 2.0), ("reward/mean", 1, 0.5)])
    assert store.metrics.points(record.id) == [("b", 1, 2.0), ("reward/mean", 1, 0.5)]
