"""Starts and talks to the process that feeds trackers during training.

Only `close` waits for that process, for a limited time. Orders are written to a pipe as far as it
accepts them, and messages are read as far as they have arrived.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from advsweep.components import Plain
from advsweep.errors import ConfigError, StoreError
from advsweep.local_files import make_private_folder, open_private
from advsweep.sweep.events import Event, EventKind, RunEvent
from advsweep.sweep.registry import TRACKINGS
from advsweep.sweep.tracking.base import TRACKING_KEY, Tracking, sync_command

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.store.records import SweepRecord

LOG = "tracking.log"
"""Log of the process that feeds trackers, and of their libraries; beside the runs."""

ANNOUNCED_SECONDS = 1.0
"""Time that a command waits at its end before it says why."""

_POLL_SECONDS = 0.05
_READ_BYTES = 1 << 16
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

_Sending = tuple[int, str]  # a run's id and a tracking's name


@contextmanager
def tracker_client(
    store: Store, trackings: Trackings, say: Callable[[str], None]
) -> Iterator[Callable[[Event], None]]:
    """Feeds trackers with the runs of a scheduler, whose `on_event` is the yielded function.

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
    """The parent's side of the process that feeds trackers; the first run starts it."""

    def __init__(self, store: Store, trackings: Trackings, say: Callable[[str], None]) -> None:
        self._store = store
        self._trackings = trackings
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._orders = b""
        self._received = b""
        self._commands: dict[_Sending, str] = {}
        self._open: set[_Sending] = set()
        self._patience = 0.0
        self._is_over = False

    def handle(self, event: Event) -> None:
        """Handles an event of a scheduler; returns at once, whatever the trackers do."""
        if self._is_over:
            return
        if isinstance(event, RunEvent):
            run = event.run
            if event.kind is EventKind.STARTED:
                for tracking in self._trackings(run):
                    self._track(run, tracking)
            elif event.kind in _ENDS and self._process is not None:
                self._order({"ended": run.id})
        if self._process is not None:
            code = self._exchange(self._process)
            if code is not None:
                self._give_up(self._exit_reason(code))

    def close(self) -> None:
        """Waits until everything is sent, at most for the trackings' `patience`."""
        process = self._process
        if process is None:
            return
        try:
            if not self._is_over:
                self._drain(process)
        finally:
            # The libraries' own processes end with it.
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _track(self, run: RunRecord, tracking: Tracking) -> None:
        if self._process is None and not self._start():
            return
        target = run.sweeps[0] if run.sweeps else str(run.id)
        sending = (run.id, tracking.name)
        self._commands[sending] = sync_command(tracking, target)
        self._open.add(sending)
        self._patience = max(self._patience, tracking.patience)
        self._order({"run": run.id, "tracking": tracking.plain()})

    def _start(self) -> bool:
        command = [sys.executable, "-P", "-m", "advsweep.sweep.tracking.process"]
        try:
            make_private_folder(self._store.runs_directory)
            with open_private(self._store.runs_directory / LOG, "ab") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, "ADVSWEEP_STORE": self._store.url},
                    start_new_session=True,
                )
        except OSError as error:
            self._give_up(f"its process could not be started: {error}")
            return False
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        return True

    def _order(self, order: Plain) -> None:
        self._orders += json.dumps(order).encode() + b"\n"

    def _exchange(self, process: subprocess.Popen[bytes]) -> int | None:
        """Writes and reads without blocking; returns the process's exit code, if it has ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        # Polled first: everything that it said before its end can be read after this.
        code = process.poll()
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._orders:
                written = os.write(process.stdin.fileno(), self._orders)
                self._orders = self._orders[written:]
        with contextlib.suppress(BlockingIOError):
            while data := os.read(process.stdout.fileno(), _READ_BYTES):
                self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._handle_message(json.loads(line))
        return code

    def _handle_message(self, message: Plain) -> None:
        if "settled" in message:
            self._open.discard((message["settled"], message["tracking"]))
        else:
            self._say(f"tracking: {message['failed']}; the runs go on, and it is tried again")

    def _drain(self, process: subprocess.Popen[bytes]) -> None:
        """Ends the process's input, and waits for its end."""
        now = time.monotonic()
        announced, deadline = now + ANNOUNCED_SECONDS, now + self._patience
        assert process.stdin is not None
        try:
            while (code := self._exchange(process)) is None:
                if not self._orders:
                    process.stdin.close()
                now = time.monotonic()
                if now > deadline:
                    self._give_up(f"not all was sent within {self._patience:g} s")
                    return
                if now > announced:
                    announced = deadline
                    self._say(f"tracking: sending what is left, for {self._patience:g} s at most")
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            self._give_up("what is left was not waited for")
            return
        if code != 0:
            self._give_up(self._exit_reason(code))
        elif self._open:
            self._give_up("not all could be sent")

    def _exit_reason(self, code: int) -> str:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process ended with {how}, see {self._store.runs_directory / LOG}"

    def _give_up(self, reason: str) -> None:
        """Says why runs are not sent any more, and which command sends them."""
        self._is_over = True
        commands = sorted({self._commands[sending] for sending in self._open})
        which = f"{len(self._open)} of {len(self._commands)} runs are left: " if commands else ""
        more = " and others" if len(commands) > _LISTED else ""
        how = ", ".join(commands[:_LISTED]) or "`advsweep sync`"
        self._say(f"tracking: {reason}; {which}{how}{more} sends them when they are done")


def sweep_trackings(store: Store, say: Callable[[str], None], *, trusted: bool) -> Trackings:
    """Returns a function that gives the trackings of a run, as the store has them by sweep.

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
