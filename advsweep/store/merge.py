"""Merges one store into another: no run is lost and none is duplicated.

A run is identified by its identity and attempt. A done run beats one that is not done; of two
others, the one with more steps wins. The run of the target wins a tie. Merging twice changes
nothing. Every value of the other store is checked first, and a store with one that advsweep
cannot have written is refused as a whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, func, insert, null, select, update

from advsweep.errors import StoreError
from advsweep.local_files import make_private_folder
from advsweep.store import tables
from advsweep.store.base import put
from advsweep.store.checks import check_store
from advsweep.store.evaluations import MODEL_SUBJECT, insert_evaluation, link_evaluation
from advsweep.store.metrics import metric_ids
from advsweep.store.owners import Owner
from advsweep.store.records import RunRecord, Status
from advsweep.store.run_folders import copy_folder, owners, plain_entries
from advsweep.store.runs import without_secrets
from advsweep.store.store import Store
from advsweep.store.sweeps import append_runs

if TYPE_CHECKING:
    from advsweep.store.owners import AnyRow

_OF_IDENTITY = ("config_hash", "seed", "estimator", "backend", "steps")
"""Columns that are equal in all runs of one identity."""

_RUNS, _PLANS = tables.RUNS, tables.SWEEP_RUNS

_EVALUATIONS = (
    select(tables.EVALUATIONS, tables.PROBLEM_SETS.c.problems, tables.EVALUATION_SAMPLES.c.answers)
    .join(tables.PROBLEM_SETS)
    .outerjoin(tables.EVALUATION_SAMPLES)
    .order_by(tables.EVALUATIONS.c.id)
)


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
        sweeps: names of the new sweeps.
        without_folder: runs that were merged without their folder, because it does not exist.
    """

    runs: dict[MergeAction, list[RunRecord]] = field(
        default_factory=lambda: {action: [] for action in MergeAction}
    )
    left_out: dict[int, str] = field(default_factory=dict)
    not_copied: list[Path] = field(default_factory=list)
    sweeps: list[str] = field(default_factory=list)
    without_folder: list[RunRecord] = field(default_factory=list)


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
    with source.database.read() as theirs:
        check_store(source, theirs)
        merger = _Merger(target, source, theirs, folders=folders)
        rows = theirs.execute(select(_RUNS).order_by(_RUNS.c.id)).all()
        decided = [merger.decide(row) for row in rows]
        known = {sweep.name for sweep in target.sweeps.select()}
        names = theirs.execute(select(tables.SWEEPS.c.name).order_by(tables.SWEEPS.c.id)).scalars()
        merger.result.sweeps = [name for name in names if name not in known]
        if dry_run:
            for each in decided:
                merger.result.runs[each.action].append(each.theirs)
            return merger.result
        merger.check_room(decided)
        for done, each in enumerate(decided, 1):
            merger.merge_run(each)
            on_run(done, len(decided))
        merger.merge_models()
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
    copies_folder: bool = False


class _Merger:
    """Merges the parts of a store.

    Attributes:
        ids: the ids of runs in the target by their ids in the source.
    """

    def __init__(self, target: Store, source: Store, theirs: Connection, *, folders: bool) -> None:
        self._target = target
        self._source = source
        self._theirs = theirs
        self._folders = folders
        # Two stores may share one folder of runs; then there is nothing to copy.
        self._same_folder = target.runs_directory == source.runs_directory
        self._names = {row.id: row.name for row in theirs.execute(select(tables.METRICS))}
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
        if ours is not None:
            for key in _OF_IDENTITY:
                if getattr(ours, key) != getattr(theirs, key):
                    raise StoreError(
                        f"{self._source.name} cannot be merged: its run {theirs.id} has the "
                        f"identity of run {ours.id} of this store and another {key}; remove one "
                        "of the two"
                    )
            if _progress(theirs) <= _progress(ours):
                return _Decision(row, theirs, ours, MergeAction.KEPT)
        for run, where in ((ours, "in this one"), (theirs, "in the other store")):
            if run is not None and run.status is Status.RUNNING:
                self.result.left_out[theirs.id] = f"a process is training it {where}"
                return _Decision(row, theirs, ours, MergeAction.LEFT_OUT)
        folder = theirs.directory
        final = self._target.runs_directory / folder.name
        copies = self._folders and not self._same_folder
        copies = copies and folder.is_dir() and not folder.is_symlink()
        # Whatever is there is deleted, so it must be known to be this run's.
        is_own = not final.is_symlink() and owners(final) == {theirs.identity}
        if copies and os.path.lexists(final) and not is_own:
            raise StoreError(
                f"{final} has no manifest that names run {theirs.id} of {self._source.name} "
                "alone; move it elsewhere or merge with --no-folders"
            )
        action = MergeAction.ADDED if ours is None else MergeAction.REPLACED
        return _Decision(row, theirs, ours, action, copies_folder=copies)

    def check_room(self, decided: list[_Decision]) -> None:
        """Check that the disk has room for the folders to copy.

        Raises:
            StoreError: it has not.
        """
        # A sparse file of a hostile store would fill the disk.
        copied = [each.theirs.directory for each in decided if each.copies_folder]
        needed = sum(path.lstat().st_size for folder in copied for path in plain_entries(folder)[0])
        runs = self._target.runs_directory
        room = shutil.disk_usage(next(p for p in (runs, *runs.parents) if p.exists())).free
        if needed > room:
            raise StoreError(
                f"the folders of runs take {needed / 1e9:.3g} GB, and {runs} has room for "
                f"{room / 1e9:.3g} GB; make room or merge with --no-folders"
            )

    def merge_run(self, decision: _Decision) -> None:
        """Merge a run with its folder and all rows about it."""
        theirs, ours, action = decision.theirs, decision.ours, decision.action
        if action is MergeAction.REPLACED:
            assert ours is not None
            # The lease keeps other processes from training the run while it is replaced.
            if not self._target.leases.claim(ours.id, Owner.current()):
                action = MergeAction.LEFT_OUT
                self.result.left_out[theirs.id] = "a process has just taken it up in this one"
        self.result.runs[action].append(theirs)
        if action is MergeAction.LEFT_OUT:
            return
        if decision.copies_folder:
            # The folder first: a run without its folder could not be resumed.
            self._copy_folder(theirs)
        elif action is not MergeAction.KEPT and not self._same_folder:
            self.result.without_folder.append(theirs)
        with self._target.database.write_alone() as connection:
            self.ids[theirs.id] = self._copy_rows(connection, decision)

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

    def _copy_rows(self, connection: Connection, decision: _Decision) -> int:
        """Add a run, replace the target's, or add what that lacks; return its id there."""
        row, ours, action = decision.row, decision.ours, decision.action
        # In a JSON column, None would become JSON's null.
        values = {k: null() if v is None else v for k, v in row._mapping.items() if k != "id"}
        if row.environment is not None:
            values["environment"] = without_secrets(row.environment)
        if ours is None:
            adding = insert(_RUNS).values(values).returning(_RUNS.c.id)
            run_id = int(connection.execute(adding).scalar_one())
        else:
            run_id = ours.id
        copied = [tables.ANALYSES]
        if action is not MergeAction.KEPT:
            copied += [tables.POINTS, tables.SUMMARIES]
            if decision.copies_folder or self._same_folder:
                copied.append(tables.CHECKPOINTS)
        if action is MergeAction.REPLACED:
            connection.execute(update(_RUNS).where(_RUNS.c.id == run_id).values(values))
            for table in (tables.POINTS, tables.SUMMARIES, tables.CHECKPOINTS):
                connection.execute(delete(table).where(table.c.run_id == run_id))
        metrics = metric_ids(connection, self._names.values())
        for table in copied:
            found = self._theirs.execute(select(table).where(table.c.run_id == row.id))
            rows = [{**each._mapping, "run_id": run_id} for each in found]
            for each in rows if "metric_id" in table.c else ():
                each["metric_id"] = metrics[self._names[each["metric_id"]]]
            put(connection, table, rows)
        links = _EVALUATIONS.join(tables.RUN_EVALUATIONS).add_columns(tables.RUN_EVALUATIONS.c.step)
        for link in self._theirs.execute(links.where(tables.RUN_EVALUATIONS.c.run_id == row.id)):
            evaluation = link._asdict()
            step = evaluation.pop("step")
            link_evaluation(connection, run_id, _insert(connection, evaluation), step)
        return run_id

    def merge_models(self) -> None:
        """Add missing evaluations of models without a run."""
        of_models = tables.EVALUATIONS.c.subject.startswith(MODEL_SUBJECT)
        for row in self._theirs.execute(_EVALUATIONS.where(of_models)):
            with self._target.database.write_alone() as connection:
                _insert(connection, row._asdict())

    def merge_sweeps(self) -> None:
        """Add new sweeps, and the missing runs and trials of all sweeps."""
        for sweep in self._theirs.execute(select(tables.SWEEPS).order_by(tables.SWEEPS.c.id)).all():
            planned = select(_PLANS).where(_PLANS.c.sweep_id == sweep.id)
            members = self._theirs.execute(planned.order_by(_PLANS.c.position))
            of_sweep = select(tables.TRIALS).where(tables.TRIALS.c.sweep_id == sweep.id)
            trials = self._theirs.execute(of_sweep).all()
            row = {**sweep._mapping, "spec": _without_choices(sweep.spec)}
            del row["id"]
            with self._target.database.write_alone() as connection:
                put(connection, tables.SWEEPS, row)
                named = select(tables.SWEEPS.c.id).where(tables.SWEEPS.c.name == sweep.name)
                sweep_id = connection.execute(named).scalar_one()
                merged = [self.ids[each.run_id] for each in members if each.run_id in self.ids]
                append_runs(connection, sweep_id, merged)
                _drop_older_attempts(connection, sweep_id)
                # A search proposes trials in a fixed order, so those of two do not mix.
                present = select(func.count()).where(tables.TRIALS.c.sweep_id == sweep_id)
                if not connection.execute(present).scalar_one():
                    rows = [{**trial._mapping, "sweep_id": sweep_id} for trial in trials]
                    put(connection, tables.TRIALS, rows)


def _insert(connection: Connection, row: dict[str, Any]) -> int:
    """Insert a row of `_EVALUATIONS` unless it exists; return its id."""
    del row["id"], row["problem_set_id"]
    return insert_evaluation(connection, row, row.pop("problems"), row.pop("answers"))


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
    query = select(_RUNS.c.id, _RUNS.c.identity).join(_PLANS).where(_PLANS.c.sweep_id == sweep_id)
    rows = connection.execute(query.order_by(_RUNS.c.attempt)).all()
    latest = {row.identity: row.id for row in rows}
    for row in rows:
        if row.id != latest[row.identity]:
            older = (_PLANS.c.sweep_id == sweep_id, _PLANS.c.run_id == row.id)
            connection.execute(delete(_PLANS).where(*older))
