"""Many processes with one store."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from advsweep.errors import StoreError
from advsweep.store import Owner, Status, open_store
from advsweep.store.patience import Patience


def test_eight_processes_never_claim_the_same_run(store, new_run, side_by_side):
    ids = store.runs.add([new_run(seed=i) for i in range(40)])

    def claim() -> list[int]:
        # Each finishes what it claims, so that its next claim is a new one.
        won = []
        with open_store(store.url, create=False) as own:
            for run_id in ids:
                if own.leases.claim(run_id, Owner.current()):
                    won.append(run_id)
                    own.leases.finish(run_id, Status.DONE)
        return won

    won = side_by_side([claim] * 8)
    assert sorted(run_id for runs in won for run_id in runs) == ids


def test_a_locked_store_is_an_error_until_it_is_free(store_url, new_run, monkeypatch):
    monkeypatch.setattr("advsweep.store.connections.BUSY_SECONDS", 0.1)
    with open_store(store_url) as store, open_store(store_url) as other:
        with store.database.write_alone():
            with pytest.raises(StoreError, match=r"kept it locked for 0\.1 s"):
                other.runs.add([new_run()])
            assert other.runs.select() == []
        assert other.runs.add([new_run()]) == [1]


def test_a_writer_that_reads_first_waits_for_its_turn(store, new_run, side_by_side):
    """Deferred transactions fail here: two processes read what only one can change."""
    ids = store.runs.add([new_run(seed=i) for i in range(2)])

    def count() -> None:
        with open_store(store.url, create=False) as own:
            for run_id in ids * 40:
                with own.database.write_alone() as connection:
                    query = f"SELECT step FROM runs WHERE id = {run_id}"
                    [[step]] = connection.exec_driver_sql(query)
                    change = f"UPDATE runs SET step = {step + 1} WHERE id = {run_id}"
                    connection.exec_driver_sql(change)

    side_by_side([count] * 2)
    assert {run.step for run in store.runs.select()} == {80}


def test_threads_share_a_store(store, new_run):
    from concurrent.futures import ThreadPoolExecutor

    ids = store.runs.add([new_run(seed=i) for i in range(8)])

    def work(run_id: int) -> bool:
        claimed = store.leases.claim(run_id, Owner.current())
        for step in range(20):
            store.metrics.record(run_id, [("x", step, 1.0)])
            store.leases.heartbeat(run_id, step=step)
        return claimed

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, ids))
    assert {run.step for run in store.runs.select()} == {19}


def test_a_file_that_is_locked_while_it_is_empty_is_waited_for(tmp_path, new_run, monkeypatch):
    monkeypatch.setattr("advsweep.store.connections.BUSY_SECONDS", 0.01)
    file = tmp_path / "new.db"
    waits = []

    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")

        def sleep(patience: Patience, until: float) -> None:
            waits.append(until)
            if len(waits) == 2:
                other.execute("COMMIT")

        monkeypatch.setattr(Patience, "_sleep", sleep)
        with open_store(str(file), patience=60) as store:
            assert store.runs.add([new_run()]) == [1]
    assert len(waits) == 2


def test_a_file_that_stays_locked_while_it_is_empty_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("advsweep.store.connections.BUSY_SECONDS", 0.01)
    file = tmp_path / "new.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match=r"find and end that process.*tried for 0 s"):
            open_store(str(file), patience=0.05)
