"""The worker: a process that trains one run after another, or several side by side.

It reads jobs from its standard input, a line each (see `executors.base.Job`). It claims the runs
of a job under leases, trains them from their last checkpoints, makes the missing evaluations and
records how each ended. It stops with a checkpoint at SIGTERM (see `advsweep.sweep.stop_request`)
and ends when the process that started it is gone.

Each run of a stack has its own record, lease, log, checkpoints and evaluations, and its end is
recorded at once, whatever happens to the others. A crash of the process leaves the
others without a recorded end; the scheduler then trains them one by one.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

import psutil

from advsweep.backends.work_clock import WorkClock
from advsweep.components import Plain
from advsweep.errors import LeaseLostError, StoreError, StoreUnavailableError
from advsweep.local_files import open_private
from advsweep.store import Owner, Status, open_store
from advsweep.sweep.events import DONE, ELSEWHERE, ORPHANED, REUSABLE, STOPPED
from advsweep.sweep.retry_policy import store_patience
from advsweep.sweep.stop_request import RunStopped, StopRequest
from advsweep.sweep.worker.environment import ProcessCosts, had_large_children
from advsweep.sweep.worker.run import (
    DiskReserve,
    RunEnd,
    RunLogs,
    WorkerRun,
    end_of,
    evaluate_missing,
    leave_store_error,
    make_evaluators,
)

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store

BEAT_SECONDS = 5.0
# Interval at which the store is checked for requests to stop.
STOP_SECONDS = 1.0
PARENT_SECONDS = 0.5
# Time that a run without a parent has to write a checkpoint before it is ended.
ORPHAN_SECONDS = 10.0

_log = logging.getLogger(__name__)


def main() -> int:
    """Do the jobs of the standard input; return the exit code of the last one.

    The optional argument is the descriptor of a pipe, through which the process says that it
    did a job well and takes another. Without it there is one job.
    """
    results = int(sys.argv[1]) if len(sys.argv) > 1 else None
    logging.basicConfig(
        level=logging.INFO,
        handlers=[RunLogs(sys.stdout)],
        format="%(asctime)s %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )
    logging.captureWarnings(True)
    jobs = _take_input()
    if results is not None:
        os.set_inheritable(results, False)
    store: Store | None = None
    code = DONE
    for line in iter(jobs.readline, b""):
        job = json.loads(line)
        _print_into(job["log"])
        parent = job["parent"]
        starter = Starter(
            pid=parent,
            holder=Owner.of(parent),
            is_pulled=job["is_pulled"],
            boot=_seconds_since_birth() if store is None else None,
        )
        try:
            if store is None:
                store = open_store(create=False, patience=store_patience(), wait=True)
            code = work_on(store, job["runs"], job["evaluations"], starter)
        except StoreError as error:
            _log.error("%s", error)
            return leave_store_error(error, Path(job["log"]).parent)
        # After a failure the process may be in any state, so that a new one takes the next job;
        # and so after children that needed more memory: it would count for later runs as well.
        if results is None or code not in REUSABLE or had_large_children():
            return code
        os.write(results, b"%d\n" % code)
    return code


def _seconds_since_birth() -> float:
    """Return how long this process has lasted; its imports take seconds."""
    born: float = psutil.Process().create_time()
    return max(0.0, time.time() - born)


def _take_input() -> BinaryIO:
    """Return the standard input, which is empty from now on.

    Neither a run's own code nor the processes that it starts may read the jobs.
    """
    jobs = os.fdopen(os.dup(0), "rb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return jobs


def _print_into(log: str) -> None:
    """Let what this process prints go into the log of a run."""
    sys.stdout.flush()
    sys.stderr.flush()
    with open_private(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


@dataclass(frozen=True, kw_only=True)
class Starter:
    """Who started this process for its runs.

    Attributes:
        pid: the process ends when this is no longer its parent; None: never.
        holder: a process that may have claimed the runs for this one.
        is_pulled: as in `Job`.
        boot: seconds that this process has lasted, if these are its first runs; else None.
    """

    pid: int | None = None
    holder: Owner | None = None
    is_pulled: bool = False
    boot: float | None = None


def work_on(
    store: Store,
    run_ids: Sequence[int],
    evaluations: Sequence[Plain],
    starter: Starter | None = None,
) -> int:
    """Train and evaluate one run, or several together, as far as that is missing.

    Runs of other processes are left alone. Messages about the process as a whole are in the log
    of the first run.

    Args:
        evaluations: evaluation settings, the first of them used during training too; those of
            the run's config when empty.
        starter: who started this process for the runs; None: nobody.

    Returns:
        The exit code.
    """
    starter = starter or Starter()
    parent_pid = starter.pid
    costs = ProcessCosts(run_ids, WorkClock(len(run_ids), starter.boot))
    stop = StopRequest()
    with stop.installed():
        # Claimed here and not by the parent alone: the lease names the process that writes.
        mine = [i for i in run_ids if store.leases.claim(i, Owner.current(), holder=starter.holder)]
        others = [i for i in run_ids if i not in mine]
        if others:
            for run_id in others:
                costs.leave(run_id)
            _log.info("other processes have, or had, run %s", ", ".join(map(str, others)))
        if not mine:
            [record] = store.runs.select(ids=run_ids[:1])
            if len(run_ids) > 1 or record.status is not Status.DONE:
                return ELSEWHERE
            # A completed run cannot be claimed, and may lack evaluations of a later plan.
            return _evaluate(store, record, evaluations, stop, parent_pid)
        records = store.runs.select(ids=mine)
        reserve = DiskReserve(records[0].directory)
        runs = [WorkerRun(store, record, stop, costs, reserve) for record in records]
        for run in runs:
            run.is_pulled = starter.is_pulled
        if len(runs) > 1:
            _log.info("%d runs trained together: %s", len(mine), ", ".join(map(str, mine)))
        # A stack of which one run is left stays a stack: it may be given up.
        is_stack = len(run_ids) > 1
        with reserve.held(), Heartbeat(store, runs, stop, parent_pid):
            for run in runs:
                with run.guard():
                    run.prepare(evaluations, len(runs), run_ids[0])
            failed = _train(store, runs, stop, is_stack=is_stack)
        return _exit_code(runs, stop, failed, is_stack=is_stack)


def _exit_code(
    runs: Sequence[WorkerRun], stop: StopRequest, failed: RunEnd | None, *, is_stack: bool
) -> int:
    """Return the exit code of the process after its runs.

    Args:
        failed: the error for which a whole stack was given up; None without one.
    """
    for run in runs:
        if run.is_open:
            return run.unrecorded
    if failed is not None:
        return failed.code
    if not is_stack:
        return runs[0].exit_code
    return STOPPED if stop.reason is not None else DONE


def _evaluate(
    store: Store,
    record: RunRecord,
    evaluations: Sequence[Plain],
    stop: StopRequest,
    parent_pid: int | None,
) -> int:
    """Evaluate a completed run without a lease: nothing of its training is written."""
    try:
        with Heartbeat(store, (), stop, parent_pid), stop.interruptible():
            evaluate_missing(record, make_evaluators(store, record, evaluations, WorkClock()))
    except BaseException as error:  # noqa: BLE001 - no run may end a sweep, whatever it raises
        end = end_of(error)
        end.log()
        return end.code
    return DONE


def _train(
    store: Store, runs: Sequence[WorkerRun], stop: StopRequest, *, is_stack: bool
) -> RunEnd | None:
    """Train prepared runs side by side; a single run is a stack of one.

    Returns:
        The error for which a whole stack was given up; None if each run has its own end.
    """
    trained = [run for run in _active(runs) if not run.calibrate()]
    if not trained:
        return None
    try:
        with stop.interruptible():
            _set_learning_rates(store, trained)
            members = [run.member for run in _active(trained)]
            if members:
                trained[0].member.run.backend.train_together(members)
    except LeaseLostError:
        raise
    except RunStopped:
        pass  # nothing is to be saved here: the runs end below, each by its own record
    except BaseException as error:
        failed = end_of(error)
        failed.log()
        for run in _active(trained):
            with run.guard():
                if not is_stack:
                    raise
                run.give_up(failed)
        return failed if is_stack else None
    for run in _active(trained):
        with run.guard():
            run.finish()
    return None


def _active(runs: Sequence[WorkerRun]) -> list[WorkerRun]:
    """Return the runs that this process still works on."""
    return [run for run in runs if run.is_active]


def _set_learning_rates(store: Store, runs: Sequence[WorkerRun]) -> None:
    """Give runs the learning rates that their calibrations find; a run without one ends."""
    from advsweep.sweep.worker.calibration import calibrated

    reporter = runs[0].member.reporter
    results = calibrated(store, [run.member.run for run in runs], reporter)
    for run, result in zip(runs, results, strict=True):
        with run.guard():
            if isinstance(result, Exception):
                raise result
            run.member = replace(run.member, run=result)


class Heartbeat(threading.Thread):
    """Renews the leases of runs while it is open as a context manager.

    Args:
        parent_pid: the process ends when this is no longer its parent; None: never.
    """

    def __init__(
        self,
        store: Store,
        runs: Sequence[WorkerRun],
        stop: StopRequest,
        parent_pid: int | None,
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._store = store
        self._runs = {run.run_id: run for run in runs}
        self._stop_request = stop
        self._parent_pid = parent_pid
        self._ended = threading.Event()
        self._orphaned_since: float | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        # One thread for all runs: a stack of hundreds must not need as many.
        last_renewal = last_check = time.monotonic()
        while not self._ended.wait(PARENT_SECONDS):
            self._watch_parent()
            now = time.monotonic()
            if now - last_check >= STOP_SECONDS:
                last_check = now
                self._try(self._check_stop_requests)
            if now - last_renewal >= BEAT_SECONDS:
                last_renewal = now
                self._try(self._renew_leases)

    def _try(self, act: Callable[[], None]) -> None:
        """Use the store without waiting for it: it may recover before the next attempt."""
        try:
            with self._store.patience.suspended():
                act()
        except StoreUnavailableError:
            pass  # the store has logged it
        except StoreError as error:
            _log.warning("no heartbeat: %s", error)

    def _check_stop_requests(self) -> None:
        for run_id in self._store.leases.stops_requested(self._open_ids()):
            if len(self._runs) == 1:
                # It may interrupt what its process is busy with.
                self._stop_request.request("asked to stop")
            else:
                self._runs[run_id].stop.request("asked to stop")

    def _renew_leases(self) -> None:
        open_ids = self._open_ids()
        lost = self._store.leases.renew(open_ids)
        for run_id in lost:
            # Its next write would fail; the other runs of a stack go on.
            self._runs.pop(run_id).stop_as_lost()
        if lost and len(lost) == len(open_ids):
            # Others train all of its runs now: this process must not write any more.
            os._exit(ELSEWHERE)
        # The calibrations that this process makes for its runs.
        self._store.leases.renew([i for i in list(self._store.leases.held) if i not in self._runs])

    def _open_ids(self) -> list[int]:
        return [run_id for run_id, run in self._runs.items() if run.is_open]

    def _watch_parent(self) -> None:
        if self._parent_pid is None or os.getppid() == self._parent_pid:
            return
        now = time.monotonic()
        if self._orphaned_since is None:
            self._orphaned_since = now
            _log.warning("the process that started this run is gone")
            self._stop_request.request("the process that started it is gone")
        elif now - self._orphaned_since > ORPHAN_SECONDS:
            # Nobody is left to kill a run that hangs; its lease would stay valid without end.
            _log.error("still busy %g s after the parent's end: ending now", ORPHAN_SECONDS)
            os._exit(ORPHANED)


if __name__ == "__main__":
    sys.exit(main())
