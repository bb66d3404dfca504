"""What is shown of an execution while it goes on."""

from __future__ import annotations

import io
import os

import pytest

from advsweep.names import EVALUATION_SECONDS, TRAINING_SECONDS
from advsweep.store import Owner
from advsweep.sweep import live_view, screens
from advsweep.sweep.events import EventKind, RunEvent, SweepProgress
from advsweep.sweep.live_view import View
from advsweep.sweep.scheduler.runs import schedule_runs
from advsweep.sweep.screens import LineScreen, TerminalScreen, screen_of
from advsweep.sweep.worker.environment import describe_environment


@pytest.fixture
def running(plan, store):
    """Two runs, the first of them being trained."""
    pair = plan("seed=0,1", name="pair")
    schedule_runs(pair, store, force=False)
    store.leases.claim(1, Owner.current())
    store.leases.heartbeat(1, step=6, stage="training")
    store.metrics.record(1, [("reward/mean", 6, 0.25)])
    return pair, store.runs.select(newest_first=False)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_last_line_of_a_terminal_is_written_anew(running, store, monkeypatch):
    monkeypatch.setattr(TerminalScreen, "interval", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    pair, (first, second) = running
    stream = Terminal()
    view = View(pair, store, 1, screen_of(stream))
    view.handle(RunEvent(EventKind.STARTED, first))
    view.handle(SweepProgress(active=[1], waiting=[], queued=1, stopping=False))
    view.handle(RunEvent(EventKind.FAILED, second, "step 3:\x1b[1m no good"))
    view.end()
    assert stream.getvalue().split("\r\x1b[K") == [
        "",
        "run 1 (grpo seed=0) started\n",
        # 6 of 40 steps.
        "[=           ] 0 of 2 done, 1 running, 1 to come, run 1 training 6/20 reward 0.250\r",
        "run 2 (grpo seed=1) failed: step 3:\\x1b[1m no good\n",
        "",
    ]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (
            110,
            "0 of 2 done, about 5 s left, 1 running, 1 to come, run 1 training 12/20 reward 0.250",
        ),
        (80, "0 of 2 done, about 5 s left, 1 running, 1 to come"),
        (60, "0 of 2 done, about 5 s left, 1 running"),
        (30, "0 of 2 done"),
    ],
)
def test_a_narrow_terminal_cuts_no_word(running, store, monkeypatch, columns, shown):
    """After 12 of 40 steps, each of 1/6 s: the other 28 take 4.7 s."""
    pair, _ = running
    store.metrics.set_summaries(1, {TRAINING_SECONDS: 1 / 6, EVALUATION_SECONDS: 0.0})
    store.runs.set_environment(1, describe_environment())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(
        screens.shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24))
    )
    stream, clock = Terminal(), [100.0]
    monkeypatch.setattr(live_view.time, "monotonic", lambda: clock[-1])
    view = View(pair, store, 1, screen_of(stream))
    for step in (6, 12):
        clock.append(clock[-1] + 1)
        store.leases.heartbeat(1, step=step, stage="training")
        view.handle(SweepProgress(active=[1], waiting=[], queued=1, stopping=False))
    last = stream.getvalue().split("\r\x1b[K")[-1]
    assert last == f"[===         ] {shown}\r"
    assert len(last) <= columns


def test_lines_say_what_starts_fails_and_ends(running, store, monkeypatch):
    pair, (first, second) = running
    stream = io.StringIO()
    view = View(pair, store, 1, screen_of(stream))
    view.handle(RunEvent(EventKind.STARTED, first))
    view.handle(SweepProgress(active=[1], waiting=[], queued=1, stopping=False))
    view.handle(RunEvent(EventKind.FAILED, second, "step 3: no good"))
    monkeypatch.setattr(LineScreen, "interval", 0.0)
    view.handle(SweepProgress(active=[1], waiting=[], queued=0, stopping=False))
    monkeypatch.undo()
    view.handle(SweepProgress(active=[1], waiting=[], queued=0, stopping=True))
    view.handle(SweepProgress(active=[1], waiting=[], queued=0, stopping=True))
    view.handle(RunEvent(EventKind.SKIPPED, first))
    view.handle(RunEvent(EventKind.SKIPPED, second))
    view.say_skipped()
    assert stream.getvalue().splitlines() == [
        "run 1 (grpo seed=0) started",
        "run 2 (grpo seed=1) failed: step 3: no good",
        "0 of 2 done, 1 running, 1 failed, run 1 training 6/20 reward 0.250",
        "stopping: the runs write a checkpoint; Ctrl-C again kills them",
        "2 of 2 runs were done before",
    ]
