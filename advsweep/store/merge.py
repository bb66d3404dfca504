"""Merges one store into another: no run is lost, none is there twice.

A run is known by its identity and attempt. One that is done beats one that is not, and of two
that are not the one with more steps; what is there already wins a tie. Merging again changes
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

from sqlalchemy import Connection, Select, delete, func, insert, inspect, null, select, update

from advsweep.errors import StoreError
from advsweep.local_files import make_private_folder
from advsweep.store import foreign
from advsweep.store.base import chunks
from advsweep.store.evaluations import MODEL_SUBJECT
from advsweep.store.metrics import storable
from advsweep.store.owners import Owner
from advsweep.store.records import RunRecord, Status
from advsweep.store.run_folders import PREFIX, copy_folder, owners, size_of
from advsweep.store.runs import without_secrets
from advsweep.store.store import Store
from advsweep.store.tables import (
    Analysis,
    Base,
    Checkpoint,
    Evaluation,
    Point,
    ProblemSet,
    Run,
    RunEvaluation,
    Summary,
    Sweep,
    SweepRun,
    Trial,
)

if TYPE_CHECKING:
    from advsweep.store.base import AnyRow

_EVALUATION = (ProblemSet.digest, ProblemSet.problems, *Evaluation.__table__.columns)

TIMES = "time/"
"""Metrics that differ whenever a run is repeated."""


class Fate(Enum):
    """What a merge does with a run of the other store."""

    ADDED = "added"
    REPLACED = "brought further"
    KEPT = "there already"
    LEFT_OUT = "left out"


_OF_IDENTITY = ("config_hash", "seed", "estimator", "backend", "steps")
"""What is the same in runs of one identity."""

_COPIED = (Fate.ADDED, Fate.REPLACED)


@dataclass
class Merged:
    """What a merge did, or would do.

    Attributes:
        runs: the runs of the other store by what became of each.
        left_out: why runs were left out, by their id in the other store; those with malformed
            values are here alone.
        refused: what else was left out, and why, a line each: sweeps, trials, evaluations,
            analyses, checkpoints, and files that are links or special ones.
        differing: in what runs differ that are done in both, by their id in the other store.
        sweeps: names of sweeps that were not there before.
        evaluations: how many were added.
        without_folder: runs that were taken without their folder, since it is not there.
    """

    runs: dict[Fate, list[RunRecord]] = field(default_factory=lambda: {fate: [] for fate in Fate})
    left_out: dict[int, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    differing: dict[int, str] = field(default_factory=dict)
    sweeps: list[str] = field(default_factory=list)
    evaluations: int = 0
    without_folder: list[RunRecord] = field(default_factory=list)

    def ids(self) -> dict[Fate, list[int]]:
        """The ids of the other store's runs by what became of each."""
        found = {fate: [run.id for run in runs] for fate, runs in self.runs.items()}
        return found | {Fate.LEFT_OUT: sorted(self.left_out)}


def merge(
    target: Store,
    source: Store,
    *,
    folders: bool = True,
    dry_run: bool = False,
    on_run: Callable[[int, int], None] = lambda done, total: None,
) -> Merged:
    """Puts what another store holds into a store; the other one stays as it is.

    Runs come with their metrics, summaries, evaluations and analyses, and with their folders below
    `runs_directory`, which hold logs and checkpoints. Sweeps are the same where their names
    are; runs that are new in one come after those it had, in the order of the other's plan.
    Runs that a process is training, in either store, are left out, and so is whatever advsweep
    cannot have written. Evaluations of models without a run come as well. Of sweeps, executors
    and trackers are left behind.

    Args:
        folders: copy the runs' folders; without them a run cannot be exported or gone on with.
        dry_run: change nothing.
        on_run: is told how many runs of how many are dealt with.

    Raises:
        StoreError: a store cannot be used, both are the same one, or a folder cannot be
            copied; what was merged by then stays.
    """
    if target.url == source.url:
        raise StoreError(f"{source.name}: expected another store than the one to merge into")
    merging = _Merging(target, source, folders=folders, dry_run=dry_run)
    ids = merging.run_ids()
    for done, run_id in enumerate(ids, 1):
        merging.take_run(run_id)
        on_run(done, len(ids))
    merging.take_models()
    merging.take_sweeps()
    return merging.merged


class _Material(NamedTuple):
    """What a run has beside its row."""

    points: Sequence[tuple[str, int, float]]
    summaries: Mapping[str, float]
    checkpoints: Sequence[dict[str, Any]]


class _Merging:
    """One merge; knows which run of the target each run of the source has become."""

    def __init__(self, target: Store, source: Store, *, folders: bool, dry_run: bool) -> None:
        self._target = target
        self._source = source
        # Where all runs have a common folder there is nothing to copy.
        self._folders = folders
        self._shared = target.runs_directory == source.runs_directory
        self._dry_run = dry_run
        self._ids: dict[int, int] = {}
        self._evaluations: set[str] = set()
        self.merged = Merged()

    def run_ids(self) -> list[int]:
        """The ids of the other store's runs, in the order in which they were added.

        Raises:
            StoreError: they are none, or what looks like a table is none.
        """
        with self._source._read() as connection:
            tables = set(inspect(connection).get_table_names())
            if views := Base.metadata.tables.keys() - tables:
                raise StoreError(f"{self._source.name}: expected a table {min(views)}, got none")
            found = connection.execute(select(Run.id).order_by(Run.id)).scalars().all()
        ids = list(dict.fromkeys(found))
        if not all(isinstance(run_id, int) for run_id in ids):
            raise StoreError(f"{self._source.name}: expected whole numbers as the ids of runs")
        return ids

    def take_run(self, run_id: int) -> None:
        """Takes in one run and its evaluations, as far as that is missing."""
        try:
            with foreign.reading():
                row = self._read_run(run_id)
                there = self._source.runs._record(row, ())
                fate, here = self._fate(there)
                material = self._material(there) if fate in _COPIED else None
                if material is not None:
                    self._check_folder(there)
                if fate is Fate.KEPT:
                    self._compare(there, here)
        except foreign.ForeignError as error:
            self.merged.left_out[run_id] = str(error)
            return
        if fate is Fate.KEPT:
            assert here is not None
            self._ids[there.id] = here.id
        elif material is not None and self._dry_run:
            # Something has to stand for the id that it would get.
            self._ids[there.id] = -there.id if here is None else here.id
        elif material is not None and (reason := self._copy(there, row, here, material)):
            fate = Fate.LEFT_OUT
            self.merged.left_out[there.id] = reason
        self.merged.runs[fate].append(there)
        if there.id in self._ids:
            self._take_evaluations(there.id, self._ids[there.id])
            self._take_analyses(there.id, self._ids[there.id])

    def _read_run(self, run_id: int) -> AnyRow:
        with self._source._read() as connection:
            found = connection.execute(select(Run.__table__).where(Run.id == run_id)).first()
        if found is None:
            raise foreign.ForeignError("it is gone")
        foreign.check_run(found._asdict())
        return found

    def _fate(self, there: RunRecord) -> tuple[Fate, RunRecord | None]:
        """What becomes of a run, and the one that is here already."""
        here = self._counterpart(there)
        if here is None and (other := self._namesake(there)):
            raise foreign.ForeignError(
                f"its identity {there.identity[:24]}... begins like that of run {other} of this "
                "store, whose folder it would share"
            )
        for key in _OF_IDENTITY:
            if here is not None and getattr(here, key) != getattr(there, key):
                raise foreign.ForeignError(
                    f"{key}: expected that of run {here.id} of this store, which has the same "
                    "identity"
                )
        fate = _fate(there, here)
        if fate is Fate.LEFT_OUT:
            where = "in the other store" if there.status is Status.RUNNING else "in this one"
            self.merged.left_out[there.id] = f"a process is training it {where}"
        return fate, here

    def _namesake(self, there: RunRecord) -> int | None:
        """A run here of another identity whose folder has the same name."""
        first = there.identity[:PREFIX]
        # A range, unlike LIKE, goes by the index in every database.
        alike = (Run.identity >= first, Run.identity < f"{first}g")
        query = select(Run.id).where(*alike, Run.identity != there.identity)
        with self._target._read() as connection:
            return connection.execute(query.limit(1)).scalar()

    def _material(self, there: RunRecord) -> _Material:
        """What a run has beside its row, read and checked before anything is changed here."""
        points = self._source.metrics.points(there.id)
        foreign.check_points(points)
        summaries = self._source.metrics.summaries([there.id]).get(there.id, {})
        foreign.check_summaries(summaries)
        query = select(Checkpoint.path, Checkpoint.step, Checkpoint.created)
        with self._source._read() as connection:
            found = connection.execute(query.where(Checkpoint.run_id == there.id)).all()
        checkpoints: dict[str, dict[str, Any]] = {}
        for row in found:
            try:
                foreign.check_checkpoint(row._asdict(), there.directory.name)
            except foreign.ForeignError as error:
                self._refuse(f"a checkpoint of its run {there.id}", error)
            else:
                checkpoints[row.path] = row._asdict()
        return _Material(points, summaries, list(checkpoints.values()))

    def _refuse(self, what: str, why: object) -> None:
        self.merged.refused.append(f"{what}: {why}")

    def _counterpart(self, there: RunRecord) -> RunRecord | None:
        query = select(Run.__table__).where(
            Run.identity == there.identity, Run.attempt == there.attempt
        )
        with self._target._read() as connection:
            records = self._target.runs._records(connection, connection.execute(query).all())
        return records[0] if records else None

    def _copy(
        self, there: RunRecord, row: AnyRow, here: RunRecord | None, material: _Material
    ) -> str | None:
        """Puts a run in the place of the one that is here; otherwise why that was not done."""
        me = Owner.current()
        if here is not None and not self._target.leases.claim(here.id, me):
            return "a process has just taken it up in this one"
        folder = self._copy_folder(there)
        # A None by itself would become JSON's null in a column of JSON.
        values = {k: null() if v is None else v for k, v in row._mapping.items() if k != "id"}
        if row.environment is not None:
            values["environment"] = without_secrets(row.environment)
        points, summaries = material.points, material.summaries
        with self._target._write_alone() as connection:
            if here is None:
                adding = insert(Run).values(values).returning(Run.id)
                run_id = connection.execute(adding).scalar_one()
            else:
                run_id = here.id
                connection.execute(update(Run).where(Run.id == run_id).values(values))
                for model in (Point, Summary, Checkpoint):
                    connection.execute(delete(model).where(model.run_id == run_id))
            names = {name for name, _, _ in points} | summaries.keys()
            ids = self._target.metrics._name_ids(connection, names)
            rows = [(ids[name], step, storable(value)) for name, step, value in points]
            for some in chunks(rows):
                self._target.metrics._put_points(connection, run_id, some)
            if summaries:
                numbers = [(ids[name], storable(value)) for name, value in summaries.items()]
                self._target.metrics._put_summaries(connection, run_id, numbers)
            if folder and material.checkpoints:
                found = [{**checkpoint, "run_id": run_id} for checkpoint in material.checkpoints]
                connection.execute(insert(Checkpoint), found)
        self._ids[there.id] = run_id
        return None

    def _has_folder(self, there: RunRecord) -> bool:
        """Whether a run's folder is to be copied."""
        found = there.directory
        return self._folders and not found.is_symlink() and found.is_dir()

    def _check_folder(self, there: RunRecord) -> None:
        """Refuses a folder that cannot be copied, before anything is changed.

        Raises:
            ForeignError: the folder of that name here is not known to be the run's, or there is
                no room for it.
        """
        if self._shared or not self._has_folder(there):
            return
        final = self._target.runs_directory / there.directory.name
        if os.path.lexists(final) and (final.is_symlink() or owners(final) != {there.identity}):
            raise foreign.ForeignError(
                f"{final} has no manifest that names this run alone; move it elsewhere or merge "
                "with --no-folders"
            )
        needed, room = size_of(there.directory), shutil.disk_usage(_existing(final)).free
        if needed > room:
            raise foreign.ForeignError(
                f"its folder takes {needed / 1e9:.3g} GB, and {final.parent} has room for "
                f"{room / 1e9:.3g} GB; merge with --no-folders"
            )

    def _copy_folder(self, there: RunRecord) -> bool:
        """Copies a run's folder in one piece; False where there is none to copy."""
        if self._shared:
            return True
        if not self._has_folder(there):
            self.merged.without_folder.append(there)
            return False
        final = self._target.runs_directory / there.directory.name
        try:
            make_private_folder(final.parent)
            with TemporaryDirectory(prefix=".partial-", dir=final.parent) as scratch:
                copy = Path(scratch) / final.name
                for odd in copy_folder(there.directory, copy, there.identity):
                    where = odd.relative_to(there.directory.parent)
                    self._refuse(f"{where}", "a link, a special file or a folder too deep")
                if final.exists():
                    shutil.rmtree(final)
                copy.rename(final)
        except OSError as error:
            raise StoreError(
                f"{there.directory} cannot be copied to {final.parent}: {error}; make room or make "
                "the folder writable, or merge with --no-folders, then merge again"
            ) from error
        return True

    def _compare(self, there: RunRecord, here: RunRecord | None) -> None:
        """Notes in what two runs differ that are done in both, and should be the same."""
        assert here is not None
        if there.status is not Status.DONE or here.status is not Status.DONE:
            return
        found = self._source.metrics.points(there.id)
        foreign.check_points(found)
        theirs, ours = (
            {(name, step): value for name, step, value in points}
            for points in (found, self._target.metrics.points(here.id))
        )
        keys = [k for k in ours.keys() | theirs.keys() if not k[0].startswith(TIMES)]
        unlike = [k for k in keys if repr(ours.get(k)) != repr(theirs.get(k))]
        if unlike:
            name, step = min(unlike, key=lambda key: (key[1], key[0]))
            self.merged.differing[there.id] = (
                f"{len(unlike)} of {len(keys)} metric points, first {name} at step {step}: "
                f"{ours.get((name, step))} here, {theirs.get((name, step))} there"
            )

    def _take_evaluations(self, old: int, new: int) -> None:
        links = select(RunEvaluation.step, *_EVALUATION).where(
            RunEvaluation.run_id == old,
            Evaluation.id == RunEvaluation.evaluation_id,
            ProblemSet.id == Evaluation.problem_set_id,
        )
        for row in self._checked(links, foreign.check_link, f"evaluations of its run {old}"):
            step = row.pop("step")
            self._take_evaluation(row, (new, step))

    def take_models(self) -> None:
        """Adds the evaluations of models that no run has trained."""
        query = select(*_EVALUATION).where(
            Evaluation.subject.startswith(MODEL_SUBJECT),
            ProblemSet.id == Evaluation.problem_set_id,
        )
        query = query.order_by(Evaluation.id)
        for row in self._checked(query, foreign.check_evaluation, "evaluations of models"):
            self._take_evaluation(row)

    def _checked(
        self, query: Select[Any], check: Callable[[Mapping[str, Any]], None], what: str
    ) -> list[dict[str, Any]]:
        """Rows of the other store that pass a check; none where they cannot be read."""
        found = []
        try:
            with foreign.reading(), self._source._read() as connection:
                rows = [dict(row._mapping) for row in connection.execute(query)]
        except foreign.ForeignError as error:
            self._refuse(what, error)
            return []
        for row in rows:
            try:
                with foreign.reading():
                    check(row)
            except foreign.ForeignError as error:
                self._refuse(f"one of the {what}", error)
            else:
                found.append(row)
        return found

    def _take_evaluation(self, row: dict[str, Any], link: tuple[int, int] | None = None) -> None:
        """Adds an evaluation that is not there, and links it to a run and a step of it."""
        target = self._target
        if not target.evaluations.has(row["identity"]):
            self._evaluations.add(row["identity"])
        if self._dry_run:
            return
        problems = {"digest": row.pop("digest"), "problems": row.pop("problems")}
        row.pop("id")
        with target._write_alone() as connection:
            connection.execute(target._insert_or_ignore(ProblemSet, "digest"), problems)
            digest = ProblemSet.digest == problems["digest"]
            set_id = connection.execute(select(ProblemSet.id).where(digest)).scalar_one()
            row["problem_set_id"] = set_id
            connection.execute(target._insert_or_ignore(Evaluation, "identity"), row)
            if link is not None:
                run_id, step = link
                evaluation_id = target.evaluations._evaluation_id(connection, row["identity"])
                target.evaluations._link(connection, run_id, evaluation_id, step)

    def _take_analyses(self, old: int, new: int) -> None:
        query = select(Analysis.__table__).where(Analysis.run_id == old)
        found = self._checked(query, foreign.check_analysis, f"analyses of its run {old}")
        rows = [{**row, "run_id": new} for row in found]
        if rows and not self._dry_run:
            adding = self._target._insert_or_ignore(Analysis, "run_id", "identity")
            with self._target._write_alone() as connection:
                connection.execute(adding, rows)

    def take_sweeps(self) -> None:
        """Adds sweeps that are new, and to all of them the runs that they lack."""
        self.merged.evaluations = len(self._evaluations)
        known = {sweep.name for sweep in self._target.runs.sweeps()}
        query = select(Sweep.__table__).order_by(Sweep.id)
        for sweep in self._checked(query, foreign.check_sweep, "sweeps"):
            if sweep["name"] not in known:
                known.add(sweep["name"])
                self.merged.sweeps.append(sweep["name"])
            if not self._dry_run:
                self._take_sweep(sweep)

    def _take_sweep(self, sweep: Mapping[str, Any]) -> None:
        name = sweep["name"]
        with self._source._read() as connection:
            query = select(SweepRun.run_id).where(SweepRun.sweep_id == sweep["id"])
            old = connection.execute(query.order_by(SweepRun.position)).scalars().all()
        searched = self._trials(sweep)
        target = self._target
        with target._write_alone() as connection:
            spec = foreign.without_choices(sweep["spec"])
            values = {"name": name, "spec": spec, "created": sweep["created"]}
            connection.execute(target._insert_or_ignore(Sweep, "name"), values)
            sweep_id = target._require_sweep(connection, name)
            if new := [self._ids[i] for i in old if i in self._ids]:
                target.runs._add_to_sweep(connection, sweep_id, new)
                self._drop_older_attempts(connection, sweep_id)
            # Trials are numbered in the order of asking: those of two searches do not mix.
            mine = select(func.count()).where(Trial.sweep_id == sweep_id)
            if searched and not connection.execute(mine).scalar_one():
                rows = [{"sweep_id": sweep_id, **trial} for trial in searched]
                connection.execute(insert(Trial), rows)

    def _trials(self, sweep: Mapping[str, Any]) -> list[dict[str, Any]]:
        """All trials of the other store's sweep, or none: a search goes on from their order."""
        query = select(Trial.number, Trial.params, Trial.config_hash)
        query = query.where(Trial.sweep_id == sweep["id"])
        try:
            with foreign.reading(), self._source._read() as connection:
                trials = [dict(row._mapping) for row in connection.execute(query)]
                foreign.check_trials(trials)
        except foreign.ForeignError as error:
            self._refuse(f"the trials of sweep {sweep['name']}", error)
            return []
        return trials

    def _drop_older_attempts(self, connection: Connection, sweep_id: int) -> None:
        """Of a run's attempts the latest one alone stays part of a sweep, as in one store."""
        members = (SweepRun.run_id == Run.id, SweepRun.sweep_id == sweep_id)
        latest = select(Run.identity, func.max(Run.attempt).label("attempt")).where(*members)
        newest = latest.group_by(Run.identity).subquery()
        older = select(Run.id).where(
            *members, Run.identity == newest.c.identity, Run.attempt < newest.c.attempt
        )
        ids = connection.execute(older).scalars().all()
        gone = (SweepRun.sweep_id == sweep_id, SweepRun.run_id.in_(ids))
        connection.execute(delete(SweepRun).where(*gone))


def _existing(path: Path) -> Path:
    """The nearest folder above a path that is there."""
    return next(parent for parent in path.parents if parent.is_dir())


def _fate(there: RunRecord, here: RunRecord | None) -> Fate:
    if here is not None and _worth(there) <= _worth(here):
        return Fate.KEPT
    if there.status is Status.RUNNING or (here is not None and here.status is Status.RUNNING):
        return Fate.LEFT_OUT
    return Fate.ADDED if here is None else Fate.REPLACED


def _worth(run: RunRecord) -> tuple[bool, int]:
    return run.status is Status.DONE, run.step
