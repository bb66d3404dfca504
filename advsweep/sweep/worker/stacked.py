"""Trains several runs together in one process, as far as each of them is missing.

Each run keeps a record, a lease, a log, checkpoints and evaluations of its own, and is recorded
as soon as it ends, whatever happens to the others. A crash of the process leaves the others
without a recorded end; the scheduler then trains them one by one (`scheduler/outcomes.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from advsweep.components import Plain
from advsweep.errors import LeaseLostError, StoreError
from advsweep.local_files import make_private_folder, open_private
from advsweep.store import Owner, Status
from advsweep.sweep.exit_codes import STACKED, STOPPED, UNRECORDED
from advsweep.sweep.stop_request import RunStopped, RunStopRequest, StopRequest
from advsweep.sweep.worker.environment import ProcessCosts
from advsweep.sweep.worker.heartbeat import Heartbeat
from advsweep.sweep.worker.lifecycle import (
    FINISHED,
    DiskReserve,
    RunEnd,
    begin_training,
    end_of,
    end_training,
    evaluate_missing,
    prepare_run,
    record_end,
    unrecorded,
)

if TYPE_CHECKING:
    from advsweep.backends.base import Run, StackMember
    from advsweep.evaluation.run_evaluator import Evaluator
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.worker.reporter import StoreReporter

LOG_NAME = "log.txt"

_log = logging.getLogger(__name__)
_log_file: ContextVar[Path | None] = ContextVar("log_file", default=None)


def train_stacked(
    store: Store,
    run_ids: Sequence[int],
    evaluations: Sequence[Plain],
    parent_pid: int | None,
    holder: Owner | None = None,
) -> int:
    """Trains and evaluates several runs; returns an exit code.

    Runs of other processes, and completed ones, are left alone. Messages about the process as a
    whole are in the log of the first run.

    Args:
        evaluations, parent_pid, holder: as for `main.work_on`.
    """
    costs = ProcessCosts(run_ids)
    process_stop = StopRequest()
    with process_stop.installed():
        mine = [i for i in run_ids if store.leases.claim(i, Owner.current(), holder=holder)]
        others = [i for i in run_ids if i not in mine]
        for run_id in others:
            costs.leave(run_id)
        _log.info("%d runs trained together: %s", len(mine), ", ".join(map(str, mine)))
        if others:
            _log.info("other processes have, or had, %s", ", ".join(map(str, others)))
        if not mine:
            return STACKED
        records = store.runs.select(ids=mine)
        reserve = DiskReserve(records[0].directory)
        runs = [StackedRun(store, record, process_stop, costs, reserve) for record in records]
        with reserve.held(), StackHeartbeat(store, runs, process_stop, parent_pid):
            return _train(store, runs, evaluations, process_stop, run_ids[0])


def _train(
    store: Store,
    runs: Sequence[StackedRun],
    evaluations: Sequence[Plain],
    process_stop: StopRequest,
    first_id: int,
) -> int:
    for run in runs:
        with run.guard():
            run.prepare(evaluations, len(runs), first_id)
    from advsweep.sweep.worker.calibration import calibrated

    trained = [run for run in runs if run.is_active]
    try:
        if trained:
            with process_stop.interruptible():
                first = trained[0].member
                backend = first.run.backend
                found = calibrated(store, [run.member.run for run in trained], first.reporter)
                for run, ready in zip(trained, found, strict=True):
                    with run.guard():
                        run.set_run(ready)
                trained = [run for run in trained if run.is_active]
                backend.train_together([run.member for run in trained])
    except RunStopped:
        pass  # stopped before there was anything to save
    except BaseException as error:  # noqa: BLE001 - each run is then trained alone
        failed = end_of(error)
        failed.log()
        for run in trained:
            if run.is_active:
                with run.guard():
                    run.give_up(failed)
        return next((run.unrecorded for run in runs if run.is_open), failed.code)
    for run in trained:
        if run.is_active:
            with run.guard():
                run.finish()
    code = STOPPED if process_stop.reason is not None else STACKED
    return next((run.unrecorded for run in runs if run.is_open), code)


class StackedRun:
    """One of the runs of a stack, from its claim to its end.

    Attributes:
        member: the run as its backend trains it, once it is prepared.
        end: how it ended; None before, and if another process has taken it over.
        is_open: whether this process has yet to record its end.
        unrecorded: the exit code of the process if it cannot record the end.
    """

    member: StackMember

    def __init__(
        self,
        store: Store,
        record: RunRecord,
        process_stop: StopRequest,
        costs: ProcessCosts,
        reserve: DiskReserve,
    ) -> None:
        self._store = store
        self._record = record
        self._process_stop = process_stop
        self._costs = costs
        self._reserve = reserve
        self._evaluators: Sequence[Evaluator] = ()
        self._reporter: StoreReporter | None = None
        self._log_file = record.directory / LOG_NAME
        self.run_id = record.id
        self.stop = RunStopRequest(process_stop)
        self.end: RunEnd | None = None
        self.is_open = True
        self.unrecorded = UNRECORDED

    @property
    def is_active(self) -> bool:
        """Whether this process still works on it."""
        return self.is_open and self.end is None

    def prepare(self, evaluations: Sequence[Plain], runs_in_process: int, first_id: int) -> None:
        """Builds the run and prepares its training.

        Args:
            first_id: the run whose log the process writes to.
        """
        from advsweep.backends.base import StackMember

        record = self._record
        make_private_folder(record.directory)
        with self.stop.interruptible():
            self._evaluators = prepare_run(self._store, record, evaluations)
        if record.id != first_id:
            _log.info("trained together with others: see the log of run %d as well", first_id)
        evaluator = self._evaluators[0]
        self._reporter = begin_training(
            self._store, record, evaluator, self.stop, runs_in_process=runs_in_process
        )
        self.member = StackMember(evaluator.run, record.directory, self._reporter, self.guard)

    def set_run(self, ready: Run | Exception) -> None:
        """Takes the run with its learning rate, or raises the error for which it has none."""
        if isinstance(ready, Exception):
            raise ready
        self.member = replace(self.member, run=ready)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Surrounds the work on this run: an error in it, or its end, is recorded."""
        with logging_to(self._log_file):
            try:
                yield
                if self.is_active and self._reporter is not None and self._reporter.is_over:
                    self.finish()
            except BaseException as error:  # noqa: BLE001 - any error must end this run alone
                with self._process_stop.shielded():
                    self._fail(error)

    def finish(self) -> None:
        """Ends a run whose training is over, after the missing evaluations."""
        assert self._reporter is not None
        evaluator = self._evaluators[0]
        end = end_training(self._store, self._record, self._reporter, evaluator.run, self.stop)
        if end is None:
            with self.stop.interruptible():
                evaluate_missing(self._record, self._evaluators)
        with self._process_stop.shielded():
            self._end(end or FINISHED)

    def give_up(self, failed: RunEnd) -> None:
        """Leaves the run to be trained alone.

        Args:
            failed: the end of the whole stack.
        """
        error = f"could not be trained together with others: {failed.error}"
        self._end(RunEnd(failed.code, Status.INTERRUPTED, error))

    def stop_as_lost(self) -> None:
        """Stops the run at its next step: another process has taken it over."""
        _log.error("run %d was taken over by another process", self.run_id)
        self.stop.request("taken over by another process")

    def _fail(self, error: BaseException) -> None:
        try:
            if self._reporter is not None:
                try:
                    self._reporter.flush()
                except StoreError as another:
                    error = another
            self._end(end_of(error))
        except LeaseLostError as lost:
            _log.error("%s", lost)
            self._costs.leave(self.run_id)
            self.is_open = False

    def _end(self, end: RunEnd) -> None:
        """Records the end of the run.

        Raises:
            LeaseLostError: another process has the run.
        """
        self.end = end
        end.log()
        try:
            record_end(self._store, self._record, end, self._costs, self._reserve)
        except LeaseLostError:
            raise
        except StoreError as error:
            _log.error("%s", error)
            self.unrecorded = unrecorded(error)
            return
        self.is_open = False


class StackHeartbeat(Heartbeat):
    """Renews the leases of the runs of a stack until each has ended."""

    def __init__(
        self,
        store: Store,
        runs: Sequence[StackedRun],
        process_stop: StopRequest,
        parent_pid: int | None,
    ) -> None:
        super().__init__(store, None, process_stop, parent_pid)
        self._runs = {run.run_id: run for run in runs}

    def _check_stop_requests(self) -> None:
        for run_id in self._store.leases.stops_requested(self._open_ids()):
            self._runs[run_id].stop.request("asked to stop")

    def _renew_leases(self) -> None:
        for run_id in self._store.leases.renew(self._open_ids()):
            self._runs.pop(run_id).stop_as_lost()
        self._renew_others(self._runs)

    def _open_ids(self) -> list[int]:
        return [run_id for run_id, run in self._runs.items() if run.is_open]


@contextmanager
def logging_to(file: Path) -> Iterator[None]:
    """Sends this thread's log records to the log of one run."""
    token = _log_file.set(file)
    try:
        yield
    finally:
        _log_file.reset(token)


class RunLogs(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the log of the current run, or to the process's output.

    The file is opened for each line: a process may have more runs than file descriptors.
    """

    def emit(self, record: logging.LogRecord) -> None:
        file = _log_file.get()
        if file is None:
            super().emit(record)
            return
        try:
            with open_private(file, "a", encoding="utf-8") as log:
                log.write(self.format(record) + self.terminator)
        except OSError:
            self.handleError(record)
