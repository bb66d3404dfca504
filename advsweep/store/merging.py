"""Merges one store into another: no run is lost, none is there twice.

A run is known by its identity and attempt. One that is done beats one that is not, and of two
that are not the one with more steps; what is there already wins a tie. Merging again changes
nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, func, insert, null, select, update

from advsweep.errors import StoreError
from advsweep.store.base import chunks
from advsweep.store.evaluations import MODEL_SUBJECT
from advsweep.store.lease import Owner
from advsweep.store.metrics import storable
from advsweep.store.models import (
    Analysis,
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
from advsweep.store.records import RunRecord, Status
from advsweep.store.runs import without_secrets
from advsweep.store.store import Store

_EVALUATION = (ProblemSet.digest, ProblemSet.problems, *Evaluation.__table__.columns)

TIMES = "time/"
"""Metrics that differ whenever a run is repeated."""


class Fate(Enum):
    """What a merge does with a run of the other store."""

    ADDED = "added"
    REPLACED = "brought further"
    KEPT = "there already"
    LEFT_OUT = "left out"


@dataclass
class Merged:
    """What a merge did, or would do.

    Attributes:
        runs: the runs of the other store by what became of each.
        left_out: why runs were left out, by their id in the other store.
        differing: in what runs differ that are done in both, by their id in the other store.
        sweeps: names of sweeps that were not there before.
        evaluations: how many were added.
        without_folder: runs that were taken without their folder, since it is not there.
    """

    runs: dict[Fate, list[RunRecord]] = field(default_factory=lambda: {fate: [] for fate in Fate})
    left_out: dict[int, str] = field(default_factory=dict)
    differing: dict[int, str] = field(default_factory=dict)
    sweeps: list[str] = field(default_factory=list)
    evaluations: int = 0
    without_folder: list[RunRecord] = field(default_factory=list)


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
    Runs that a process is training, in either store, are left out. Evaluations of models without
    a run come as well.

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
    records = source.runs(newest_first=False)
    for done, record in enumerate(records, 1):
        merging.take_run(record)
        on_run(done, len(records))
    merging.take_models()
    merging.take_sweeps()
    return merging.merged


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

    def take_run(self, there: RunRecord) -> None:
        """Takes in one run and its evaluations, as far as that is missing."""
        here = self._counterpart(there)
        fate = _fate(there, here)
        if fate is Fate.LEFT_OUT:
            where = "in the other store" if there.status is Status.RUNNING else "in this one"
            self.merged.left_out[there.id] = f"a process is training it {where}"
        elif fate is Fate.KEPT:
            assert here is not None
            self._ids[there.id] = here.id
            if there.status is here.status is Status.DONE:
                self._compare(there, here)
        elif self._dry_run:
            # Something has to stand for the id that it would get.
            self._ids[there.id] = -there.id if here is None else here.id
        elif not self._copy(there, here):
            fate = Fate.LEFT_OUT
            self.merged.left_out[there.id] = "a process has just taken it up in this one"
        self.merged.runs[fate].append(there)
        if there.id in self._ids:
            self._take_evaluations(there.id, self._ids[there.id])
            self._take_analyses(there.id, self._ids[there.id])

    def _counterpart(self, there: RunRecord) -> RunRecord | None:
        query = select(Run.__table__).where(
            Run.identity == there.identity, Run.attempt == there.attempt
        )
        with self._target._read() as connection:
            records = self._target._records(connection, connection.execute(query).all())
        return records[0] if records else None

    def _copy(self, there: RunRecord, here: RunRecord | None) -> bool:
        """Puts a run in the place of the one that is here; False where that is taken."""
        me = Owner.current()
        if here is not None and not self._target.claim(here.id, me):
            return False
        folder = self._copy_folder(there)
        with self._source._read() as connection:
            row = connection.execute(select(Run.__table__).where(Run.id == there.id)).one()
        # A None by itself would become JSON's null in a column of JSON.
        values = {k: null() if v is None else v for k, v in row._mapping.items() if k != "id"}
        if row.environment is not None:
            values["environment"] = without_secrets(row.environment)
        points = self._source.points(there.id)
        summaries = self._source.summaries([there.id]).get(there.id, {})
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
            ids = self._target._name_ids(connection, names)
            rows = [(ids[name], step, storable(value)) for name, step, value in points]
            for some in chunks(rows):
                self._target._put_points(connection, run_id, some)
            if summaries:
                numbers = [(ids[name], storable(value)) for name, value in summaries.items()]
                self._target._put_summaries(connection, run_id, numbers)
            if folder:
                self._copy_checkpoints(connection, there.id, run_id)
        self._ids[there.id] = run_id
        return True

    def _copy_folder(self, there: RunRecord) -> bool:
        """Copies a run's folder in one piece; False where there is none to be had."""
        if self._shared:
            return True
        if not self._folders or not there.directory.is_dir():
            self.merged.without_folder.append(there)
            return False
        final = self._target.runs_directory / there.directory.name
        partial = final.with_name(f".partial-{final.name}")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            shutil.copytree(there.directory, partial)
            if final.exists():
                shutil.rmtree(final)
            partial.rename(final)
        except OSError as error:
            raise StoreError(
                f"{there.directory} cannot be copied to {final.parent}: {error}; make room or make "
                "the folder writable, or merge with --no-folders, then merge again"
            ) from error
        return True

    def _copy_checkpoints(self, connection: Connection, old: int, new: int) -> None:
        # Kept relative to the folder of all runs, paths stay what they are.
        query = select(Checkpoint.path, Checkpoint.step, Checkpoint.created)
        with self._source._read() as source:
            rows = source.execute(query.where(Checkpoint.run_id == old)).all()
        below = [row for row in rows if not Path(row.path).is_absolute()]
        if values := [{**row._mapping, "run_id": new} for row in below]:
            connection.execute(insert(Checkpoint), values)

    def _compare(self, there: RunRecord, here: RunRecord) -> None:
        """Notes in what two runs differ that should have come to the same."""
        ours, theirs = (
            {(name, step): value for name, step, value in store.points(run.id)}
            for store, run in ((self._target, here), (self._source, there))
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
        with self._source._read() as connection:
            rows = [dict(row._mapping) for row in connection.execute(links)]
        for row in rows:
            step = row.pop("step")
            self._take_evaluation(row, (new, step))

    def take_models(self) -> None:
        """Adds the evaluations of models that no run has trained."""
        query = select(*_EVALUATION).where(
            Evaluation.subject.startswith(MODEL_SUBJECT),
            ProblemSet.id == Evaluation.problem_set_id,
        )
        with self._source._read() as connection:
            rows = [dict(row._mapping) for row in connection.execute(query.order_by(Evaluation.id))]
        for row in rows:
            self._take_evaluation(row)

    def _take_evaluation(self, row: dict[str, Any], link: tuple[int, int] | None = None) -> None:
        """Adds an evaluation that is not there, and links it to a run and a step of it."""
        target = self._target
        if not target.has_evaluation(row["identity"]):
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
                evaluation_id = target._evaluation_id(connection, row["identity"])
                target._link(connection, run_id, evaluation_id, step)

    def _take_analyses(self, old: int, new: int) -> None:
        query = select(Analysis.__table__).where(Analysis.run_id == old)
        with self._source._read() as source:
            rows = [{**row._mapping, "run_id": new} for row in source.execute(query)]
        if rows and not self._dry_run:
            adding = self._target._insert_or_ignore(Analysis, "run_id", "identity")
            with self._target._write_alone() as connection:
                connection.execute(adding, rows)

    def take_sweeps(self) -> None:
        """Adds sweeps that are new, and to all of them the runs that they lack."""
        self.merged.evaluations = len(self._evaluations)
        known = {sweep.name for sweep in self._target.sweeps()}
        for sweep in self._source.sweeps():
            if sweep.name not in known:
                self.merged.sweeps.append(sweep.name)
            if not self._dry_run:
                self._take_sweep(sweep.name)

    def _take_sweep(self, name: str) -> None:
        with self._source._read() as connection:
            sweep = connection.execute(select(Sweep.__table__).where(Sweep.name == name)).one()
            query = select(SweepRun.run_id).where(SweepRun.sweep_id == sweep.id)
            old = connection.execute(query.order_by(SweepRun.position)).scalars().all()
            trials = select(Trial.number, Trial.params, Trial.config_hash)
            searched = connection.execute(trials.where(Trial.sweep_id == sweep.id)).all()
        target = self._target
        with target._write_alone() as connection:
            values = {"name": name, "spec": sweep.spec, "created": sweep.created}
            connection.execute(target._insert_or_ignore(Sweep, "name"), values)
            sweep_id = target._require_sweep(connection, name)
            if new := [self._ids[i] for i in old if i in self._ids]:
                target._add_to_sweep(connection, sweep_id, new)
                self._drop_older_attempts(connection, sweep_id)
            # Trials are numbered in the order of asking: those of two searches do not mix.
            mine = select(func.count()).where(Trial.sweep_id == sweep_id)
            if searched and not connection.execute(mine).scalar_one():
                rows = [{"sweep_id": sweep_id, **trial._mapping} for trial in searched]
                connection.execute(insert(Trial), rows)

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


def _fate(there: RunRecord, here: RunRecord | None) -> Fate:
    if here is not None and _worth(there) <= _worth(here):
        return Fate.KEPT
    if there.status is Status.RUNNING or (here is not None and here.status is Status.RUNNING):
        return Fate.LEFT_OUT
    return Fate.ADDED if here is None else Fate.REPLACED


def _worth(run: RunRecord) -> tuple[bool, int]:
    return run.status is Status.DONE, run.step
