"""Benchmark exports of tables: 100,000 and 1,000,000 points, by time and memory.

    python benchmarks/bench_export.py

Runs have 10 metrics of 1,000 steps, and configs of the size of a run of the tiny backend. Each
export runs in a process of its own that has imported what it needs, so that its peak of memory
is its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_report import plan_run
from figures import head, show

from advsweep.report.data.export import FORMATS, export_tables
from advsweep.store import Owner, Status, Store, open_store

METRICS, STEPS = 10, 1_000
RUNS = (10, 100)


def main() -> None:
    head("s (CPU)")
    with tempfile.TemporaryDirectory() as folder:
        for runs in RUNS:
            url = f"{folder}/{runs}.db"
            with open_store(url) as store:
                _fill(store, runs)
            for form in FORMATS:
                command = [sys.executable, __file__, url, form, f"{folder}/{runs}-{form}"]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                seconds, cpu, megabytes = done.stdout.split()
                target = "5" if runs == RUNS[0] else ""
                points = runs * METRICS * STEPS
                show(f"{points:,} points to {form}", f"{seconds} ({cpu})", target)
                show("  peak of memory above the imports, MB", megabytes)


def _fill(store: Store, runs: int) -> None:
    store.sweeps.add("large", {})
    points = [(f"metric/{m}", s, 1 / (s + m)) for m in range(METRICS) for s in range(1, STEPS + 1)]
    for run_id in store.runs.add([plan_run(i, 25) for i in range(runs)], "large"):
        store.leases.claim(run_id, Owner.current())
        store.metrics.record(run_id, points)
        store.leases.finish(run_id, Status.DONE)


def _export(url: str, form: str, folder: str) -> None:
    with open_store(url, create=False) as store:
        # Imports what the format needs.
        export_tables(store, [], Path(f"{folder}-empty"), form)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began, cpu = time.perf_counter(), time.process_time()
        export_tables(store, store.runs.select(), Path(folder), form)
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{seconds:.1f} {used:.1f} {peak / 1024:.0f}")


if __name__ == "__main__":
    _export(*sys.argv[1:]) if len(sys.argv) > 1 else main()
