"""What a process does for a run, whether it has that one alone or several."""

from __future__ import annotations

import contextlib
import logging
import shutil
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from advsweep.components import Plain
from advsweep.errors import (
    AdvsweepError,
    CheckpointError,
    ConfigError,
    LeaseLostError,
    NoMemoryError,
    StoreError,
    is_disk_full,
    is_out_of_memory,
)
from advsweep.local_files import make_private_folder, open_private
from advsweep.store import Failure, Status
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
    from advsweep.sweep.stop_request import Stop
    from advsweep.sweep.worker.reporter import StoreReporter

_log = logging.getLogger(__name__)


class Measured(Protocol):
    """What tells what a run has cost, see `summaries`."""

    def record(self, store: Store, run_id: int) -> None: ...


@dataclass(frozen=True)
class RunEnd:
    """How the work on a run ended."""

    code: int
    status: Status
    error: str | None = None
    traceback: str | None = None
    failure: Failure | None = None

    def log(self) -> None:
        """Says so in the run's log."""
        if self.traceback:
            _log.error("%s", self.traceback)
        _log.info("%s", f"{self.status.value}: {self.error}" if self.error else self.status.value)


FINISHED = RunEnd(DONE, Status.DONE)


def end_of(error: BaseException) -> RunEnd:
    """What becomes of a run in whose work something was raised.

    Raises:
        LeaseLostError: it is that one: there is no record to write to, as another process has
            the run.
    """
    if isinstance(error, LeaseLostError):
        raise error
    if isinstance(error, RunStopped):
        return RunEnd(STOPPED, Status.INTERRUPTED, str(error))
    where = "".join(traceback.format_exception(error))
    if isinstance(error, NoMemoryError):
        return RunEnd(OUT_OF_MEMORY, Status.FAILED, str(error), where, Failure.OOM)
    failure = Failure.DISK if is_disk_full(error) else Failure.ERROR
    if isinstance(error, AdvsweepError):
        return RunEnd(FAILED, Status.FAILED, str(error), failure=failure)
    message = f"{type(error).__name__}: {error}"
    if is_out_of_memory(error):
        return RunEnd(OUT_OF_MEMORY, Status.FAILED, message, where, Failure.OOM)
    return RunEnd(FAILED, Status.FAILED, message, where, failure)


def unrecorded(error: StoreError) -> int:
    """Exit code of a worker whose store does not take its runs' ends."""
    return DISK_FULL if is_disk_full(error) else UNRECORDED


def record_end(
    store: Store, record: RunRecord, end: RunEnd, costs: Measured, reserve: DiskReserve
) -> None:
    """Records how a run ended.

    Raises:
        LeaseLostError: another process has the run.
        StoreError: the store takes nothing, even with the reserve given up.
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


def make_evaluators(
    store: Store, record: RunRecord, evaluations: Sequence[Plain]
) -> list[Evaluator]:
    """Those of all settings that a run is evaluated by; of its own where none are given."""
    # Imported here, under supervision: this takes seconds and loads what the run is made of.
    from advsweep.backends.build import build_run
    from advsweep.evaluation.run_evaluator import Evaluator

    runs = [
        build_run(record.config | {"evaluation": settings})
        for settings in evaluations or [record.config["evaluation"]]
    ]
    runs[0].task.check_consent()
    return [Evaluator(store, run, record.id, record.attempt) for run in runs]


def begin_training(
    store: Store,
    record: RunRecord,
    evaluator: Evaluator,
    stop: Stop,
    *,
    together: int = 1,
) -> StoreReporter:
    """Makes a run's folder ready to go on from, and the reporter that its training is told.

    Args:
        together: how many runs this process trains.

    Raises:
        ConfigError: by now it is another run than the one that was planned.
        StoreError: its folder is another run's.
    """
    from advsweep.sweep.early_stopping.check import StoppingCheck
    from advsweep.sweep.worker.reporter import StoreReporter

    run = evaluator.run
    if run.identity != record.identity:
        raise ConfigError(
            f"expected the run that was planned, {record.identity[:12]}, and its config now makes "
            f"{run.identity[:12]}: its data, or advsweep itself, has changed since; start the "
            f"sweep again, which plans it anew"
        )
    claim_folder(record.directory, record.identity)
    store.runs.set_environment(record.id, {**describe_environment(), REVISIONS: run.revisions})
    _discard_strange_checkpoints(record)
    _log.info(
        "training %s, seed %d, %d steps, identity %s",
        *(run.estimator.name, run.seed, run.steps, run.identity[:12]),
    )
    judge = StoppingCheck.of(store, record)
    return StoreReporter(store, evaluator, stop, judge, together=together)


def end_training(
    store: Store, record: RunRecord, reporter: StoreReporter, run: Run, stop: Stop
) -> RunEnd | None:
    """What the training came to; None where the last step is done."""
    reporter.flush()
    if reporter.step == run.steps:
        if run.backend.analyses_weights():
            with stop.interruptible():
                _analyse(store, record, run)
        return None
    if reporter.verdict is not None:
        return RunEnd(PRUNED, Status.PRUNED, reporter.verdict)
    return RunEnd(STOPPED, Status.INTERRUPTED, stop.reason)


def evaluate_missing(record: RunRecord, evaluators: Sequence[Evaluator]) -> None:
    """Makes the evaluations of a finished training that the store does not have."""
    for evaluator in evaluators:
        run = evaluator.run
        for step in evaluator.missing():
            _log.info("evaluating step %d with n=%d", step, run.evaluation.n)
            sampler = partial(run.backend.sampler, run, record.directory, step)
            evaluator.ensure(step, sampler)


def _analyse(store: Store, record: RunRecord, run: Run) -> None:
    """Compares the last weights with the base model's; a run does not fail of it."""
    from advsweep.evaluation.weights import ensure_analysis

    try:
        ensure_analysis(store, record, run, run.steps)
    except (CheckpointError, ConfigError) as error:
        _log.warning("the weights were not compared with the base model's: %s", error)


def _discard_strange_checkpoints(record: RunRecord) -> None:
    """Deletes checkpoints past the last step that the store has metrics of.

    They are left of another store in the same place, or of an earlier go on this machine after
    which another one had no checkpoint to go on from and began anew. Going on from them would
    leave the metrics of the steps before them out.
    """
    paths = (record.directory / "checkpoints").glob("step-*")
    ahead = [p for p in paths if int(p.name.removeprefix("step-")) > record.step]
    for path in ahead:
        shutil.rmtree(path)
    if ahead:
        _log.warning("%d checkpoints past step %d: not of this store", len(ahead), record.step)


RESERVED_BYTES = 512 * 1024


class DiskReserve:
    """A file of no use but its size, given up when the disk is full.

    A run that fails since the disk is full could not say so either: its record needs room.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "reserve"

    @contextmanager
    def held(self) -> Iterator[None]:
        """The stretch for which the room is kept, where there is any."""
        with contextlib.suppress(OSError):
            make_private_folder(self._path.parent)
            # Made anew: an old one may be a link in a folder that somebody else has made.
            self.release()
            with open_private(self._path, "xb") as file:
                file.write(bytes(RESERVED_BYTES))
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Makes room."""
        self._path.unlink(missing_ok=True)
