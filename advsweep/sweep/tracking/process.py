"""The process that feeds trackers: `python -m advsweep.sweep.tracking.process`.

It reads orders from its standard input, one JSON object per line, about the runs in training. It
polls the store for their new metrics, and prints messages in the same form. When its input ends,
it sends the rest; an alarm ends it if that takes too long. A crash of it never affects training.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from filelock import Timeout

from advsweep.components import Plain
from advsweep.errors import NotFoundError, StoreError
from advsweep.store import open_store
from advsweep.sweep.registry import TRACKINGS
from advsweep.sweep.tracking.sender import Sender, one_line

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.sweep.tracking.base import Tracking

POLL_SECONDS = 2.0
FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 600.0

_NICENESS = 10  # the runs come first
_GRACE_SECONDS = 5.0
"""Time that it waits longer than its parent for a tracker that hangs at the end."""

_log = logging.getLogger(__name__)

Say = Callable[[Plain], None]


@dataclass
class _Tracker:
    """A tracker, and the time of its next try after a failure."""

    tracking: Tracking
    due: float = 0.0
    pause: float = FIRST_PAUSE_SECONDS
    reported: bool = False


@dataclass
class _TrackedRun:
    """A run and its tracker; it has no sender at first and after a failure."""

    run_id: int
    tracker: _Tracker
    sender: Sender | None = None
    ended: bool = False


class TrackerProcess:
    """Feeds trackers with the runs that its orders name.

    Args:
        say: receives `{"settled": RUN, "tracking": NAME}` when a tracker has everything of a
            run, and `{"failed": REASON}` when a tracker fails for the first time.
    """

    def __init__(self, store: Store, say: Say) -> None:
        self._store = store
        self._say = say
        self._trackers: dict[str, _Tracker] = {}
        self._tracked: dict[tuple[int, str], _TrackedRun] = {}

    def take(self, order: Plain) -> None:
        """Handles `{"run": RUN, "tracking": NODE}`, a run to send, and `{"ended": RUN}`."""
        if "ended" in order:
            for run in self._tracked.values():
                run.ended = run.ended or run.run_id == order["ended"]
            return
        key = json.dumps(order["tracking"], sort_keys=True)
        if key not in self._trackers:
            self._trackers[key] = _Tracker(TRACKINGS.build(order["tracking"]))
        run = self._tracked.setdefault(
            (order["run"], key), _TrackedRun(order["run"], self._trackers[key])
        )
        run.ended = False  # a retried run has not ended

    def poll(self) -> None:
        """Sends new metrics, and everything that is missing of runs that have ended."""
        for key, run in list(self._tracked.items()):
            if run.tracker.due <= time.monotonic() and self._serve(run, last=run.ended):
                del self._tracked[key]

    def finish(self) -> None:
        """Sends everything that is missing of every run; tries each once."""
        for run in self._tracked.values():
            self._serve(run, last=True)

    def _serve(self, run: _TrackedRun, *, last: bool) -> bool:
        """Sends a run; returns True when nothing of it is left to send."""
        try:
            [record] = self._store.runs.select(ids=[run.run_id])
            if run.sender is None:
                run.sender = Sender(self._store, record, run.tracker.tracking)
            if last:
                run.sender.finish(record)
            else:
                run.sender.send(record)
        except NotFoundError:
            last = True  # the user has removed it
        except Timeout:
            pass  # another process sends it
        except StoreError:
            return False  # the workers report that
        except Exception as error:  # noqa: BLE001 - a tracker's code may raise anything
            self._failed(run, error)
            return False
        run.tracker.pause = FIRST_PAUSE_SECONDS
        if last:
            _release(run)
            self._say({"settled": run.run_id, "tracking": run.tracker.tracking.name})
        return last

    def _failed(self, run: _TrackedRun, error: Exception) -> None:
        tracker = run.tracker
        _release(run)
        tracker.due = time.monotonic() + tracker.pause
        tracker.pause = min(2 * tracker.pause, LONGEST_PAUSE_SECONDS)
        reason = f"{tracker.tracking.name}: {one_line(error)}"
        _log.warning("run %d: %s", run.run_id, reason)
        if not tracker.reported:
            tracker.reported = True
            self._say({"failed": reason})


def _release(run: _TrackedRun) -> None:
    if run.sender is not None:
        run.sender.release()
        run.sender = None


def main() -> None:
    """Feeds trackers until the standard input ends, then sends the rest."""
    os.nice(_NICENESS)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    # Trackers' libraries print to stdout: it becomes stderr, and messages keep the pipe.
    messages = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    orders: queue.SimpleQueue[Plain | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin, orders), daemon=True).start()

    def say(message: Plain) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone
            messages.write(json.dumps(message) + "\n")

    with open_store(create=False) as store:
        process = TrackerProcess(store, say)
        polled = time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                order = orders.get(timeout=max(0.0, polled + POLL_SECONDS - time.monotonic()))
                if order is None:
                    break
                process.take(order)
                continue
            process.poll()
            polled = time.monotonic()
        process.finish()
    # A regular exit would wait for the servers of libraries that failed.
    os._exit(0)


def _listen(stream: TextIO, orders: queue.SimpleQueue[Plain | None]) -> None:
    """Puts orders into the queue, and None at their end, from when time is limited."""
    patience = 0.0
    for line in stream:
        order = json.loads(line)
        if "tracking" in order:
            patience = max(patience, order["tracking"]["patience"])
        orders.put(order)
    # The system's alarm ends even trackers that never return to the interpreter.
    signal.alarm(math.ceil(patience + _GRACE_SECONDS))
    orders.put(None)


if __name__ == "__main__":
    main()
