"""Hands what is missing of a plan to a queue, and each run only once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from filelock import FileLock

from advsweep.store import Status
from advsweep.sweep.events import Event, EventKind, Outcome, RunEvent
from advsweep.sweep.executors.base import Job

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.executors.detached import DetachedExecutor


class Wanted(Protocol):
    """A run of the store, with what a plan wants of it."""

    run_id: int

    def is_done(self, record: RunRecord, store: Store) -> bool: ...

    def evaluations(self, record: RunRecord) -> tuple[Plain, ...]: ...


def submit(
    units: Sequence[Wanted],
    store: Store,
    executor: DetachedExecutor,
    side_by_side: int,
    on_event: Callable[[Event], None],
) -> Outcome:
    """Submits the runs that are neither done, nor being trained, nor queued before.

    What was submitted is kept in `jobs.json`, in a folder of the executor's own beside the
    runs' folders, for the next time to ask the queue about.

    Raises:
        ConfigError: the queue cannot be had, or does not take them.
    """
    ids = [unit.run_id for unit in units]
    folder = store.runs_directory / executor.name
    # The queue's copies of the jobs hold the store's URL, which may hold a password.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with FileLock(folder / "jobs.lock"):
        names = _read(folder)
        known = executor.queued(names.values())
        names = {run_id: name for run_id, name in names.items() if name in known}
        jobs, records = {}, {record.id: record for record in store.runs(ids=ids)}
        skipped = 0
        for unit in units:
            record = records[unit.run_id]
            if unit.is_done(record, store):
                skipped += 1
                on_event(RunEvent(EventKind.SKIPPED, record))
            elif record.status is Status.RUNNING:
                on_event(RunEvent(EventKind.WAITING, record, "another process trains it"))
            elif record.id in names:
                on_event(RunEvent(EventKind.WAITING, record, f"queued as {names[record.id]}"))
            else:
                jobs[record.id] = Job(
                    run_id=record.id,
                    store_url=store.url,
                    directory=record.directory,
                    evaluations=unit.evaluations(record),
                )
        for submitted in executor.submit(list(jobs.values()), folder, side_by_side):
            names |= submitted
            _write(folder, names)
            for run_id, name in submitted.items():
                on_event(RunEvent(EventKind.SUBMITTED, records[run_id], f"as {name}"))
    return Outcome(
        run_ids=ids,
        done=0,
        skipped=skipped,
        failed={},
        unfinished=0,
        stopped=False,
        submitted=len(jobs),
        queued=len(units) - skipped - len(jobs),
    )


def _read(folder: Path) -> dict[int, str]:
    """Under which name each run was submitted, as far as that is known."""
    try:
        text = (folder / "jobs.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    return {int(run_id): name for run_id, name in json.loads(text).items()}


def _write(folder: Path, names: Mapping[int, str]) -> None:
    new = folder / "jobs.json.new"
    new.write_text(json.dumps(names, indent=0), encoding="utf-8")
    new.replace(folder / "jobs.json")
