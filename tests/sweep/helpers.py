"""What tests of running sweeps share: what was measured, who is alive, and waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from advsweep.store import RunRecord, Store
from advsweep.store.owners import process_started

Measured = dict[int, list[tuple[str, int, float]]]


def measured(store: Store) -> Measured:
    """What the run of each seed measured, times left out."""
    return {
        run.seed: [
            p for p in store.metrics.points(run.id) if not p[0].startswith(("time/", "memory/"))
        ]
        for run in store.runs.select()
    }


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def workers(store: Store) -> list[int]:
    """The processes that have, or had, a run and are still there."""
    pids = [run.pid for run in store.runs.select() if run.pid not in (None, os.getpid())]
    return [pid for pid in pids if pid is not None and process_started(pid) is not None]


def log_of(run: RunRecord) -> str:
    return (run.directory / "log.txt").read_text(encoding="utf-8")
