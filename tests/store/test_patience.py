"""Stores that do not answer, are locked or have no room are waited for."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pg8000.dbapi
import pytest

from advsweep.errors import StoreError, StoreUnavailableError
from advsweep.store import Owner, Status, Store, open_store
from advsweep.store.patience import Patience

PATIENT = 30.0
ELSEWHERE = Owner("elsewhere", 1, 0.0)


@pytest.fixture
def short_locks(monkeypatch) -> None:
    """One try waits for a lock for a moment only."""
    monkeypatch.setattr("advsweep.store.connections.BUSY_SECONDS", 0.2)


@pytest.fixture
def server_store(postgres_url) -> Iterator[Store]:
    with open_store(postgres_url, patience=PATIENT) as opened:
        yield opened


def database_of(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


@contextmanager
def later(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    timer = threading.Timer(seconds, act)
    timer.start()
    try:
        yield
    finally:
        timer.join()


@contextmanager
def session(postgres_server, url: str) -> Iterator[Any]:
    """A session of somebody else."""
    connection = pg8000.dbapi.connect(
        "advsweep",
        unix_sock=str(postgres_server.folder / ".s.PGSQL.5432"),
        database=database_of(url),
        application_name="somebody",
    )
    try:
        yield connection
    finally:
        connection.close()


def terminate_all(postgres_server) -> None:
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE "
    postgres_server.ask("postgres", f"{query} 'advsweep %'")


def test_a_call_is_repeated_until_it_succeeds():
    tries: list[bool] = []
    patience = Patience(PATIENT)

    def act() -> str:
        tries.append(patience.repeats)
        if len(tries) < 3:
            raise StoreUnavailableError("away")
        return "done"

    assert patience.call(act) == "done"
    assert tries == [False, True, True]
    assert not patience.repeats
    assert not patience.is_away


def test_retries_end_with_their_duration():
    def act() -> None:
        raise StoreUnavailableError("away")

    with pytest.raises(StoreUnavailableError, match=r"^away \(tried for 1 s\)$"):
        Patience(0.51).call(act)
    patience = Patience(PATIENT)
    patience.stop()
    with pytest.raises(StoreUnavailableError, match=r"^away$"):
        patience.call(act)


def test_an_outage_logs_its_start_and_its_end(caplog):
    tries = iter([True, True, False])

    def act() -> None:
        if next(tries):
            raise StoreUnavailableError("away")

    patience = Patience(PATIENT)
    with pytest.raises(StoreUnavailableError), patience.suspended():
        patience.call(act)
    patience.call(act)
    assert [record.getMessage() for record in caplog.records] == [
        "away; trying again for up to 30 s",
        "the store can be used again after 0 s",
    ]


def test_a_nested_call_is_repeated_with_the_outer_one():
    patience = Patience(PATIENT)
    tries: list[bool] = []

    def inner() -> None:
        tries.append(patience.repeats)
        if len(tries) < 4:
            raise StoreUnavailableError("away")

    def outer() -> None:
        if not tries:
            inner()
        patience.call(inner)

    patience.call(outer)
    assert tries == [False, True, True, True]


def test_a_statement_that_the_server_ends_is_repeated(
    server_store, postgres_server, postgres_url, new_run
):
    [run_id] = server_store.runs.add([new_run()])
    server_store.leases.claim(run_id, Owner.current())
    with session(postgres_server, postgres_url) as other:
        other.cursor().execute("LOCK TABLE runs")

        def disturb() -> None:
            terminate_all(postgres_server)
            other.rollback()

        with later(0.5, disturb):
            server_store.leases.heartbeat(run_id, step=3)
    assert server_store.runs.select()[0].step == 3


def test_reset_connections_are_replaced_without_a_traceback(
    postgres_url, postgres_proxy, new_run, caplog
):
    url = postgres_proxy.url(database_of(postgres_url))
    with open_store(url, patience=PATIENT) as store:
        [run_id] = store.runs.add([new_run()])
        store.leases.claim(run_id, Owner.current())
        for step in range(1, 4):
            postgres_proxy.order("reset")
            store.leases.heartbeat(run_id, step=step)
        assert store.runs.select()[0].step == 3
    assert not [record for record in caplog.records if record.exc_info]


@pytest.fixture
def break_commit(server_store, monkeypatch) -> Callable[[], None]:
    """Has the next commit take effect and its answer be lost."""
    dialect = server_store.database.writer.dialect
    commit = dialect.do_commit
    due: list[bool] = []

    def broken(connection) -> None:
        commit(connection)
        if due:
            due.clear()
            raise dialect.loaded_dbapi.InterfaceError("network error")

    monkeypatch.setattr(dialect, "do_commit", broken)
    return lambda: due.append(True)


def test_a_commit_before_the_connection_broke_takes_effect_once(
    server_store, new_run, break_commit
):
    store, me = server_store, Owner.current()
    break_commit()
    store.sweeps.add("demo", {})
    break_commit()
    ids = store.runs.add([new_run(seed=seed) for seed in range(3)], "demo")
    assert [run.id for run in store.runs.select(newest_first=False)] == ids
    break_commit()
    assert store.leases.claim(ids[0], me)
    break_commit()
    assert store.leases.claim_next(me) == ids[1]
    assert store.runs.select(ids=[ids[2]])[0].status is Status.PENDING
    break_commit()
    store.metrics.record(ids[0], [("reward/mean", 2, 0.5)], step=2)
    assert store.metrics.points(ids[0]) == [("reward/mean", 2, 0.5)]
    break_commit()
    store.leases.finish(ids[0], Status.DONE)
    assert store.runs.select(ids=[ids[0]])[0].status is Status.DONE
    break_commit()
    again = store.runs.new_attempt(ids[0])
    pending = store.runs.select(sweep="demo", status=Status.PENDING)
    assert {(run.id, run.attempt) for run in pending} == {(ids[2], 1), (again, 2)}
    assert len(store.runs.select()) == 4


def test_a_repeated_claim_takes_no_run_from_another_process(
    server_store, new_run, break_commit, monkeypatch
):
    [run_id] = server_store.runs.add([new_run()])
    server_store.leases.claim(run_id, Owner.current())
    with open_store(server_store.url) as other:
        monkeypatch.setattr(
            server_store.patience,
            "_sleep",
            lambda until: other.leases.claim(run_id, ELSEWHERE, holder=Owner.current()),
        )
        break_commit()
        with pytest.raises(StoreError, match="was taken over"):
            server_store.leases.heartbeat(run_id, step=5)
        [run] = other.runs.select(ids=[run_id])
        assert (run.host, run.pid) == (ELSEWHERE.host, ELSEWHERE.pid)


@pytest.mark.usefixtures("short_locks")
def test_a_locked_table_is_waited_for_longer_than_one_statement_waits(
    postgres_server, postgres_url, new_run
):
    with (
        open_store(postgres_url, patience=PATIENT) as store,
        session(postgres_server, postgres_url) as other,
    ):
        other.cursor().execute("LOCK TABLE runs")
        with later(1.0, other.rollback):
            store.runs.add([new_run()])
        assert len(store.runs.select()) == 1


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("short_locks")
def test_a_locked_file_is_waited_for_longer_than_one_statement_waits(store_url, new_run):
    with open_store(store_url, patience=PATIENT) as store:
        other = sqlite3.connect(store_url, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        with later(1.0, lambda: other.execute("ROLLBACK")):
            store.runs.add([new_run()])
        assert len(store.runs.select()) == 1
        other.close()


def test_a_full_disk_of_the_server_is_waited_for(
    server_store, postgres_server, postgres_url, new_run
):
    database = database_of(postgres_url)
    for statement in (
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE SQLSTATE '53100' USING MESSAGE = 'No space left on device'; END $$",
        "CREATE TRIGGER full_disk BEFORE INSERT ON points EXECUTE FUNCTION full_disk()",
    ):
        postgres_server.ask(database, statement)
    [run_id] = server_store.runs.add([new_run()])
    with later(1.0, lambda: postgres_server.ask(database, "DROP TRIGGER full_disk ON points")):
        server_store.metrics.record(run_id, [("reward/mean", 1, 0.5)])
    assert server_store.metrics.points(run_id) == [("reward/mean", 1, 0.5)]


def test_a_server_that_accepts_and_never_answers_is_an_error(
    postgres_url, postgres_proxy, monkeypatch
):
    monkeypatch.setattr("advsweep.store.postgres.CONNECT_SECONDS", 1)
    postgres_proxy.order("hold")
    with pytest.raises(StoreUnavailableError, match="no connection to the server at 127"):
        open_store(postgres_proxy.url(database_of(postgres_url)))


@pytest.mark.slow
def test_a_server_that_stops_answering_is_given_up_and_tried_again(
    postgres_url, postgres_proxy, new_run, monkeypatch
):
    monkeypatch.setattr("advsweep.store.postgres.CONNECT_SECONDS", 1)
    monkeypatch.setattr("advsweep.store.postgres.ANSWER_SECONDS", 0.5)
    monkeypatch.setattr("advsweep.store.postgres.STATEMENT_SECONDS", 1.0)
    url = postgres_proxy.url(database_of(postgres_url))
    with open_store(url, patience=PATIENT) as store:
        [run_id] = store.runs.add([new_run()])
        store.leases.claim(run_id, Owner.current())
        postgres_proxy.order("hold")
        with (
            store.patience.suspended(),
            pytest.raises(StoreUnavailableError, match="no connection"),
        ):
            store.runs.select()
        with later(1.0, lambda: postgres_proxy.order("go")):
            store.leases.heartbeat(run_id, step=3)
        assert [run.step for run in store.runs.select()] == [3]


def test_a_worker_may_wait_for_its_server_before_it_opens_the_store(postgres_server, postgres_url):
    postgres_server.stop()
    try:
        with pytest.raises(StoreUnavailableError, match="no connection"):
            open_store(postgres_url, patience=PATIENT)
    finally:
        back = threading.Timer(0.5, postgres_server.start)
        back.start()
    with open_store(postgres_url, patience=PATIENT, wait=True) as store:
        assert store.runs.select() == []
    back.join()


def test_permanent_errors_are_not_retried(postgres_server):
    with pytest.raises(StoreError, match="no such database") as error:
        open_store(postgres_server.url("missing"), patience=PATIENT, wait=True)
    assert not isinstance(error.value, StoreUnavailableError)


def test_connections_have_limits_and_a_name(postgres_url, postgres_proxy):
    url = postgres_proxy.url(database_of(postgres_url))
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    with open_store(url) as store, store.database.write() as connection:
        shown = [
            connection.exec_driver_sql(f"SHOW {name}").scalar()
            for name in (*names, "TimeZone", "application_name")
        ]
        raw = connection.connection.driver_connection._usock
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
        assert raw.gettimeout() == 130
    name = f"advsweep {socket.gethostname()[:40]}:{os.getpid()}"
    assert shown == ["30s", "2min", "1min", "UTC", name]


def test_a_transaction_of_a_stopped_process_does_not_keep_the_store_locked(
    postgres_url, new_run, monkeypatch
):
    monkeypatch.setattr("advsweep.store.postgres.IDLE_SECONDS", 0.5)
    with open_store(postgres_url) as sleeper, open_store(postgres_url, patience=PATIENT) as store:
        with pytest.raises(StoreError), sleeper.database.write_alone() as connection:  # noqa: PT012
            # Nothing is said in the transaction until the server has ended it.
            store.runs.add([new_run()])
            connection.exec_driver_sql("SELECT 1")
        assert len(store.runs.select()) == 1
