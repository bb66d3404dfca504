"""The worker: a process that trains runs, alone or several side by side.

It reads jobs from its standard input, a line each (see `executors.base.Job`). It claims the runs
of a job under leases, trains them from their last checkpoints, makes the missing evaluations and
records how each ended. It stops with a checkpoint at SIGTERM (see `advsweep.sweep.stop_request`)
and ends when the process that started it is gone.

Each run of a stack has a record, a lease, a log, checkpoints and evaluations of its own, and is
recorded as soon as it ends, whatever happens to the others. A crash of the process leaves the
others without a recorded end; the scheduler then trains them one by one.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from advsweep.components import Plain
from advsweep.errors import LeaseLostError, StoreError
from advsweep.local_files import open_private
from advsweep.store import Owner, Status, open_store
from advsweep.sweep.exit_codes import DONE, ELSEWHERE, REUSABLE, STOPPED
from advsweep.sweep.retry_policy import store_patience
from advsweep.sweep.stop_request import RunStopped, StopRequest
from advsweep.sweep.worker.environment import ProcessCosts, had_large_children
from advsweep.sweep.worker.heartbeat import Heartbeat
from advsweep.sweep.worker.run import (
    DiskReserve,
    RunEnd,
    RunLogs,
    WorkerRun,
    end_of,
    evaluate_missing,
    make_evaluators,
    unrecorded,
)

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store

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
    # Neither a run's own code nor the processes that it starts may read the jobs.
    jobs = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if results is not None:
        os.set_inheritable(results, False)
    store: Store | None = None
    code = DONE
    while line := jobs.readline():
        job = json.loads(line)
        _send_output_to(Path(job["log"]))
        holder = Owner.of(job["parent"])
        try:
            if store is None:
                store = open_store(create=False, patience=store_patience(), wait=True)
            code = work_on(store, job["runs"], job["evaluations"], job["parent"], holder)
        except StoreError as error:
            _log.error("%s", error)
            return unrecorded(error)
        # After a failure the process may be in any state, so that a new one takes the next job;
        # and so after children that needed more memory: it would count for later runs as well.
        if results is None or code not in REUSABLE or had_large_children():
            return code
        os.write(results, b"%d\n" % code)
    return code


def _send_output_to(log: Path) -> None:
    """Send what this process prints to the log of a run."""
    sys.stdout.flush()
    sys.stderr.flush()
    with open_private(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def work_on(
    store: Store,
    run_ids: Sequence[int],
    evaluations: Sequence[Plain],
    parent_pid: int | None,
    holder: Owner | None = None,
) -> int:
    """Train and evaluate one run, or several together, as far as that is missing.

    Runs of other processes are left alone. Messages about the process as a whole are in the log
    of the first run.

    Args:
        evaluations: evaluation settings, the first of them used during training too; those of
            the run's config when empty.
        parent_pid: the process ends when this is no longer its parent; None: never.
        holder: a process that may have claimed the runs for this one.

    Returns:
        The exit code.
    """
    costs = ProcessCosts(run_ids)
    stop = StopRequest()
    with stop.installed():
        # Claimed here and not by the parent alone: the lease names the process that writes.
        mine = [i for i in run_ids if store.leases.claim(i, Owner.current(), holder=holder)]
        if others := [i for i in run_ids if i not in mine]:
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
        if len(runs) > 1:
            _log.info("%d runs trained together: %s", len(mine), ", ".join(map(str, mine)))
        with reserve.held(), Heartbeat(store, runs, stop, parent_pid):
            for run in runs:
                with run.guard():
                    run.prepare(evaluations, len(runs), run_ids[0])
            # A stack of which one run is left stays a stack: it may be given up.
            failed = _train(store, runs, stop, is_stack=len(run_ids) > 1)
        if unrecorded_run := next((run for run in runs if run.is_open), None):
            return unrecorded_run.unrecorded
        if failed is not None:
            return failed.code
        if len(run_ids) == 1:
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
            evaluate_missing(record, make_evaluators(store, record, evaluations))
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
    from advsweep.sweep.worker.calibration import calibrated

    trained = [run for run in runs if run.is_active and not run.calibrate()]
    if not trained:
        return None
    try:
        with stop.interruptible():
            first = trained[0].member
            found = calibrated(store, [run.member.run for run in trained], first.reporter)
            for run, ready in zip(trained, found, strict=True):
                with run.guard():
                    run.set_run(ready)
            trained = [run for run in trained if run.is_active]
            if trained:
                first.run.backend.train_together([run.member for run in trained])
    except LeaseLostError:
        raise
    except BaseException as error:
        # A stop has nothing to save here: the runs end below, each by its own record.
        if not isinstance(error, RunStopped):
            failed = end_of(error)
            failed.log()
            for run in trained:
                if run.is_active:
                    with run.guard():
                        if not is_stack:
                            raise
                        run.give_up(failed)
            return failed if is_stack else None
    for run in trained:
        if run.is_active:
            with run.guard():
                run.finish()
    return None


if __name__ == "__main__":
    sys.exit(main())
