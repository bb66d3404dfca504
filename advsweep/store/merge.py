"""Merges one store into another: no run is lost and none is duplicated.

A run is identified by its identity and attempt. A done run beats one that is not done; of two
others, the one with more steps wins. The run of the target wins a tie. Merging twice changes
nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import delete, insert, null, select, update

from advsweep.errors import StoreError
from advsweep.local_files import make_private_folder
from advsweep.store import foreign
from advsweep.store.base import chunks
from advsweep.store.merge_rows import RowMerger
from advsweep.store.metrics import metric_ids, storable, write_points, write_summaries
from advsweep.store.owners import Owner
from advsweep.store.records import RunRecord, Status
from advsweep.store.run_folders import PREFIX, copy_folder, owners, size_of
from advsweep.store.runs import without_secrets
from advsweep.store.store import Store
from advsweep.store.tables import CHECKPOINTS, POINTS, RUNS, SUMMARIES

if TYPE_CHECKING:
    from advsweep.store.owners import AnyRow

OF_PROCESS = ("time/", "memory/")
"""Prefixes of metrics that differ whenever a run is repeated."""

_OF_IDENTITY = ("config_hash", "seed", "estimator", "backend", "steps")
"""Columns that are equal in all runs of one identity."""


class MergeAction(Enum):
    """What a merge does with a run of the source."""

    ADDED = "added"
    REPLACED = "brought further"
    KEPT = "there already"
    LEFT_OUT = "left out"


@dataclass
class MergeResult:
    """What a merge did, or would do.

    Attributes:
        runs: the runs of the source by action.
        left_out: why runs were left out, by their id in the source. Runs with malformed values
            are only here.
        refused: what else was left out, and why, a line each: sweeps, trials, evaluations,
            analyses, checkpoints, and files that are links or special files.
        differing: how runs differ that are done in both stores, by their id in the source.
        sweeps: names of the new sweeps.
        evaluations: number of new evaluations.
        without_folder: runs that were merged without their folder, because it does not exist.
    """

    runs: dict[MergeAction, list[RunRecord]] = field(
        default_factory=lambda: {action: [] for action in MergeAction}
    )
    left_out: dict[int, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    differing: dict[int, str] = field(default_factory=dict)
    sweeps: list[str] = field(default_factory=list)
    evaluations: int = 0
    without_folder: list[RunRecord] = field(default_factory=list)

    def ids(self) -> dict[MergeAction, list[int]]:
        """Returns the ids of the source's runs by action."""
        found = {action: [run.id for run in runs] for action, runs in self.runs.items()}
        return found | {MergeAction.LEFT_OUT: sorted(self.left_out)}


def merge(
    target: Store,
    source: Store,
    *,
    folders: bool = True,
    dry_run: bool = False,
    on_run: Callable[[int, int], None] = lambda done, total: None,
) -> MergeResult:
    """Merges the contents of another store into a store; the source stays as it is.

    Runs come with their metrics, summaries, evaluations and analyses, and with their folders
    below `runs_directory`, which hold logs and checkpoints. Sweeps of the same name are the same
    sweep: its new runs follow those of the target, in the order of the source's plan. Runs that
    a process is training, in either store, are left out, and so are rows that advsweep cannot
    have written. Evaluations of models without a run are merged too. The executors and trackers
    of sweeps are not.

    Args:
        folders: copy the run folders; a run without its folder cannot be exported or resumed.
        dry_run: change nothing.
        on_run: called after each run with the number of runs so far and in all.

    Raises:
        StoreError: a store cannot be used, both are the same one, or a folder cannot be
            copied. What was merged before stays.
    """
    if target.url == source.url:
        raise StoreError(f"{source.name}: expected another store than the one to merge into")
    merger = _RunMerger(target, source, folders=folders, dry_run=dry_run)
    ids = merger.run_ids()
    for done, run_id in enumerate(ids, 1):
        merger.merge_run(run_id)
        on_run(done, len(ids))
    rows, result = merger.rows, merger.result
    rows.merge_models()
    result.sweeps = rows.merge_sweeps(merger.ids)
    result.evaluations, result.refused = len(rows.evaluations), rows.refused
    return result


class _RunParts(NamedTuple):
    """The rows that belong to one run alone."""

    points: Sequence[tuple[str, int, float]]
    summaries: Mapping[str, float]
    checkpoints: Sequence[dict[str, Any]]


class _RunMerger:
    """Merges runs.

    Attributes:
        ids: the ids of runs in the target by their ids in the source.
    """

    def __init__(self, target: Store, source: Store, *, folders: bool, dry_run: bool) -> None:
        self._target = target
        self._source = source
        self._folders = folders
        # Two stores may share one folder of runs; then there is nothing to copy.
        self._same_folder = target.runs_directory == source.runs_directory
        self._dry_run = dry_run
        self.rows = RowMerger(target, source, dry_run=dry_run)
        self.ids: dict[int, int] = {}
        self.result = MergeResult()

    def run_ids(self) -> list[int]:
        """Returns the ids of the source's runs, in the order in which they were added.

        Raises:
            StoreError: an id is not a number.
        """
        with self._source.database.read() as connection:
            found = connection.execute(select(RUNS.c.id).order_by(RUNS.c.id)).scalars().all()
        ids = list(dict.fromkeys(found))
        if not all(isinstance(run_id, int) for run_id in ids):
            raise StoreError(f"{self._source.name}: expected whole numbers as the ids of runs")
        return ids

    def merge_run(self, run_id: int) -> None:
        """Merges a run with everything that belongs to it, unless the target has it."""
        parts = None
        try:
            # Read and checked as a whole before anything changes.
            with foreign.reading():
                row = self._read_run(run_id)
                theirs = self._source.runs.to_record(row)
                action, ours = self._decide(theirs)
                if action in (MergeAction.ADDED, MergeAction.REPLACED):
                    parts = self._read_parts(theirs)
                    self._check_folder(theirs)
                elif action is MergeAction.KEPT:
                    self._compare(theirs, ours)
        except foreign.ForeignError as error:
            self.result.left_out[run_id] = str(error)
            return
        if action is MergeAction.KEPT:
            assert ours is not None
            self.ids[theirs.id] = ours.id
        elif parts is not None and self._dry_run:
            # A placeholder for the id that the run would get.
            self.ids[theirs.id] = -theirs.id if ours is None else ours.id
        elif parts is not None and (reason := self._copy(theirs, row, ours, parts)):
            action = MergeAction.LEFT_OUT
            self.result.left_out[theirs.id] = reason
        self.result.runs[action].append(theirs)
        if theirs.id in self.ids:
            self.rows.merge_evaluations(theirs.id, self.ids[theirs.id])
            self.rows.merge_analyses(theirs.id, self.ids[theirs.id])

    def _read_run(self, run_id: int) -> AnyRow:
        with self._source.database.read() as connection:
            found = connection.execute(select(RUNS).where(RUNS.c.id == run_id)).first()
        if found is None:
            raise foreign.ForeignError("it is gone")
        foreign.check_run(found._asdict())
        return found

    def _decide(self, theirs: RunRecord) -> tuple[MergeAction, RunRecord | None]:
        """Returns what to do with a run, and the target's run of the same identity."""
        ours = self._target.runs.find_attempt(theirs.identity, theirs.attempt)
        if ours is None and (other := self._namesake(theirs)):
            raise foreign.ForeignError(
                f"its identity {theirs.identity[:24]}... begins like that of run {other} of this "
                "store, whose folder it would share"
            )
        for key in _OF_IDENTITY:
            if ours is not None and getattr(ours, key) != getattr(theirs, key):
                raise foreign.ForeignError(
                    f"{key}: expected that of run {ours.id} of this store, which has the same "
                    "identity"
                )
        action = _choose_action(theirs, ours)
        if action is MergeAction.LEFT_OUT:
            where = "in the other store" if theirs.status is Status.RUNNING else "in this one"
            self.result.left_out[theirs.id] = f"a process is training it {where}"
        return action, ours

    def _namesake(self, theirs: RunRecord) -> int | None:
        """Returns a run of the target with another identity but the same folder name."""
        first = theirs.identity[:PREFIX]
        # A range, unlike LIKE, uses the index in every database.
        alike = (RUNS.c.identity >= first, RUNS.c.identity < f"{first}g")
        query = select(RUNS.c.id).where(*alike, RUNS.c.identity != theirs.identity)
        with self._target.database.read() as connection:
            return connection.execute(query.limit(1)).scalar()

    def _read_parts(self, theirs: RunRecord) -> _RunParts:
        points = self._source.metrics.points(theirs.id)
        foreign.check_points(points)
        summaries = self._source.metrics.summaries([theirs.id]).get(theirs.id, {})
        foreign.check_summaries(summaries)
        query = select(CHECKPOINTS.c.path, CHECKPOINTS.c.step, CHECKPOINTS.c.created)
        with self._source.database.read() as connection:
            found = connection.execute(query.where(CHECKPOINTS.c.run_id == theirs.id)).all()
        checkpoints: dict[str, dict[str, Any]] = {}
        for row in found:
            try:
                foreign.check_checkpoint(row._asdict(), theirs.directory.name)
            except foreign.ForeignError as error:
                self.rows.refuse(f"a checkpoint of its run {theirs.id}", error)
            else:
                checkpoints[row.path] = row._asdict()
        return _RunParts(points, summaries, list(checkpoints.values()))

    def _copy(
        self, theirs: RunRecord, row: AnyRow, ours: RunRecord | None, parts: _RunParts
    ) -> str | None:
        """Adds a run, or replaces the target's; returns why it did not."""
        # The lease keeps other processes from training the run while it is replaced.
        if ours is not None and not self._target.leases.claim(ours.id, Owner.current()):
            return "a process has just taken it up in this one"
        # The folder first: a run without its folder could not be resumed.
        has_folder = self._copy_folder(theirs)
        # In a JSON column, None would become JSON's null.
        values = {k: null() if v is None else v for k, v in row._mapping.items() if k != "id"}
        if row.environment is not None:
            values["environment"] = without_secrets(row.environment)
        points, summaries = parts.points, parts.summaries
        with self._target.database.write_alone() as connection:
            if ours is None:
                adding = insert(RUNS).values(values).returning(RUNS.c.id)
                run_id = connection.execute(adding).scalar_one()
            else:
                run_id = ours.id
                connection.execute(update(RUNS).where(RUNS.c.id == run_id).values(values))
                for table in (POINTS, SUMMARIES, CHECKPOINTS):
                    connection.execute(delete(table).where(table.c.run_id == run_id))
            names = {name for name, _, _ in points} | summaries.keys()
            ids = metric_ids(connection, names)
            rows = [(ids[name], step, storable(value)) for name, step, value in points]
            for some in chunks(rows):
                write_points(connection, run_id, some)
            if summaries:
                numbers = [(ids[name], storable(value)) for name, value in summaries.items()]
                write_summaries(connection, run_id, numbers)
            if has_folder and parts.checkpoints:
                found = [{**checkpoint, "run_id": run_id} for checkpoint in parts.checkpoints]
                connection.execute(insert(CHECKPOINTS), found)
        self.ids[theirs.id] = run_id
        return None

    def _has_folder(self, theirs: RunRecord) -> bool:
        """Returns whether a run has a folder to copy."""
        found = theirs.directory
        return self._folders and not found.is_symlink() and found.is_dir()

    def _check_folder(self, theirs: RunRecord) -> None:
        """Checks that the folder of a run can be copied.

        Raises:
            ForeignError: another folder of that name exists, or the disk has no room.
        """
        if self._same_folder or not self._has_folder(theirs):
            return
        final = self._target.runs_directory / theirs.directory.name
        if os.path.lexists(final) and (final.is_symlink() or owners(final) != {theirs.identity}):
            raise foreign.ForeignError(
                f"{final} has no manifest that names this run alone; move it elsewhere or merge "
                "with --no-folders"
            )
        needed, room = size_of(theirs.directory), shutil.disk_usage(_existing_parent(final)).free
        if needed > room:
            raise foreign.ForeignError(
                f"its folder takes {needed / 1e9:.3g} GB, and {final.parent} has room for "
                f"{room / 1e9:.3g} GB; merge with --no-folders"
            )

    def _copy_folder(self, theirs: RunRecord) -> bool:
        """Copies the folder of a run as a whole; returns False if it has none."""
        if self._same_folder:
            return True
        if not self._has_folder(theirs):
            self.result.without_folder.append(theirs)
            return False
        final = self._target.runs_directory / theirs.directory.name
        try:
            make_private_folder(final.parent)
            with TemporaryDirectory(prefix=".partial-", dir=final.parent) as scratch:
                copy = Path(scratch) / final.name
                for odd in copy_folder(theirs.directory, copy, theirs.identity):
                    where = odd.relative_to(theirs.directory.parent)
                    self.rows.refuse(f"{where}", "a link, a special file or a folder too deep")
                if final.exists():
                    shutil.rmtree(final)
                # Renamed as a whole, so that an interruption leaves no half folder.
                copy.rename(final)
        except OSError as error:
            raise StoreError(
                f"{theirs.directory} cannot be copied to {final.parent}: {error}; make room or "
                "make the folder writable, or merge with --no-folders, then merge again"
            ) from error
        return True

    def _compare(self, theirs: RunRecord, ours: RunRecord | None) -> None:
        """Notes how two runs differ that are done in both stores and should be equal."""
        assert ours is not None
        if theirs.status is not Status.DONE or ours.status is not Status.DONE:
            return
        found = self._source.metrics.points(theirs.id)
        foreign.check_points(found)
        there, here = (
            {(name, step): value for name, step, value in points}
            for points in (found, self._target.metrics.points(ours.id))
        )
        keys = [k for k in here.keys() | there.keys() if not k[0].startswith(OF_PROCESS)]
        unlike = [k for k in keys if repr(here.get(k)) != repr(there.get(k))]
        if unlike:
            name, step = min(unlike, key=lambda key: (key[1], key[0]))
            self.result.differing[theirs.id] = (
                f"{len(unlike)} of {len(keys)} metric points, first {name} at step {step}: "
                f"{here.get((name, step))} here, {there.get((name, step))} there"
            )


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.is_dir())


def _choose_action(theirs: RunRecord, ours: RunRecord | None) -> MergeAction:
    if ours is not None and _progress(theirs) <= _progress(ours):
        return MergeAction.KEPT
    if theirs.status is Status.RUNNING or (ours is not None and ours.status is Status.RUNNING):
        return MergeAction.LEFT_OUT
    return MergeAction.ADDED if ours is None else MergeAction.REPLACED


def _progress(run: RunRecord) -> tuple[bool, int]:
    return run.status is Status.DONE, run.step
