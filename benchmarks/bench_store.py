"""What the store costs: writes per second, alone and together, and the queries behind tables.

    python benchmarks/bench_store.py
    python benchmarks/bench_store.py postgresql://USER@HOST/DATABASE   # an empty one, left filled

Figures are of the machine at hand; the targets on SQLite are 8,000 single commits/s, 100,000
points/s in batches of 1,000, no lock error with four writers, and 300 ms for a metric's curves
of 1,000 runs and for `ls` over 10,000 runs.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from advsweep.cli.ls import ls
from advsweep.store import NewRun, Store, open_store

BATCH = 1000
BATCHES = 200
COMMITS = 5000
WRITERS = 4
WRITER_BATCHES = 50
RUNS = 1000
STEPS = 200
LISTED_RUNS = 10_000

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
        store.add_points(run, points)
    except StoreError:
        errors += 1
print(errors)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"{folder}/advsweep.db"
        with open_store(url) as store:
            store.add_runs([_run(i) for i in range(RUNS)])
            rows = [
                _batches(store),
                _commits(store),
                _together(store),
                *_queries(store),
                _listing(store),
            ]
    width = max(len(name) for name, _ in rows)
    for name, figure in rows:
        print(f"{name:<{width}}  {figure}")


def _run(seed: int) -> NewRun:
    return NewRun(
        identity=f"{seed:064x}",
        config_hash=f"{seed // 5:064x}",
        seed=seed % 5,
        config={"estimator": {"name": "grpo", "eps": 0.0}, "group_size": 8, "seed": seed % 5},
        steps=STEPS,
        estimator="grpo",
        backend="fake",
    )


def _batches(store: Store) -> tuple[str, str]:
    names = [f"metric {i}" for i in range(20)]
    batches = [
        [(names[i % 20], b * BATCH + i // 20, float(i)) for i in range(BATCH)]
        for b in range(BATCHES)
    ]
    seconds, cpu = _time(lambda: [store.add_points(1, batch) for batch in batches])
    points = BATCHES * BATCH
    return (
        f"metric points, batches of {BATCH:,}",
        f"{points / seconds:>9,.0f} /s  ({points / cpu:,.0f} per CPU-second)",
    )


def _commits(store: Store) -> tuple[str, str]:
    def write() -> None:
        for step in range(COMMITS):
            store.add_points(2, [("metric 0", step, 1.0)])

    seconds, cpu = _time(write)
    return (
        "single commits",
        f"{COMMITS / seconds:>9,.0f} /s  ({COMMITS / cpu:,.0f} per CPU-second)",
    )


def _together(store: Store) -> tuple[str, str]:
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
    return (
        f"{WRITERS} processes, batches of {BATCH:,}",
        f"{WRITERS * WRITER_BATCHES * BATCH / seconds:>9,.0f} /s in all, {errors} lock errors",
    )


def _queries(store: Store) -> list[tuple[str, str]]:
    ids = [run.id for run in store.runs()]
    curve = [("collapse/acr", step, 1 / step) for step in range(1, STEPS + 1)]
    for run_id in ids:
        store.add_points(run_id, curve)
    queries: dict[str, Callable[[], object]] = {
        f"a metric's curves of {RUNS:,} runs": lambda: store.series(ids, "collapse/acr"),
        f"a metric's last values in {RUNS:,} runs": lambda: store.last_values(
            ids, ["collapse/acr"]
        ),
        f"a metric's mean over the last 10 steps, {RUNS:,} runs": lambda: store.means(
            ids, "collapse/acr", last=10
        ),
        "the newest 50 runs": lambda: store.runs(limit=50),
        f"all {RUNS:,} runs": store.runs,
    }
    return [(name, _milliseconds(query)) for name, query in queries.items()]


def _listing(store: Store) -> tuple[str, str]:
    store.add_runs([_run(i) for i in range(LISTED_RUNS)])
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return f"`ls` over {LISTED_RUNS:,} runs", _milliseconds(lambda: ls(store=store.url))


def _milliseconds(work: Callable[[], object]) -> str:
    seconds, cpu = _time(work)
    return f"{seconds * 1e3:>9,.1f} ms  ({cpu * 1e3:,.1f} ms of CPU)"


def _time(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock and of this process's CPU time."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - cpu


if __name__ == "__main__":
    main()
