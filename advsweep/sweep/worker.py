"""One run's process: `python -m advsweep.sweep.worker --run ID`.

Claims the run under a lease, trains what is missing from its last checkpoint, makes the
evaluations that are missing and records what came of it. It ends by itself when the process
that started it is gone, and stops with a checkpoint on SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from advsweep.components import Plain
from advsweep.errors import (
    AdvsweepError,
    CheckpointError,
    ConfigError,
    LeaseLostError,
    NoMemoryError,
    StoreError,
    is_out_of_memory,
)
from advsweep.store import Failure, Owner, Status, open_store
from advsweep.sweep.environment import describe_environment
from advsweep.sweep.exits import (
    DONE,
    ELSEWHERE,
    FAILED,
    OUT_OF_MEMORY,
    PRUNED,
    STOPPED,
    UNRECORDED,
)
from advsweep.sweep.heartbeat import Heartbeat
from advsweep.sweep.interruption import RunStopped, StopRequest
from advsweep.sweep.reserve import Reserve
from advsweep.sweep.summaries import Costs

if TYPE_CHECKING:
    from advsweep.backends.run import Run
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.evaluations import Evaluator

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _End:
    """How a worker's work ended."""

    code: int
    status: Status
    error: str | None = None
    traceback: str | None = None
    failure: Failure | None = None


def main(arguments: Sequence[str] | None = None, store: Store | None = None) -> int:
    """Works on one run; returns the exit code.

    Args:
        store: one that is open already, in place of the one that the arguments name.
    """
    parser = argparse.ArgumentParser(prog="python -m advsweep.sweep.worker", description=__doc__)
    parser.add_argument("--run", type=int, required=True, help="the run's id in the store")
    parser.add_argument("--store", help="the store's URL (default: $ADVSWEEP_STORE)")
    parser.add_argument("--parent-pid", type=int, help="end when this is no longer the parent")
    parser.add_argument(
        "--evaluation",
        type=json.loads,
        action="append",
        default=[],
        help="evaluation settings as JSON in place of the run's own; may be repeated",
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stdout,
        format="%(asctime)s %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )
    logging.captureWarnings(True)
    if store is None:
        store = open_store(options.store, create=False)
    [record] = store.runs(ids=[options.run])
    holder = None if options.parent_pid is None else Owner.of(options.parent_pid)
    return work(store, record, options.evaluation, options.parent_pid, holder)


def work(
    store: Store,
    record: RunRecord,
    evaluations: Sequence[Plain],
    parent_pid: int | None,
    holder: Owner | None = None,
) -> int:
    """Trains and evaluates a run as far as that is missing; returns the exit code.

    Args:
        evaluations: settings to evaluate by, the first of them during training too; those
            of the run's config when empty.
        holder: a process that may have claimed the run for this one.
    """
    costs = Costs()
    claimed = store.claim(record.id, Owner.current(), holder=holder)
    [record] = store.runs(ids=[record.id])
    if not claimed and record.status is not Status.DONE:
        return ELSEWHERE
    lease = record.id if claimed else None
    stop = StopRequest()
    reserve = Reserve(record.directory)
    with stop.installed(), reserve.held():
        try:
            with Heartbeat(store, lease, stop, parent_pid):
                end = _supervised(store, record, evaluations, stop, train=claimed)
            if end.traceback:
                _log.error("%s", end.traceback)
            _log.info("%s", f"{end.status.value}: {end.error}" if end.error else end.status.value)
            if claimed:
                _record(store, record, end, costs, reserve)
        except LeaseLostError as error:
            _log.error("%s", error)
            return ELSEWHERE
        except StoreError as error:
            _log.error("%s", error)
            return UNRECORDED
    return end.code


def _record(store: Store, record: RunRecord, end: _End, costs: Costs, reserve: Reserve) -> None:
    """Records how a run ended.

    Raises:
        LeaseLostError: another process has the run.
        StoreError: the store takes nothing, even with the reserve given up.
    """

    def finish() -> None:
        store.finish(
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


def _supervised(
    store: Store,
    record: RunRecord,
    evaluations: Sequence[Plain],
    stop: StopRequest,
    *,
    train: bool,
) -> _End:
    """Does the work; whatever goes wrong in it becomes part of the record.

    Raises:
        LeaseLostError: there is no record to write to: another process has the run.
    """
    try:
        if train:
            store.set_environment(record.id, describe_environment())
        with stop.interruptible():
            evaluators = _evaluators(store, record, evaluations)
        if train and (early := _train(store, record, evaluators[0], stop)):
            return early
        with stop.interruptible():
            _evaluate(record, evaluators)
    except LeaseLostError:
        raise
    except RunStopped as stopped:
        return _End(STOPPED, Status.INTERRUPTED, str(stopped))
    except NoMemoryError as error:
        where = traceback.format_exc()
        return _End(OUT_OF_MEMORY, Status.FAILED, str(error), where, Failure.OOM)
    except AdvsweepError as error:
        return _End(FAILED, Status.FAILED, str(error), failure=Failure.ERROR)
    except BaseException as error:  # noqa: BLE001 - no run takes down a sweep, whatever it raises
        message, where = f"{type(error).__name__}: {error}", traceback.format_exc()
        if is_out_of_memory(error):
            return _End(OUT_OF_MEMORY, Status.FAILED, message, where, Failure.OOM)
        return _End(FAILED, Status.FAILED, message, where, Failure.ERROR)
    return _End(DONE, Status.DONE)


def _evaluators(store: Store, record: RunRecord, evaluations: Sequence[Plain]) -> list[Evaluator]:
    # Imported here, under supervision: this takes seconds and loads what the run is made of.
    from advsweep.backends.run import build_run
    from advsweep.sweep.evaluations import Evaluator

    runs = [
        build_run(record.config | {"evaluation": settings})
        for settings in evaluations or [record.config["evaluation"]]
    ]
    return [Evaluator(store, run, record.id, record.attempt) for run in runs]


def _train(store: Store, record: RunRecord, evaluator: Evaluator, stop: StopRequest) -> _End | None:
    """Trains from the last checkpoint on; None when the last step is done."""
    from advsweep.sweep.reporter import StoreReporter
    from advsweep.sweep.stopping.judge import Judge

    run = evaluator.run
    if run.identity != record.identity:
        raise ConfigError(
            f"expected the run that was planned, {record.identity[:12]}, and its config now makes "
            f"{run.identity[:12]}: its data, or advsweep itself, has changed since; start the "
            f"sweep again, which plans it anew"
        )
    _discard_strange_checkpoints(record)
    _log.info(
        "training %s, seed %d, %d steps, identity %s",
        *(run.estimator.name, run.seed, run.steps, run.identity[:12]),
    )
    reporter = StoreReporter(store, evaluator, stop, Judge.of(store, record))
    try:
        with stop.interruptible():
            run.backend.train(run, record.directory, reporter)
            if reporter.step == run.steps and run.backend.analyses_weights():
                _analyse(store, record, run)
    finally:
        reporter.flush()
    if reporter.step == run.steps:
        return None
    if reporter.verdict is not None:
        return _End(PRUNED, Status.PRUNED, reporter.verdict)
    return _End(STOPPED, Status.INTERRUPTED, stop.reason)


def _analyse(store: Store, record: RunRecord, run: Run) -> None:
    """Compares the last weights with the base model's; a run does not fail of it."""
    from advsweep.sweep.weight_analyses import ensure_analysis

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


def _evaluate(record: RunRecord, evaluators: Sequence[Evaluator]) -> None:
    """Makes the evaluations of a finished training that the store does not have."""
    for evaluator in evaluators:
        run = evaluator.run
        for step in evaluator.missing():
            _log.info("evaluating step %d with n=%d", step, run.evaluation.n)
            sampler = partial(run.backend.sampler, run, record.directory, step)
            evaluator.ensure(step, sampler)


if __name__ == "__main__":
    sys.exit(main())
