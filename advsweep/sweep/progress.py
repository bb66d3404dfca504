"""How far a sweep is: labels of its runs, a status from the store, and a live view."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING, Any, TextIO

from advsweep.components import Plain, leaves
from advsweep.errors import rough_duration
from advsweep.names import COLLAPSED, REWARD_MEAN, STEP_SECONDS
from advsweep.printable import printable, printable_line
from advsweep.store import Status
from advsweep.store.races import RaceRecord, read_race
from advsweep.sweep.events import Event, EventKind, SweepProgress
from advsweep.tasks.controls import titled

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.store.tuning_records import TuningRecord
    from advsweep.sweep.planning.plan import Plan

REFRESH_SECONDS = 0.5
LINE_SECONDS = 30.0
SHOWN_RUNS = 20
BAR = 12  # characters of the bar

# Number of a run's newest steps from which its speed is computed.
RECENT_STEPS = 20

# The error of a lost run: its lease expired before an outcome was recorded.
LOST_REASON = "its process exited or stopped its heartbeat without recording an outcome"

# What of a run needs no more training.
_COMPLETE = {EventKind.DONE, EventKind.SKIPPED, EventKind.PRUNED}

_SHOWN_FIELDS = ("id", "estimator", "seed", "host", "pid", "step", "steps", "stage")


def config_labels(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a label for each resolved config, such as `fade seed=1 group_size=16`.

    A label has the estimator, the seed, and the keys that vary between runs of the same
    components. Between two estimators nearly every key varies, so such pairs do not count.
    """
    configs = list(configs)
    return [
        " ".join([titled(config["estimator"]["name"], config), f"seed={config['seed']}", *parts])
        for config, parts in zip(configs, varying_keys(configs), strict=True)
    ]


def varying_keys(configs: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Return what tells each config apart besides estimator and seed, such as `group_size=16`."""
    configs = list(configs)
    # Runs of a plan share equal nodes: each is flattened once, known by its mark.
    marks = [[_mark(key, value) for key, value in config.items()] for config in configs]
    leaves_of: dict[_Mark, list[tuple[str, str]]] = {}
    for config, marks_of_config in zip(configs, marks, strict=True):
        for mark, (key, value) in zip(marks_of_config, config.items(), strict=True):
            if mark not in leaves_of:
                leaves_of[mark] = [(name, str(leaf)) for name, leaf in leaves({key: value})]
    vary = _varying(marks, leaves_of)
    texts = {
        mark: [f"{key.removesuffix('.name')}={value}" for key, value in flat if key in vary]
        for mark, flat in leaves_of.items()
    }
    return [[text for mark in each for text in texts[mark]] for each in marks]


# A key of a config, with what stands for its value: the `id` of a node, or a text.
_Mark = tuple[str, int | str]


def _mark(key: str, value: Any) -> _Mark:
    return key, id(value) if isinstance(value, Mapping) else str(value)


def _varying(
    marks: Sequence[Sequence[_Mark]], leaves_of: Mapping[_Mark, Sequence[tuple[str, str]]]
) -> set[str]:
    """Return the dotted keys of which runs of the same components have different values.

    Args:
        marks: what each config is made of.
        leaves_of: the dotted keys of each mark, with the texts of their values.
    """
    components_of = {
        mark: tuple((key, value) for key, value in flat if key.endswith(".name"))
        for mark, flat in leaves_of.items()
    }
    # Between two estimators nearly every key varies: only like runs are compared.
    groups: dict[tuple[str, ...], set[_Mark]] = {}
    for each in marks:
        components = [pair for mark in each for pair in components_of[mark]]
        group = groups.setdefault(tuple(value for _, value in components), set())
        group.update(each)
    vary = _with_several_values(components_of.values()) - {"estimator.name"}
    for group in groups.values():
        vary |= _with_several_values(leaves_of[mark] for mark in group)
    return vary - {"seed", "control.name"}  # labels have both anyway


def _with_several_values(listed: Iterable[Sequence[tuple[str, str]]]) -> set[str]:
    """Return the keys that have different values in lists of keys and values."""
    values_of: dict[str, set[str]] = defaultdict(set)
    for pairs in listed:
        for key, value in pairs:
            values_of[key].add(value)
    return {key for key, values in values_of.items() if len(values) > 1}


@dataclass(frozen=True, kw_only=True)
class SweepStatus:
    """The state of all runs.

    Attributes:
        states: number of runs in each state, zeros included.
        trained, steps: how many steps the runs have done, and should do.
        seconds_left: the time for what is left, without failed runs, at the speed of the running
            ones; None if unknown.
        running: a row for each run that a process trains: the seconds since its process's last
            heartbeat, the speed over its newest steps without evaluations, and the seconds that
            its remaining steps take at that speed; None if missing.
        failures: the lost ones and the newest failures; each has an error.
        collapsed: ids of the finished runs whose policy collapsed in training.
        tuning: what was chosen for each arm of the sweep; None without a tuning.
        race: how its arms stand; None without a race.
    """

    runs: int
    states: Mapping[Status, int]
    trained: int
    steps: int
    seconds_left: float | None
    running: Sequence[Plain]
    failures: Sequence[RunRecord]
    collapsed: Sequence[int] = ()
    tuning: TuningRecord | None = None
    race: RaceRecord | None = None


def read_status(store: Store, sweep: str | None = None, *, failures: int) -> SweepStatus:
    """Read the status of a sweep, or of the whole store.

    Args:
        failures: maximum number of failures in it.

    Raises:
        NotFoundError: there is no such sweep.
    """
    states = store.runs.count_by_status(sweep)
    running = store.runs.select(sweep=sweep, status=Status.RUNNING, newest_first=False)
    lost = store.runs.select(sweep=sweep, status=Status.LOST, limit=failures)
    failed = store.runs.select(ids=store.runs.last_finished(Status.FAILED, sweep, limit=failures))
    times = seconds_per_step(store, running)
    done = store.runs.last_finished(Status.DONE, sweep, limit=states[Status.DONE])
    summaries = store.metrics.summaries(done)
    now = datetime.now(UTC)
    rows = []
    for run in running:
        took = times.get(run.id)
        age = None if run.heartbeat is None else max(0.0, (now - run.heartbeat).total_seconds())
        rows.append(
            {
                **{key: getattr(run, key) for key in _SHOWN_FIELDS},
                "heartbeat_age": age,
                "steps_per_second": 1 / took if took else None,
                "seconds_left": None if took is None else (run.steps - run.step) * took,
                "stop_requested": run.stop_requested,
            }
        )
    counts = store.runs.count_steps(sweep)
    speed = sum(1 / took for took in times.values() if took)
    return SweepStatus(
        runs=sum(states.values()),
        states=states,
        trained=counts.done,
        steps=counts.planned,
        seconds_left=counts.left / speed if speed else None,
        running=rows,
        failures=[*(replace(run, error=LOST_REASON) for run in lost), *failed][:failures],
        collapsed=sorted(i for i, values in summaries.items() if values.get(COLLAPSED)),
        tuning=None if sweep is None else store.sweeps.tuning(sweep),
        race=None if sweep is None else read_race(store, sweep),
    )


def seconds_per_step(store: Store, running: Sequence[RunRecord]) -> dict[int, float]:
    """Return the time of a training step of each run; runs without steps are left out.

    Runs that one process trains together wait for each other: each step takes as long as the
    steps of all of them.
    """
    alone: dict[int, float] = {}
    for run in running:
        times: dict[str, list[float]] = defaultdict(list)
        for name, _, seconds in store.metrics.points(
            run.id, STEP_SECONDS, since=run.step - RECENT_STEPS + 1
        ):
            times[name].append(seconds)
        if times:
            alone[run.id] = sum(map(fmean, times.values()))
    of_process: dict[tuple[str | None, int | None], float] = defaultdict(float)
    for run in running:
        of_process[run.host, run.pid] += alone.get(run.id, 0.0)
    return {run.id: of_process[run.host, run.pid] for run in running if run.id in alone}


def bar_line(share: float, parts: Sequence[str]) -> str:
    """Return a bar and parts of text, of which those are left out that the terminal cannot fit."""
    width = shutil.get_terminal_size().columns - 1
    done = int(BAR * min(1, share))
    line = f"[{'=' * done}{' ' * (BAR - done)}] {parts[0]}"
    for part in parts[1:]:
        if len(line) + 2 + len(part) <= width:
            line += f", {part}"
    return line[:width]


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


@contextmanager
def live_view(plan: Plan, store: Store) -> Iterator[Callable[[Event], None]]:
    """Show a sweep on stderr; the yielded function is the scheduler's `on_event`."""
    view = View(plan, store, sys.stderr)
    try:
        yield view.handle
    finally:
        view.say_skipped()
        view.clear()


class View:
    """Counts the events of a sweep, and prints starts, ends, failures and the progress.

    On a terminal the progress is a last line that is written anew twice a second; elsewhere a line
    every half minute.
    """

    def __init__(self, plan: Plan, store: Store, stream: TextIO) -> None:
        self._store = store
        self._stream = stream
        self._is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        configs = {planned.run.identity: planned.config for planned in plan.runs}
        self._labels = dict(zip(configs, config_labels(configs.values()), strict=True))
        self._steps = sum(planned.run.steps for planned in plan.runs)
        self._last: dict[int, tuple[EventKind, RunRecord]] = {}
        self._begin: tuple[float, int] | None = None
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
        self._say(f"run {run.id} ({label}) {event.kind.value}{reason}")

    def say_skipped(self) -> None:
        """Print how many runs were skipped since the last time."""
        if self._skipped:
            skipped = self._skipped
            self._skipped = 0
            self._say(f"{skipped} of {len(self._labels)} runs were done before")

    def clear(self) -> None:
        """Remove the line of the progress from a terminal."""
        if self._is_terminal:
            self._write("\r\x1b[K")

    def _update(self, progress: SweepProgress) -> None:
        """Print the progress, if it is time."""
        self.say_skipped()
        if progress.stopping and not self._stopping:
            self._say("stopping: the runs write a checkpoint; Ctrl-C again kills them")
        self._stopping = progress.stopping
        interval = REFRESH_SECONDS if self._is_terminal else LINE_SECONDS
        if time.monotonic() - self._updated < interval:
            return
        self._updated = time.monotonic()
        running = self._store.runs.select(ids=list(progress.active))
        trained, left = self._count_steps(running)
        ends = Counter(kind for kind, _ in self._last.values())
        done = ends[EventKind.DONE] + ends[EventKind.SKIPPED]
        parts = [f"{done} of {len(self._labels)} done"]
        time_left = self._describe_time_left(trained, left)
        if time_left:
            parts.append(time_left)
        parts += _describe_states(progress, ends)
        parts += self._describe_running(running[:SHOWN_RUNS])
        parts = [printable_line(part) for part in parts]
        if not self._is_terminal:
            self._say(", ".join(parts))
            return
        # A line that wraps could not be written anew. The cursor goes back to its start, where
        # messages of others begin.
        self._write(f"\r\x1b[K{bar_line(trained / self._steps, parts)}\r")

    def _count_steps(self, running: Sequence[RunRecord]) -> tuple[int, int]:
        """Return how many steps are done, and how many are left to do."""
        trained = sum(run.step for run in running)
        skipped = 0
        for kind, run in self._last.values():
            if kind in _COMPLETE:
                trained += run.steps
            # At this session's end a failed run is what it is: nothing of it is left to train.
            elif kind is EventKind.FAILED:
                trained += run.step
                skipped += run.steps - run.step
        return trained, self._steps - trained - skipped

    def _describe_time_left(self, trained: int, left: int) -> str:
        """Return the time for the steps left at this session's speed, evaluations included."""
        if self._begin is None:
            self._begin = self._updated, trained
        began, trained_before = self._begin
        if trained <= trained_before or left <= 0:
            return ""
        speed = (trained - trained_before) / (self._updated - began)
        return f"about {rough_duration(left / speed)} left"

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

    def _say(self, line: str) -> None:
        """Print a permanent line."""
        self.clear()
        self._write(f"{printable(line)}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
