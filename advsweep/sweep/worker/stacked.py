"""Trains several runs side by side in one process, as far as each of them is missing.

Each has a record, a lease, a log, checkpoints and evaluations of its own, and is recorded as
soon as it has ended, whatever becomes of the others. What ends the process leaves those that
have not ended without a word; they are then trained one by one (`engine`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from advsweep.components import Plain
from advsweep.errors import LeaseLostError, StoreError
from advsweep.local_files import make_private_folder, open_private
from advsweep.store import Owner, Status
from advsweep.sweep.exit_codes import STACKED, STOPPED, UNRECORDED
from advsweep.sweep.stop_request import RunStopped, RunStopRequest, StopRequest
from advsweep.sweep.worker.costs import SharedCosts
from advsweep.sweep.worker.environment import describe_environment
from advsweep.sweep.worker.heartbeat import Heartbeat
from advsweep.sweep.worker.lifecycle import (
    FINISHED,
    DiskReserve,
    RunEnd,
    begin_training,
    end_of,
    end_training,
    evaluate_missing,
    make_evaluators,
    record_end,
    unrecorded,
)

if TYPE_CHECKING:
    from advsweep.backends.base import StackMember
    from advsweep.evaluation.run_evaluator import Evaluator
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.worker.reporter import StoreReporter

_log = logging.getLogger(__name__)


def train_stacked(
    store: Store,
    run_ids: Sequence[int],
    evaluations: Sequence[Plain],
    parent_pid: int | None,
    holder: Owner | None = None,
) -> int:
    """Trains and evaluates runs; returns an exit code.

    Those that another process has, or that are done, are left alone. What the process as a whole
    has to say is in the log of the first.

    Args:
        evaluations, holder: as for `worker.work`.
    """
    costs = SharedCosts(run_ids)
    everyone = StopRequest()
    with everyone.installed():
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
        seats = [StackedRun(store, record, everyone, costs, reserve) for record in records]
        with reserve.held(), SharedHeartbeat(store, seats, everyone, parent_pid):
            return _work(seats, evaluations, everyone, run_ids[0])


def _work(
    seats: Sequence[StackedRun], evaluations: Sequence[Plain], everyone: StopRequest, first: int
) -> int:
    for seat in seats:
        with seat.guard():
            seat.take(evaluations, len(seats), first)
    trained = [seat for seat in seats if seat.goes_on]
    try:
        if trained:
            with everyone.interruptible():
                backend = trained[0].member.run.backend
                backend.train_together([seat.member for seat in trained])
    except RunStopped:
        pass  # nothing was begun that could be saved
    except BaseException as error:  # noqa: BLE001 - each is trained by itself then
        failed = end_of(error)
        failed.log()
        for seat in trained:
            if seat.goes_on:
                with seat.guard():
                    seat.give_up(failed)
        return next((seat.unrecorded for seat in seats if seat.is_open), failed.code)
    for seat in trained:
        if seat.goes_on:
            with seat.guard():
                seat.finish()
    told = STOPPED if everyone.reason is not None else STACKED
    return next((seat.unrecorded for seat in seats if seat.is_open), told)


class StackedRun:
    """The place of one of the runs that are trained together, from its claim to its end.

    Attributes:
        member: what its backend trains, once it is taken.
        end: how it ended; None while it has not, or where it is another process's by now.
        is_open: whether its end is yet to be recorded by this process.
        unrecorded: the exit code of a process that cannot record it.
    """

    member: StackMember

    def __init__(
        self,
        store: Store,
        record: RunRecord,
        everyone: StopRequest,
        costs: SharedCosts,
        reserve: DiskReserve,
    ) -> None:
        self._store = store
        self._record = record
        self._everyone = everyone
        self._costs = costs
        self._reserve = reserve
        self._evaluators: Sequence[Evaluator] = ()
        self._reporter: StoreReporter | None = None
        self._log_file = record.directory / LOG_NAME
        self.run_id = record.id
        self.stop = RunStopRequest(everyone)
        self.end: RunEnd | None = None
        self.is_open = True
        self.unrecorded = UNRECORDED

    @property
    def goes_on(self) -> bool:
        """Whether something is left to do for it here."""
        return self.is_open and self.end is None

    def take(self, evaluations: Sequence[Plain], together: int, first: int) -> None:
        """Makes ready what it takes to train and to evaluate the run.

        Args:
            together: how many they are.
            first: the run whose log the process writes to.
        """
        from advsweep.backends.base import StackMember

        record = self._record
        make_private_folder(record.directory)
        self._store.runs.set_environment(record.id, describe_environment())
        with self.stop.interruptible():
            self._evaluators = make_evaluators(self._store, record, evaluations)
        if record.id != first:
            _log.info("trained together with others, of which the log of run %d tells", first)
        evaluator = self._evaluators[0]
        self._reporter = begin_training(
            self._store, record, evaluator, self.stop, together=together
        )
        self.member = StackMember(evaluator.run, record.directory, self._reporter, self.guard)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """A stretch of the work on this run; what goes wrong in it, or ends it, is recorded."""
        with logging_to(self._log_file):
            try:
                yield
                if self.goes_on and self._reporter is not None and self._reporter.is_over:
                    self.finish()
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is this run's alone
                with self._everyone.shielded():
                    self._fail(error)

    def finish(self) -> None:
        """Ends a run that is trained as far as it will be; what else is wanted is made first."""
        assert self._reporter is not None
        evaluator = self._evaluators[0]
        end = end_training(self._store, self._record, self._reporter, evaluator.run, self.stop)
        if end is None:
            with self.stop.interruptible():
                evaluate_missing(self._record, self._evaluators)
        with self._everyone.shielded():
            self._end(end or FINISHED)

    def give_up(self, failed: RunEnd) -> None:
        """Leaves the run to be trained alone.

        Args:
            failed: what befell all of them.
        """
        error = f"could not be trained together with others: {failed.error}"
        self._end(RunEnd(failed.code, Status.INTERRUPTED, error))

    def lose(self) -> None:
        """Another process has the run: it is left at the next step."""
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


class SharedHeartbeat(Heartbeat):
    """Beats for all runs that are trained together, as long as each has not ended."""

    def __init__(
        self,
        store: Store,
        seats: Sequence[StackedRun],
        everyone: StopRequest,
        parent_pid: int | None,
    ) -> None:
        super().__init__(store, None, everyone, parent_pid)
        self._seats = {seat.run_id: seat for seat in seats}

    def _look(self) -> None:
        for run_id in self._store.leases.stops_requested(self._open()):
            self._seats[run_id].stop.request("asked to stop")

    def _beat(self) -> None:
        for run_id in self._store.leases.renew(self._open()):
            self._seats.pop(run_id).lose()

    def _open(self) -> list[int]:
        return [run_id for run_id, seat in self._seats.items() if seat.is_open]


LOG_NAME = "log.txt"

_log_file: ContextVar[Path | None] = ContextVar("log_file", default=None)


@contextmanager
def logging_to(file: Path) -> Iterator[None]:
    """The stretch in which what is logged, in this thread, is about one run alone."""
    token = _log_file.set(file)
    try:
        yield
    finally:
        _log_file.reset(token)


class RunLogs(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the file of the run that the work is on, and else to the process's output.

    The file is opened for each line: the runs of a process may be more than it may have files.
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
