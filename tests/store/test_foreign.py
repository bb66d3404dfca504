"""Hostile stores: a merge refuses them as a whole, and does no harm."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advsweep.errors import StoreError
from advsweep.store import (
    NewAnalysis,
    NewRun,
    Owner,
    RunRecord,
    Status,
    Store,
    open_store,
)
from advsweep.store.merge import merge
from tests.store.conftest import evaluation_of

pytestmark = [
    pytest.mark.security,
    pytest.mark.parametrize("store_url", ["sqlite"], indirect=True),
]


@pytest.fixture
def other(tmp_path: Path, clock) -> Iterator[Store]:
    """The hostile store, with its own folder of runs."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    with open_store(str(theirs / "other.db"), clock=clock) as opened:
        yield opened


@pytest.fixture
def mine(store: Store, new_run: Callable[..., NewRun]) -> RunRecord:
    """A finished run of the user."""
    return _make(store, new_run(seed=100))


def _make(store: Store, new: NewRun, sweep: str | None = None) -> RunRecord:
    """A run with a metric, a summary, a checkpoint, an evaluation and an analysis."""
    if sweep is not None:
        store.sweeps.add(sweep, {"overrides": ["seed=0"]})
    [run_id] = store.runs.add([new], sweep)
    [run] = store.runs.select(ids=[run_id])
    store.leases.claim(run_id, Owner.current())
    store.metrics.record(run_id, [("x", step, step / 8) for step in range(1, 6)], step=5)
    store.runs.set_environment(run_id, {"cores": 2})
    store.metrics.set_summaries(run_id, {"cost/seconds": 3.5})
    store.checkpoints.add(run_id, 5, run.directory / "checkpoints" / "step-000005")
    identity = hashlib.sha256(new.identity.encode()).hexdigest()
    store.evaluations.add(evaluation_of(identity, run_id, 5, problems=["0"]))
    directions = np.ones(2, dtype=np.float32)
    store.analyses.add(
        run_id, NewAnalysis(kind="weights", step=5, settings={}, result={}, directions=directions)
    )
    store.leases.finish(run_id, Status.DONE)
    return store.runs.select(ids=[run_id])[0]


def _sql(store: Store, statement: str, *values: Any) -> None:
    """Changes a store without any check."""
    assert store.file is not None
    connection = sqlite3.connect(store.file, timeout=5)
    try:
        with connection:
            connection.execute(statement, values)
    finally:
        connection.close()


def _refusal(store: Store, other: Store) -> str:
    """Check that a merge is refused in one line and changes nothing; return the line."""
    record = store.runs.select()
    lines = set()
    for dry_run in (True, False):
        with pytest.raises(StoreError) as refused:
            merge(store, other, dry_run=dry_run)
        lines.add(str(refused.value))
    assert store.runs.select() == record
    assert [sweep.name for sweep in store.sweeps.select()] == []
    [line] = lines
    assert line.isprintable()
    return line


MALFORMED = [
    ("identity", "a/.."),
    ("identity", "/etc/passwd"),
    ("identity", "A" * 64),
    ("identity", "\u0663" * 64),
    ("identity", "a" * 64 + "\n"),
    ("identity", "a" * 60 + "\0..."),
    ("identity", b"a" * 64),
    ("estimator", "../x"),
    ("estimator", "x" * 300),
    ("estimator", "\x1b]52;c;x\x07"),
    ("backend", "../x"),
    ("seed", "../../x"),
    ("seed", 1.5),
    ("attempt", "1/../.."),
    ("attempt", 0),
    ("attempt", 2**40),
    ("config_hash", "x"),
    ("status", "owned"),
    ("status", "lost"),
    ("failure", "owned"),
    ("step", -1),
    ("step", 101),
    ("steps", 2**62),
    ("config", "no JSON"),
    ("config", '{"x": NaN}'),
    ("config", '{"x":' * 100 + "1" + "}" * 100),
    ("config", '{"x":' * 90_000 + "1" + "}" * 90_000),
    ("config", '{"x": "\\u0000"}'),
    ("environment", "[1]"),
    ("stopping", '"asha"'),
    ("created", "yesterday"),
    ("error", "a\0b"),
    ("error", b"\xff\xfe"),
    ("pid", "../self"),
    ("process_started", "long ago"),
]


def _named(values: list[tuple[str, Any]]) -> list[Any]:
    return [pytest.param(*v, id=f"{v[0]}-{i}") for i, v in enumerate(values)]


@pytest.mark.parametrize(("column", "value"), _named(MALFORMED))
def test_a_store_with_a_malformed_run_is_refused(store, other, mine, new_run, column, value):
    _make(other, new_run(seed=1000), "demo")
    _make(other, new_run(seed=1))
    _sql(other, f"UPDATE runs SET {column} = ? WHERE id = 2", value)
    line = _refusal(store, other)
    assert line.startswith(f"{other.name} cannot be merged: ")
    assert "runs" in line


PATHS = [v for v in MALFORMED if v[0] in ("identity", "estimator", "seed", "attempt")]


@pytest.mark.parametrize(("column", "value"), _named([v for v in PATHS if v[1] != 2**40]))
def test_a_malformed_run_never_becomes_a_path(store, mine, column, value):
    _sql(store, f"UPDATE runs SET {column} = ? WHERE id = ?", value, mine.id)
    with pytest.raises(
        StoreError, match=f"run {mine.id}: {column}: expected .* did not write this"
    ):
        store.runs.select()


@pytest.mark.parametrize("pid", ["../self", "1/../self", -1, 0.5])
def test_a_malformed_pid_never_becomes_a_path(store, new_run, pid, monkeypatch):
    [run_id] = store.runs.add([new_run()])
    store.leases.claim(run_id, Owner.current())
    _sql(store, "UPDATE runs SET pid = ?", pid)
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: pytest.fail(f"{path} was read"))
    assert store.runs.select()[0].status is Status.LOST


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("UPDATE metrics SET name = ? WHERE id = 1", "a\nb"),
        ("UPDATE metrics SET name = ? WHERE id = 1", b"\xff"),
        ("UPDATE metrics SET name = ? WHERE id = 1", "x" * 100_000),
        ("UPDATE points SET value = ?", "nan"),
        ("UPDATE points SET step = ? WHERE step = 3", "three"),
        ("UPDATE points SET step = ? WHERE step = 3", -3),
        ("UPDATE points SET step = ? WHERE step = 3", 2**40),
        ("UPDATE summaries SET value = ?", "much"),
    ],
    ids=range(8),
)
def test_a_store_with_malformed_metrics_is_refused(store, other, mine, new_run, statement, value):
    _make(other, new_run(seed=1))
    _sql(other, statement, value)
    assert "cannot be merged" in _refusal(store, other)


@pytest.mark.parametrize(
    ("statement", "value", "word"),
    [
        ("UPDATE evaluations SET identity = ?", "../x", "identity"),
        ("UPDATE evaluations SET subject = ?", "a\x1b[2J", "subject"),
        ("UPDATE evaluations SET task = ?", "a\u202eb", "task"),
        ("UPDATE evaluations SET settings = ?", '{"k": [0.5]}', "settings"),
        ("UPDATE evaluations SET settings = ?", "{", "'{' in the column settings"),
        ("UPDATE evaluations SET n = ?", b"1234" * 9, "n: expected a number from 0 for each"),
        ("UPDATE evaluations SET c = ?", b"\xff\xff\xff\xff", "no more than n"),
        ("UPDATE evaluations SET answer_entropy = ?", "text", "column answer_entropy"),
        (
            "UPDATE evaluations SET kl_base = ?",
            b"\0" * 7 + b"\xbf",
            "kl_base: expected a number from 0",
        ),
        ("UPDATE evaluations SET right_counts = ?", b"123", "cannot be read"),
        ("UPDATE evaluations SET right_counts = ?", b"\1\0\0\0", "counts that add up to c"),
        ("UPDATE evaluations SET right_counts = ?", b"\2\0\0\0" + bytes(4), "counts that add"),
        ("UPDATE problem_sets SET problems = ?", '[["0", "2+3=", 0]]', "digest"),
        ("UPDATE problem_sets SET problems = ?", '[["0", "2+2="]]', "problem_sets 1"),
        ("UPDATE run_evaluations SET step = ?", "five", "step"),
        ("UPDATE analyses SET identity = ?", "../x", "identity"),
        ("UPDATE analyses SET kind = ?", "../x", "kind"),
        ("UPDATE analyses SET directions = ?", b"123", "cannot be read"),
        ("UPDATE sweeps SET name = ?", "a\nb", "name"),
        ("UPDATE sweeps SET spec = ?", "[]", "spec"),
        ("UPDATE sweeps SET created = ?", "then", "column created"),
        ("UPDATE checkpoints SET path = ?", "../../x", "path"),
        ("UPDATE checkpoints SET path = ?", "/etc/passwd", "path"),
        ("UPDATE checkpoints SET path = ?", "elsewhere/checkpoints/step-000005", "path"),
        ("UPDATE checkpoints SET step = ?", "five", "step"),
    ],
    ids=range(25),
)
def test_a_store_with_malformed_rows_beside_a_run_is_refused(
    store, other, mine, new_run, statement, value, word
):
    _make(other, new_run(seed=1), "demo")
    _sql(other, statement, value)
    assert word in _refusal(store, other)


@pytest.mark.parametrize(("column", "value"), [("seed", 3), ("estimator", "x"), ("steps", 900)])
def test_a_different_run_of_my_identity_is_refused(store, other, mine, new_run, column, value):
    _make(other, new_run(seed=100))
    _sql(other, "DELETE FROM checkpoints")
    _sql(other, f"UPDATE runs SET {column} = ?", value)
    line = _refusal(store, other)
    assert f"its run 1 has the identity of run {mine.id} of this store and another {column}" in line


_TRIGGER = "CREATE TRIGGER t AFTER UPDATE ON runs BEGIN UPDATE runs SET error = 'owned'; END"
_SCHEMA = "UPDATE sqlite_master SET"
FORGED = {
    "a trigger": (_TRIGGER, "without triggers, got the trigger t"),
    "a name that terminals obey": (
        _TRIGGER.replace("TRIGGER t", 'TRIGGER "\x1b[31m"'),
        r"got the trigger \\x1b\[31m",
    ),
    "an endless view": (
        "ALTER TABLE metrics RENAME TO m; CREATE VIEW metrics AS WITH RECURSIVE c(x) AS"
        " (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS id, x AS name FROM c",
        "expected a table metrics, got none",
    ),
    "a table that the schema calls a view": (
        f"{_SCHEMA} type = 'view', rootpage = 0, sql = 'CREATE VIEW trials AS SELECT 1'"
        " WHERE name = 'trials'",
        "a damaged one",
    ),
    "a hidden trigger": (
        f"INSERT INTO sqlite_master VALUES ('trigger', 't', 'runs', 0, '{_TRIGGER}')".replace(
            "'owned'", "''owned''"
        ),
        "without triggers, got the trigger t",
    ),
    "a schema that is no SQL": (f"{_SCHEMA} sql = 'CREATE' WHERE name = 'runs'", "a damaged one"),
    "a page that is not there": (f"{_SCHEMA} rootpage = 99999 WHERE name = 'runs'", "damaged one"),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_schema_is_refused(other, mine, new_run, forged):
    _make(other, new_run(seed=1))
    script, words = FORGED[forged]
    other.close()
    file = other.database.location.file
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA writable_schema = ON")
    connection.executescript(script)
    connection.close()
    before = file.read_bytes()
    for create in (True, False):
        with pytest.raises(StoreError, match=words) as caught, open_store(str(file), create=create):
            pass
        assert "\n" not in str(caught.value)
    assert file.read_bytes() == before


def test_views_of_the_users_own_are_left_alone(other, mine, new_run):
    _make(other, new_run(seed=1))
    _sql(other, "CREATE VIEW best AS SELECT * FROM summaries")
    other.close()
    with open_store(str(other.database.location.file), create=False) as again:
        assert len(again.runs.select()) == 1


def test_tables_without_their_keys_are_refused(store, other, mine, new_run):
    _make(other, new_run(seed=1), "demo")
    for table in ("points", "sweeps", "runs"):
        _sql(other, f"CREATE TABLE copy AS SELECT * FROM {table}")
        _sql(other, f"DROP TABLE {table}")
        _sql(other, f"ALTER TABLE copy RENAME TO {table}")
        _sql(other, f"INSERT INTO {table} SELECT * FROM {table}")
    assert "foreign key mismatch" in _refusal(store, other)


def test_executors_and_trackers_of_sweeps_are_not_merged(store, other, mine, new_run):
    _make(other, new_run(seed=1), "demo")
    executor = {"name": "slurm", "cluster": "local", "setup": ["touch owned"]}
    resources = {"name": "default", "cpus": 2}
    spec = {
        "overrides": ["seed=0"],
        "settings": {"executor": executor, "resources": resources, "more": 1},
        "tracking": {"name": "wandb", "entity": "them"},
    }
    other.sweeps.add("demo", spec)
    merge(store, other)
    [sweep] = store.sweeps.select()
    assert sweep.spec == {"overrides": ["seed=0"], "settings": {"resources": resources}}
