"""Validity of leases: absent servers, clocks that are set, and hosts with the same name."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from advsweep.store import Owner, Status, Store, lease_guard, open_store

ELSEWHERE = Owner("elsewhere", 1, 0.0)


@pytest.fixture
def ask(postgres_server, postgres_url) -> Callable[[str], object]:
    """Runs a query in the database of the store."""
    database = postgres_url.partition("@/")[2].partition("?")[0]
    return lambda query: postgres_server.ask(database, query)


def status_of(store: Store, run_id: int) -> Status:
    return store.runs.select(ids=[run_id])[0].status


def test_leases_count_from_the_start_of_the_server(postgres_url, ask, new_run, monkeypatch):
    with open_store(postgres_url) as store:
        [run_id] = store.runs.add([new_run()])
        store.leases.claim(run_id, ELSEWHERE)
        # The server of the tests has run for less than a day.
        monkeypatch.setattr(lease_guard, "LEASE", timedelta(days=1))
        ask("UPDATE runs SET heartbeat = heartbeat - interval '2 days'")
        assert status_of(store, run_id) is Status.RUNNING
        assert not store.leases.claim(run_id, Owner.current())
        assert store.leases.claim_next(Owner.current()) is None
        with open_store(postgres_url) as fresh:
            assert status_of(fresh, run_id) is Status.RUNNING
        monkeypatch.setattr(lease_guard, "LEASE", timedelta(0))
        assert status_of(store, run_id) is Status.LOST
        assert store.leases.claim_next(Owner.current()) == run_id


def test_no_lease_ends_while_the_network_is_away(
    postgres_proxy, postgres_url, new_run, ask, monkeypatch
):
    monkeypatch.setattr("advsweep.store.postgres.CONNECT_SECONDS", 1)
    monkeypatch.setattr("advsweep.store.postgres.ANSWER_SECONDS", 0.3)
    monkeypatch.setattr("advsweep.store.postgres.STATEMENT_SECONDS", 0.3)
    # The pool may replace the connection without an error.
    monkeypatch.setattr("advsweep.store.patience.WAITED_SECONDS", 0.5)
    database = postgres_url.partition("@/")[2].partition("?")[0]
    with open_store(postgres_proxy.url(database), patience=60) as store:
        [run_id] = store.runs.add([new_run()])
        store.leases.claim(run_id, ELSEWHERE)
        ask("UPDATE runs SET heartbeat = heartbeat - interval '61 s'")
        # As if the server had run for hours.
        store.database.clock.unsettled = float("-inf")
        assert status_of(store, run_id) is Status.LOST
        postgres_proxy.order("hold")
        back = threading.Timer(1.5, postgres_proxy.order, ["go"])
        back.start()
        store.runs.select()
        back.join()
        assert status_of(store, run_id) is Status.RUNNING
        assert not store.leases.claim(run_id, Owner.current())
        assert store.leases.claim_next(Owner.current()) is None


def test_a_long_running_process_claims_the_run_of_a_dead_one_at_once(postgres_url, new_run):
    """What is known of a process of this host needs no time to pass."""
    with open_store(postgres_url) as store:
        [run_id] = store.runs.add([new_run()])
        me = Owner.current()
        store.leases.claim(run_id, Owner(me.host, me.pid, me.started - 1))
        assert status_of(store, run_id) is Status.LOST
        assert store.leases.claim_next(me) == run_id


@pytest.fixture
def set_clock(ask, postgres_url, monkeypatch) -> Callable[[str], None]:
    """Sets the server's clock by an interval: its function is hidden by one of the same name."""
    database = postgres_url.partition("@/")[2].partition("?")[0]
    ask("CREATE TABLE clock_offset AS SELECT interval '0' AS value")
    ask(
        "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
        "'SELECT pg_catalog.clock_timestamp() + value FROM public.clock_offset'"
    )
    ask(f"ALTER DATABASE {database} SET search_path = public, pg_catalog")
    monkeypatch.setattr("advsweep.store.postgres._CLOCK_SECONDS", 0.0)
    return lambda interval: ask(f"UPDATE clock_offset SET value = '{interval}'")


@pytest.mark.parametrize("interval", ["-1 hour", "1 hour"])
def test_setting_the_clock_of_the_server_ends_no_lease(postgres_url, set_clock, new_run, interval):
    with open_store(postgres_url) as worker, open_store(postgres_url) as other:
        [run_id] = worker.runs.add([new_run()])
        worker.leases.claim(run_id, ELSEWHERE)
        assert status_of(other, run_id) is Status.RUNNING
        # As if the server had run for hours.
        worker.database.clock.unsettled = other.database.clock.unsettled = float("-inf")
        set_clock(interval)
        assert status_of(other, run_id) is Status.RUNNING
        assert not other.leases.claim(run_id, Owner.current())
        assert other.leases.claim_next(Owner.current()) is None
        worker.leases.heartbeat(run_id, step=5)
        # Its heartbeat is by the clock as it is now.
        other.database.clock.unsettled = float("-inf")
        assert status_of(other, run_id) is Status.RUNNING


def test_a_new_process_waits_for_a_heartbeat_after_the_clock_was_set_back(
    postgres_url, set_clock, new_run, monkeypatch
):
    with open_store(postgres_url) as worker:
        [run_id] = worker.runs.add([new_run()])
        worker.leases.claim(run_id, ELSEWHERE)
        set_clock("-1 hour")
        with open_store(postgres_url) as fresh:
            assert fresh.leases.claim_next(Owner.current()) is None
            assert not fresh.leases.claim(run_id, Owner.current())
            # It never beats again.
            fresh.database.clock.opened = fresh.database.clock.unsettled = float("-inf")
            assert status_of(fresh, run_id) is Status.LOST
            assert fresh.leases.claim_next(Owner.current()) == run_id


def test_heartbeats_are_not_trusted_after_a_long_wait(store, clock, new_run, monkeypatch):
    [run_id] = store.runs.add([new_run()])
    store.leases.claim(run_id, ELSEWHERE)
    clock.forward(61)
    monkeypatch.setattr("advsweep.store.patience.WAITED_SECONDS", 0.0)
    assert not store.leases.claim(run_id, Owner.current())
    monkeypatch.setattr("advsweep.store.patience.WAITED_SECONDS", 60.0)
    with open_store(store.url, clock=clock) as other:
        assert other.leases.claim(run_id, Owner.current())


def test_hosts_of_the_same_name_are_different(store, clock, new_run):
    me = Owner.current()
    [run_id] = store.runs.add([new_run()])
    # A pid that no process of this host has.
    twin = Owner(f"{socket.gethostname()}#0123456789ab", 2**30, 1.0)
    assert not twin.is_here()
    assert store.leases.claim(run_id, twin)
    assert status_of(store, run_id) is Status.RUNNING
    assert not store.leases.claim(run_id, me)
    assert store.leases.claim_next(me) is None
    clock.forward(61)
    assert store.leases.claim_next(me) == run_id
