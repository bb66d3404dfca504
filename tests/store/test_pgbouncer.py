"""A store behind PgBouncer in transaction mode: two sessions of the server for all processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from advsweep.store import Owner, Status, open_store

BOUNCER = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"

SETTINGS = """
[databases]
* = host={server} user=advsweep
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
logfile = {folder}/log.txt
pidfile = {folder}/pid
"""


@pytest.fixture
def bounced_url(postgres_server, postgres_url):
    """The URL of an empty store behind PgBouncer."""
    if not os.path.exists(BOUNCER):
        pytest.skip("PgBouncer is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = postgres_server.folder / "bouncer"
    folder.mkdir()
    (folder / "settings.ini").write_text(
        SETTINGS.format(server=postgres_server.folder, port=port, folder=folder)
    )
    user = {}
    if os.geteuid() == 0:  # it refuses to run as root
        os.chown(folder, 65534, 65534)
        user = {"user": 65534, "group": 65534, "extra_groups": []}
    process = subprocess.Popen([BOUNCER, "-q", str(folder / "settings.ini")], **user)
    deadline = time.monotonic() + 60
    while socket.socket().connect_ex(("127.0.0.1", port)):
        assert process.poll() is None, (folder / "log.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    database = postgres_url.partition("@/")[2].partition("?")[0]
    yield f"postgresql://advsweep@127.0.0.1:{port}/{database}?sslmode=disable"
    process.send_signal(signal.SIGTERM)
    process.wait()
    shutil.rmtree(folder)


def test_many_processes_share_two_sessions(bounced_url, new_run, postgres_server):
    with open_store(bounced_url) as store:
        ids = store.runs.add([new_run(seed=seed) for seed in range(24)])

    def train(number: int) -> int:
        # Each its own store, as processes of their own have.
        trained = 0
        with open_store(bounced_url, create=False, patience=60) as store:
            while (run_id := store.leases.claim_next(Owner.current())) is not None:
                for step in range(1, 6):
                    store.metrics.record(run_id, [("reward/mean", step, 0.5)], step=step)
                store.leases.finish(run_id, Status.DONE)
                trained += 1
        return trained

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(train, range(8))) == len(ids)
    with open_store(bounced_url, create=False) as store:
        assert {run.status for run in store.runs.select()} == {Status.DONE}
        points = [len(list(store.metrics.points(run_id))) for run_id in ids]
    assert points == [5] * len(ids)


def test_each_transaction_has_its_limits_and_leaves_none_behind(bounced_url, postgres_server):
    names = ("lock_timeout", "synchronous_commit", "transaction_isolation")
    with open_store(bounced_url) as store:
        for database, level in (
            (store.database.read, "repeatable read"),
            (store.database.write, "read committed"),
        ):
            with database() as connection:
                shown = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names]
            assert shown == ["30s", "off", level]
        # What another program would find in the same session.
        with store.database.writer.pool.connect() as plain:
            cursor = plain.cursor()
            cursor.execute("SHOW lock_timeout")
            assert cursor.fetchone()[0] == "0"
