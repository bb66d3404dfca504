"""Has trackers fed while runs are trained: starts the process that does so, and no more.

Nothing here waits for that process but `close`, which does so for a time that was agreed on:
orders go into a pipe as far as it takes them, and what it says is read as far as it is there.
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
from advsweep.sweep.registry import TRACKINGS
from advsweep.sweep.scheduler.events import Event, EventKind, RunEvent
from advsweep.sweep.tracking.base import TRACKING_KEY, Tracking, sync_command

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store
    from advsweep.store.records import SweepRecord

LOG = "tracking.log"
"""Where the process that feeds trackers, and their libraries, say more; beside the runs."""

ANNOUNCED_SECONDS = 1.0
"""How long a command waits at its end before it says what for."""

_POLL_SECONDS = 0.05
_READ_BYTES = 1 << 16
_LISTED = 3
_ENDS = frozenset(
    {
        EventKind.DONE,
        EventKind.FAILED,
        EventKind.INTERRUPTED,
        EventKind.PRUNED,
        # Another process trains it, and has it tracked if anybody does.
        EventKind.WAITING,
    }
)

Trackings = Callable[["RunRecord"], Sequence[Tracking]]

_Sending = tuple[int, str]  # a run's id and a tracking's name


@contextmanager
def tracker_client(
    store: Store, trackings: Trackings, say: Callable[[str], None]
) -> Iterator[Callable[[Event], None]]:
    """Feeds trackers with the runs of an execution, to which the yielded function is given.

    Args:
        trackings: where a run is to be sent to.
        say: is told, in a line, of what goes wrong; nothing else happens then.
    """
    feed = TrackerClient(store, trackings, say)
    try:
        yield feed.take
    finally:
        feed.close()


class TrackerClient:
    """The parent's end of the process that feeds trackers, which is started with the first run."""

    def __init__(self, store: Store, trackings: Trackings, say: Callable[[str], None]) -> None:
        self._store = store
        self._trackings = trackings
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._orders = b""
        self._told = b""
        self._followed: dict[_Sending, str] = {}
        self._open: set[_Sending] = set()
        self._patience = 0.0
        self._is_over = False

    def take(self, event: Event) -> None:
        """Takes in what an execution tells; returns at once, whatever the trackers do."""
        if self._is_over:
            return
        if isinstance(event, RunEvent):
            run = event.run
            if event.kind is EventKind.STARTED:
                for tracking in self._trackings(run):
                    self._follow(run, tracking)
            elif event.kind in _ENDS and self._process is not None:
                self._order({"ended": run.id})
        if self._process is not None:
            code = self._exchange(self._process)
            if code is not None:
                self._give_up(self._epitaph(code))

    def close(self) -> None:
        """Waits for what is not sent yet, but no longer than the trackings have it."""
        process = self._process
        if process is None:
            return
        try:
            if not self._is_over:
                self._drain(process)
        finally:
            # Its libraries' own processes end when it is gone.
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _follow(self, run: RunRecord, tracking: Tracking) -> None:
        if self._process is None and not self._start():
            return
        target = run.sweeps[0] if run.sweeps else str(run.id)
        sending = (run.id, tracking.name)
        self._followed[sending] = sync_command(tracking, target)
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
        """Passes on as much as goes through without waiting, both ways; its exit code, if any."""
        assert process.stdin is not None
        assert process.stdout is not None
        # Asked first: what it said before its end is there to be read after that.
        code = process.poll()
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._orders:
                written = os.write(process.stdin.fileno(), self._orders)
                self._orders = self._orders[written:]
        with contextlib.suppress(BlockingIOError):
            while told := os.read(process.stdout.fileno(), _READ_BYTES):
                self._told += told
        *lines, self._told = self._told.split(b"\n")
        for line in lines:
            self._hear(json.loads(line))
        return code

    def _hear(self, message: Plain) -> None:
        if "settled" in message:
            self._open.discard((message["settled"], message["tracking"]))
        else:
            self._say(f"tracking: {message['failed']}; the runs go on, and it is tried again")

    def _drain(self, process: subprocess.Popen[bytes]) -> None:
        """Ends its input, and waits for its end."""
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
            self._give_up(self._epitaph(code))
        elif self._open:
            self._give_up("not all could be sent")

    def _epitaph(self, code: int) -> str:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process ended with {how}, see {self._store.runs_directory / LOG}"

    def _give_up(self, reason: str) -> None:
        """Says why runs are not sent any more, and how they can be."""
        self._is_over = True
        remedies = sorted({self._followed[sending] for sending in self._open})
        which = f"{len(self._open)} of {len(self._followed)} runs are left: " if remedies else ""
        more = " and others" if len(remedies) > _LISTED else ""
        how = ", ".join(remedies[:_LISTED]) or "`advsweep sync`"
        self._say(f"tracking: {reason}; {which}{how}{more} sends them when they are done")


def sweep_trackings(store: Store, say: Callable[[str], None], *, trusted: bool) -> Trackings:
    """What the sweeps of a run were last started with, as far as it works here.

    Args:
        say: takes a line for each sweep that is tracked by the store's choice, or is not tracked.
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
