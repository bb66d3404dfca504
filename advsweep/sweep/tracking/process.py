"""The process that feeds trackers: `python -m advsweep.sweep.tracking.process`.

It reads from its standard input which runs are being trained, one JSON object to a line, and
polls the store for what is new of them; each line that it prints is one too. When its input
ends it sends what is left, and an alarm ends it where that takes too long. Whatever becomes of
it, the training goes on.
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
from advsweep.sweep.tracking.sender import Sender, in_a_line

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.sweep.tracking.base import Tracking

POLL_SECONDS = 2.0
FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 600.0

_NICENESS = 10  # the runs come first
_GRACE_SECONDS = 5.0
"""How much longer than its parent it bears a tracker that hangs at the end."""

_log = logging.getLogger(__name__)

Say = Callable[[Plain], None]


@dataclass
class _Outlet:
    """A tracker, and when it may be tried again after it failed."""

    tracking: Tracking
    due: float = 0.0
    pause: float = FIRST_PAUSE_SECONDS
    reported: bool = False


@dataclass
class _Feed:
    """A run on its way to a tracker; without a sender before the first and after a failure."""

    run_id: int
    outlet: _Outlet
    sender: Sender | None = None
    ended: bool = False


class TrackerProcess:
    """Feeds trackers with the runs that it is told of.

    Args:
        say: is told `{"settled": RUN, "tracking": NAME}` when nothing of a run is left to be
            sent to a tracker, and `{"failed": REASON}` when one fails for the first time.
    """

    def __init__(self, store: Store, say: Say) -> None:
        self._store = store
        self._say = say
        self._outlets: dict[str, _Outlet] = {}
        self._feeds: dict[tuple[int, str], _Feed] = {}

    def take(self, order: Plain) -> None:
        """Takes `{"run": RUN, "tracking": NODE}` as a run to feed, and `{"ended": RUN}`."""
        if "ended" in order:
            for feed in self._feeds.values():
                feed.ended = feed.ended or feed.run_id == order["ended"]
            return
        key = json.dumps(order["tracking"], sort_keys=True)
        if key not in self._outlets:
            self._outlets[key] = _Outlet(TRACKINGS.build(order["tracking"]))
        feed = self._feeds.setdefault((order["run"], key), _Feed(order["run"], self._outlets[key]))
        feed.ended = False  # one that failed, and was not sent yet, is tried again

    def poll(self) -> None:
        """Sends what is new, and all that is missing of runs that have ended."""
        for key, feed in list(self._feeds.items()):
            if feed.outlet.due <= time.monotonic() and self._serve(feed, last=feed.ended):
                del self._feeds[key]

    def finish(self) -> None:
        """Sends all that is missing of every run; each is tried once."""
        for feed in self._feeds.values():
            self._serve(feed, last=True)

    def _serve(self, feed: _Feed, *, last: bool) -> bool:
        """True when nothing of the run is left to do."""
        try:
            [record] = self._store.runs.select(ids=[feed.run_id])
            if feed.sender is None:
                feed.sender = Sender(self._store, record, feed.outlet.tracking)
            if last:
                feed.sender.finish(record)
            else:
                feed.sender.send(record)
        except NotFoundError:
            last = True  # somebody has removed it
        except Timeout:
            pass  # another process sends it
        except StoreError:
            return False  # the runs' own processes speak of that
        except Exception as error:  # noqa: BLE001 - a tracker's code may raise anything
            self._failed(feed, error)
            return False
        feed.outlet.pause = FIRST_PAUSE_SECONDS
        if last:
            _release(feed)
            self._say({"settled": feed.run_id, "tracking": feed.outlet.tracking.name})
        return last

    def _failed(self, feed: _Feed, error: Exception) -> None:
        outlet = feed.outlet
        _release(feed)
        outlet.due = time.monotonic() + outlet.pause
        outlet.pause = min(2 * outlet.pause, LONGEST_PAUSE_SECONDS)
        reason = f"{outlet.tracking.name}: {in_a_line(error)}"
        _log.warning("run %d: %s", feed.run_id, reason)
        if not outlet.reported:
            outlet.reported = True
            self._say({"failed": reason})


def _release(feed: _Feed) -> None:
    if feed.sender is not None:
        feed.sender.release()
        feed.sender = None


def main() -> None:
    """Feeds trackers until the standard input ends, and sends what is left."""
    os.nice(_NICENESS)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    # Libraries may print what they like; that goes where errors go.
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    orders: queue.SimpleQueue[Plain | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin, orders), daemon=True).start()

    def say(message: Plain) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody is left to be told
            told.write(json.dumps(message) + "\n")

    with open_store(create=False) as store:
        follower = TrackerProcess(store, say)
        polled = time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                order = orders.get(timeout=max(0.0, polled + POLL_SECONDS - time.monotonic()))
                if order is None:
                    break
                follower.take(order)
                continue
            follower.poll()
            polled = time.monotonic()
        follower.finish()
    # Libraries that were given up would wait for their servers now.
    os._exit(0)


def _listen(stream: TextIO, orders: queue.SimpleQueue[Plain | None]) -> None:
    """Passes orders on; None at their end, from which on time is limited."""
    patience = 0.0
    for line in stream:
        order = json.loads(line)
        if "tracking" in order:
            patience = max(patience, order["tracking"]["patience"])
        orders.put(order)
    # The system's own, so that it ends trackers, too, that never let Python come to its turn.
    signal.alarm(math.ceil(patience + _GRACE_SECONDS))
    orders.put(None)


if __name__ == "__main__":
    main()
