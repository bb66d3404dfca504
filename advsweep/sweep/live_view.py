"""The live view of a sweep: what starts, fails and ends, and how far it is."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advsweep.errors import rough_duration
from advsweep.names import REWARD_MEAN
from advsweep.printable import printable_line
from advsweep.sweep.events import Event, EventKind, SweepProgress
from advsweep.sweep.labels import config_labels
from advsweep.sweep.planning.eta import estimate
from advsweep.sweep.screens import Screen, screen_of

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.planning.plan import Plan

SHOWN_RUNS = 20
# Interval between two estimates of the time left, also as a multiple of what one takes: a sweep may
# have 10,000 runs.
ESTIMATE_SECONDS = 5.0
ESTIMATE_SHARE = 30.0

# What of a run needs no more training.
_COMPLETE = {EventKind.DONE, EventKind.SKIPPED, EventKind.PRUNED}


def _describe_states(progress: SweepProgress, ends: Mapping[EventKind, int]) -> list[str]:
    """Return how many runs are in each state; empty states are left out, but for `running`."""
    counts = {
        "running elsewhere": len(progress.waiting),
        "to come": progress.queued,
        "failed": ends[EventKind.FAILED],
        "interrupted": ends[EventKind.INTERRUPTED],
        "pruned": ends[EventKind.PRUNED],
    }
    parts = [f"{count} {state}" for state, count in counts.items() if count]
    return [f"{len(progress.active)} running", *parts]


@dataclass(frozen=True)
class _Countdown:
    """An estimate, and when it was made and is renewed, in monotonic seconds."""

    seconds: float | None
    made_at: float
    renewed_at: float

    def at(self, now: float) -> float | None:
        """Return the seconds left now; None once more than the estimate has passed."""
        if self.seconds is None or self.seconds <= now - self.made_at:
            return None
        return self.seconds - (now - self.made_at)


@contextmanager
def live_view(
    plan: Plan, store: Store, slots: int, screen: Screen | None = None
) -> Iterator[Callable[[Event], None]]:
    """Show a sweep; the yielded function is the scheduler's `on_event`.

    Args:
        slots: workers side by side.
        screen: where it is shown; None: on stderr.
    """
    view = View(plan, store, slots, screen or screen_of(sys.stderr))
    try:
        yield view.handle
    finally:
        view.end()


class View:
    """Counts the events of a sweep, and shows starts, ends, failures and the progress."""

    def __init__(self, plan: Plan, store: Store, slots: int, screen: Screen) -> None:
        self._plan = plan
        self._store = store
        self._slots = slots
        self._screen = screen
        configs = {planned.run.identity: planned.config for planned in plan.runs}
        self._labels = dict(zip(configs, config_labels(configs.values()), strict=True))
        self._steps = sum(planned.run.steps for planned in plan.runs)
        self._last: dict[int, tuple[EventKind, RunRecord]] = {}
        self._estimate: _Countdown | None = None
        self._stopping = False
        self._updated = time.monotonic()
        self._skipped = 0

    def handle(self, event: Event) -> None:
        """Handle an event of the scheduler."""
        if isinstance(event, SweepProgress):
            self._update(event)
            return
        self._last[event.run.id] = event.kind, event.run
        if event.kind is EventKind.SKIPPED:
            self._skipped += 1
            return
        self.say_skipped()
        run = event.run
        reason = f": {event.message}" if event.message else ""
        label = printable_line(self._labels.get(run.identity, run.estimator))
        self._screen.say(f"run {run.id} ({label}) {event.kind.value}{reason}")

    def say_skipped(self) -> None:
        """Print how many runs were skipped since the last time."""
        if self._skipped:
            skipped = self._skipped
            self._skipped = 0
            self._screen.say(f"{skipped} of {len(self._labels)} runs were done before")

    def end(self) -> None:
        """Show what is left to say, and end the progress."""
        self.say_skipped()
        self._screen.clear()

    def _update(self, progress: SweepProgress) -> None:
        """Print the progress, if it is time."""
        self.say_skipped()
        if progress.stopping and not self._stopping:
            self._screen.say("stopping: the runs write a checkpoint; Ctrl-C again kills them")
        self._stopping = progress.stopping
        if time.monotonic() - self._updated < self._screen.interval:
            return
        self._updated = time.monotonic()
        running = self._store.runs.select(ids=list(progress.active))
        trained = self._count_steps(running)
        ends = Counter(kind for kind, _ in self._last.values())
        done = ends[EventKind.DONE] + ends[EventKind.SKIPPED]
        parts = [f"{done} of {len(self._labels)} done"]
        seconds = self._seconds_left()
        if seconds is not None:
            parts.append(f"about {rough_duration(seconds)} left")
        parts += _describe_states(progress, ends)
        parts += self._describe_running(running[:SHOWN_RUNS])
        parts = [printable_line(part) for part in parts]
        self._screen.show(trained / self._steps, parts)

    def _count_steps(self, running: Sequence[RunRecord]) -> int:
        """Return how many steps are done."""
        trained = sum(run.step for run in running)
        for kind, run in self._last.values():
            if kind in _COMPLETE:
                trained += run.steps
            elif kind is EventKind.FAILED:
                trained += run.step
        return trained

    def _seconds_left(self) -> float | None:
        """Return the time left; None before a run of each kind has been measured."""
        now = time.monotonic()
        if self._estimate is None or now >= self._estimate.renewed_at:
            # At this session's end a failed run is what it is: nothing of it is left to train.
            failed = {run.identity for kind, run in self._last.values() if kind is EventKind.FAILED}
            runs = [planned for planned in self._plan.runs if planned.run.identity not in failed]
            plan = dataclasses.replace(self._plan, runs=runs)
            seconds = estimate(plan, self._store, self._slots).seconds
            took = time.monotonic() - now
            pause = max(ESTIMATE_SECONDS, ESTIMATE_SHARE * took)
            self._estimate = _Countdown(seconds, now, now + took + pause)
        return self._estimate.at(now)

    def _describe_running(self, running: Sequence[RunRecord]) -> list[str]:
        """Return how far each run is, with its reward."""
        rewards = self._store.metrics.last_values([run.id for run in running], [REWARD_MEAN])
        parts = []
        for run in running:
            stage = run.stage
            if stage in (None, "training"):
                stage = f"training {run.step}/{run.steps}"
            part = f"run {run.id} {stage}"
            reward = rewards.get(run.id, {}).get(REWARD_MEAN)
            if reward is not None:
                part += f" reward {reward:.3f}"
            parts.append(part)
        return parts
