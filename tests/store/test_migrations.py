"""Migrations: they make what the models say, and keep what older stores hold."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from advsweep.errors import StoreError
from advsweep.store import NewRun, Owner, Status, open_store
from advsweep.store.schema_version import HEAD, MIGRATIONS
from advsweep.store.tables import METADATA

REVISIONS = tuple(MIGRATIONS)

LATER = {
    "0002": ["ALTER TABLE runs DROP COLUMN stage", "DROP INDEX ix_runs_config_hash"],
    "0003": ["ALTER TABLE runs DROP COLUMN failure"],
    "0004": ["ALTER TABLE runs DROP COLUMN stopping", "DROP TABLE trials"],
    "0005": ["DROP TABLE analyses"],
    "0006": ["ALTER TABLE evaluations DROP COLUMN right_entropy"],
    "0007": ["DROP TABLE evaluation_samples"],
    "0008": [
        "ALTER TABLE evaluations DROP COLUMN kl_base",
        "ALTER TABLE evaluations DROP COLUMN right_counts",
    ],
}
"""What turns the schema of a migration into that before it."""


def make_older(path: Path, revision: str) -> None:
    """Take a store back to an older schema, as earlier versions made it."""
    with sqlite3.connect(path) as connection:
        for later in reversed(REVISIONS[REVISIONS.index(revision) + 1 :]):
            for statement in LATER[later]:
                connection.execute(statement)
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    connection.close()


@pytest.fixture
def oldest(tmp_path: Path, new_run: Callable[..., NewRun]) -> Path:
    """A store of the first schema, with a sweep of one finished run."""
    path = tmp_path / "old.db"
    with open_store(str(path)) as store:
        store.sweeps.add("demo", {})
        [run_id] = store.runs.add([new_run(seed=7)], "demo")
        store.leases.claim(run_id, Owner.current())
        store.metrics.record(run_id, [("reward/mean", 50, 0.75)])
        store.leases.finish(run_id, Status.DONE)
    make_older(path, "0001")
    return path


@pytest.mark.parametrize("upgraded", [False, True])
def test_new_and_upgraded_stores_have_the_tables_of_the_models(oldest, tmp_path, upgraded):
    path = oldest if upgraded else tmp_path / "a.db"
    open_store(str(path), upgrade=True).close()
    with create_engine(f"sqlite:///{path}").connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_an_older_store_needs_an_upgrade(oldest):
    for create in (True, False):
        with pytest.raises(StoreError, match=r"\(0001\) is older .* `advsweep db upgrade --store"):
            open_store(str(oldest), create=create)


def test_an_upgrade_reports_its_changes_and_keeps_the_data(oldest):
    with open_store(str(oldest), create=False, upgrade=True) as store:
        assert store.schema_version() == HEAD
        assert tuple(line[:4] for line in store.upgraded) == REVISIONS[1:]
        assert "runs.stage" in store.upgraded[0]
        [run] = store.runs.select(sweep="demo")
        assert (run.seed, run.status, run.stage) == (7, Status.DONE, None)
        assert store.metrics.points(run.id) == [("reward/mean", 50, 0.75)]
        assert not store.leases.claim(run.id, Owner.current())
    with open_store(str(oldest), create=False, upgrade=True) as store:
        assert store.upgraded == []


@pytest.mark.parametrize("revision", REVISIONS[:-1])
def test_an_upgrade_from_any_schema_keeps_all_rows(tmp_path, new_run, revision):
    """What a store of that schema holds is what a new one holds, as far as it could."""
    url = str(tmp_path / "new.db")
    with open_store(url) as store:
        ids = store.runs.add([new_run(seed=seed) for seed in range(3)])
        store.sweeps.add("demo", {"seeds": 3})
        store.runs.add([new_run(seed=seed) for seed in range(3)], "demo")
        for run_id in ids:
            store.leases.claim(run_id, Owner.current())
            rewards = [("reward/mean", step, 0.1 * step * run_id) for step in range(1, 9)]
            store.metrics.record(run_id, rewards)
            store.metrics.set_summaries(run_id, {"total/seconds": 2.5})
        store.leases.finish(ids[0], Status.DONE)
        store.leases.finish(ids[1], Status.FAILED, error="it failed")
    old = Path(shutil.copy(url, tmp_path / "old.db"))
    make_older(old, revision)
    open_store(str(old), create=False, upgrade=True).close()
    with open_store(url) as new, open_store(str(old)) as upgraded:
        expected, got = new.runs.select(), upgraded.runs.select()
        fields = ("id", "identity", "seed", "status", "step", "error", "config", "sweeps")
        for name in fields:
            assert [getattr(r, name) for r in got] == [getattr(r, name) for r in expected], name
        for run_id in ids:
            assert upgraded.metrics.points(run_id) == new.metrics.points(run_id)
        assert upgraded.metrics.summaries(ids) == new.metrics.summaries(ids)


def test_an_upgrade_that_fails_changes_nothing(oldest):
    with sqlite3.connect(oldest) as connection:
        # In the way of what the second migration adds last.
        connection.execute("CREATE INDEX ix_runs_config_hash ON runs (seed)")
    with pytest.raises(StoreError, match="ix_runs_config_hash"):
        open_store(str(oldest), upgrade=True)
    with sqlite3.connect(oldest) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("0001",)
        columns = [row[1] for row in connection.execute("PRAGMA table_info(runs)")]
    assert "stage" not in columns
