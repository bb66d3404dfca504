"""Migrations: they make what the models say, and keep what older stores hold."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from advsweep.errors import StoreError
from advsweep.store import Owner, Status, open_store
from advsweep.store.schema_version import HEAD, MIGRATIONS, REVISIONS
from advsweep.store.tables import METADATA


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


@pytest.fixture
def oldest(tmp_path: Path) -> Path:
    """A store as the first migration made it, with a sweep of one finished run."""
    path = tmp_path / "old.db"
    config = _config()
    with create_engine(f"sqlite:///{path}").begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO sweeps VALUES (1, 'demo', '{}', '2026-03-01 12:00:00')")
        connection.execute(
            "INSERT INTO runs (id, identity, attempt, config_hash, seed, estimator, backend, steps,"
            " config, status, step, created, stop_requested) VALUES (1, ?, 1, ?, 7, 'grpo',"
            " 'tiny', 50, '{\"seed\": 7}', 'done', 50, '2026-03-01 12:00:00', 0)",
            ("ab" * 32, "cd" * 32),
        )
        connection.execute("INSERT INTO sweep_runs VALUES (1, 1, 0)")
        connection.execute("INSERT INTO metrics VALUES (1, 'reward/mean')")
        connection.execute("INSERT INTO points VALUES (1, 1, 50, 0.75)")
    return path


def test_the_list_of_revisions_matches_the_files():
    scripts = ScriptDirectory.from_config(_config()).walk_revisions()
    assert tuple(script.revision for script in scripts) == REVISIONS[::-1]


def test_migrations_make_the_tables_of_the_models(tmp_path):
    open_store(str(tmp_path / "a.db")).close()
    with create_engine(f"sqlite:///{tmp_path / 'a.db'}").connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_metric_points_are_stored_in_the_order_of_their_key(tmp_path):
    open_store(str(tmp_path / "a.db")).close()
    with sqlite3.connect(tmp_path / "a.db") as connection:
        [(made,)] = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'points'")
    assert "WITHOUT ROWID" in made


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
    config, old = _config(), tmp_path / "old.db"
    with create_engine(f"sqlite:///{old}").begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    with sqlite3.connect(old) as connection:
        connection.execute(f"ATTACH '{url}' AS new")
        tables = [
            r[0]
            for r in connection.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")
        ]
        for table in set(tables) - {"alembic_version"}:
            columns = [row[1] for row in connection.execute(f"PRAGMA main.table_info({table})")]
            listed = ", ".join(f'"{column}"' for column in columns)
            connection.execute(f"INSERT INTO {table} ({listed}) SELECT {listed} FROM new.{table}")
        connection.commit()
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


def test_a_missing_store_cannot_be_upgraded(tmp_path):
    with pytest.raises(StoreError, match="no store at"):
        open_store(str(tmp_path / "a.db"), create=False, upgrade=True)
