"""Benchmark the store: writes per second by one and several processes, and queries of tables.

    python benchmarks/bench_store.py
    python benchmarks/bench_store.py postgresql://USER@HOST/DATABASE   # an empty one, left filled

Beside each figure by the clock stands, in parentheses, the same per second of this process's
CPU time, which is what a machine with nothing else to do would come near to.
"""

from __future__ import annotations

import contextlib
import io
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from figures import head, show

from advsweep.cli.commands.ls import ls
from advsweep.names import ACR
from advsweep.store import NewRun, Owner, Status, Store, open_store
from advsweep.sweep.early_stopping import EarlyAcr, StoppingCheck

BATCH = 1000
BATCHES = 200
COMMITS = 5000
PLAIN_COMMITS = 300
WRITERS = 4
WRITER_BATCHES = 50
RUNS = 1000
STEPS = 200
LISTED_RUNS = 10_000
SWEEP = "listed"
REPEATS = 5

WRITER = """
import sys, time
from advsweep.errors import StoreError
from advsweep.store import open_store
run, batches, size = map(int, sys.argv[1:4])
store = open_store(sys.argv[4], create=False)
print("ready", flush=True)
sys.stdin.readline()
errors = 0
for b in range(batches):
    points = [(f"metric {i % 20}", b * size + i // 20, float(i)) for i in range(size)]
    try:
        store.metrics.record(run, points)
    except StoreError:
        errors += 1
print(errors)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"{folder}/advsweep.db"
        with open_store(url) as store:
            head("per s (CPU-s)")
            store.runs.add([_run(i) for i in range(RUNS)])
            _commits(store, _plain_commits(url, folder))
            _batches(store)
            _together(store)
            head("ms (CPU)")
            _queries(store)
            _listing(store)
            _judgements(store)


def _run(seed: int) -> NewRun:
    return NewRun(
        identity=f"{seed:064x}",
        config_hash=f"{seed // 5:064x}",
        seed=seed % 5,
        config={"estimator": {"name": "grpo", "eps": 0.0}, "group_size": 8, "seed": seed % 5},
        steps=STEPS,
        estimator="grpo",
        backend="tiny",
    )


def _commits(store: Store, peer: tuple[str, str]) -> None:
    def write() -> None:
        for step in range(COMMITS):
            store.metrics.record(2, [("metric 0", step, 1.0)])

    def beat() -> None:
        for step in range(COMMITS):
            store.metrics.record(3, [("metric 0", step, 1.0)], step=step)

    show("commits/s of one point", _rate(COMMITS, write), "8,000", *peer)
    store.leases.claim(3, Owner.current())
    show("commits/s of a point with a heartbeat", _rate(COMMITS, beat))
    store.leases.finish(3, Status.DONE)


def _plain_commits(url: str, folder: str) -> tuple[str, str]:
    """Returns the rate of the driver alone, one insert per commit, and its settings."""
    if not url.startswith("postgresql"):
        connection: Any = sqlite3.connect(f"{folder}/plain.db")
        name, place = "sqlite3 with SQLite's defaults", "?"
    else:
        # Use SQLAlchemy's connection, so that the peer has the same driver and settings.
        connection = open_store(url).database.writer.raw_connection()
        name, place = "the driver alone, settings as ours", "%s"
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE plain (step INTEGER, value DOUBLE PRECISION)")
    connection.commit()

    def write() -> None:
        for step in range(PLAIN_COMMITS):
            cursor.execute(f"INSERT INTO plain VALUES ({place}, {place})", (step, 1.0))
            connection.commit()

    rate = _rate(PLAIN_COMMITS, write)
    cursor.execute("DROP TABLE plain")
    connection.commit()
    connection.close()
    return rate, name


def _batches(store: Store) -> None:
    names = [f"metric {i}" for i in range(20)]
    batches = [
        [(names[i % 20], b * BATCH + i // 20, float(i)) for i in range(BATCH)]
        for b in range(BATCHES)
    ]

    def write() -> None:
        for batch in batches:
            store.metrics.record(1, batch)

    show(f"points/s in batches of {BATCH:,}", _rate(BATCHES * BATCH, write), "100,000")


def _together(store: Store) -> None:
    arguments = [str(WRITER_BATCHES), str(BATCH), store.url]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(run), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for run in range(3, 3 + WRITERS)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    began = time.perf_counter()
    outputs = [process.communicate("go\n")[0] for process in processes]
    seconds = time.perf_counter() - began
    errors = sum(int(output) for output in outputs)
    points = WRITERS * WRITER_BATCHES * BATCH
    show(f"points/s of {WRITERS} processes together", f"{points / seconds:,.0f}")
    show("  lock errors among them", f"{errors}", "0")


def _queries(store: Store) -> None:
    ids = [run.id for run in store.runs.select()]
    curve = [("collapse/acr", step, 1 / step) for step in range(1, STEPS + 1)]
    for run_id in ids:
        store.metrics.record(run_id, curve)
    name = "collapse/acr"
    curves = _milliseconds(lambda: store.metrics.series(ids, name))
    show(f"a metric's curves of {RUNS:,} runs, {STEPS} steps each", curves, "300")
    last = _milliseconds(lambda: store.metrics.last_values(ids, [name]))
    show(f"a metric's last values in {RUNS:,} runs", last)
    means = _milliseconds(lambda: store.metrics.means(ids, name, last=10))
    show("its means over the last 10 steps", means)


def _listing(store: Store) -> None:
    store.sweeps.add(SWEEP, {})
    store.runs.add([_run(i) for i in range(LISTED_RUNS)], SWEEP)
    newest = _milliseconds(lambda: ls(store=store.url))
    show(f"`ls` over {LISTED_RUNS:,} runs, the newest 50", newest, "300")
    whole = _milliseconds(lambda: ls(store=store.url, limit=0))
    show("`ls --all`", whole)


def _judgements(store: Store) -> None:
    """Benchmarks a rule for early stopping beside many runs with more steps."""
    ids = [run.id for run in store.runs.select(sweep=SWEEP)]
    points = [(m, s, 1 / s) for m in ("reward/mean", ACR) for s in range(1, 51)]
    for run_id in ids:
        store.leases.claim(run_id, Owner.current(), holder=Owner.current())
        store.metrics.record(run_id, points, step=50)
    store.runs.set_stopping(ids[:1], EarlyAcr().plain())
    (run,) = store.runs.select(ids=ids[:1])
    check = StoppingCheck(store, run)
    cost = _milliseconds(lambda: check.judge(50))
    show(f"a judgement by `acr` beside {LISTED_RUNS:,} runs", cost, "100")


def _rate(number: int, work: Callable[[], object]) -> str:
    seconds, cpu = _time(work)
    return f"{number / seconds:,.0f} ({number / cpu:,.0f})"


def _milliseconds(work: Callable[[], object]) -> str:
    """Formats the median wall-clock and CPU time of several calls; discards their output."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        work()
        goes = [_time(work) for _ in range(REPEATS)]
    seconds, cpu = (statistics.median(each) for each in zip(*goes, strict=True))
    return f"{seconds * 1e3:,.0f} ({cpu * 1e3:,.0f})"


def _time(work: Callable[[], object]) -> tuple[float, float]:
    """Returns wall-clock seconds and CPU seconds of this process."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - cpu


if __name__ == "__main__":
    main()
