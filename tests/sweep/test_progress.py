"""What is shown of an execution while it goes on."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from advsweep.store import Owner, RunRecord, Store
from advsweep.sweep import progress
from advsweep.sweep.events import EventKind, RunEvent, SweepProgress
from advsweep.sweep.planning.labels import labels
from advsweep.sweep.planning.plan import Plan
from advsweep.sweep.progress import View
from advsweep.sweep.scheduler.runs import schedule_runs

Planner = Callable[..., Plan]


def named(plan: Plan) -> list[str]:
    by_identity = labels(plan)
    return [by_identity[planned.run.identity] for planned in plan.runs]


def test_labels_have_what_varies_and_no_more(plan: Planner) -> None:
    assert named(plan("estimator=grpo,fade", "seed=0,1")) == [
        "grpo seed=0",
        "grpo seed=1",
        "fade seed=0",
        "fade seed=1",
    ]
    assert named(plan("group_size=4,8", "optimizer.lr=1e-4")) == [
        "grpo seed=0 group_size=4",
        "grpo seed=0 group_size=8",
    ]
    assert named(plan("estimator=asym_grpo", "estimator.delta=0.5,2")) == [
        "asym_grpo seed=0 estimator.delta=0.5",
        "asym_grpo seed=0 estimator.delta=2.0",
    ]


@pytest.fixture
def running(plan: Planner, store: Store) -> tuple[Plan, list[RunRecord]]:
    """Two runs, the first of them being trained."""
    pair = plan("seed=0,1", name="pair")
    schedule_runs(pair, store, force=False)
    store.leases.claim(1, Owner.current())
    store.leases.heartbeat(1, step=6, stage="training")
    store.metrics.record(1, [("reward/mean", 6, 0.25), ("collapse/acr", 6, 0.125)])
    return pair, store.runs.select(newest_first=False)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.0)
    return Console(file=io.StringIO(), force_terminal=True, width=120, height=40)


def test_a_table_shows_progress_and_last_values(
    running: tuple[Plan, list[RunRecord]], store: Store, console: Console
) -> None:
    pair, (first, second) = running
    view = View(pair, store, io.StringIO(), console)
    with view.shown():
        view.handle(RunEvent(EventKind.STARTED, first))
        view.handle(SweepProgress(active=[1], waiting=[], queued=1, stopping=False))
    text = shown(console)
    for part in ("grpo seed=0", "training", "6/20", "0.250", "0.125", "1 running, 1 to come"):
        assert part in text
    with view.shown():
        view.handle(RunEvent(EventKind.FAILED, second, "step 3: no good"))
    assert "run 2 (grpo seed=1) failed: step 3: no good" in shown(console)
    assert "1 failed" in shown(console)


def test_lines_say_what_starts_fails_and_ends(
    running: tuple[Plan, list[RunRecord]], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, (first, second) = running
    stream = io.StringIO()
    view = View(pair, store, stream)
    view.handle(RunEvent(EventKind.STARTED, first))
    view.handle(SweepProgress(active=[1], waiting=[], queued=1, stopping=False))
    view.handle(RunEvent(EventKind.FAILED, second, "step 3: no good"))
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    view.handle(SweepProgress(active=[1], waiting=[], queued=0, stopping=False))
    monkeypatch.undo()
    view.handle(SweepProgress(active=[1], waiting=[], queued=0, stopping=True))
    view.handle(SweepProgress(active=[1], waiting=[], queued=0, stopping=True))
    with view.shown():
        view.handle(RunEvent(EventKind.SKIPPED, first))
        view.handle(RunEvent(EventKind.SKIPPED, second))
    assert stream.getvalue().splitlines() == [
        "run 1 (grpo seed=0) started",
        "run 2 (grpo seed=1) failed: step 3: no good",
        "0 of 2 done, 1 running, 1 failed (run 1 training 6/20)",
        "stopping: the runs write a checkpoint; Ctrl-C again kills them",
        "2 of 2 runs were done before",
    ]
