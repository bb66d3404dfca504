"""Trackers: services, besides the store, that show runs. Their contract, and what sends to them.

During a sweep a thread polls the store and sends what is new; afterwards `export` sends. What a
tracker raises, or how long it takes, ends no run: it is opened and tried again for some minutes,
and only `close` waits for the thread, for a limited time. Nothing is noted of what was sent: a
tracker that can tell what it has of a run is sent the rest, any other is sent the run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import math
import shlex
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from advsweep.components import Component, Plain, option
from advsweep.errors import AdvsweepError, ConfigError, NotFoundError, StoreError
from advsweep.packages import extra_command
from advsweep.printable import printable, printable_line, printable_values, redacted
from advsweep.store import Status
from advsweep.sweep.events import Event, EventKind, RunEvent

if TYPE_CHECKING:
    from advsweep.store import EvaluationRecord, RunRecord, Store

PROJECT = "advsweep"
POLL_SECONDS = 2.0
# During a sweep a tracker that fails is tried again, with longer and longer pauses: a server may be
# away for a minute. It is given up when it has failed for so long.
OUTAGE_SECONDS = 300.0
LONGEST_PAUSE_SECONDS = 20.0
# Time that a command waits at its end before it says why.
ANNOUNCED_SECONDS = 1.0
# Number of failures in a row after which the tracker counts as unreachable.
MAX_FAILURES = 3

# Digits of a hash that tell evaluation settings apart.
_PROTOCOL = 6
_NOT_ENDED = (Status.PENDING, Status.RUNNING, Status.LOST)

# Training steps (0: before the first) with their metrics, in rising order.
Rows = Sequence[tuple[int, Mapping[str, float]]]


class Track(ABC):
    """One run in a tracker, while it is sent. Its methods may take long and raise anything.

    They are called from one thread, which is not the scheduler's. Texts of records and names of
    metrics come without control characters. After an error the run is opened anew, and is sent the
    rows after the new track's `last_step`.
    """

    last_step: int = -1
    """The last step that the tracker has, if it can tell: rows up to there are not sent again."""

    @abstractmethod
    def log(self, rows: Rows) -> None:
        """Send the metrics of some steps."""

    @abstractmethod
    def close(self, record: RunRecord, summaries: Mapping[str, float]) -> None:
        """Send the run's state, and return when the tracker has everything.

        Args:
            summaries: metrics of the whole run, by name.
        """


@dataclass(kw_only=True)
class Tracking(Component, ABC):
    """Base of all trackers; never a part of a run's identity.

    A subclass implements `open`, and a `Track` that `open` returns. During a sweep it works in
    a thread: what it raises or how long it takes ends no training. What was not sent then,
    `advsweep export --to NAME` sends.

    Attributes:
        package: the package that it needs besides advsweep's own dependencies, if any. An extra of
            advsweep with the tracking's name, if there is one, says which release.
    """

    package: ClassVar[str | None] = None

    patience: float = option(
        30.0,
        ge=0,
        lt=math.inf,
        help="seconds that a command waits at its end for what is not sent yet",
    )

    def check(self) -> None:
        """Check that the tracking can work here.

        Raises:
            ConfigError: its package is not installed.
        """
        if self.package is None:
            return
        spec = importlib.util.find_spec(self.package)
        # A plain folder of that name, such as the one that wandb makes, has no origin.
        if spec is None or spec.origin is None:
            raise ConfigError(
                f"tracking: expected the package {self.package} for '{self.name}', which is not "
                f"installed; install it with `{extra_command(self.name, self.package)}`"
            )

    def in_folder(self, folder: Path) -> Self:
        """Return the same tracking that keeps everything in a local folder, without an account.

        `advsweep export` calls it; the folder may not exist yet.

        Raises:
            ConfigError: the tracker cannot write to a folder.
        """
        raise ConfigError(
            f"tracking: '{self.name}' cannot write to a folder; omit DIR to send runs to it"
        )

    @abstractmethod
    def open(self, record: RunRecord) -> Track:
        """Open a run, or resume it if the tracker has it."""


@dataclass(kw_only=True)
class NoTracking(Tracking):
    """No tracking: the store alone has the runs."""

    name: ClassVar[str] = "none"

    def open(self, record: RunRecord) -> Track:
        raise AssertionError("NoTracking sends no runs")


def sync_command(tracking: Tracking, target: str) -> str:
    """Return the command that sends runs to a tracker afterwards.

    Args:
        target: a sweep or a run.
    """
    defaults = type(tracking)().plain()
    options = "".join(
        f" --set {shlex.quote(f'{key}={value}')}"
        for key, value in tracking.plain().items()
        if value != defaults[key] and key != "patience"
    )
    return f"`advsweep export {target} --to {tracking.name}{options}`"


def group_of(record: RunRecord) -> str:
    """Return a name that the replicates of a configuration share, in any sweep."""
    return f"{record.estimator}-{record.config_hash[:8]}"


def run_key(record: RunRecord) -> str:
    """Return the id of a run in every tracker: the same for the same run of any store."""
    return f"{record.identity[:32]}-{record.attempt}"


def identifiers(record: RunRecord) -> Plain:
    """Return what identifies a run, for trackers that show it with the config."""
    return {
        "identity": record.identity,
        "config_hash": record.config_hash,
        "attempt": record.attempt,
    }


def run_tags(record: RunRecord, tags: Iterable[str]) -> list[str]:
    """Return the tags of a run, sorted: the names of its sweeps, and those given."""
    return sorted({*tags, *record.sweeps})


class Sender:
    """Sends one run to one tracker; raises StoreError and anything that the tracker raises."""

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
        try:
            self._send_steps(record, self._track, {step: rows[step] for step in steps}, last=last)
        except BaseException:
            # Some trackers write a run that is opened anew from its start.
            self._track = None
            self._last_step = -1
            raise
        self._last_step = max(steps, default=self._last_step)

    def _send_steps(
        self,
        record: RunRecord,
        track: Track,
        rows: Mapping[int, Mapping[str, float]],
        *,
        last: bool,
    ) -> None:
        # A step that a resumed run repeats is not sent again: trackers do not delete rows.
        new = [(step, values) for step, values in rows.items() if step > track.last_step]
        if new:
            track.log(new)
        if last:
            evaluations = self._store.evaluations.select([record.id], split=None)
            summaries = self._store.metrics.summaries([record.id]).get(record.id, {})
            summaries = summaries | last_scores(evaluations)
            track.close(record, {printable_line(k): v for k, v in summaries.items()})


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
        config=printable_values(record.config),
        error=record.error and printable(record.error),
    )


def sync(
    store: Store, runs: Iterable[RunRecord], tracking: Tracking
) -> Iterator[tuple[int, str, str]]:
    """Send runs that are done, pruned, failed or interrupted to a tracker.

    Yields:
        The id of each run, whether it was `sent`, `left out` or `failed`, and why.
    """
    failures = 0
    for run in runs:
        if run.status in _NOT_ENDED:
            yield run.id, "left out", f"it is {run.status.value}"
            continue
        if failures == MAX_FAILURES:
            yield run.id, "left out", f"the tracker failed {failures} times in a row before it"
            continue
        try:
            Sender(store, tracking).send(run, last=True)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a tracker's code may raise anything
            failures += 1
            yield run.id, "failed", _one_line(error)
        else:
            failures = 0
            yield run.id, "sent", ""


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
            values = evaluation.scores() | {"step": float(evaluation.step)}
            scores.update({f"{name}/{key}": value for key, value in values.items()})
    return scores


def _one_line(error: BaseException) -> str:
    """Return the first line of a tracker's error: some of them span pages.

    Passwords are masked: MLflow's client quotes the address of its server.
    """
    first, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {redacted(first.rstrip('.'))}"


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
    if isinstance(tracking, NoTracking):
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
        self._thread = threading.Thread(target=self._work, name="advsweep tracking", daemon=True)
        self._closing = threading.Event()
        self._senders: dict[int, Sender] = {}
        """What is not settled yet, by the id of the run."""
        self._targets: dict[int, str] = {}
        """Names for `export` of all runs that were started: the sweep's, or the id."""
        self._ended: set[int] = set()
        self._failure: str | None = None
        self._is_over = False

    def handle(self, event: Event) -> None:
        """Handle an event of a scheduler; return at once, without waiting for the tracker."""
        if self._is_over or not isinstance(event, RunEvent):
            return
        run = event.run
        if event.kind is EventKind.STARTED:
            self._ended.discard(run.id)  # a retried run has not ended
            self._targets[run.id] = run.sweeps[0] if run.sweeps else str(run.id)
            self._senders.setdefault(run.id, Sender(self._store, self._tracking))
            if self._thread.ident is None:
                self._thread.start()
        elif event.kind is not EventKind.RETRYING:
            # Also while another process trains it, which tracks it if its sweep is tracked.
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
        pause = POLL_SECONDS
        failing_since: float | None = None
        # The runs wait for a store that is away; what a tracker lacks can be sent later.
        with self._store.patience.suspended():
            while not is_last:
                is_last = self._closing.wait(pause)
                try:
                    self._send_new(last=is_last)
                    pause = POLL_SECONDS
                    failing_since = None
                except (Exception, SystemExit) as error:  # noqa: BLE001 - a tracker's code may raise anything
                    now = time.monotonic()
                    failing_since = failing_since or now
                    is_final = isinstance(error, (ConfigError, SystemExit))
                    if is_last or is_final or now - failing_since >= OUTAGE_SECONDS:
                        self._failure = _one_line(error)
                        return
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _send_new(self, *, last: bool) -> None:
        """Send what is new of each run; raises whatever the tracker raises."""
        for run_id, sender in list(self._senders.items()):
            if self._send(run_id, sender, last=last or run_id in self._ended):
                del self._senders[run_id]

    def _send(self, run_id: int, sender: Sender, *, last: bool) -> bool:
        """Send what is new of a run; return whether nothing of it is left to send.

        Args:
            last: whether the run has ended, or the tracker is being closed.
        """
        try:
            [record] = self._store.runs.select(ids=[run_id])
            sender.send(record, last=last)
        except NotFoundError:
            return True  # the user has removed it
        except StoreError:
            return False  # the workers report that
        return last
