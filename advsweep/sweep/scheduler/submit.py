"""Submits runs to a queue.

All jobs of one submission have the same list of runs. Each claims one after another and trains it
in a worker, so that a job that starts late takes what is left. No command watches a job: it retries
its runs, enforces their limits and records the end of a worker that could not (`queue_work.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from advsweep.errors import StoreError
from advsweep.local_files import FILE_MODE, make_private_folder, replace_file
from advsweep.printable import redacted
from advsweep.sweep.events import EventKind, RunEvent, SweepResult
from advsweep.sweep.executors.base import QueueExecutor
from advsweep.sweep.executors.processes import STORE_VARIABLE, remote_environment
from advsweep.sweep.scheduler.queue_work import QueueWork
from advsweep.sweep.scheduler.runs import ScheduledRun

if TYPE_CHECKING:
    from advsweep.store import RunRecord
    from advsweep.sweep.scheduler.scheduler import Scheduler

# Names of jobs: `123_4` in Slurm, `PID@STARTED` for processes of this machine.
_JOB = re.compile(r"[0-9]+([_+][0-9]+|@[0-9.]+|@None)?")


@dataclass(frozen=True)
class Submission:
    """Jobs that were submitted together, and the runs that they share."""

    jobs: list[str]
    runs: list[int]


def submit(scheduler: Scheduler, executor: QueueExecutor) -> SweepResult:
    """Submit jobs for the runs that are not completed, being trained or queued already.

    Stop requests of runs that are queued, now or before, are withdrawn. The names of the jobs
    are kept in `jobs.json`, in the executor's folder, next to the runs' folders, so that the next
    call can look them up in the queue.

    Args:
        scheduler: says which runs are missing, and how many jobs there may be; it starts nothing.

    Raises:
        ConfigError: the queue cannot be reached, or refuses the jobs.
    """
    store = scheduler.store
    folder = store.runs_directory / executor.name
    make_private_folder(folder)
    with FileLock(folder / "jobs.lock", mode=FILE_MODE):
        # Asked under the lock: two commands at once would submit the same runs twice.
        submissions = _alive(_read(folder / "jobs.json"), executor)
        queued = {run_id for submission in submissions for run_id in submission.runs}
        missing: list[tuple[ScheduledRun, RunRecord]] = []
        for scheduled, record in scheduler.enqueue():
            if record.id in queued:
                event = RunEvent(EventKind.WAITING, record, "a queued job has it")
                scheduler.on_event(event)
            else:
                missing.append((scheduled, record))
        if missing:
            jobs = _submit_jobs(missing, scheduler, executor, folder)
            submissions.append(Submission(jobs, [record.id for _, record in missing]))
            # Replaced as a whole: half a file would make the queue's runs look free.
            replace_file(folder / "jobs.json", json.dumps([vars(each) for each in submissions]))
            _tell(missing, jobs, scheduler)
    result = scheduler.result()
    waiting = result.unfinished - len(missing)
    return replace(result, unfinished=0, submitted=len(missing), queued=waiting)


def _alive(submissions: Sequence[Submission], executor: QueueExecutor) -> list[Submission]:
    """Return the submissions of which the queue still has a job."""
    alive = executor.queued(name for submission in submissions for name in submission.jobs)
    return [each for each in submissions if alive.intersection(each.jobs)]


def _submit_jobs(
    missing: Sequence[tuple[ScheduledRun, RunRecord]],
    scheduler: Scheduler,
    executor: QueueExecutor,
    folder: Path,
) -> list[str]:
    """Submit jobs for runs; return the names of the jobs."""
    url = scheduler.store.url
    environment = remote_environment(executor.resources.cpus, url)
    environment |= executor.resources.variables()
    if redacted(url) != url:
        # Jobs are kept in files; the process of one finds the URL in its environment.
        del environment[STORE_VARIABLE]
    runs = [
        ScheduledRun(record.id, [], scheduled.evaluations(record), finished=record.finished)
        for scheduled, record in missing
    ]
    works = [
        QueueWork(runs, environment, scheduler.policy, executor.resources, is_first=number == 0)
        for number in range(min(len(runs), scheduler.slots))
    ]
    return executor.submit(works, folder, url)


def _tell(
    missing: Sequence[tuple[ScheduledRun, RunRecord]], jobs: Sequence[str], scheduler: Scheduler
) -> None:
    named = jobs[0] if len(jobs) == 1 else f"{jobs[0]} to {jobs[-1]}"
    for _, record in missing:
        scheduler.on_event(RunEvent(EventKind.SUBMITTED, record, f"as {named}"))


def _read(path: Path) -> list[Submission]:
    """Read which jobs were submitted.

    Raises:
        StoreError: advsweep did not write the file.
    """
    try:
        submissions = [_submission(node) for node in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise StoreError(
            f"{path}: expected the names of jobs and their runs; remove the file"
        ) from error
    return submissions


def _submission(node: Any) -> Submission:
    """Return a submission of its JSON form.

    Raises:
        ValueError: it names other things. A store of unknown origin may hold any names, and they go
            to commands.
        TypeError, LookupError: it has another form.
    """
    submission = Submission(node["jobs"], node["runs"])
    if not all(_JOB.fullmatch(name) for name in submission.jobs):
        raise ValueError("expected names of jobs")
    if not all(isinstance(run_id, int) for run_id in submission.runs):
        raise ValueError("expected ids of runs")
    return submission
