"""Many processes with one store."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from advsweep.errors import StoreError
from advsweep.store import Owner, open_store

START = (
    "import sys, json\n"
    "from advsweep.store import Owner, Status, open_store\n"
    "store = open_store(sys.argv[1], create=False)\n"
    "print('ready', flush=True)\n"
    "sys.stdin.readline()\n"
)


def _together(programs: list[str], url: str) -> list[str]:
    """Runs programs side by side from a common start; what each of them printed."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", START + program, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for program in programs
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [process.communicate() for process in processes]
    assert [error for _, error in results] == [""] * len(processes)
    return [output for output, _ in results]


@pytest.mark.slow
def test_four_processes_write_points_at_once(store, new_run):
    store.runs.add([new_run(seed=i) for i in range(4)])
    program = (
        "for step in range(100):\n"
        "    store.metrics.record({run}, [(f'metric {{i}}', step, float(i)) for i in range(50)])\n"
    )
    _together([program.format(run=run) for run in (1, 2, 3, 4)], store.url)
    assert [len(store.metrics.points(run)) for run in (1, 2, 3, 4)] == [5000] * 4


@pytest.mark.slow
def test_eight_processes_never_claim_the_same_run(store, new_run):
    store.runs.add([new_run(seed=i) for i in range(40)])
    # Each goes through all of them and ends what it got, so that its next claim is a new one.
    program = (
        "won = []\n"
        "for run in range(1, 41):\n"
        "    if store.leases.claim(run, Owner.current()):\n"
        "        won.append(run)\n"
        "        store.leases.finish(run, Status.DONE)\n"
        "print(json.dumps(won))\n"
    )
    won = [json.loads(output) for output in _together([program] * 8, store.url)]
    assert sorted(run for runs in won for run in runs) == list(range(1, 41))


def test_a_reader_does_not_wait_for_a_writer(store, new_run):
    store.runs.add([new_run()])
    with open_store(store.url) as other, store.database.write() as connection:
        connection.exec_driver_sql("UPDATE runs SET step = 50")
        began = time.monotonic()
        assert [run.step for run in other.runs.select()] == [0]
        assert other.runs.count() == 1
        assert time.monotonic() - began < 10  # a writer would wait for 30 s
    assert [run.step for run in store.runs.select()] == [50]


def test_a_store_that_stays_locked_is_an_error_and_can_be_used_afterwards(
    tmp_path, new_run, monkeypatch
):
    monkeypatch.setattr("advsweep.store.connections.BUSY_SECONDS", 0.05)
    with open_store(str(tmp_path / "a.db")) as store, open_store(str(tmp_path / "a.db")) as other:
        with store.database.write():
            with pytest.raises(StoreError, match=r"a\.db: another process has kept it locked"):
                other.runs.add([new_run()])
            assert other.runs.select() == []
        assert other.runs.add([new_run()]) == [1]


def test_a_writer_that_reads_first_waits_for_its_turn(store, new_run):
    """Deferred transactions would fail here at once: both have read what only one may change."""
    store.runs.add([new_run(seed=i) for i in range(2)])
    program = (
        "for run in (1, 2):\n"
        "    for _ in range(40):\n"
        "        with store.database.write_alone() as connection:\n"
        "            query = f'SELECT step FROM runs WHERE id = {run}'\n"
        "            [[step]] = connection.exec_driver_sql(query)\n"
        "            change = f'UPDATE runs SET step = {step + 1} WHERE id = {run}'\n"
        "            connection.exec_driver_sql(change)\n"
    )
    _together([program] * 2, store.url)
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
