"""Live views of a sweep: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from advsweep.printable import printable, printable_line
from advsweep.sweep.events import Event, EventKind, RunEvent, RunsAdded, SweepProgress
from advsweep.sweep.planning.labels import labels

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from advsweep.store import RunRecord, Store
    from advsweep.sweep.planning.plan import Plan

REFRESH_SECONDS = 0.5
LINE_SECONDS = 30.0
SHOWN_RUNS = 20

TRAINING = "training"

METRICS = {"reward/mean": "reward", "collapse/acr": "ACR", "entropy/token": "entropy"}
"""The metrics of each run, with their headings."""

_STYLES = {
    EventKind.DONE: "green",
    EventKind.SKIPPED: "green",
    EventKind.FAILED: "red",
    EventKind.INTERRUPTED: "yellow",
    EventKind.PRUNED: "cyan",
}
"""The styles of the events that end a run."""


@contextmanager
def live_view(plan: Plan, store: Store) -> Iterator[Callable[[Event], None]]:
    """Shows a sweep on stderr; the yielded function is the scheduler's `on_event`."""
    from rich.console import Console

    console = Console(stderr=True)
    view: View
    if not console.is_terminal or console.is_dumb_terminal:
        view = LineView(plan, store, sys.stderr)
    else:
        view = TableView(plan, store, console)
    with view.shown():
        yield view.handle


class View(ABC):
    """Counts the events of a sweep; subclasses show them."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self._store = store
        self._labels = labels(plan)
        self._total = len(self._labels)
        self._runs: dict[int, RunRecord] = {}
        self._ends: dict[int, EventKind] = {}
        self._progress = SweepProgress(active=(), waiting=(), queued=self._total, stopping=False)

    def handle(self, event: Event) -> None:
        """Handles an event of the scheduler."""
        if isinstance(event, RunEvent):
            self._runs[event.run.id] = event.run
            if event.kind in _STYLES:
                self._ends[event.run.id] = event.kind
            self._run_changed(event)
            return
        if isinstance(event, RunsAdded):
            self._labels.update(event.labels)
            self._total = event.total
            self._say(event.message)
            return
        stops_now = event.stopping and not self._progress.stopping
        self._progress = event
        if stops_now:
            self._say("stopping: the runs write a checkpoint; Ctrl-C again kills them")
        self._update()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Keeps the view on the screen meanwhile."""
        yield

    @abstractmethod
    def _run_changed(self, event: RunEvent) -> None:
        """Shows that a run changed its state."""

    @abstractmethod
    def _update(self) -> None:
        """Updates the view from time to time."""

    @abstractmethod
    def _say(self, line: str) -> None:
        """Prints a permanent line."""

    def _name(self, run: RunRecord) -> str:
        return f"run {run.id} ({self._label(run)})"

    def _label(self, run: RunRecord) -> str:
        return printable_line(self._labels.get(run.identity, run.estimator))

    def _refresh(self) -> None:
        """Reads the active runs from the store."""
        active = [*self._progress.active, *self._progress.waiting]
        self._runs.update((run.id, run) for run in self._store.runs.select(ids=active))

    def _counts(self) -> str:
        ends = Counter(self._ends.values())
        parts = [f"{ends[EventKind.DONE] + ends[EventKind.SKIPPED]} of {self._total} done"]
        parts += [f"{len(self._progress.active)} running"]
        for count, what in (
            (len(self._progress.waiting), "running elsewhere"),
            (self._progress.queued, "to come"),
            (ends[EventKind.FAILED], "failed"),
            (ends[EventKind.INTERRUPTED], "interrupted"),
            (ends[EventKind.PRUNED], "pruned"),
        ):
            parts += [f"{count} {what}"] if count else []
        return ", ".join(parts)


class LineView(View):
    """Plain lines: starts, ends and failures of runs, and the progress now and then."""

    def __init__(self, plan: Plan, store: Store, stream: TextIO) -> None:
        super().__init__(plan, store)
        self._stream = stream
        self._said = time.monotonic()
        self._skipped = 0

    @contextmanager
    def shown(self) -> Iterator[None]:
        yield
        self._say_skipped()

    def _run_changed(self, event: RunEvent) -> None:
        if event.kind is EventKind.SKIPPED:
            self._skipped += 1
            return
        self._say_skipped()
        reason = f": {event.message}" if event.message else ""
        self._say(f"{self._name(event.run)} {event.kind.value}{reason}")

    def _update(self) -> None:
        self._say_skipped()
        if time.monotonic() - self._said < LINE_SECONDS:
            return
        self._refresh()
        runs = [self._runs[i] for i in self._progress.active]
        steps = ", ".join(f"run {r.id} {_position(r)}" for r in runs[:SHOWN_RUNS])
        self._say(f"{self._counts()} ({steps})" if steps else self._counts())

    def _say_skipped(self) -> None:
        if self._skipped:
            self._say(f"{self._skipped} of {self._total} runs were done before")
            self._skipped = 0

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        self._stream.write(f"{printable(line)}\n")
        self._stream.flush()


class TableView(View):
    """A table of runs, redrawn in place: all of a small sweep, the active ones of a large sweep."""

    def __init__(self, plan: Plan, store: Store, console: Console) -> None:
        super().__init__(plan, store)
        self._console = console
        self._drawn = 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        from rich.live import Live

        with Live(
            console=self._console, get_renderable=self._table, auto_refresh=False
        ) as self._live:
            yield
            self._live.refresh()

    def _run_changed(self, event: RunEvent) -> None:
        if event.kind in (EventKind.FAILED, EventKind.RETRYING):
            self._say(f"{self._name(event.run)} {event.kind.value}: {event.message}")

    def _update(self) -> None:
        if time.monotonic() - self._drawn >= REFRESH_SECONDS:
            self._drawn = time.monotonic()
            self._refresh()
            self._live.refresh()

    def _say(self, line: str) -> None:
        self._console.print(printable(line), markup=False, highlight=False)

    def _table(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, caption=self._counts(), caption_justify="left")
        table.add_column("run", justify="right")
        table.add_column("what", overflow="ellipsis", no_wrap=True)
        table.add_column("status", no_wrap=True)
        table.add_column("step", justify="right", no_wrap=True)
        for heading in METRICS.values():
            table.add_column(heading, justify="right", no_wrap=True)
        shown = sorted(self._runs.values(), key=lambda run: run.id)
        if len(shown) > SHOWN_RUNS:
            active = {*self._progress.active, *self._progress.waiting}
            shown = [run for run in shown if run.id in active][:SHOWN_RUNS]
        values = self._store.metrics.last_values([run.id for run in shown], list(METRICS))
        for run in shown:
            own = values.get(run.id, {})
            numbers = [f"{own[name]:.3f}" if name in own else "" for name in METRICS]
            end = self._ends.get(run.id)
            # The table has a column of training steps.
            stage = "running" if _stage(run)[0] == TRAINING else _position(run)
            status = printable_line(end.value if end else stage)
            table.add_row(
                *(str(run.id), Text(self._label(run)), Text(status)),
                *(f"{run.step}/{run.steps}", *numbers),
                style=_STYLES[end] if end else None,
            )
        return table


def _position(run: RunRecord) -> str:
    """Returns the progress of a run, such as `training 60/150`."""
    stage, done, total = _stage(run)
    return stage if total is None else f"{stage} {done}/{total}"


def _stage(run: RunRecord) -> tuple[str, int, int | None]:
    """Returns stage, position and total: of a stage such as pretraining, or of the training.

    The total of a stage that reports no progress is None.
    """
    name, _, progress = (run.stage or "").rpartition(" ")
    done, slash, total = progress.partition("/")
    if name and slash and done.isdecimal() and total.isdecimal():
        return name, int(done), int(total)
    if run.stage not in (None, TRAINING):
        return run.stage, 0, None
    return TRAINING, run.step, run.steps
