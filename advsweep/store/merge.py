"""Merges one store into another: no run is lost and none is duplicated.

A run is identified by its identity and attempt. A done run beats one that is not done; of two
others, the one with more steps wins. The run of the target wins a tie. Merging twice changes
nothing.
"""

from __future__ import annotations

import math
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, func, insert, null, select, update

from advsweep.errors import StoreError
from advsweep.local_files import make_private_folder
from advsweep.store.base import chunks, insert_or_ignore
from advsweep.store.checks import check_store
from advsweep.store.evaluations import MODEL_SUBJECT, insert_evaluation, link_evaluation
from advsweep.store.metrics import metric_ids, write_points, write_summaries
from advsweep.store.owners import Owner
from advsweep.store.records import RunRecord, Status
from advsweep.store.run_folders import copy_folder, owners, size_of
from advsweep.store.runs import without_secrets
from advsweep.store.store import Store
from advsweep.store.sweeps import append_runs
from advsweep.store.tables import (
    ANALYSES,
    CHECKPOINTS,
    EVALUATION_SAMPLES,
    EVALUATIONS,
    METRICS,
    POINTS,
    PROBLEM_SETS,
    RUN_EVALUATIONS,
    RUNS,
    SUMMARIES,
    SWEEP_RUNS,
    SWEEPS,
    TRIALS,
)

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
        left_out: why runs were left out, by their id in the source.
        not_copied: what stays in the run folders of the source: links, special files, folders
            too deep, and the outputs of commands.
        differing: how runs differ that are done in both stores, by their id in the source.
        sweeps: names of the new sweeps.
        evaluations: number of new evaluations.
        without_folder: runs that were merged without their folder, because it does not exist.
    """

    runs: dict[MergeAction, list[RunRecord]] = field(
        default_factory=lambda: {action: [] for action in MergeAction}
    )
    left_out: dict[int, str] = field(default_factory=dict)
    not_copied: list[Path] = field(default_factory=list)
    differing: dict[int, str] = field(default_factory=dict)
    sweeps: list[str] = field(default_factory=list)
    evaluations: int = 0
    without_folder: list[RunRecord] = field(default_factory=list)

    def ids(self) -> dict[MergeAction, list[int]]:
        """Return the ids of the source's runs by action."""
        return {action: [run.id for run in runs] for action, runs in self.runs.items()}


def merge(
    target: Store,
    source: Store,
    *,
    folders: bool = True,
    dry_run: bool = False,
    on_run: Callable[[int, int], None] = lambda done, total: None,
) -> MergeResult:
    """Merge the contents of another store into a store; the source stays as it is.

    Runs come with their metrics, summaries, evaluations and analyses, and with their folders
    below `runs_directory`, which hold logs and checkpoints. Sweeps of the same name are the same
    sweep: its new runs follow those of the target, in the order of the source's plan. Runs that
    a process is training, in either store, are left out. Evaluations of models without a run are
    merged too. The executors and trackers of sweeps are not.

    Args:
        folders: copy the run folders; a run without its folder cannot be exported or resumed.
        dry_run: change nothing.
        on_run: called after each run with the number of runs so far and in all.

    Raises:
        StoreError: a store cannot be used, both are the same one, the source has a value that
            advsweep cannot have written, a run differs in its settings from that of the same
            identity, or a folder cannot be copied. Only in the last case something was merged
            before, and stays.
    """
    if target.url == source.url:
        raise StoreError(f"{source.name}: expected another store than the one to merge into")
    # One transaction, so that what is checked is what is copied.
    with source.database.read() as connection:
        check_store(source, connection)
        merger = _Merger(target, source, connection, folders=folders, dry_run=dry_run)
        rows = connection.execute(select(RUNS).order_by(RUNS.c.id)).all()
        decided = [merger.decide(row) for row in rows]
        merger.check_room(decided)
        for done, decision in enumerate(decided, 1):
            merger.merge_run(decision)
            on_run(done, len(decided))
        merger.merge_evaluations()
        merger.merge_analyses()
        merger.merge_sweeps()
    return merger.result


@dataclass(frozen=True)
class _Decision:
    """What becomes of a run.

    Attributes:
        ours: the target's run of the same identity and attempt.
        copies_folder: the folder of the run is there and is copied.
    """

    row: AnyRow
    theirs: RunRecord
    ours: RunRecord | None
    action: MergeAction
    copies_folder: bool


class _Merger:
    """Merges the parts of a store.

    Attributes:
        ids: the ids of runs in the target by their ids in the source.
    """

    def __init__(
        self, target: Store, source: Store, theirs: Connection, *, folders: bool, dry_run: bool
    ) -> None:
        self._target = target
        self._source = source
        self._theirs = theirs
        self._folders = folders
        # Two stores may share one folder of runs; then there is nothing to copy.
        self._same_folder = target.runs_directory == source.runs_directory
        self._dry_run = dry_run
        self._metrics: dict[int, str] = {
            row.id: row.name for row in theirs.execute(select(METRICS))
        }
        self.ids: dict[int, int] = {}
        self.result = MergeResult()

    def decide(self, row: AnyRow) -> _Decision:
        """Return what to do with a run.

        Raises:
            StoreError: the target's run of the same identity has other settings, or its folder
                cannot be replaced.
        """
        theirs = self._source.runs.to_record(row)
        ours = self._target.runs.find_attempt(theirs.identity, theirs.attempt)
        action, copies_folder = MergeAction.ADDED, False
        if ours is not None:
            for key in _OF_IDENTITY:
                if getattr(ours, key) != getattr(theirs, key):
                    raise StoreError(
                        f"{self._source.name} cannot be merged: its run {theirs.id} has the "
                        f"identity of run {ours.id} of this store and another {key}; remove one "
                        "of the two"
                    )
            kept = _progress(theirs) <= _progress(ours)
            action = MergeAction.KEPT if kept else MergeAction.REPLACED
        if action is not MergeAction.KEPT:
            for run, where in ((theirs, "in the other store"), (ours, "in this one")):
                if run is not None and run.status is Status.RUNNING:
                    action = MergeAction.LEFT_OUT
                    self.result.left_out[theirs.id] = f"a process is training it {where}"
        if action in (MergeAction.ADDED, MergeAction.REPLACED) and not self._same_folder:
            folder = theirs.directory
            copies_folder = self._folders and not folder.is_symlink() and folder.is_dir()
            final = self._target.runs_directory / folder.name
            if (
                copies_folder
                and os.path.lexists(final)
                and (final.is_symlink() or owners(final) != {theirs.identity})
            ):
                raise StoreError(
                    f"{final} has no manifest that names run {theirs.id} of {self._source.name} "
                    "alone; move it elsewhere or merge with --no-folders"
                )
        return _Decision(row, theirs, ours, action, copies_folder)

    def check_room(self, decided: list[_Decision]) -> None:
        """Check that the disk has room for the folders to copy.

        Raises:
            StoreError: it has not.
        """
        needed = sum(size_of(each.theirs.directory) for each in decided if each.copies_folder)
        runs = self._target.runs_directory
        room = shutil.disk_usage(next(p for p in (runs, *runs.parents) if p.exists())).free
        if needed > room:
            raise StoreError(
                f"the folders of runs take {needed / 1e9:.3g} GB, and {runs} has room for "
                f"{room / 1e9:.3g} GB; make room or merge with --no-folders"
            )

    def merge_run(self, decision: _Decision) -> None:
        """Merge a run with its metrics, checkpoints and folder."""
        theirs, ours, action = decision.theirs, decision.ours, decision.action
        if action is MergeAction.KEPT:
            assert ours is not None
            self.ids[theirs.id] = ours.id
            self._compare(theirs, ours)
        elif action is MergeAction.LEFT_OUT:
            pass
        elif self._dry_run:
            # A placeholder for the id that the run would get.
            self.ids[theirs.id] = -theirs.id if ours is None else ours.id
        # The lease keeps other processes from training the run while it is replaced.
        elif ours is not None and not self._target.leases.claim(ours.id, Owner.current()):
            action = MergeAction.LEFT_OUT
            self.result.left_out[theirs.id] = "a process has just taken it up in this one"
        else:
            # The folder first: a run without its folder could not be resumed.
            if decision.copies_folder:
                self._copy_folder(theirs)
            elif not self._same_folder:
                self.result.without_folder.append(theirs)
            self.ids[theirs.id] = self._copy_rows(decision)
        self.result.runs[action].append(theirs)

    def _copy_folder(self, theirs: RunRecord) -> None:
        final = self._target.runs_directory / theirs.directory.name
        try:
            make_private_folder(final.parent)
            with TemporaryDirectory(prefix=".partial-", dir=final.parent) as scratch:
                copy = Path(scratch) / final.name
                self.result.not_copied += copy_folder(theirs.directory, copy, theirs.identity)
                if final.exists():
                    shutil.rmtree(final)
                # Renamed as a whole, so that an interruption leaves no half folder.
                copy.rename(final)
        except OSError as error:
            raise StoreError(
                f"{theirs.directory} cannot be copied to {final.parent}: {error}; make room or "
                "make the folder writable, or merge with --no-folders, then merge again"
            ) from error

    def _copy_rows(self, decision: _Decision) -> int:
        """Add a run, or replace the target's, and return its id there."""
        row, ours = decision.row, decision.ours
        # In a JSON column, None would become JSON's null.
        values = {k: null() if v is None else v for k, v in row._mapping.items() if k != "id"}
        if row.environment is not None:
            values["environment"] = without_secrets(row.environment)
        points, summaries, checkpoints = (
            self._theirs.execute(select(table).where(table.c.run_id == row.id)).all()
            for table in (POINTS, SUMMARIES, CHECKPOINTS)
        )
        with self._target.database.write_alone() as connection:
            if ours is None:
                adding = insert(RUNS).values(values).returning(RUNS.c.id)
                run_id: int = connection.execute(adding).scalar_one()
            else:
                run_id = ours.id
                connection.execute(update(RUNS).where(RUNS.c.id == run_id).values(values))
                for table in (POINTS, SUMMARIES, CHECKPOINTS):
                    connection.execute(delete(table).where(table.c.run_id == run_id))
            names = {r.metric_id: self._metrics[r.metric_id] for r in (*points, *summaries)}
            ids = metric_ids(connection, names.values())
            for some in chunks(points):
                new = [(ids[names[point.metric_id]], point.step, point.value) for point in some]
                write_points(connection, run_id, new)
            if summaries:
                numbers = {ids[names[own.metric_id]]: own.value for own in summaries}
                write_summaries(connection, run_id, numbers)
            if checkpoints and (decision.copies_folder or self._same_folder):
                rows = [{**own._mapping, "run_id": run_id} for own in checkpoints]
                connection.execute(insert(CHECKPOINTS), rows)
        return run_id

    def _compare(self, theirs: RunRecord, ours: RunRecord) -> None:
        """Note how two runs differ that are done in both stores and should be equal."""
        if theirs.status is not Status.DONE or ours.status is not Status.DONE:
            return
        found = self._theirs.execute(select(POINTS).where(POINTS.c.run_id == theirs.id))
        there = {
            (self._metrics[p.metric_id], p.step): math.nan if p.value is None else p.value
            for p in found
        }
        here = {(name, step): v for name, step, v in self._target.metrics.points(ours.id)}
        keys = [k for k in here.keys() | there.keys() if not k[0].startswith(OF_PROCESS)]
        unlike = [k for k in keys if repr(here.get(k)) != repr(there.get(k))]
        if unlike:
            name, step = min(unlike, key=lambda key: (key[1], key[0]))
            self.result.differing[theirs.id] = (
                f"{len(unlike)} of {len(keys)} metric points, first {name} at step {step}: "
                f"{here.get((name, step))} here, {there.get((name, step))} there"
            )

    def merge_evaluations(self) -> None:
        """Add missing evaluations of merged runs, and of models without a run."""
        links = defaultdict(list)
        for link in self._theirs.execute(select(RUN_EVALUATIONS)):
            if link.run_id in self.ids:
                links[link.evaluation_id].append((self.ids[link.run_id], link.step))
        query = (
            select(EVALUATIONS, PROBLEM_SETS.c.digest, PROBLEM_SETS.c.problems)
            .add_columns(EVALUATION_SAMPLES.c.answers)
            .join(PROBLEM_SETS)
            .outerjoin(EVALUATION_SAMPLES)
            .order_by(EVALUATIONS.c.id)
        )
        for found in self._theirs.execute(query):
            if found.id not in links and not found.subject.startswith(MODEL_SUBJECT):
                continue
            self.result.evaluations += not self._target.evaluations.has(found.identity)
            if self._dry_run:
                continue
            row = found._asdict()
            digest, problems, answers = (row.pop(k) for k in ("digest", "problems", "answers"))
            with self._target.database.write_alone() as connection:
                row.pop("id")
                evaluation_id = insert_evaluation(connection, row, digest, problems, answers)
                for run_id, step in links[found.id]:
                    link_evaluation(connection, run_id, evaluation_id, step)

    def merge_analyses(self) -> None:
        """Add missing analyses of merged runs."""
        found = self._theirs.execute(select(ANALYSES)).all()
        rows = [
            {**row._mapping, "run_id": self.ids[row.run_id]}
            for row in found
            if row.run_id in self.ids
        ]
        if rows and not self._dry_run:
            with self._target.database.write_alone() as connection:
                adding = insert_or_ignore(connection, ANALYSES, "run_id", "identity")
                connection.execute(adding, rows)

    def merge_sweeps(self) -> None:
        """Add new sweeps, and the missing runs and trials of all sweeps."""
        known = {sweep.name for sweep in self._target.sweeps.select()}
        sweeps = self._theirs.execute(select(SWEEPS).order_by(SWEEPS.c.id)).all()
        self.result.sweeps = [sweep.name for sweep in sweeps if sweep.name not in known]
        for sweep in [] if self._dry_run else sweeps:
            members = select(SWEEP_RUNS.c.run_id).where(SWEEP_RUNS.c.sweep_id == sweep.id)
            old = self._theirs.execute(members.order_by(SWEEP_RUNS.c.position)).scalars().all()
            trials = self._theirs.execute(select(TRIALS).where(TRIALS.c.sweep_id == sweep.id)).all()
            values = {
                "name": sweep.name,
                "spec": _without_choices(sweep.spec),
                "created": sweep.created,
            }
            with self._target.database.write_alone() as connection:
                connection.execute(insert_or_ignore(connection, SWEEPS, "name"), values)
                named = select(SWEEPS.c.id).where(SWEEPS.c.name == sweep.name)
                sweep_id = connection.execute(named).scalar_one()
                if new := [self.ids[run_id] for run_id in old if run_id in self.ids]:
                    append_runs(connection, sweep_id, new)
                    _drop_older_attempts(connection, sweep_id)
                # A search proposes trials in a fixed order, so those of two do not mix.
                present = select(func.count()).where(TRIALS.c.sweep_id == sweep_id)
                if trials and not connection.execute(present).scalar_one():
                    rows = [{**trial._mapping, "sweep_id": sweep_id} for trial in trials]
                    connection.execute(insert(TRIALS), rows)


def _progress(run: RunRecord) -> tuple[bool, int]:
    return run.status is Status.DONE, run.step


def _without_choices(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a sweep without its executor, its settings and its trackers.

    The present command line chooses these, and no store. The resources of each run stay; they
    are checked where they are used.
    """
    merged = {key: value for key, value in spec.items() if key not in ("settings", "tracking")}
    settings = spec.get("settings")
    if isinstance(settings, dict) and isinstance(settings.get("resources"), dict):
        merged["settings"] = {"resources": settings["resources"]}
    return merged


def _drop_older_attempts(connection: Connection, sweep_id: int) -> None:
    """Leave only the latest attempt of each run in a sweep, as `Runs.new_attempt` does."""
    members = (SWEEP_RUNS.c.run_id == RUNS.c.id, SWEEP_RUNS.c.sweep_id == sweep_id)
    latest = select(RUNS.c.identity, func.max(RUNS.c.attempt).label("attempt")).where(*members)
    newest = latest.group_by(RUNS.c.identity).subquery()
    older = select(RUNS.c.id).where(
        *members, RUNS.c.identity == newest.c.identity, RUNS.c.attempt < newest.c.attempt
    )
    ids = connection.execute(older).scalars().all()
    connection.execute(
        delete(SWEEP_RUNS).where(SWEEP_RUNS.c.sweep_id == sweep_id, SWEEP_RUNS.c.run_id.in_(ids))
    )
