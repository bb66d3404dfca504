"""What a sweep keeps for each run that is over: no memory, descriptors, threads or files."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

from advsweep.store import Status, Store
from advsweep.sweep.events import Event, EventKind, RunEvent
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.scheduler.execute import execute

pytestmark = pytest.mark.slow

RUNS = 40
WARM = 15
"""Runs after which all that is made once is there."""
BYTES_PER_RUN = 4000
QUICKEST = ("executor=local", "steps=1", "prompts_per_step=1", "evaluation.every=0")


class Held(NamedTuple):
    """What this process has when a run is done."""

    descriptors: float
    threads: float
    temporary: float


@pytest.fixture
def untraced() -> Iterator[None]:
    yield
    tracemalloc.stop()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_a_sweep_holds_nothing_of_runs_that_are_done(
    plan: Callable[..., Plan],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    untraced: None,
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    held: list[Held] = []
    kept = 0

    def on_event(event: Event) -> None:
        nonlocal kept
        if not isinstance(event, RunEvent) or event.kind is not EventKind.DONE:
            return
        descriptors = len(os.listdir("/proc/self/fd"))
        temporary = sum(len(files) for _, _, files in os.walk(folder))
        held.append(Held(descriptors, threading.active_count(), temporary))
        if len(held) == WARM:
            gc.collect()
            tracemalloc.start()
        elif len(held) == RUNS:
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()

    sweep = plan(*QUICKEST, f"seed=range({RUNS})", name="growth")
    execute(sweep, store, jobs=2, on_event=on_event)
    assert store.runs.count_by_status()[Status.DONE] == RUNS
    # One that is being started or ends has descriptors for a moment.
    early, late = (
        Held(*map(median, zip(*some, strict=True))) for some in (held[5:WARM], held[-10:])
    )
    assert late == pytest.approx(early, abs=1)
    assert kept / (RUNS - WARM) < BYTES_PER_RUN
    assert not list(folder.iterdir())
