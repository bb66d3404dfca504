"""The life of a run in a worker, alone or among others: from its claim to its recorded end."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from advsweep.components import Plain
from advsweep.errors import (
    AdvsweepError,
    ConfigError,
    LeaseLostError,
    NoMemoryError,
    ProcessKilledError,
    StoreError,
    is_disk_full,
    is_out_of_memory,
)
from advsweep.local_files import make_private_folder, open_private
from advsweep.store import Failure, Status
from advsweep.store.records import COLLAPSED
from advsweep.store.run_folders import claim_folder
from advsweep.store.runs import REVISIONS
from advsweep.sweep.exit_codes import (
    DISK_FULL,
    DONE,
    FAILED,
    OUT_OF_MEMORY,
    PRUNED,
    STOPPED,
    UNRECORDED,
)
from advsweep.sweep.stop_request import RunStopped
from advsweep.sweep.worker.environment import describe_environment

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.evaluation.run_evaluator import Evaluator
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.stop_request import AnyStopRequest
    from advsweep.sweep.worker.environment import ProcessCosts
    from advsweep.sweep.worker.reporter import StoreReporter

RESERVED_BYTES = 512 * 1024

COLLAPSE_CURVES = ("reward/mean", "collapse/all_wrong")
COLLAPSE_ONSET = "collapse/onset"
"""The step after which a policy collapsed; of runs that did."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunEnd:
    """How the work on a run ended, and the exit code that says so."""

    code: int
    status: Status
    error: str | None = None
    traceback: str | None = None
    failure: Failure | None = None

    def log(self) -> None:
        """Writes the end to the run's log."""
        if self.traceback:
            _log.error("%s", self.traceback)
        _log.info("%s", f"{self.status.value}: {self.error}" if self.error else self.status.value)


FINISHED = RunEnd(DONE, Status.DONE)


def make_evaluators(
    store: Store, record: RunRecord, evaluations: Sequence[Plain]
) -> list[Evaluator]:
    """Builds a run and an evaluator per evaluation setting; its own setting if none is given."""
    # Imported here, under supervision: this takes seconds, and may fail with the run's parts.
    from advsweep.backends.build import build_run
    from advsweep.evaluation.run_evaluator import Evaluator

    changes: Sequence[Plain] = [{"evaluation": settings} for settings in evaluations]
    runs = [build_run(record.config | change) for change in changes or [{}]]
    runs[0].task.check_consent()
    runs[0].backend.check_consent()
    return [Evaluator(store, run, record.id, record.attempt) for run in runs]


def prepare_run(store: Store, record: RunRecord, evaluations: Sequence[Plain]) -> list[Evaluator]:
    """Builds a claimed run with its evaluators; errors as in `make_evaluators`.

    A run that cannot be built keeps the environment in which that happened.
    """
    try:
        return make_evaluators(store, record, evaluations)
    except Exception:
        store.runs.set_environment(record.id, describe_environment())
        raise


def begin_training(
    store: Store,
    record: RunRecord,
    evaluator: Evaluator,
    stop: AnyStopRequest,
    *,
    runs_in_process: int = 1,
) -> StoreReporter:
    """Prepares a run's folder and record for training, and returns the training's reporter.

    Raises:
        ConfigError: the config now builds another run than the one that was planned.
        StoreError: the folder belongs to another run.
    """
    from advsweep.sweep.early_stopping.rules import StoppingCheck
    from advsweep.sweep.worker.reporter import StoreReporter

    run = evaluator.run
    store.runs.set_environment(record.id, {**describe_environment(), REVISIONS: run.revisions})
    if run.identity != record.identity:
        raise ConfigError(
            f"expected the run that was planned, {record.identity[:12]}, and its config now makes "
            f"{run.identity[:12]}: its data, or advsweep itself, has changed since; start the "
            f"sweep again, which plans it anew"
        )
    claim_folder(record.directory, record.identity)
    _discard_foreign_checkpoints(record, run)
    _log.info(
        "training %s, seed %d, %d steps, identity %s",
        *(run.estimator.name, run.seed, run.steps, run.identity[:12]),
    )
    check = StoppingCheck.of(store, record)
    return StoreReporter(store, evaluator, stop, check, runs_in_process=runs_in_process)


def end_training(
    store: Store, record: RunRecord, reporter: StoreReporter, run: Run, stop: AnyStopRequest
) -> RunEnd | None:
    """Returns how the training ended before its last step; None if that is done."""
    reporter.flush()
    if reporter.step == run.steps:
        record_collapse(store, record)
        return None
    if reporter.prune_reason is not None:
        return RunEnd(PRUNED, Status.PRUNED, reporter.prune_reason)
    return RunEnd(STOPPED, Status.INTERRUPTED, stop.reason)


def evaluate_missing(record: RunRecord, evaluators: Sequence[Evaluator]) -> None:
    """Makes the evaluations of a completed training that the store lacks."""
    for evaluator in evaluators:
        run = evaluator.run
        for step in evaluator.missing():
            _log.info("evaluating step %d with n=%d", step, run.evaluation.n)
            sampler = partial(run.backend.sampler, run, record.directory, step)
            evaluator.ensure(step, sampler)


def end_of(error: BaseException) -> RunEnd:
    """Returns the end of a run whose work raised an error.

    Raises:
        LeaseLostError: the error is one. Another process has the run, so it is not recorded.
    """
    if isinstance(error, LeaseLostError):
        raise error
    if isinstance(error, RunStopped):
        return RunEnd(STOPPED, Status.INTERRUPTED, str(error))
    where = "".join(traceback.format_exception(error))
    if isinstance(error, NoMemoryError):
        return RunEnd(OUT_OF_MEMORY, Status.FAILED, str(error), where, Failure.OOM)
    failure = Failure.DISK if is_disk_full(error) else Failure.ERROR
    if isinstance(error, ProcessKilledError):
        failure = Failure.KILLED
    # The message of an AdvsweepError suffices for the user; a traceback would hide it.
    if isinstance(error, AdvsweepError):
        return RunEnd(FAILED, Status.FAILED, str(error), failure=failure)
    message = f"{type(error).__name__}: {error}"
    if is_out_of_memory(error):
        return RunEnd(OUT_OF_MEMORY, Status.FAILED, message, where, Failure.OOM)
    return RunEnd(FAILED, Status.FAILED, message, where, failure)


def record_end(
    store: Store, record: RunRecord, end: RunEnd, costs: ProcessCosts, reserve: DiskReserve
) -> None:
    """Records how a run ended.

    Raises:
        LeaseLostError: another process has the run.
        StoreError: the store cannot be written, even with the disk reserve released.
    """

    def finish() -> None:
        store.leases.finish(
            record.id, end.status, failure=end.failure, error=end.error, traceback=end.traceback
        )

    try:
        costs.record(store, record.id)
        finish()
    except LeaseLostError:
        raise
    except StoreError as error:
        _log.error("%s", error)
        reserve.release()
        finish()


def unrecorded(error: StoreError) -> int:
    """Returns the exit code of a worker that cannot write to its store."""
    return DISK_FULL if is_disk_full(error) else UNRECORDED


class DiskReserve:
    """A file that occupies space, deleted when the disk is full.

    A run that fails because the disk is full needs space to record that.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "reserve"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps the space meanwhile, if there is any."""
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
        """Frees the space."""
        self._path.unlink(missing_ok=True)


def record_collapse(store: Store, record: RunRecord) -> None:
    """Records whether the policy collapsed in training, as a metric of the last step."""
    import numpy as np

    from advsweep.statistics.curves import WINDOW, collapse_onset

    curves = [store.metrics.series([record.id], name).get(record.id) for name in COLLAPSE_CURVES]
    if curves[0] is None or curves[1] is None:
        return
    (steps, rewards), (others, all_wrong) = curves[0], curves[1]
    if len(steps) < 3 * WINDOW or not np.array_equal(steps, others):
        return
    onset = collapse_onset(rewards, all_wrong)
    points = [(COLLAPSED, record.steps, float(onset is not None))]
    if onset is not None:
        points.append((COLLAPSE_ONSET, record.steps, float(onset)))
        _log.warning("the policy collapsed after step %d: see collapse/detected", onset)
    store.metrics.record(record.id, points)
    store.metrics.set_summaries(record.id, {COLLAPSED: points[0][2]})


def _discard_foreign_checkpoints(record: RunRecord, run: Run) -> None:
    """Deletes checkpoints past the last step that the store has metrics of.

    They belong to another store in the same place, or to an earlier try on this machine that
    another machine repeated from the start. Resuming from them would skip the metrics of the
    steps in between.
    """
    if count := run.backend.discard_checkpoints(record.directory, record.step):
        _log.warning("%d checkpoints past step %d: not of this store", count, record.step)
