"""A run in a worker, from its claim to its recorded end."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from advsweep import errors
from advsweep.components import Plain
from advsweep.failures import Failure, classify, is_disk_full
from advsweep.local_files import make_private_folder, open_private
from advsweep.machine import git_state
from advsweep.names import ALL_WRONG, COLLAPSED, REWARD_MEAN, RUN_LOG, STORE_ERROR
from advsweep.store import Status
from advsweep.store.run_folders import claim_folder
from advsweep.store.runs import DEFINITION, PARTS, PROGRAM, REVISIONS, SOURCES
from advsweep.store.sanity import title_of
from advsweep.sweep import events
from advsweep.sweep.stop_request import RunStopped, RunStopRequest
from advsweep.sweep.worker.environment import describe_environment

if TYPE_CHECKING:
    from advsweep.backends.base import Run, StackMember
    from advsweep.backends.work_clock import WorkClock
    from advsweep.evaluation.run_evaluator import Evaluator
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.stop_request import StopRequest
    from advsweep.sweep.worker.environment import ProcessCosts
    from advsweep.sweep.worker.reporter import StoreReporter

RESERVED_BYTES = 512 * 1024

COLLAPSE_CURVES = (REWARD_MEAN, ALL_WRONG)
# The step after which a policy collapsed; of runs that did.
COLLAPSE_ONSET = "collapse/onset"


_log = logging.getLogger(__name__)
_log_file: ContextVar[Path | None] = ContextVar("log_file", default=None)


@dataclass(frozen=True)
class RunEnd:
    """How the work on a run ended, and the exit code that says so."""

    code: int
    status: Status
    error: str | None = None
    traceback: str | None = None
    failure: Failure | None = None

    def log(self) -> None:
        """Write the end to the run's log."""
        if self.traceback:
            _log.error("%s", self.traceback)
        _log.info("%s", f"{self.status.value}: {self.error}" if self.error else self.status.value)


FINISHED = RunEnd(events.DONE, Status.DONE)


def describe_code(run: Run) -> Plain:
    """Return the code that trains a run: revisions, sources, and the state of its program."""
    described: Plain = {REVISIONS: run.revisions}
    folder = run.backend.program_folder(run)
    if folder:
        described[PROGRAM] = git_state(folder)
    if run.sources:
        parts = {k: {"name": part.name, **part.source.plain()} for k, part in run.sources.items()}
        described[SOURCES] = {DEFINITION: run.definition, PARTS: parts}
    return described


def make_evaluators(
    store: Store, record: RunRecord, evaluations: Sequence[Plain], clock: WorkClock
) -> list[Evaluator]:
    """Build a run and an evaluator per evaluation setting; its own setting if none is given.

    Args:
        clock: measures the evaluations.
    """
    # Imported here, under supervision: this takes seconds, and may fail with the run's parts.
    from advsweep.backends.build import build_run
    from advsweep.evaluation.run_evaluator import Evaluator

    changes: Sequence[Plain] = [{"evaluation": settings} for settings in evaluations]
    runs = [build_run(record.config | change) for change in changes or [{}]]
    # Here too, where programs would run: the config may come from a store of somebody else.
    runs[0].task.check_consent()
    runs[0].backend.check_consent()
    return [Evaluator(store, run, record.id, record.attempt, clock) for run in runs]


def evaluate_missing(record: RunRecord, evaluators: Sequence[Evaluator]) -> None:
    """Make the evaluations of a completed training that the store lacks."""
    for evaluator in evaluators:
        run = evaluator.run
        for step in evaluator.missing():
            _log.info("evaluating step %d with n=%d", step, run.evaluation.n)
            sampler = partial(run.backend.sampler, run, record.directory, step)
            evaluator.ensure(step, sampler)


def end_of(error: BaseException) -> RunEnd:
    """Return the end of a run whose work raised an error.

    Raises:
        LeaseLostError: the error is one. Another process has the run, so it is not recorded.
    """
    if isinstance(error, errors.LeaseLostError):
        raise error
    if isinstance(error, RunStopped):
        return RunEnd(events.STOPPED, Status.INTERRUPTED, str(error))
    failure = classify(error)
    code = events.OUT_OF_MEMORY if failure is Failure.OOM else events.FAILED
    message = str(error)
    trace: str | None = "".join(traceback.format_exception(error))
    if not isinstance(error, errors.AdvsweepError):
        message = f"{type(error).__name__}: {error}"
    elif failure is not Failure.OOM:
        # Its message suffices for the user; a traceback would hide it.
        trace = None
    return RunEnd(code, Status.FAILED, error=message, traceback=trace, failure=failure)


def leave_store_error(error: errors.StoreError, directory: Path) -> int:
    """Return the exit code of a worker that cannot write to its store.

    The reason goes to a file in the run's folder, since the store cannot take it: the scheduler
    reads it there (`scheduler.causes.take_store_error`).
    """
    path = directory / STORE_ERROR
    with contextlib.suppress(OSError):
        # Created anew: an existing file may be a link that another user has made.
        path.unlink(missing_ok=True)
        with open_private(path, "x", encoding="utf-8") as file:
            file.write(str(error))
    return events.DISK_FULL if is_disk_full(error) else events.UNRECORDED


class DiskReserve:
    """A file that occupies space, deleted when the disk is full.

    A run that fails because the disk is full needs space to record that.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "reserve"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the space meanwhile, if there is any."""
        # Without room for the reserve the run may still succeed.
        with contextlib.suppress(OSError):
            make_private_folder(self._path.parent)
            # Created anew: an existing file may be a link that another user has made.
            self.release()
            with open_private(self._path, "xb") as file:
                file.write(bytes(RESERVED_BYTES))
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Free the space."""
        self._path.unlink(missing_ok=True)


def record_collapse(store: Store, record: RunRecord) -> None:
    """Record whether the policy collapsed in training, as a metric of the last step."""
    import numpy as np

    from advsweep.statistics.curves import WINDOW, collapse_onset

    curves = [store.metrics.series([record.id], name).get(record.id) for name in COLLAPSE_CURVES]
    if curves[0] is None or curves[1] is None:
        return
    steps, rewards = curves[0]
    steps_of_all_wrong, all_wrong = curves[1]
    if len(steps) < 3 * WINDOW or not np.array_equal(steps, steps_of_all_wrong):
        return
    onset = collapse_onset(rewards, all_wrong)
    points = [(COLLAPSED, record.steps, float(onset is not None))]
    if onset is not None:
        points.append((COLLAPSE_ONSET, record.steps, float(onset)))
        _log.warning("the policy collapsed after step %d: see collapse/detected", onset)
    store.metrics.record(record.id, points)
    store.metrics.set_summaries(record.id, {COLLAPSED: points[0][2]})


class WorkerRun:
    """A run that this process has claimed, from its preparation to its end.

    Attributes:
        member: the run as its backend trains it, once it is prepared.
        is_pulled: whether it is given back to other machines if it cannot be built here.
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
        self.is_pulled = False
        self._record = record
        self._process_stop = process_stop
        self._costs = costs
        self._reserve = reserve
        self._evaluators: Sequence[Evaluator] = ()
        self._reporter: StoreReporter | None = None
        self._log_file = record.directory / RUN_LOG
        self.run_id = record.id
        self.stop = RunStopRequest(process_stop)
        self.end: RunEnd | None = None
        self.is_open = True
        self.unrecorded = events.UNRECORDED

    @property
    def is_active(self) -> bool:
        """Whether this process still works on it."""
        return self.is_open and self.end is None

    @property
    def exit_code(self) -> int:
        """The exit code of the process, if it has no other run."""
        return events.ELSEWHERE if self.end is None else self.end.code

    def prepare(self, evaluations: Sequence[Plain], runs_in_process: int, first_id: int) -> None:
        """Build the run, and prepare its folder and record for training.

        A run that cannot be built keeps the environment in which that happened.

        Args:
            first_id: the run whose log the process writes to.

        Raises:
            ConfigError: the config now builds another run than the one that was planned.
            StoreError: the folder belongs to another run.
        """
        from advsweep.backends.base import StackMember
        from advsweep.backends.work_clock import Work
        from advsweep.sweep.early_stopping import StoppingCheck
        from advsweep.sweep.worker.reporter import StoreReporter

        store = self._store
        record = self._record
        make_private_folder(record.directory)
        # Building takes seconds, in which there is nothing to save: a request ends it at once.
        with self.stop.interruptible():
            try:
                self._evaluators = make_evaluators(store, record, evaluations, self._costs.clock)
            except Exception:
                store.runs.set_environment(record.id, describe_environment())
                raise
        if record.id != first_id:
            _log.info("trained together with others: see the log of run %d as well", first_id)
        evaluator = self._evaluators[0]
        run = evaluator.run
        store.runs.set_environment(record.id, {**describe_environment(), **describe_code(run)})
        if run.identity != record.identity:
            parts = [f"the source of {title_of(k, part.name)}" for k, part in run.sources.items()]
            changed = ", ".join([*parts, "its data"])
            raise errors.ConfigError(
                f"expected the run that was planned, {record.identity[:12]}, and its config now "
                f"makes {run.identity[:12]}: one of these changed since: {changed}, advsweep "
                f"itself; start the sweep again, which plans it anew"
            )
        # A folder may be left of another store; its checkpoints would be those of another run.
        claim_folder(record.directory, record.identity)
        # Checkpoints past the last step that the store has metrics of belong to another store in
        # the same place, or to an earlier try on this machine that another machine repeated from
        # the start. Resuming from them would skip the metrics of the steps in between.
        discarded = run.backend.discard_checkpoints(record.directory, record.step)
        if discarded:
            _log.warning("%d checkpoints past step %d: not of this store", discarded, record.step)
        _log.info(
            "training %s, seed %d, %d steps, identity %s",
            run.estimator.name,
            run.seed,
            run.steps,
            run.identity[:12],
        )
        if run.backend.external:
            # Its program reports whenever it likes, also all steps at its end.
            self._costs.clock.begin(Work.TRAINING)
        check = None if record.stopping is None else StoppingCheck(store, record)
        self._reporter = StoreReporter(
            store, evaluator, self.stop, check, runs_in_process=runs_in_process
        )
        self.member = StackMember(run, record.directory, self._reporter, self.guard)

    def calibrate(self) -> bool:
        """Make the run and end it if it is itself a calibration; else return False."""
        from advsweep.sweep.worker.calibration import calibrate

        run = self.member.run
        if not run.optimizer.calibrates:
            return False
        with self.guard(), self.stop.interruptible():
            assert self._reporter is not None
            [result] = calibrate(self._store, [run], self._reporter, held=[self.run_id])
            if isinstance(result, Exception):
                raise result
            evaluate_missing(self._record, self._evaluators)
            self._end(FINISHED)
        return True

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Surround the work on this run: an error in it, or its end, is recorded."""
        with logging_to(self._log_file):
            try:
                yield
                if self.is_active and self._reporter is not None and self._reporter.is_over:
                    self.finish()
            except BaseException as error:  # noqa: BLE001 - any error must end this run alone
                # A request to stop must not keep the end from being recorded.
                with self._process_stop.shielded():
                    self._fail(error)

    def finish(self) -> None:
        """End a run whose training is over, after the missing evaluations."""
        assert self._reporter is not None
        # Points must be in the store before the end is: nobody adds them afterwards.
        self._reporter.flush()
        run = self._evaluators[0].run
        end = FINISHED
        if self._reporter.step == run.steps:
            record_collapse(self._store, self._record)
            with self.stop.interruptible():
                evaluate_missing(self._record, self._evaluators)
        elif self._reporter.prune_reason is not None:
            end = RunEnd(events.DONE, Status.PRUNED, self._reporter.prune_reason)
        else:
            end = RunEnd(events.STOPPED, Status.INTERRUPTED, self.stop.reason)
        with self._process_stop.shielded():
            self._end(end)

    def give_up(self, failed: RunEnd) -> None:
        """Leave the run to be trained alone.

        Args:
            failed: the end of the whole stack.
        """
        error = f"could not be trained together with others: {failed.error}"
        self._end(RunEnd(failed.code, Status.INTERRUPTED, error))

    def stop_as_lost(self) -> None:
        """Stop the run at its next step: another process has taken it over."""
        _log.error("run %d was taken over by another process", self.run_id)
        self.stop.request("taken over by another process")

    def _fail(self, error: BaseException) -> None:
        if self.is_pulled and self._reporter is None and _lacks_something(error):
            self._give_back(str(error))
            return
        try:
            if self._reporter is not None:
                # Its last steps count: the run resumes from a checkpoint at or before them.
                try:
                    self._reporter.flush()
                except errors.StoreError as another:
                    error = another
            self._end(end_of(error))
        except errors.LeaseLostError as lost:
            _log.error("%s", lost)
            self._costs.leave(self.run_id)
            self.is_open = False

    def _give_back(self, reason: str) -> None:
        """Leave the run to other machines: this one lacks what it needs."""
        _log.error("this machine cannot train the run: %s", reason)
        self._costs.leave(self.run_id)
        self.end = RunEnd(events.UNFIT, Status.PENDING, reason)
        try:
            self._store.leases.release(self.run_id, error=reason)
        except errors.StoreError as error:
            # Its lease expires.
            _log.error("%s", error)
        self.is_open = False

    def _end(self, end: RunEnd) -> None:
        """Record the end of the run, if need be with the space of the disk reserve.

        Raises:
            LeaseLostError: another process has the run.
        """
        self.end = end
        end.log()
        finish = partial(
            self._store.leases.finish,
            self.run_id,
            end.status,
            failure=end.failure,
            error=end.error,
            traceback=end.traceback,
        )
        try:
            try:
                # Before the end: the lease allows writing to the run, and ends with it.
                self._costs.record(self._store, self.run_id)
                finish()
            except errors.LeaseLostError:
                raise
            except errors.StoreError as error:
                _log.error("%s", error)
                self._reserve.release()
                finish()
        except errors.LeaseLostError:
            self.end = None  # whoever has the run now records how it ends
            raise
        except errors.StoreError as error:
            # The parent tries it, as soon as the store can be written again.
            _log.error("%s", error)
            self.unrecorded = leave_store_error(error, self._record.directory)
            return
        self.is_open = False


def _lacks_something(error: BaseException) -> bool:
    """Return whether a run that was planned elsewhere could not be built here.

    A plan checks every config, so that what does not fit here is a package, a plug-in, a program
    or data that this machine lacks or has in another version.
    """
    return isinstance(error, (errors.ConfigError, ImportError, FileNotFoundError))


@contextmanager
def logging_to(file: Path) -> Iterator[None]:
    """Send this thread's log records to the log of one run."""
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
