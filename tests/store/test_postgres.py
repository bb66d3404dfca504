"""What a PostgreSQL server has of its own: URLs, drivers, locks, restarts and its clock."""

from __future__ import annotations

import importlib.util
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from advsweep.errors import StoreError, StoreUnavailableError
from advsweep.importing.write import ImportContext, gather, write_run
from advsweep.logs.names import LoggedStep
from advsweep.store import open_store
from advsweep.store.connections import locate
from advsweep.store.schema_version import HEAD
from advsweep.store.tables import METADATA


@pytest.fixture
def empty_database(postgres_server, postgres_url) -> str:
    """The URL of a database without a table."""
    postgres_server.ask("postgres", "DROP DATABASE IF EXISTS empty WITH (FORCE)")
    postgres_server.ask("postgres", "CREATE DATABASE empty")
    return postgres_server.url("empty")


def test_a_store_is_created_in_an_empty_database(empty_database, postgres_server):
    with pytest.raises(StoreError, match=r"no store at postgresql://advsweep@/empty; run"):
        open_store(empty_database, create=False)
    with open_store(empty_database) as store:
        store.sweeps.add("demo", {"seeds": 3})
        assert (store.schema_version(), store.upgraded) == (HEAD, [])
    with open_store(empty_database, create=False) as store:
        assert [sweep.name for sweep in store.sweeps.select()] == ["demo"]
    assert postgres_server.ask("empty", "SELECT version_num FROM alembic_version") == [[HEAD]]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
@pytest.mark.parametrize("create", [True, False])
def test_a_database_of_another_encoding_is_refused_at_once(encoding, create, postgres_server):
    postgres_server.ask("postgres", "DROP DATABASE IF EXISTS narrow WITH (FORCE)")
    postgres_server.ask(
        "postgres",
        f"CREATE DATABASE narrow ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0",
    )
    message = f"encoding UTF8, got {encoding}; make another: createdb narrow_utf8 -E UTF8"
    with pytest.raises(StoreError, match=message):
        open_store(postgres_server.url("narrow"), create=create)


def test_a_missing_driver_is_named(monkeypatch):
    assert locate("postgresql://me@host/db").url.drivername == "postgresql+pg8000"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for url in ("postgresql://me:secret@host/db", "postgresql+pg8000://me:secret@host/db"):
        with pytest.raises(StoreError, match=r"pip install .*'pg8000>") as error:
            locate(url)
        assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "postgresql+psycopg2://me@host/db",
            r"expected postgresql:// or postgresql\+pg8000",
        ),
        ("postgresql://me@host", "expected the name of a database"),
    ],
)
def test_urls_that_name_no_database_of_a_server(url, message):
    with pytest.raises(StoreError, match=message):
        locate(url)


def test_names_contain_no_password():
    location = locate("postgresql://me:secret@host:5433/db?password=secret")
    assert location.name == "postgresql://me:***@host:5433/db"


def test_errors_of_a_server_say_what_to_do(postgres_server, tmp_path):
    with pytest.raises(StoreError, match="no such database; make it with `createdb`"):
        open_store(postgres_server.url("missing"))
    with pytest.raises(StoreError, match=r"no connection to the server at .*; see that it is"):
        open_store(f"postgresql://me@/db?host={tmp_path}")
    with pytest.raises(StoreError, match="no connection to the server at localhost:1 "):
        open_store("postgresql://me@localhost:1/db")


def test_adding_the_same_runs_in_opposite_orders_causes_no_deadlock(postgres_url, new_run):
    runs = [new_run(seed=i) for i in range(1500)]
    together = threading.Barrier(2)

    def add(order: int) -> int:
        with open_store(postgres_url) as store:
            together.wait()
            return len(set(store.runs.add(runs[::order])))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(add, (1, -1))) == [1500, 1500]


def test_times_come_from_the_clock_of_the_server(
    postgres_server, postgres_url, new_run, monkeypatch
):
    class Wrong(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=1)

    monkeypatch.setattr("advsweep.store.store.datetime", Wrong)
    with open_store(postgres_url) as store:
        store.runs.add([new_run()])
        [run] = store.runs.select()
    assert abs(run.created - datetime.now(UTC)) < timedelta(minutes=10)


def test_migrations_make_the_tables_of_the_models(postgres_url):
    with open_store(postgres_url) as store, store.database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_seeds_that_imports_made_up_become_unknown(empty_database, postgres_server):
    with open_store(empty_database) as store:
        for seed in (None, 5):
            config = {"backend": {"name": "imported", "format": "x"}, "estimator": {"name": "grpo"}}
            config |= {} if seed is None else {"seed": seed}
            content = gather("x", f"log{seed}", config, [LoggedStep(1, {"a": 0.5})])
            write_run(store, content, ImportContext(environment={}))
    made_up = json.dumps({"backend": {"name": "imported"}, "estimator": {"name": "x"}, "seed": 0})
    for statement in (
        f"UPDATE runs SET seed = 0, config = '{made_up}' WHERE seed IS NULL",
        "ALTER TABLE runs ALTER COLUMN seed SET NOT NULL",
        "ALTER TABLE sweeps DROP COLUMN note, DROP COLUMN tags",
        "UPDATE alembic_version SET version_num = '0008'",
    ):
        postgres_server.ask("empty", statement)
    with open_store(empty_database, upgrade=True) as store:
        runs = store.runs.select(newest_first=False)
        # The digest of the second says that its log had the seed.
        assert [run.seed for run in runs] == [None, 5]
        assert "seed" not in runs[0].config


def test_a_process_keeps_one_connection(postgres_server, postgres_url, new_run):
    database = postgres_url.partition("@/")[2].partition("?")[0]
    query = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'"

    def connections() -> object:
        [[number]] = postgres_server.ask("postgres", query)
        return number

    with open_store(postgres_url) as store:
        store.runs.add([new_run()])
        assert len(store.runs.select()) == 1
        assert connections() == 1
        # A heartbeat and a report that meet have a connection each, for that moment.
        with store.database.write() as one, store.database.read() as other:
            pids = {
                each.exec_driver_sql("SELECT pg_backend_pid()").scalar() for each in (one, other)
            }
            assert len(pids) == 2
        deadline = time.monotonic() + 30
        while connections() != 1:
            assert time.monotonic() < deadline, "the second connection stays"
            time.sleep(0.02)


def test_a_full_server_is_waited_for(postgres_server, postgres_url, new_run):
    database = postgres_url.partition("@/")[2].partition("?")[0]
    postgres_server.ask("postgres", "DROP ROLE IF EXISTS guest")
    postgres_server.ask("postgres", "CREATE ROLE guest LOGIN CONNECTION LIMIT 1")
    for kind in ("TABLES", "SEQUENCES"):
        grant = f"GRANT ALL ON ALL {kind} IN SCHEMA public TO guest"
        postgres_server.ask(database, grant)
    url = postgres_url.replace("advsweep@", "guest@")
    try:
        with open_store(url) as other:
            other.runs.add([new_run()])
            with pytest.raises(StoreUnavailableError, match="takes no more connections; raise"):
                open_store(url)
            leaves = threading.Timer(1, other.close)
            leaves.start()
            with open_store(url, patience=60, wait=True) as store:
                assert len(store.runs.select()) == 1
            leaves.join()
    finally:
        postgres_server.ask(database, "DROP OWNED BY guest")
        postgres_server.ask("postgres", "DROP ROLE guest")


def test_a_stop_while_a_transaction_begins_leaves_no_answer_behind(
    postgres_url, new_run, monkeypatch
):
    from pg8000.core import CoreConnection  # with an extra

    with open_store(postgres_url) as store:
        [run_id] = store.runs.add([new_run()])

        def interrupt(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            # The statement is sent by then.
            patch.setattr(CoreConnection, "handle_messages", interrupt)
            with pytest.raises(KeyboardInterrupt):
                store.runs.select()
        assert [run.id for run in store.runs.select()] == [run_id]
