"""The live view of a sweep: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from advsweep.printable import printable, printable_line
from advsweep.sweep.events import Event, EventKind, RunEvent, SweepProgress
from advsweep.sweep.planning.labels import labels

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from advsweep.store import RunRecord, Store
    from advsweep.sweep.planning.plan import Plan

REFRESH_SECONDS = 0.5
LINE_SECONDS = 30.0
SHOWN_RUNS = 20

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
    """Show a sweep on stderr; the yielded function is the scheduler's `on_event`."""
    from rich.console import Console

    console = Console(stderr=True)
    is_table = console.is_terminal and not console.is_dumb_terminal
    view = View(plan, store, sys.stderr, console if is_table else None)
    with view.shown():
        yield view.handle


class View:
    """Counts the events of a sweep and shows them.

    With a console it redraws a table of runs in place: all of a small sweep, the active ones of
    a large sweep. Else it prints starts, ends and failures, and the progress now and then.
    """

    def __init__(
        self, plan: Plan, store: Store, stream: TextIO, console: Console | None = None
    ) -> None:
        self._store = store
        self._stream = stream
        self._console = console
        self._live: Live | None = None
        self._labels = labels(plan)
        self._runs: dict[int, RunRecord] = {}
        self._ends: dict[int, EventKind] = {}
        self._progress = SweepProgress(
            active=(), waiting=(), queued=len(self._labels), stopping=False
        )
        self._updated = 0.0 if console else time.monotonic()
        self._skipped = 0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the view on the screen meanwhile."""
        if self._console is None:
            yield
            self._say_skipped()
            return
        from rich.live import Live

        with Live(
            console=self._console, get_renderable=self._table, auto_refresh=False
        ) as self._live:
            yield
            self._live.refresh()

    def handle(self, event: Event) -> None:
        """Handle an event of the scheduler."""
        if isinstance(event, RunEvent):
            run = event.run
            self._runs[run.id] = run
            if event.kind in _STYLES:
                self._ends[run.id] = event.kind
            if event.kind is EventKind.SKIPPED:
                self._skipped += 1
                return
            # The table shows all other changes.
            if self._live is None or event.kind in (EventKind.FAILED, EventKind.RETRYING):
                self._say_skipped()
                reason = f": {event.message}" if event.message else ""
                self._say(f"run {run.id} ({self._label(run)}) {event.kind.value}{reason}")
        else:
            stops_now = event.stopping and not self._progress.stopping
            self._progress = event
            if stops_now:
                self._say("stopping: the runs write a checkpoint; Ctrl-C again kills them")
            self._update()

    def _update(self) -> None:
        """Read the active runs from the store and show them, if it is time."""
        interval = REFRESH_SECONDS if self._live else LINE_SECONDS
        if self._live is None:
            self._say_skipped()
        if time.monotonic() - self._updated < interval:
            return
        self._updated = time.monotonic()
        active = self._progress.active
        ids = [*active, *self._progress.waiting]
        self._runs.update((run.id, run) for run in self._store.runs.select(ids=ids))
        if self._live is not None:
            self._live.refresh()
            return
        steps = [f"run {i} {_position(self._runs[i])}" for i in active[:SHOWN_RUNS]]
        self._say(f"{self._counts()} ({', '.join(steps)})" if steps else self._counts())

    def _say_skipped(self) -> None:
        if self._skipped and self._live is None:
            skipped, self._skipped = self._skipped, 0
            self._say(f"{skipped} of {len(self._labels)} runs were done before")

    def _say(self, line: str) -> None:
        """Print a permanent line."""
        if self._console is not None:
            self._console.print(printable(line), markup=False, highlight=False)
            return
        self._updated = time.monotonic()
        self._stream.write(f"{printable(line)}\n")
        self._stream.flush()

    def _label(self, run: RunRecord) -> str:
        return printable_line(self._labels.get(run.identity, run.estimator))

    def _counts(self) -> str:
        ends = Counter(self._ends.values())
        parts = [f"{ends[EventKind.DONE] + ends[EventKind.SKIPPED]} of {len(self._labels)} done"]
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

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, caption=self._counts(), caption_justify="left")
        table.add_column("run", justify="right")
        table.add_column("what", overflow="ellipsis", no_wrap=True)
        table.add_column("status", no_wrap=True)
        for heading in ("step", *METRICS.values()):
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
            status = end.value if end else run.stage or "running"
            table.add_row(
                *(str(run.id), Text(self._label(run)), Text(printable_line(status))),
                *(f"{run.step}/{run.steps}", *numbers),
                style=_STYLES[end] if end else None,
            )
        return table


def _position(run: RunRecord) -> str:
    """Return the stage and the progress of a run, such as `training 60/150`."""
    if run.stage in (None, "training"):
        return f"training {run.step}/{run.steps}"
    return str(run.stage)
