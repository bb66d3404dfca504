"""The full-screen view of `advsweep status --watch`: a Textual app over the store."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.markup import escape
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, RichLog, Static

from advsweep.cli.output import duration
from advsweep.cli.runs import Tail, log_path
from advsweep.errors import StoreError
from advsweep.printable import printable, printable_line
from advsweep.store import Status
from advsweep.sweep.progress import METRICS
from advsweep.sweep.status import LOST_REASON, seconds_per_step

if TYPE_CHECKING:
    from advsweep.store import RunOutline, Store

REFRESH_SECONDS = 1.0
LOG_SECONDS = 0.5
LOG_BYTES = 1 << 20
"""Number of last bytes of a log that are shown."""
LOG_LINES = 20_000
"""Number of log lines kept for scrolling back."""

SHOWN_RUNS = 200
"""Maximum number of rows; running, lost and failed runs come first."""

BARS = "▁▂▃▄▅▆▇█"
SPARKS = 12
"""Width of a sparkline in characters."""

_ORDER = (
    *(Status.RUNNING, Status.LOST, Status.FAILED),
    *(Status.INTERRUPTED, Status.PENDING, Status.PRUNED, Status.DONE),
)
KEYS = """\
up, down  choose a run
enter, l  follow the log of the run
/         show only runs whose row has all of these words, such as: failed fade seed=1
escape    show all runs again
s         stop the run, after a checkpoint and a question
r         restart a run that failed, was stopped or was lost, from its last checkpoint
?         show these keys
q         quit; runs continue"""
"""What the keys do."""

_COLUMNS = ("run", "estimator", "seed", "status", "step", "left", *METRICS.values(), "where / why")


@dataclass(frozen=True)
class Snapshot:
    """Contents of the screen at one time.

    Attributes:
        states: number of runs per status.
        runs: the rows, ordered, at most `SHOWN_RUNS`.
        matching: number of runs that match the filter.
        slots: number of running runs per host.
        curves: a sparkline per metric, by id of each shown run.
        step_seconds: seconds per step, by id of each running run.
    """

    states: Mapping[Status, int]
    runs: Sequence[RunOutline]
    matching: int
    slots: Mapping[str, int]
    curves: Mapping[int, Mapping[str, str]]
    step_seconds: Mapping[int, float]


class SnapshotReader:
    """Reads snapshots from a store; caches the curves of runs that have not advanced."""

    def __init__(self, store: Store, sweep: str | None) -> None:
        self._store = store
        self._sweep = sweep
        self._curves: dict[int, tuple[tuple[int, Status], dict[str, str]]] = {}

    def read(self, words: str) -> Snapshot:
        """Returns the runs whose row contains all of these words."""
        lines = sorted(self._store.runs.outlines(self._sweep), key=lambda run: run.id, reverse=True)
        found = [line for line in lines if _matches(line, words)]
        shown = sorted(found, key=lambda line: _ORDER.index(line.status))[:SHOWN_RUNS]
        running = [line for line in lines if line.status is Status.RUNNING]
        states = Counter(line.status for line in lines)
        return Snapshot(
            states={status: states[status] for status in Status if states[status]},
            runs=shown,
            matching=len(found),
            slots=Counter(f"{line.host}" for line in running),
            curves=self._read_curves(shown),
            step_seconds=seconds_per_step(self._store, running),
        )

    def _read_curves(self, lines: Sequence[RunOutline]) -> dict[int, dict[str, str]]:
        # A finished run may have written more points since its last step was seen: the status is
        # part of the cache key.
        states = {line.id: (line.step, line.status) for line in lines}
        stale = [i for i, state in states.items() if self._curves.get(i, (None,))[0] != state]
        series = {name: self._store.metrics.series(stale, name) for name in METRICS}
        for run_id in stale:
            own = {name: curves[run_id] for name, curves in series.items() if run_id in curves}
            short = {name: sparkline(values.tolist()) for name, (_, values) in own.items()}
            self._curves[run_id] = (states[run_id], short)
        return {run_id: self._curves[run_id][1] for run_id in states}


def sparkline(values: Sequence[float], width: int = SPARKS) -> str:
    """Draws values as one line of bars: means of equal intervals, scaled to their range.

    An interval without finite values is blank.
    """
    intervals = min(width, len(values))
    bounds = [i * len(values) // intervals for i in range(intervals + 1)] if values else []
    means = [_mean(values[a:b]) for a, b in itertools.pairwise(bounds)]
    known = [mean for mean in means if math.isfinite(mean)]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    top = len(BARS) - 1
    return "".join(
        " " if not math.isfinite(m) else BARS[round((m - low) / span * top) if span else 0]
        for m in means
    )


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _matches(line: RunOutline, words: str) -> bool:
    seed, identity = f"seed={line.seed}", line.identity
    text = f"{line.id} {line.estimator} {seed} {line.status.value} {line.host} {line.error or ''}"
    return all(word in text.lower() or identity.startswith(word) for word in words.lower().split())


def _markup(text: str) -> str:
    """Escapes text for Textual's markup, on one line."""
    return escape(printable_line(text))


class LogScreen(ModalScreen[None]):
    """Follows the log of a run."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "Back"),
    ]
    CSS = "LogScreen RichLog { border: solid $primary; background: $surface; }"

    def __init__(self, store: Store, run_id: int) -> None:
        super().__init__()
        [run] = store.runs.select(ids=[run_id])
        self._tail = Tail(log_path(run), last=LOG_BYTES)
        self._title = f"run {run_id}: {log_path(run)}"

    def compose(self) -> ComposeResult:
        yield RichLog(wrap=True, max_lines=LOG_LINES)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(RichLog).border_title = _markup(self._title)
        self._append_new_text()
        self.set_interval(LOG_SECONDS, self._append_new_text)

    def _append_new_text(self) -> None:
        if text := self._tail.read():
            self.query_one(RichLog).write(printable(text.rstrip("\n")))


class ConfirmScreen(ModalScreen[bool]):
    """Asks a question; the result is whether the user agreed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape,q", "dismiss(False)", "No"),
    ]
    CSS = """
    ConfirmScreen { align: center middle; }
    ConfirmScreen Static { width: auto; border: solid $warning; padding: 0 1; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Static(printable_line(self._question), markup=False)
        yield Footer()


class KeysScreen(ModalScreen[None]):
    """Explains the keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "dismiss", "Back"),
    ]
    CSS = """
    KeysScreen { align: center middle; }
    KeysScreen Static { width: auto; border: solid $primary; padding: 0 1; }
    """

    def compose(self) -> ComposeResult:
        yield Static(KEYS, markup=False)
        yield Footer()


class Watch(App[None]):
    """Shows runs and their progress; stops and restarts runs by key."""

    TITLE = "advsweep"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; padding: 0 1; }
    #foot { height: auto; padding: 0 1; color: $text-muted; }
    #filter { display: none; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter"),
        Binding("escape", "clear", "All", show=False),
        # The table handles Enter itself, and the footer omits the table's keys.
        Binding("l", "log", "Log", key_display="enter"),
        Binding("s", "stop", "Stop"),
        Binding("r", "restart", "Restart"),
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, store: Store, sweep: str | None) -> None:
        super().__init__()
        self._store = store
        self._sweep = sweep
        self._reader = SnapshotReader(store, sweep)
        self._words = ""
        self._reading = False
        self._shown: dict[int, RunOutline] = {}
        self._rows: dict[int, list[str]] = {}
        self._restarts: list[subprocess.Popen[str]] = []

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Input(placeholder="filter, for example: failed fade seed=1", id="filter")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static(id="foot", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        table = self._table
        for column in _COLUMNS:
            table.add_column(column, key=column)
        table.focus()
        self.refresh_view()
        self.set_interval(REFRESH_SECONDS, self.refresh_view)

    @property
    def _table(self) -> DataTable[str]:
        return self.query_one(DataTable)

    def refresh_view(self) -> None:
        """Reads the store in a thread, so that keys still respond; one read at a time."""
        if not self._reading:
            self._reading = True
            self._read(self._words)

    @work(thread=True)
    def _read(self, words: str) -> None:
        try:
            snapshot = self._reader.read(words)
        except StoreError as error:
            # The store may be locked; the next read may succeed.
            self.call_from_thread(self.notify, _markup(str(error)), severity="error")
            self._reading = False
        else:
            self.call_from_thread(self._receive, words, snapshot)

    def _receive(self, words: str, snapshot: Snapshot) -> None:
        self._reading = False
        if words == self._words:
            self._show(snapshot)
        else:
            self.refresh_view()

    def _show(self, snapshot: Snapshot) -> None:
        what = f"sweep {self._sweep}" if self._sweep else "all sweeps"
        states = ", ".join(f"{count} {status.value}" for status, count in snapshot.states.items())
        hosts = ", ".join(f"{host} {count}" for host, count in sorted(snapshot.slots.items()))
        self.query_one("#head", Static).update(printable_line(f"{what}: {states or 'no runs'}"))
        found = f"{len(snapshot.runs)} of {snapshot.matching} runs shown"
        words = f"; filter: {self._words}" if self._words else ""
        slots = f"; running on: {hosts}" if hosts else ""
        self.query_one("#foot", Static).update(printable_line(found + words + slots))
        self._fill(snapshot)
        self._report_restarts()

    def _fill(self, snapshot: Snapshot) -> None:
        table = self._table
        selected = self._selected()
        rows = {line.id: self._cells(line, snapshot) for line in snapshot.runs}
        if list(rows) != list(self._rows):
            table.clear()
            for run_id, cells in rows.items():
                table.add_row(*cells, key=str(run_id))
            if selected in rows:
                table.move_cursor(row=list(rows).index(selected))
        else:
            # The table redraws for every updated cell, so update only changed ones.
            for run_id, cells in rows.items():
                for column, old, new in zip(_COLUMNS, self._rows[run_id], cells, strict=True):
                    if new != old:
                        table.update_cell(str(run_id), column, new, update_width=True)
        self._rows = rows
        self._shown = {line.id: line for line in snapshot.runs}

    def _cells(self, line: RunOutline, snapshot: Snapshot) -> list[str]:
        step_seconds = snapshot.step_seconds.get(line.id)
        left = None if step_seconds is None else (line.steps - line.step) * step_seconds
        running = line.status is Status.RUNNING
        status = "stopping" if running and line.stop_requested else line.status.value
        where = f"{line.host}:{line.pid}, {line.stage or 'starting'}" if running else ""
        why = LOST_REASON if line.status is Status.LOST else (line.error or "").partition("\n")[0]
        curves = snapshot.curves[line.id]
        return [
            *(str(line.id), _markup(line.estimator), str(line.seed), status),
            *(f"{line.step}/{line.steps}", duration(left) if running else ""),
            *(curves.get(name, "") for name in METRICS),
            _markup(where or why),
        ]

    def _selected(self) -> int | None:
        table = self._table
        if not table.row_count:
            return None
        key = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
        assert key is not None
        return int(key)

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def action_clear(self) -> None:
        field = self.query_one("#filter", Input)
        field.value = ""
        field.display = False
        self._table.focus()

    @on(Input.Changed)
    def _filtered(self, event: Input.Changed) -> None:
        self._words = event.value
        self.refresh_view()

    @on(Input.Submitted)
    def _entered(self) -> None:
        self.query_one("#filter", Input).display = False
        self._table.focus()

    @on(DataTable.RowSelected)
    def action_log(self) -> None:
        run_id = self._selected()
        if run_id is not None:
            self.push_screen(LogScreen(self._store, run_id))

    def action_stop(self) -> None:
        line = self._shown.get(self._selected() or 0)
        if line is None:
            return
        if line.status not in (Status.RUNNING, Status.PENDING):
            self.notify(f"run {line.id} is {line.status.value}", severity="warning")
            return
        question = f"Stop run {line.id} ({line.estimator}, seed {line.seed})? y / n"
        self.push_screen(ConfirmScreen(question), lambda agreed: self._stop(line.id, agreed))

    def _stop(self, run_id: int, agreed: bool | None) -> None:
        if agreed:
            self._store.leases.request_stop(run_id)
            self.notify(f"Stopping run {run_id}.")
            self.refresh_view()

    def action_keys(self) -> None:
        self.push_screen(KeysScreen())

    def action_restart(self) -> None:
        line = self._shown.get(self._selected() or 0)
        if line is None:
            return
        if line.status in (Status.RUNNING, Status.DONE):
            self.notify(f"run {line.id} is {line.status.value}", severity="warning")
            return
        # Its own stopping rule would prune it again.
        settings = ["stopping=none"] if line.status is Status.PRUNED else []
        self._restarts.append(restart(self._store, line.id, settings))
        self.notify(f"Restarting run {line.id}.")

    def _report_restarts(self) -> None:
        """Reports restarts that failed before training; the table shows failures of runs."""
        for process in [p for p in self._restarts if p.poll() is not None]:
            self._restarts.remove(process)
            assert process.stderr is not None
            if process.returncode == 2:
                lines = process.stderr.read().splitlines()
                self.notify(_markup(lines[-1] if lines else "restart failed"), severity="error")


def restart(store: Store, run_id: int, settings: Sequence[str]) -> subprocess.Popen[str]:
    """Starts `advsweep retry RUN KEY=VALUE...` as a process that outlives this one."""
    program = "from advsweep.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program, "retry", str(run_id), *settings],
        # The URL may hold a password, and all users of the machine can read command lines.
        env={**os.environ, "ADVSWEEP_STORE": store.url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
