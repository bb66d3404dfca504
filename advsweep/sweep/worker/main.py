"""The process of a run, or of several: `python -m advsweep.sweep.worker.main --run ID`.

It claims the run under a lease, trains from the last checkpoint, makes the missing evaluations
and records the outcome. It stops with a checkpoint at SIGTERM (see `advsweep.sweep.stop_request`)
and ends when the process that started it is gone.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from advsweep.components import Plain
from advsweep.errors import LeaseLostError, StoreError
from advsweep.store import Owner, Status, open_store
from advsweep.sweep.exit_codes import ELSEWHERE
from advsweep.sweep.retry_policy import store_patience
from advsweep.sweep.stop_request import StopRequest
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
    make_evaluators,
    prepare_run,
    record_end,
    unrecorded,
)
from advsweep.sweep.worker.stacked import RunLogs, train_stacked

if TYPE_CHECKING:
    from advsweep.evaluation.run_evaluator import Evaluator
    from advsweep.store import RunRecord, Store

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None, store: Store | None = None) -> int:
    """Works on the runs of a command line; returns the exit code.

    Args:
        store: an open store, in place of the one that the arguments name.
    """
    parser = argparse.ArgumentParser(prog="advsweep-worker", description=__doc__)
    parser.add_argument(
        "--run",
        type=int,
        action="append",
        required=True,
        help="the run's id in the store; several are trained together",
    )
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
        handlers=[RunLogs(sys.stdout)],
        format="%(asctime)s %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )
    logging.captureWarnings(True)
    holder = None if options.parent_pid is None else Owner.of(options.parent_pid)
    try:
        if store is None:
            store = open_store(options.store, create=False, patience=store_patience(), wait=True)
        return work_on(store, options.run, options.evaluation, options.parent_pid, holder)
    except StoreError as error:
        _log.error("%s", error)
        return unrecorded(error)


def work_on(
    store: Store,
    run_ids: Sequence[int],
    evaluations: Sequence[Plain],
    parent_pid: int | None,
    holder: Owner | None = None,
) -> int:
    """Trains and evaluates one run, or several together; returns the exit code.

    Args:
        evaluations: evaluation settings, the first of them used during training too; those of
            the run's config when empty.
        parent_pid: the process ends when this is no longer its parent; None: never.
        holder: a process that may have claimed the runs for this one.
    """
    if len(run_ids) > 1:
        return train_stacked(store, run_ids, evaluations, parent_pid, holder)
    [record] = store.runs.select(ids=run_ids)
    return work(store, record, evaluations, parent_pid, holder)


def work(
    store: Store,
    record: RunRecord,
    evaluations: Sequence[Plain],
    parent_pid: int | None,
    holder: Owner | None = None,
) -> int:
    """Trains and evaluates a run as far as that is missing; see `work_on`."""
    costs = ProcessCosts([record.id])
    claimed = store.leases.claim(record.id, Owner.current(), holder=holder)
    [record] = store.runs.select(ids=[record.id])
    if not claimed and record.status is not Status.DONE:
        return ELSEWHERE
    # A completed run is evaluated without a lease: nothing of its training is written.
    lease = record.id if claimed else None
    stop = StopRequest()
    reserve = DiskReserve(record.directory)
    with stop.installed(), reserve.held():
        try:
            with Heartbeat(store, lease, stop, parent_pid):
                end = _supervised(store, record, evaluations, stop, train=claimed)
            end.log()
            if claimed:
                record_end(store, record, end, costs, reserve)
        except LeaseLostError as error:
            _log.error("%s", error)
            return ELSEWHERE
        except StoreError as error:
            _log.error("%s", error)
            return unrecorded(error)
    return end.code


def _supervised(
    store: Store,
    record: RunRecord,
    evaluations: Sequence[Plain],
    stop: StopRequest,
    *,
    train: bool,
) -> RunEnd:
    """Does the work, and turns every error in it into the end of the run.

    Raises:
        LeaseLostError: another process has the run, so its record must not be written.
    """
    try:
        with stop.interruptible():
            build = prepare_run if train else make_evaluators
            evaluators = build(store, record, evaluations)
        if train and (early := _train(store, record, evaluators[0], stop)):
            return early
        with stop.interruptible():
            evaluate_missing(record, evaluators)
    except BaseException as error:  # noqa: BLE001 - no run may end a sweep, whatever it raises
        return end_of(error)
    return FINISHED


def _train(
    store: Store, record: RunRecord, evaluator: Evaluator, stop: StopRequest
) -> RunEnd | None:
    """Trains from the last checkpoint; returns None when the last step is done."""
    from advsweep.sweep.worker.calibration import calibrate, calibrated

    run = evaluator.run
    reporter = begin_training(store, record, evaluator, stop)
    if run.optimizer.calibrates:
        with stop.interruptible():
            [result] = calibrate(store, [run], reporter, held=[record.id])
        if isinstance(result, Exception):
            raise result
        return None
    try:
        with stop.interruptible():
            [ready] = calibrated(store, [run], reporter)
            if isinstance(ready, Exception):
                raise ready
            run.backend.train(ready, record.directory, reporter)
    finally:
        reporter.flush()
    return end_training(store, record, reporter, run, stop)


if __name__ == "__main__":
    sys.exit(main())
