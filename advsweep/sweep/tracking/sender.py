"""Sends runs to a tracker, and notes in a small file of each run what was sent.

The note is in the run's folder and not in the store, so that it follows the folder: `rm` deletes
it and `merge` copies it. If it is lost, the run is sent again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from advsweep.errors import AdvsweepError, StoreError
from advsweep.local_files import make_private_folder, open_private
from advsweep.store import Status

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


class Sender:
    """Sends one run to one tracker, after what was sent before.

    Methods raise StoreError, OSError and whatever the tracker raises. The sender is then
    unusable; a new one resumes after the last step that was noted as sent.

    Args:
        notes: the folder of the run's notes; by default the run's own folder.
    """

    def __init__(
        self, store: Store, record: RunRecord, tracking: Tracking, notes: Path | None = None
    ) -> None:
        self._store = store
        self._run_id = record.id
        self._tracking = tracking
        self._destination = tracking.destination(store.runs_directory)
        digest = hashlib.sha256(self._destination.encode()).hexdigest()[:8]
        folder = (notes or record.directory) / "tracking"
        self._note = folder / f"{tracking.name}-{digest}.json"
        self._track: Track | None = None
        self._last_step, self._end = -1, None
        # Without a readable note the run is sent again.
        with contextlib.suppress(
            FileNotFoundError, ArithmeticError, LookupError, TypeError, ValueError
        ):
            note = json.loads(self._note.read_text(encoding="utf-8"))
            self._last_step, self._end = int(note["step"]), note["end"]

    def send(self, record: RunRecord) -> None:
        """Send the new steps but the last, whose evaluation may be missing yet."""
        self._log(record, is_ended=False)

    def finish(self, record: RunRecord) -> bool:
        """Send everything that is missing, and how the run ended; False if nothing was missing.

        The scores of the run's last evaluations are sent as summaries. Evaluations that were made
        after the run's end are sent once more with them. Later metrics need another `Sender`.
        """
        evaluations = self._store.evaluations.select([self._run_id], split=None)
        end = _end(record, evaluations)
        if end is not None and end == self._end:
            return False
        self._log(record, is_ended=True)
        track = self._opened(record)
        summaries = self._store.metrics.summaries([self._run_id]).get(self._run_id, {})
        track.close(record, summaries | last_scores(evaluations))
        self._track = None
        self._end = end
        self._write_note()
        return True

    def _log(self, record: RunRecord, *, is_ended: bool) -> None:
        rows: dict[int, dict[str, float]] = {}
        points = self._store.metrics.points(self._run_id, since=self._last_step + 1)
        for name, step, value in points:
            rows.setdefault(step, {})[name] = value
        steps = sorted(rows) if is_ended else sorted(rows)[:-1]
        if not steps:
            return
        track = self._opened(record)
        for step in steps:
            # A step that a resumed run repeats is not sent again: trackers do not delete rows.
            if step > track.last_step:
                track.log(step, rows[step])
        self._last_step = steps[-1]
        if track.flush():
            self._write_note()

    def _write_note(self) -> None:
        make_private_folder(self._note.parent)
        new = self._note.with_suffix(".new")
        note = {"destination": self._destination, "step": self._last_step, "end": self._end}
        with open_private(new, "w", encoding="utf-8") as file:
            json.dump(note, file)
        new.replace(self._note)

    def _opened(self, record: RunRecord) -> Track:
        if self._track is None:
            self._track = self._tracking.open(record, self._last_step)
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
    notes: Path | None = None,
) -> SyncResult:
    """Sends what a tracker lacks of runs that are done, pruned, failed or interrupted.

    Args:
        on_run: receives the number of runs handled so far.
        notes: a folder for what was sent of all runs; by default each run's own folder.
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
            own = None if notes is None else notes / run.directory.name
            try:
                is_sent = Sender(store, run, tracking_of(run), own).finish(run)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - a tracker's code may raise anything
                result.failed[run.id] = one_line(error)
                failures += 1
            else:
                (result.sent if is_sent else result.before).append(run.id)
                failures = 0
        on_run(done)
    return result


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


def one_line(error: BaseException) -> str:
    """Returns the first line of a tracker's error: some of them span pages."""
    first, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {first.rstrip('.')}"
