"""Submits the missing runs of a plan to a queue, each once, and lists what the queue has."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from advsweep.errors import AdvsweepWarning, ConfigError, StoreError
from advsweep.local_files import FILE_MODE, make_private_folder, open_private
from advsweep.store import Status
from advsweep.store.run_folders import claim_folder
from advsweep.sweep.events import Event, EventKind, RunEvent, SweepResult
from advsweep.sweep.executors.base import Job, MakeExecution, QueueExecutor
from advsweep.sweep.registry import EXECUTORS

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.sweep.retry_policy import Policy
    from advsweep.sweep.scheduler.scheduled_runs import ScheduledRun

_JOB = re.compile(r"[0-9]+([_+][0-9]+|@[0-9.]+|@None)?")
"""Names of jobs: `123_4` in Slurm, `PID@STARTED` for processes of this machine."""


def check_policy(policy: Policy, executor: QueueExecutor) -> None:
    """Refuses a policy that only a process that sees all runs can apply.

    Raises:
        ConfigError: the policy counts failures.
    """
    if policy.counts_failures:
        option = "--fail-fast" if policy.fail_fast else "--max-failures"
        raise ConfigError(
            f"{option}: executor '{executor.name}' hands its runs to a queue and does not see them "
            "fail; leave it out, or choose another executor"
        )


def submit(
    runs: Sequence[ScheduledRun],
    store: Store,
    executor: QueueExecutor,
    side_by_side: int,
    on_event: Callable[[Event], None],
    policy: Policy,
    make_execution: MakeExecution,
) -> SweepResult:
    """Submits the runs that are not completed, being trained or queued already.

    Stop requests of runs that are queued, now or before, are withdrawn. The names of the jobs
    are kept in `jobs.json`, in the executor's folder beside the runs' folders, so that the next
    call can look them up in the queue.

    Raises:
        ConfigError: the queue cannot be reached, or refuses the jobs.
        StoreError: a run's folder belongs to another run.
    """
    ids = [scheduled.run_id for scheduled in runs]
    folder = store.runs_directory / executor.name
    make_private_folder(folder)
    with FileLock(folder / "jobs.lock", mode=FILE_MODE):
        names = _read(folder)
        known = executor.queued(names.values())
        names = {run_id: name for run_id, name in names.items() if name in known}
        jobs, records = {}, {record.id: record for record in store.runs.select(ids=ids)}
        free = [r for r in records.values() if r.status is not Status.RUNNING]
        store.leases.withdraw_stops([record.id for record in free if record.stop_requested])
        skipped, pruned = 0, {}
        for scheduled in runs:
            record = records[scheduled.run_id]
            if scheduled.is_done(record, store):
                skipped += 1
                on_event(RunEvent(EventKind.SKIPPED, record))
            elif record.status is Status.PRUNED:
                pruned[record.id] = record.error or ""
                on_event(RunEvent(EventKind.PRUNED, record, pruned[record.id]))
            elif record.status is Status.RUNNING:
                on_event(RunEvent(EventKind.WAITING, record, "another process trains it"))
            elif record.id in names:
                on_event(RunEvent(EventKind.WAITING, record, f"queued as {names[record.id]}"))
            else:
                claim_folder(record.directory, record.identity)
                jobs[record.id] = Job(
                    run_id=record.id,
                    store_url=store.url,
                    directory=record.directory,
                    evaluations=scheduled.evaluations(record),
                )
        for submitted in executor.submit(
            list(jobs.values()), folder, side_by_side, policy, make_execution
        ):
            names |= submitted
            _write(folder, names)
            for run_id, name in submitted.items():
                on_event(RunEvent(EventKind.SUBMITTED, records[run_id], f"as {name}"))
    return SweepResult(
        run_ids=ids,
        done=0,
        skipped=skipped,
        failed={},
        unfinished=0,
        stopped=False,
        submitted=len(jobs),
        queued=len(runs) - skipped - len(pruned) - len(jobs),
        pruned=pruned,
    )


@dataclass(frozen=True, kw_only=True)
class QueuedRun:
    """A run in a queue.

    Attributes:
        executor: name of the executor that submitted it.
        job: name of its job in the queue.
        state, reason: see `executors.base.QueueEntry`.
    """

    id: int
    estimator: str
    seed: int
    executor: str
    job: str
    state: str
    reason: str


def queued_runs(store: Store, sweep: str | None = None) -> list[QueuedRun]:
    """Returns the submitted runs of a sweep, or of the store, that a queue still has.

    Each queue is queried once, and only if submitted runs of it have not ended.

    Raises:
        ConfigError: a queue cannot be queried.
        NotFoundError: there is no such sweep.
    """
    submitted = list(_submitted(store))
    if not submitted:
        return []
    ended = (Status.DONE, Status.PRUNED)
    lines = {line.id: line for line in store.runs.outlines(sweep) if line.status not in ended}
    found = []
    for executor, names in submitted:
        open_ = {run_id: name for run_id, name in names.items() if run_id in lines}
        places = executor.queued(open_.values())
        found += [
            QueuedRun(
                id=run_id,
                estimator=lines[run_id].estimator,
                seed=lines[run_id].seed,
                executor=executor.name,
                job=name,
                state=places[name].state,
                reason=places[name].reason,
            )
            for run_id, name in open_.items()
            if name in places
        ]
    return sorted(found, key=lambda run: run.id)


def _submitted(store: Store) -> Iterator[tuple[QueueExecutor, Mapping[int, str]]]:
    """Yields each queue that has runs of this store, with the names of their jobs by run."""
    for name in EXECUTORS.names():
        if names := _read(store.runs_directory / name):
            try:
                executor = EXECUTORS.build(name)
            except ConfigError as error:  # Another package's, which cannot be used here.
                warnings.warn(f"not asking for the jobs of {error}", AdvsweepWarning, stacklevel=2)
                continue
            # A store of unknown origin may hold such a file for any executor.
            if isinstance(executor, QueueExecutor):
                yield executor, names


def _read(folder: Path) -> dict[int, str]:
    """Reads the job name of each submitted run.

    Raises:
        StoreError: advsweep did not write the file.
    """
    path = folder / "jobs.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        known = None
    if not isinstance(known, dict) or not all(
        run_id.isdecimal() and isinstance(name, str) and _JOB.fullmatch(name)
        for run_id, name in known.items()
    ):
        raise StoreError(f"{path}: expected the names of jobs by run; remove the file")
    return {int(run_id): name for run_id, name in known.items()}


def _write(folder: Path, names: Mapping[int, str]) -> None:
    new = folder / "jobs.json.new"
    with open_private(new, "w", encoding="utf-8") as file:
        json.dump(names, file, indent=0)
    new.replace(folder / "jobs.json")
