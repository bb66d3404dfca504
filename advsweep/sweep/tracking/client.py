"""Sends runs to trackers: during a sweep from a thread, afterwards by `export`.

The thread polls the store. What it raises, or how long it takes, ends no run: only `close` waits
for it, for a limited time. Nothing is noted of what was sent: a tracker that can tell what it has
of a run is sent the rest, any other is sent the run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from advsweep.errors import AdvsweepError, ConfigError, NotFoundError, StoreError
from advsweep.store import Status
from advsweep.sweep.events import Event, EventKind, RunEvent
from advsweep.sweep.registry import TRACKINGS
from advsweep.sweep.tracking.base import TRACKING_KEY, Tracking, sync_command

if TYPE_CHECKING:
    from advsweep.store import EvaluationRecord, RunRecord, Store
    from advsweep.store.records import SweepRecord
    from advsweep.sweep.tracking.base import Track

POLL_SECONDS = 2.0
ANNOUNCED_SECONDS = 1.0
"""Time that a command waits at its end before it says why."""
MAX_FAILURES = 3
"""Number of failures in a row after which the tracker counts as unreachable."""

_THREAD = "advsweep tracking"
_LISTED = 3
_PROTOCOL = 6
"""Digits of a hash that tell evaluation settings apart."""
_ENDS = frozenset(
    {
        EventKind.DONE,
        EventKind.FAILED,
        EventKind.INTERRUPTED,
        EventKind.PRUNED,
        # Another process trains it, and tracks it if its sweep is tracked.
        EventKind.WAITING,
    }
)
_NOT_ENDED = {
    Status.PENDING: "it has not begun",
    Status.RUNNING: "it is being trained",
    Status.LOST: "its process is gone, and it is to be started again",
}

Trackings = Callable[["RunRecord"], Sequence[Tracking]]


class Sender:
    """Sends one run to one tracker; raises StoreError and whatever the tracker raises."""

    def __init__(self, store: Store, tracking: Tracking) -> None:
        self._store = store
        self._tracking = tracking
        self._track: Track | None = None
        self._last_step = -1

    def send(self, record: RunRecord, *, last: bool = False) -> None:
        """Send the new steps.

        Args:
            last: send the newest step too, whose evaluation may be missing before, and how the
                run ended, with the scores of its last evaluations. Nothing may be sent then.
        """
        rows: dict[int, dict[str, float]] = {}
        for name, step, value in self._store.metrics.points(record.id, since=self._last_step + 1):
            rows.setdefault(step, {})[name] = value
        steps = sorted(rows) if last else sorted(rows)[:-1]
        if not steps and not last:
            return
        if self._track is None:
            self._track = self._tracking.open(record)
        # A step that a resumed run repeats is not sent again: trackers do not delete rows.
        new = [(step, rows[step]) for step in steps if step > self._track.last_step]
        if new:
            self._track.log(new)
        self._last_step = max(steps, default=self._last_step)
        if last:
            evaluations = self._store.evaluations.select([record.id], split=None)
            summaries = self._store.metrics.summaries([record.id]).get(record.id, {})
            self._track.close(record, summaries | last_scores(evaluations))


@dataclass(frozen=True)
class SyncResult:
    """The result of `sync`, by run id.

    Attributes:
        left_out: why runs were not sent.
        failed: errors of the tracker.
    """

    sent: list[int] = field(default_factory=list)
    left_out: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)


def sync(
    store: Store,
    runs: Sequence[RunRecord],
    tracking_of: Callable[[RunRecord], Tracking],
    on_run: Callable[[int], None] = lambda done: None,
) -> SyncResult:
    """Send runs that are done, pruned, failed or interrupted to a tracker.

    Args:
        on_run: receives the number of runs handled so far.
    """
    result = SyncResult()
    failures = 0
    for done, run in enumerate(runs, 1):
        if run.status in _NOT_ENDED:
            result.left_out[run.id] = _NOT_ENDED[run.status]
        elif failures == MAX_FAILURES:
            result.left_out[run.id] = f"the tracker failed {failures} times in a row before it"
        else:
            try:
                Sender(store, tracking_of(run)).send(run, last=True)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - a tracker's code may raise anything
                result.failed[run.id] = _one_line(error)
                failures += 1
            else:
                result.sent.append(run.id)
                failures = 0
        on_run(done)
    return result


def last_scores(evaluations: Sequence[EvaluationRecord]) -> dict[str, float]:
    """Return the scores of a run's newest evaluation of each protocol.

    They are named `evaluation/TASK-PROTOCOL/SCORE`, where PROTOCOL is the start of a hash of the
    settings, so that evaluations made alike have the same names in all runs.
    """
    newest: dict[str, EvaluationRecord] = {}
    for evaluation in evaluations:  # by step
        settings = json.dumps(evaluation.settings, sort_keys=True).encode()
        protocol = hashlib.sha256(settings).hexdigest()[:_PROTOCOL]
        newest[f"evaluation/{evaluation.task}-{protocol}"] = evaluation
    scores: dict[str, float] = {}
    for name, evaluation in newest.items():
        # A store from elsewhere may hold settings or counts that have no scores.
        with contextlib.suppress(KeyError, TypeError, ValueError, AdvsweepError):
            own = evaluation.scores() | {"step": float(evaluation.step)}
            scores.update({f"{name}/{key}": value for key, value in own.items()})
    return scores


def _one_line(error: BaseException) -> str:
    """Return the first line of a tracker's error: some of them span pages."""
    first, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {first.rstrip('.')}"


@contextmanager
def tracker_client(
    store: Store, trackings: Trackings, say: Callable[[str], None]
) -> Iterator[Callable[[Event], None]]:
    """Feed trackers with the runs of a scheduler, whose `on_event` is the yielded function.

    Args:
        trackings: the trackings of a run.
        say: receives errors, a line each; they have no other effect.
    """
    client = TrackerClient(store, trackings, say)
    try:
        yield client.handle
    finally:
        client.close()


class TrackerClient:
    """Starts the thread at the first tracked run, and reports its first failure."""

    def __init__(self, store: Store, trackings: Trackings, say: Callable[[str], None]) -> None:
        self._store = store
        self._trackings = trackings
        self._say = say
        self._thread: threading.Thread | None = None
        # A started run's id with its tracking, that of a run that ended, or None at the end.
        self._orders: queue.SimpleQueue[tuple[int, Tracking | None] | None] = queue.SimpleQueue()
        self._commands: dict[tuple[int, str], str] = {}
        """What sends each run that is not settled yet, by its id and the tracking's name."""
        self._started = 0
        self._failure: str | None = None
        self._is_over = False
        self._patience = 0.0

    def handle(self, event: Event) -> None:
        """Handle an event of a scheduler; return at once, whatever the trackers do."""
        if self._is_over or not isinstance(event, RunEvent):
            return
        run = event.run
        if event.kind is EventKind.STARTED:
            for tracking in self._trackings(run):
                target = run.sweeps[0] if run.sweeps else str(run.id)
                self._started += (run.id, tracking.name) not in self._commands
                self._commands[run.id, tracking.name] = sync_command(tracking, target)
                self._patience = max(self._patience, tracking.patience)
                self._orders.put((run.id, tracking))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name=_THREAD, daemon=True)
                    self._thread.start()
        elif event.kind in _ENDS:
            self._orders.put((run.id, None))
        if self._failure is not None:
            self._give_up(f"{self._failure}; the runs go on")

    def close(self) -> None:
        """Wait until everything is sent, at most for the trackings' `patience`."""
        if self._thread is None or self._is_over:
            return
        self._orders.put(None)
        try:
            self._thread.join(min(ANNOUNCED_SECONDS, self._patience))
            if self._thread.is_alive() and self._patience > ANNOUNCED_SECONDS:
                self._say(f"tracking: sending what is left, for {self._patience:g} s at most")
                self._thread.join(self._patience - ANNOUNCED_SECONDS)
        except KeyboardInterrupt:
            self._give_up("what is left was not waited for")
            return
        if self._failure is not None:
            self._give_up(self._failure)
        elif self._thread.is_alive():
            self._give_up(f"not all was sent within {self._patience:g} s")
        elif self._commands:
            self._give_up("not all could be sent")

    def _give_up(self, reason: str) -> None:
        """Say why runs are not sent any more, and which command sends them."""
        self._is_over = True
        commands = sorted(set(self._commands.copy().values()))
        more = " and others" if len(commands) > _LISTED else ""
        how = ", ".join(commands[:_LISTED]) or "`advsweep export`"
        self._say(
            f"tracking: {reason}; {len(self._commands)} of {self._started} runs are left: "
            f"{how}{more} sends them when they are done"
        )

    def _work(self) -> None:
        """Send what is new of the runs in training, and the rest when they end."""
        senders: dict[tuple[int, str], Sender] = {}
        ended: set[int] = set()
        is_last = False
        try:
            # The runs wait for the store; the tracker does not.
            with self._store.without_retries():
                while not is_last:
                    is_last = self._take_orders(senders, ended)
                    for key, sender in list(senders.items()):
                        last = is_last or key[0] in ended
                        try:
                            [record] = self._store.runs.select(ids=[key[0]])
                            sender.send(record, last=last)
                        except NotFoundError:
                            last = True  # the user has removed it
                        except StoreError:
                            continue  # the workers report that
                        if last:
                            del senders[key], self._commands[key]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tracker's code may raise anything
            self._failure = _one_line(error)

    def _take_orders(self, senders: dict[tuple[int, str], Sender], ended: set[int]) -> bool:
        """Take orders for the time between two polls; return True at the last one."""
        until = time.monotonic() + POLL_SECONDS
        while (left := until - time.monotonic()) > 0:
            try:
                order = self._orders.get(timeout=left)
            except queue.Empty:
                break
            if order is None:
                return True
            run_id, tracking = order
            if tracking is None:
                ended.add(run_id)
            else:
                ended.discard(run_id)  # a retried run has not ended
                senders.setdefault((run_id, tracking.name), Sender(self._store, tracking))
        return False


def is_hanging() -> bool:
    """Return whether a thread that feeds trackers is left of a client that was closed."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


def sweep_trackings(store: Store, say: Callable[[str], None], *, trusted: bool) -> Trackings:
    """Return a function that gives the trackings of a run, as the store has them by sweep.

    Args:
        say: receives a line for each sweep that is tracked by the store's choice, or not tracked.
        trusted: whether the store may choose; otherwise nothing is tracked.
    """
    known: dict[str, Tracking | None] = {}

    def trackings(run: RunRecord) -> list[Tracking]:
        if not known.keys() >= set(run.sweeps):
            try:
                sweeps = store.sweeps.select()
            except StoreError as error:
                say(f"run {run.id} is not tracked: {error}")
                return []
            for sweep in sweeps:
                if sweep.name not in known:
                    known[sweep.name] = _tracking_of(sweep, say, trusted)
        found = [known[name] for name in run.sweeps]
        distinct = {repr(tracking): tracking for tracking in found if tracking is not None}
        return list(distinct.values())

    return trackings


def _tracking_of(sweep: SweepRecord, say: Callable[[str], None], trusted: bool) -> Tracking | None:
    if TRACKING_KEY not in sweep.spec:
        return None
    if not trusted:
        say(
            f"sweep {sweep.name} is not tracked, as a store does not choose trackers; "
            "tracking=NAME or --trust-store tracks it"
        )
        return None
    try:
        tracking = TRACKINGS.build(sweep.spec[TRACKING_KEY], where="tracking")
        tracking.check()
    except ConfigError as error:
        say(f"sweep {sweep.name} is not tracked here: {error}")
        return None
    if not tracking.is_on:
        return None
    say(f"the store chooses tracking for sweep {sweep.name}: {json.dumps(tracking.plain())}")
    return tracking
