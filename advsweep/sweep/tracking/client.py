"""Feeds trackers during training, from a thread of the process that follows the runs.

The thread polls the store. What it raises, or how long it takes, ends no run: only `close` waits
for it, for a limited time.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from advsweep.errors import ConfigError, NotFoundError, StoreError
from advsweep.sweep.events import Event, EventKind, RunEvent
from advsweep.sweep.registry import TRACKINGS
from advsweep.sweep.tracking.base import TRACKING_KEY, Tracking, sync_command
from advsweep.sweep.tracking.sender import Sender, one_line

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.store.records import SweepRecord

POLL_SECONDS = 2.0
ANNOUNCED_SECONDS = 1.0
"""Time that a command waits at its end before it says why."""

_THREAD = "advsweep tracking"
_LISTED = 3
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

Trackings = Callable[["RunRecord"], Sequence[Tracking]]

_Key = tuple[int, str]  # a run's id and a tracking's name


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
        # A started run with its tracking, the id of a run that ended, or None at the end.
        self._orders: queue.SimpleQueue[tuple[RunRecord, Tracking] | int | None]
        self._orders = queue.SimpleQueue()
        self._commands: dict[_Key, str] = {}
        self._settled: set[_Key] = set()
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
                self._commands[run.id, tracking.name] = sync_command(tracking, target)
                self._settled.discard((run.id, tracking.name))
                self._patience = max(self._patience, tracking.patience)
                self._orders.put((run, tracking))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name=_THREAD, daemon=True)
                    self._thread.start()
        elif event.kind in _ENDS:
            self._orders.put(run.id)
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
        elif self._commands.keys() - self._settled:
            self._give_up("not all could be sent")

    def _give_up(self, reason: str) -> None:
        """Say why runs are not sent any more, and which command sends them."""
        self._is_over = True
        left = self._commands.keys() - self._settled
        commands = sorted({self._commands[key] for key in left})
        more = " and others" if len(commands) > _LISTED else ""
        how = ", ".join(commands[:_LISTED]) or "`advsweep sync`"
        self._say(
            f"tracking: {reason}; {len(left)} of {len(self._commands)} runs are left: "
            f"{how}{more} sends them when they are done"
        )

    def _work(self) -> None:
        """Send what is new of the runs in training, and the rest when they end."""
        senders: dict[_Key, Sender] = {}
        ended: set[int] = set()
        is_last = False
        try:
            # The runs wait for the store; the tracker does not.
            with self._store.without_retries():
                while not is_last:
                    is_last = self._take_orders(senders, ended)
                    for key, sender in list(senders.items()):
                        if self._serve(sender, key[0], last=is_last or key[0] in ended):
                            del senders[key]
                            self._settled.add(key)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tracker's code may raise anything
            self._failure = one_line(error)

    def _take_orders(self, senders: dict[_Key, Sender], ended: set[int]) -> bool:
        """Take orders for the time between two polls; return True at the last one."""
        until = time.monotonic() + POLL_SECONDS
        while (left := until - time.monotonic()) > 0:
            try:
                order = self._orders.get(timeout=left)
            except queue.Empty:
                break
            if order is None:
                return True
            if isinstance(order, int):
                ended.add(order)
            else:
                run, tracking = order
                ended.discard(run.id)  # a retried run has not ended
                key = (run.id, tracking.name)
                senders.setdefault(key, Sender(self._store, run, tracking))
        return False

    def _serve(self, sender: Sender, run_id: int, *, last: bool) -> bool:
        """Send a run; return True when nothing of it is left to send."""
        try:
            [record] = self._store.runs.select(ids=[run_id])
            if last:
                sender.finish(record)
            else:
                sender.send(record)
        except NotFoundError:
            return True  # the user has removed it
        except StoreError:
            return False  # the workers report that
        return last


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
