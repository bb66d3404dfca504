"""Sends runs to a tracker, and notes in a small file of each run what was sent.

The ledger is a file in the run's folder, not a row of the store, so that it follows the folder:
`rm` deletes it and `merge` copies it. If it is lost, the run is sent again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from advsweep.errors import AdvsweepError, StoreError
from advsweep.local_files import FILE_MODE, make_private_folder, open_private
from advsweep.store import Status
from advsweep.sweep.tracking.base import Ledger

if TYPE_CHECKING:
    from advsweep.store import EvaluationRecord, RunRecord, Store
    from advsweep.sweep.tracking.base import Track, Tracking

MAX_FAILURES = 3
"""Number of failures in a row after which the tracker counts as unreachable."""

_PROTOCOL = 6
"""Digits of a hash that tell evaluation settings apart."""

_NOT_ENDED = {
    Status.PENDING: "it has not begun",
    Status.RUNNING: "it is being trained",
    Status.LOST: "its process is gone, and it is to be started again",
}


class LedgerFile:
    """The file of a ledger; the process that holds its lock may feed the tracker."""

    def __init__(self, directory: Path, name: str, destination: str) -> None:
        digest = hashlib.sha256(destination.encode()).hexdigest()[:8]
        self._path = directory / "tracking" / f"{name}-{digest}.json"
        self._destination = destination
        self._lock = FileLock(self._path.with_suffix(".lock"), mode=FILE_MODE)

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            filelock.Timeout: another process has it.
            OSError: the folder cannot be written to.
        """
        make_private_folder(self._path.parent)
        self._lock.acquire(timeout=0)

    def release(self) -> None:
        self._lock.release()

    def read(self) -> Ledger:
        """Returns the ledger; an empty one if the file is missing or unreadable."""
        try:
            known = json.loads(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return Ledger()
        return Ledger(steps=known["steps"], end=known["end"])

    def write(self, ledger: Ledger) -> None:
        new = self._path.with_suffix(".new")
        text = json.dumps({"destination": self._destination, **asdict(ledger)})
        with open_private(new, "w", encoding="utf-8") as file:
            file.write(text)
        new.replace(self._path)


class Sender:
    """Sends one run to one tracker, after what was sent before; holds the lock meanwhile.

    Methods raise StoreError, OSError and whatever the tracker raises. The sender is then
    unusable; a new one resumes after the last rows that the tracker is known to have.

    Raises:
        filelock.Timeout: another process sends this run to the tracker.

    Args:
        ledgers: the folder of the run's ledgers; by default the run's own folder.
    """

    def __init__(
        self, store: Store, record: RunRecord, tracking: Tracking, ledgers: Path | None = None
    ) -> None:
        self._store = store
        self._run_id = record.id
        self._tracking = tracking
        destination = tracking.destination(store.runs_directory)
        self._file = LedgerFile(ledgers or record.directory, tracking.name, destination)
        self._file.acquire()
        self._ledger = self._file.read()
        self._track: Track | None = None

    def send(self, record: RunRecord) -> None:
        """Sends the new steps."""
        # The last step is read again: its evaluation may be newer than its other metrics.
        self._log(record, self._store.metrics.points(self._run_id, since=self._ledger.last_step))

    def finish(self, record: RunRecord) -> bool:
        """Sends everything that is missing, and how the run ended; False if nothing was missing.

        The scores of the run's last evaluations are sent as summaries. Evaluations that were made
        after the run's end are sent once more with them. Later metrics need another `Sender`.
        """
        evaluations = self._store.evaluations.select([self._run_id], split=None)
        end = _end(record, evaluations)
        if end is not None and end == self._ledger.end:
            return False
        self._log(record, self._store.metrics.points(self._run_id))
        track = self._opened(record)
        summaries = self._store.metrics.summaries([self._run_id]).get(self._run_id, {})
        track.close(record, summaries | last_scores(evaluations))
        self._track = None
        self._ledger.end = end
        self._file.write(self._ledger)
        return True

    def release(self) -> None:
        """Lets other processes send the run."""
        self._file.release()

    def _log(self, record: RunRecord, points: Sequence[tuple[str, int, float]]) -> None:
        if not self._ledger.rows_to_send(points):
            return
        is_new = self._track is None
        track = self._opened(record)
        if is_new:
            # The tracker may have more than the ledger says: a lost ledger, a killed process.
            for name, step in track.last_steps(sorted({name for name, _, _ in points})).items():
                self._ledger.steps[name] = max(step, self._ledger.steps.get(name, -1))
        for step, values in self._ledger.rows_to_send(points):
            track.log(step, values)
            self._ledger.add(step, values)
        if track.flush():
            self._file.write(self._ledger)

    def _opened(self, record: RunRecord) -> Track:
        if self._track is None:
            self._track = self._tracking.open(record, self._ledger)
        return self._track


@dataclass(frozen=True)
class SyncResult:
    """The result of `sync`, by run id.

    Attributes:
        sent: runs of which something was missing.
        before: runs that the tracker had already.
        left_out: why runs were not sent.
        failed: errors of the tracker or the store.
    """

    sent: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    left_out: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)


def sync(
    store: Store,
    runs: Sequence[RunRecord],
    tracking_of: Callable[[RunRecord], Tracking],
    on_run: Callable[[int], None] = lambda done: None,
    ledgers: Path | None = None,
) -> SyncResult:
    """Sends what a tracker lacks of runs that are done, pruned, failed or interrupted.

    Args:
        on_run: receives the number of runs handled so far.
        ledgers: a folder for the ledgers of all runs; by default each run's own folder.
    """
    result = SyncResult()
    failures = 0
    for done, run in enumerate(runs, 1):
        if run.status in _NOT_ENDED:
            result.left_out[run.id] = _NOT_ENDED[run.status]
        elif failures == MAX_FAILURES:
            result.left_out[run.id] = f"the tracker failed {failures} times in a row before it"
        else:
            # A record has checked values in the name of its folder.
            own = None if ledgers is None else ledgers / run.directory.name
            failed = _sync_one(store, run, tracking_of(run), own, result)
            failures = failures + 1 if failed else 0
        on_run(done)
    return result


def _sync_one(
    store: Store, run: RunRecord, tracking: Tracking, ledgers: Path | None, result: SyncResult
) -> bool:
    """Sends one run; returns whether the tracker failed."""
    try:
        sender = Sender(store, run, tracking, ledgers)
    except Timeout:
        result.left_out[run.id] = "another process sends it"
        return False
    try:
        (result.sent if sender.finish(run) else result.before).append(run.id)
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - a tracker's code may raise anything
        result.failed[run.id] = one_line(error)
        return True
    finally:
        sender.release()
    return False


def last_scores(evaluations: Sequence[EvaluationRecord]) -> dict[str, float]:
    """Returns the scores of a run's newest evaluation of each protocol.

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


def _end(record: RunRecord, evaluations: Sequence[EvaluationRecord]) -> str | None:
    """Returns what distinguishes this end of the run from an earlier one; None before its end."""
    finished = record.finished
    if finished is None:
        return None
    later = sum(evaluation.created > finished for evaluation in evaluations)
    return f"{record.status.value} {finished}" + (f", {later} evaluations" if later else "")


def one_line(error: Exception) -> str:
    """Returns the first line of a tracker's error: some of them span pages."""
    first, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {first.rstrip('.')}"
