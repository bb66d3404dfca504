"""Sends runs to trackers: during a sweep from a thread, afterwards by `export`.

The thread polls the store. What it raises, or how long it takes, ends no run: only `close` waits
for it, for a limited time. Nothing is noted of what was sent: a tracker that can tell what it has
of a run is sent the rest, any other is sent the run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from advsweep.errors import AdvsweepError, NotFoundError, StoreError
from advsweep.printable import printable, printable_line
from advsweep.store import Status
from advsweep.sweep.events import Event, EventKind, RunEvent
from advsweep.sweep.tracking.base import Tracking, sync_command

if TYPE_CHECKING:
    from advsweep.store import EvaluationRecord, RunRecord, Store
    from advsweep.sweep.tracking.base import Track

POLL_SECONDS = 2.0
ANNOUNCED_SECONDS = 1.0
"""Time that a command waits at its end before it says why."""
MAX_FAILURES = 3
"""Number of failures in a row after which the tracker counts as unreachable."""

_THREAD = "advsweep tracking"
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
            rows.setdefault(step, {})[printable_line(name)] = value
        # The newest step waits for the next: a tracker takes a step once, and the evaluation of
        # this one may still be on its way.
        steps = sorted(rows) if last else sorted(rows)[:-1]
        if not steps and not last:
            return
        record = _printable_record(record)
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
            summaries = summaries | last_scores(evaluations)
            self._track.close(record, {printable_line(k): v for k, v in summaries.items()})


def _printable_record(record: RunRecord) -> RunRecord:
    """Return a record whose texts have no control characters.

    All trackers get this one: a store may come from anybody, and their pages and logs show it.
    """
    return replace(
        record,
        config_hash=printable_line(record.config_hash),
        estimator=printable_line(record.estimator),
        backend=printable_line(record.backend),
        sweeps=tuple(map(printable_line, record.sweeps)),
        config=_printable(record.config),
        error=record.error and printable(record.error),
    )


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable_line(str(key)): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, (list, tuple)) else value


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
    tracking: Tracking,
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
                Sender(store, tracking).send(run, last=True)
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
    store: Store, tracking: Tracking, say: Callable[[str], None]
) -> Iterator[Callable[[Event], None]]:
    """Feed a tracker with the runs of a scheduler, whose `on_event` is the yielded function.

    Args:
        say: receives errors, a line each; they have no other effect.

    Raises:
        ConfigError: the tracker cannot be used on this machine.
    """
    if not tracking.is_on:
        yield lambda event: None
        return
    tracking.check()
    client = TrackerClient(store, tracking, say)
    try:
        yield client.handle
    finally:
        client.close()


class TrackerClient:
    """Starts the thread at the first run, and reports its first failure.

    The scheduler's thread adds senders and marks runs as ended; the other one alone sends, and
    removes what is settled. Each step is a single operation on a dictionary or a set, so that
    no lock is needed: a lock that a hanging tracker held would stop the sweep.
    """

    def __init__(self, store: Store, tracking: Tracking, say: Callable[[str], None]) -> None:
        self._store = store
        self._tracking = tracking
        self._say = say
        # A daemon: a tracker that hangs must not keep the command from ending.
        self._thread = threading.Thread(target=self._work, name=_THREAD, daemon=True)
        self._closing = threading.Event()
        self._senders: dict[int, Sender] = {}
        """What is not settled yet, by the id of the run."""
        self._targets: dict[int, str] = {}
        """Names for `export` of all runs that were started: that of the sweep, or the id."""
        self._ended: set[int] = set()
        self._failure: str | None = None
        self._is_over = False

    def handle(self, event: Event) -> None:
        """Handle an event of a scheduler; return at once, whatever the tracker does."""
        if self._is_over or not isinstance(event, RunEvent):
            return
        run = event.run
        if event.kind is EventKind.STARTED:
            self._ended.discard(run.id)  # a retried run has not ended
            self._targets[run.id] = run.sweeps[0] if run.sweeps else str(run.id)
            self._senders.setdefault(run.id, Sender(self._store, self._tracking))
            if self._thread.ident is None:
                self._thread.start()
        elif event.kind in _ENDS:
            self._ended.add(run.id)
        if self._failure is not None:
            self._give_up(f"{self._failure}; the runs go on")

    def close(self) -> None:
        """Wait until everything is sent, at most for the tracking's `patience`."""
        if self._thread.ident is None or self._is_over:
            return
        self._closing.set()
        patience = self._tracking.patience
        try:
            self._thread.join(min(ANNOUNCED_SECONDS, patience))
            if self._thread.is_alive() and patience > ANNOUNCED_SECONDS:
                self._say(f"tracking: sending what is left, for {patience:g} s at most")
                self._thread.join(patience - ANNOUNCED_SECONDS)
        except KeyboardInterrupt:
            self._give_up("what is left was not waited for")
            return
        if self._failure is not None:
            self._give_up(self._failure)
        elif self._thread.is_alive():
            self._give_up(f"not all was sent within {patience:g} s")
        elif self._senders:
            self._give_up("not all could be sent")

    def _give_up(self, reason: str) -> None:
        """Say why runs are not sent any more, and which command sends them."""
        self._is_over = True
        left = list(self._senders)
        target = self._targets[left[0]] if left else "SWEEP"
        self._say(
            f"tracking: {reason}; {len(left)} of {len(self._targets)} runs are left: "
            f"{sync_command(self._tracking, target)} sends them when they are done"
        )

    def _work(self) -> None:
        """Send what is new of the runs in training, and the rest when they end."""
        is_last = False
        try:
            # The runs wait for a store that is away; what a tracker lacks can be sent later.
            with self._store.patience.suspended():
                while not is_last:
                    is_last = self._closing.wait(POLL_SECONDS)
                    for run_id, sender in list(self._senders.items()):
                        last = is_last or run_id in self._ended
                        try:
                            [record] = self._store.runs.select(ids=[run_id])
                            sender.send(record, last=last)
                        except NotFoundError:
                            last = True  # the user has removed it
                        except StoreError:
                            continue  # the workers report that
                        if last:
                            del self._senders[run_id]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tracker's code may raise anything
            self._failure = _one_line(error)


def is_hanging() -> bool:
    """Return whether a thread that feeds trackers is left of a client that was closed."""
    return any(thread.name == _THREAD for thread in threading.enumerate())
