"""Migrations: they make what the models say, and keep what older stores hold."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from advsweep.errors import StoreError
from advsweep.importing.write import ImportContext, gather, write_run
from advsweep.logs.base import ProblemCount
from advsweep.logs.names import LoggedStep
from advsweep.store import NewRun, Owner, RunRecord, Status, Store, open_store
from advsweep.store.checks import check_store
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
    "0009": [
        "ALTER TABLE runs ADD COLUMN numbered BIGINT NOT NULL DEFAULT 0",
        "UPDATE runs SET numbered = seed",
        "ALTER TABLE runs DROP COLUMN seed",
        "ALTER TABLE runs RENAME COLUMN numbered TO seed",
    ],
    "0010": ["ALTER TABLE sweeps DROP COLUMN note", "ALTER TABLE sweeps DROP COLUMN tags"],
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


def digest_until_0008(run: RunRecord, store: Store, *, known: bool) -> str:
    """Return what an import wrote of a run with one metric and one result per problem."""
    config = {**run.config, "seed": run.seed} if known else run.config
    content = hashlib.sha256(json.dumps([config, run.seed, run.step]).encode())
    points = store.metrics.points(run.id)
    content.update(json.dumps([points[0][0], len(points)]).encode())
    content.update(np.array([step for _, step, _ in points], "<i8").tobytes())
    content.update(np.array([value for _, _, value in points], "<f8").tobytes())
    for evaluation in store.evaluations.select([run.id]):
        for problem, n, c in zip(evaluation.problem_ids, evaluation.n, evaluation.c, strict=True):
            content.update(json.dumps([evaluation.step, problem, int(n), int(c), ""]).encode())
    return content.hexdigest()


def make_imported(path: Path, kinds: Sequence[str]) -> list[int]:
    """Make a store of schema 0008 of imported runs, numbered from 0.

    Their seeds were `known`, or `made up`, or nothing tells it: `undecided`.
    """
    with open_store(str(path)) as store:
        for place in range(len(kinds)):
            config = {
                "backend": {"name": "imported", "format": "x"},
                "estimator": {"name": "grpo"},
                "seed": place,
            }
            content = gather(
                "x", f"log{place}", config,
                [LoggedStep(1, {"reward/mean": 0.25 * place}), LoggedStep(2, {"reward/mean": 1.0})],
                [ProblemCount(2, "p1", 4, place)],
            )  # fmt: skip
            write_run(store, content, ImportContext(environment={}))
        runs = store.runs.select(newest_first=False)
        digests = []
        for run, kind in zip(runs, kinds, strict=True):
            config = {key: value for key, value in run.config.items() if key != "seed"}
            plain = dataclasses.replace(run, config=config)
            digests.append(digest_until_0008(plain, store, known=kind == "known"))
    make_older(path, "0008")
    with sqlite3.connect(path) as connection:
        for run, kind, digest in zip(runs, kinds, digests, strict=True):
            environment = json.dumps({} if kind == "undecided" else {"digest": digest})
            statement = "UPDATE runs SET environment = ? WHERE id = ?"
            connection.execute(statement, (environment, run.id))
    connection.close()
    return [run.id for run in runs]


def test_seeds_that_imports_made_up_become_unknown(tmp_path):
    kinds = ["made up", "known", "made up", "undecided"]
    ids = make_imported(tmp_path / "old.db", kinds)
    with open_store(str(tmp_path / "old.db"), upgrade=True) as store:
        runs = {run.id: run for run in store.runs.select()}
        assert [runs[i].seed for i in ids] == [None, 1, None, None]
        assert [runs[i].config.get("seed") for i in ids] == [None, 1, None, None]
        [line] = [line for line in store.upgraded if line.startswith("0009")]
        assert "3 imported runs" in line
        assert "nothing tells whether the logs of runs 4 had theirs" in line
        with store.database.read() as connection:
            check_store(store, connection)


def test_a_number_that_no_import_gives_is_a_seed(tmp_path):
    make_imported(tmp_path / "old.db", ["undecided"])
    with sqlite3.connect(tmp_path / "old.db") as connection:
        connection.execute("UPDATE runs SET seed = 42")
    connection.close()
    with open_store(str(tmp_path / "old.db"), upgrade=True) as store:
        assert [run.seed for run in store.runs.select()] == [42]
