"""Brings a run in a tracker up to what the store has of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advsweep.sweep.tracking.ledger import LedgerFile

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.tracking.base import Track, Tracking
    from advsweep.sweep.tracking.ledger import Points


class Sender:
    """Sends one run to one tracker, from what was sent before; holds its lock meanwhile.

    Methods raise whatever the tracker raises, and StoreError and OSError. After that it is
    to be left; a new one goes on where the tracker is known to have everything.

    Raises:
        filelock.Timeout: another process feeds the tracker with this run.
    """

    def __init__(self, store: Store, record: RunRecord, tracking: Tracking) -> None:
        self._store = store
        self._run_id = record.id
        self._tracking = tracking
        destination = tracking.destination(store.runs_directory)
        self._file = LedgerFile(record.directory, tracking.name, destination)
        self._file.acquire()
        self._sent = self._file.read()
        self._track: Track | None = None

    def send(self, record: RunRecord) -> None:
        """Sends the steps that have come since."""
        # Their step is looked at again, as its evaluation may have come after it.
        self._log(record, self._store.metrics.points(self._run_id, since=self._sent.last_step))

    def finish(self, record: RunRecord) -> bool:
        """Sends all that is missing and how the run ended; False if nothing was missing.

        What comes after needs another `Sender`.
        """
        end = _end(record)
        if end is not None and end == self._sent.end:
            return False
        self._log(record, self._store.metrics.points(self._run_id))
        track = self._opened(record)
        track.close(record, self._store.metrics.summaries([self._run_id]).get(self._run_id, {}))
        self._track = None
        self._sent.end = end
        self._file.write(self._sent)
        return True

    def release(self) -> None:
        """Lets others send the run."""
        self._file.release()

    def _log(self, record: RunRecord, points: Points) -> None:
        rows = self._sent.rows_to_send(points)
        if not rows:
            return
        track = self._opened(record)
        for step, values in rows:
            track.log(step, values)
            self._sent.add(step, values)
        if track.flush():
            self._file.write(self._sent)

    def _opened(self, record: RunRecord) -> Track:
        if self._track is None:
            self._track = self._tracking.open(record, self._sent)
        return self._track


def _end(record: RunRecord) -> str | None:
    """What tells the end of a run from an earlier one; None while it is at none."""
    return None if record.finished is None else f"{record.status.value} {record.finished}"


def in_a_line(error: Exception) -> str:
    """What a tracker raised; some of them tell whole stories."""
    first, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {first.rstrip('.')}"
