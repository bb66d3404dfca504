"""Faults of a server under a sweep: it goes on by itself, with nothing lost and nothing twice.

Runs are forks of the test's own process, each with connections of its own.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import pg8000.dbapi
import pytest

from advsweep.errors import StoreUnavailableError
from advsweep.store import Status, lease_guard, open_store
from advsweep.sweep.retry_policy import Policy, store_patience
from advsweep.sweep.scheduler import workers as watched
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.worker import main
from tests.sweep.forked_workers import ForkingExecutor
from tests.sweep.helpers import log_of, measured

pytestmark = pytest.mark.slow


FORTY = ("steps=40", "evaluation.every=20", "backend.checkpoint_every=10")
SLOW = (*FORTY, "backend.step_seconds=0.05")
NO_RETRIES = Policy(retries=0)


@dataclass(kw_only=True)
class PatientExecutor(ForkingExecutor):
    """Its workers wait for a store that does not answer when they start."""

    def open_store(self, job):
        return open_store(job.store_url, create=False, patience=store_patience(), wait=True)


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A minute for the server to return, and short waits for all else."""
    monkeypatch.setenv("ADVSWEEP_STORE_PATIENCE", "1m")
    monkeypatch.setattr("advsweep.store.connections.BUSY_SECONDS", 0.3)
    monkeypatch.setattr("advsweep.store.patience.LONGEST_PAUSE", 0.5)
    monkeypatch.setattr("advsweep.store.postgres.CONNECT_SECONDS", 1)
    monkeypatch.setattr("advsweep.store.postgres.STATEMENT_SECONDS", 0.5)
    monkeypatch.setattr("advsweep.store.postgres.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(lease_guard, "LEASE", timedelta(seconds=2))
    monkeypatch.setattr(main, "BEAT_SECONDS", 0.3)
    monkeypatch.setattr(watched, "SILENT_SECONDS", 1.0)


@pytest.fixture(scope="module")
def forty_undisturbed(plan, tmp_path_factory):
    """What seeds 0 and 1 measure where nothing happens to them."""
    with open_store(str(tmp_path_factory.mktemp("undisturbed") / "advsweep.db")) as store:
        assert execute(plan(*FORTY, "seed=0,1"), store).exit_code == 0
        return measured(store)


def database_of(url):
    return url.partition("@/")[2].partition("?")[0]


@contextmanager
def patient(url):
    with open_store(url, patience=store_patience()) as store:
        yield store


class Once:
    """Does something, in a thread of its own, once both runs have done some steps."""

    def __init__(self, store, act, step=6):
        self._store = store
        self._step = step
        self._thread = threading.Thread(target=act)
        self.began = False

    def __call__(self, event):
        if self.began:
            return
        running = self._store.runs.select(status=Status.RUNNING)
        if len([run for run in running if run.step >= self._step]) == 2:
            self.began = True
            self._thread.start()

    def end(self):
        assert self.began
        self._thread.join()


def ride_out(url, plan, forty_undisturbed, act):
    """Executes two runs under a disturbance; each is trained once and measures the same."""
    forty = replace(plan(*SLOW, "seed=0,1"), executor=PatientExecutor())
    with patient(url) as store:
        disturb = Once(store, act)
        outcome = execute(forty, store, on_event=disturb, policy=NO_RETRIES)
        disturb.end()
        assert (outcome.done, outcome.failed, outcome.exit_code) == (2, {}, 0)
        assert measured(store) == forty_undisturbed
        runs = store.runs.select()
        assert all(log_of(run).count("training grpo") == 1 for run in runs)
        return runs


def test_a_server_that_is_restarted(plan, forty_undisturbed, postgres_server, postgres_url):
    def restart():
        postgres_server.stop()
        # Longer than a lease.
        time.sleep(3)
        postgres_server.start()

    runs = ride_out(postgres_url, plan, forty_undisturbed, restart)
    for run in runs:
        assert "trying again for up to 60 s" in log_of(run)
        assert "the store can be used again after" in log_of(run)


def test_sessions_that_are_ended_at_random(plan, forty_undisturbed, postgres_server, postgres_url):
    moments = random.Random(5)

    def terminate():
        for _ in range(15):
            time.sleep(moments.uniform(0.02, 0.2))
            postgres_server.ask(
                database_of(postgres_url),
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
                "current_database() AND pid <> pg_backend_pid() AND random() < 0.7",
            )

    ride_out(postgres_url, plan, forty_undisturbed, terminate)


def test_connections_that_are_reset_at_random(
    plan, forty_undisturbed, postgres_proxy, postgres_url
):
    moments = random.Random(6)

    def reset():
        for _ in range(15):
            time.sleep(moments.uniform(0.02, 0.2))
            postgres_proxy.order("reset")

    ride_out(postgres_proxy.url(database_of(postgres_url)), plan, forty_undisturbed, reset)


def test_a_network_that_passes_nothing_on(plan, forty_undisturbed, postgres_proxy, postgres_url):
    def hold():
        postgres_proxy.order("hold")
        time.sleep(4)
        postgres_proxy.order("go")

    ride_out(postgres_proxy.url(database_of(postgres_url)), plan, forty_undisturbed, hold)


@pytest.mark.parametrize("mode", ["ACCESS EXCLUSIVE", "EXCLUSIVE"])
def test_a_table_that_somebody_locks(mode, plan, forty_undisturbed, postgres_server, postgres_url):
    """In the second mode it can be read: leases are seen to lapse that nobody can renew."""

    def lock():
        connection = pg8000.dbapi.connect(
            "advsweep",
            unix_sock=str(postgres_server.folder / ".s.PGSQL.5432"),
            database=database_of(postgres_url),
        )
        connection.cursor().execute(f"LOCK TABLE runs IN {mode} MODE")
        time.sleep(4.5)
        connection.rollback()
        connection.close()

    ride_out(postgres_url, plan, forty_undisturbed, lock)


def test_a_disk_of_the_server_that_is_full_for_a_while(
    plan, forty_undisturbed, postgres_server, postgres_url
):
    database = database_of(postgres_url)

    def fill():
        for statement in (
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE SQLSTATE '53100' USING MESSAGE = 'No space left on device'; END $$",
            "CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON runs EXECUTE FUNCTION full_disk()",
            "CREATE TRIGGER full_disk BEFORE INSERT ON points EXECUTE FUNCTION full_disk()",
        ):
            postgres_server.ask(database, statement)
        time.sleep(4)
        postgres_server.ask(database, "DROP FUNCTION full_disk CASCADE")

    ride_out(postgres_url, plan, forty_undisturbed, fill)


def test_a_server_that_does_not_come_back_ends_the_sweep_with_a_reason(
    plan, forty_undisturbed, postgres_server, postgres_url, monkeypatch
):
    monkeypatch.setenv("ADVSWEEP_STORE_PATIENCE", "2s")
    monkeypatch.setattr(main, "ORPHAN_SECONDS", 0.5)
    forty = replace(plan(*SLOW, "seed=0,1"), executor=PatientExecutor())
    with patient(postgres_url) as store:
        disturb = Once(store, postgres_server.stop)
        try:
            with pytest.raises(StoreUnavailableError, match=r"no connection .*\(tried for 2 s\)$"):
                execute(forty, store, on_event=disturb, policy=NO_RETRIES)
            disturb.end()
        finally:
            postgres_server.start()
        monkeypatch.setenv("ADVSWEEP_STORE_PATIENCE", "1m")
        deadline = time.monotonic() + 30
        while Status.RUNNING in {run.status for run in store.runs.select()}:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert execute(forty, store).exit_code == 0
        assert measured(store) == forty_undisturbed
