"""Merges one store into another: no run is lost and none is duplicated.

A run is identified by its identity and attempt. A done run beats one that is not done; of two
others, the one with more steps wins. The run of the target wins a tie. Merging twice changes
nothing. Every value of the other store is checked first, and a store with one that advsweep
cannot have written is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, insert, null, select, update

from advsweep.errors import StoreError
from advsweep.store import tables
from advsweep.store.base import put
from advsweep.store.checks import check_store
from advsweep.store.evaluations import MODEL_SUBJECT, insert_evaluation, link_evaluation
from advsweep.store.metrics import metric_ids
from advsweep.store.owners import Owner
from advsweep.store.records import RunRecord, Status
from advsweep.store.runs import without_secrets
from advsweep.store.store import Store
from advsweep.store.sweeps import append_runs

if TYPE_CHECKING:
    from advsweep.store.lease_guard import AnyRow

# Columns that are equal in all runs of one identity.
_OF_IDENTITY = ("config_hash", "seed", "estimator", "backend", "steps")

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
        sweeps: names of the new sweeps.
    """

    runs: dict[MergeAction, list[RunRecord]] = field(
        default_factory=lambda: {action: [] for action in MergeAction}
    )
    left_out: dict[int, str] = field(default_factory=dict)
    sweeps: list[str] = field(default_factory=list)


def merge(
    target: Store,
    source: Store,
    *,
    dry_run: bool = False,
    on_run: Callable[[int, int], None] = lambda done, total: None,
) -> MergeResult:
    """Merge the contents of another store into a store; the source stays as it is.

    Runs come with their metrics, summaries, evaluations and analyses, but without their folders:
    their checkpoints are listed, and are found once the folders are copied.
    Sweeps of the same name are the same sweep: its new runs follow those of the target, in the
    order of the source's plan. Runs that a process is training, in either store, are left out.
    Evaluations of models without a run are merged too. The executors and trackers of sweeps are
    not.

    Args:
        dry_run: change nothing.
        on_run: called after each run with the number of runs so far and in all.

    Raises:
        StoreError: a store cannot be used, both are the same one, the source has a value that
            advsweep cannot have written, or a run differs in its settings from that of the same
            identity. Nothing was merged.
    """
    if target.url == source.url:
        raise StoreError(f"{source.name}: expected another store than the one to merge into")
    # One transaction, so that what is checked is what is copied.
    with source.database.read() as theirs:
        check_store(source, theirs)
        merger = _Merger(target, source, theirs)
        rows = theirs.execute(select(_RUNS).order_by(_RUNS.c.id)).all()
        runs = [source.runs.to_record(row) for row in rows]
        decided = [merger.decide(run) for run in runs]
        existing = set(target.sweeps.names())
        names = theirs.execute(select(tables.SWEEPS.c.name).order_by(tables.SWEEPS.c.id)).scalars()
        merger.result.sweeps = [name for name in names if name not in existing]
        for done, (row, run, (ours, action)) in enumerate(zip(rows, runs, decided, strict=True), 1):
            if action is MergeAction.REPLACED and not dry_run:
                assert ours is not None
                # The lease keeps other processes from training the run while it is replaced.
                if not target.leases.claim(ours.id, Owner.current()):
                    action = MergeAction.LEFT_OUT
                    merger.result.left_out[run.id] = "a process has just taken it up in this one"
            merger.result.runs[action].append(run)
            if dry_run:
                continue
            if action is not MergeAction.LEFT_OUT:
                with target.database.write_alone() as connection:
                    merger.copy_rows(connection, row, ours, action)
            on_run(done, len(rows))
        if not dry_run:
            merger.merge_models()
            merger.merge_sweeps()
    return merger.result


class _Merger:
    """Merges the parts of a store.

    Attributes:
        ids: the ids of runs in the target by their ids in the source.
    """

    def __init__(self, target: Store, source: Store, theirs: Connection) -> None:
        self._target = target
        self._source = source
        self._theirs = theirs
        # Read once: on a server, a query for each run of the source would take minutes.
        self._ours = {(run.identity, run.attempt): run for run in target.runs.select()}
        self._names = {row.id: row.name for row in theirs.execute(select(tables.METRICS))}
        self.ids: dict[int, int] = {}
        self.result = MergeResult()

    def decide(self, theirs: RunRecord) -> tuple[RunRecord | None, MergeAction]:
        """Return the target's run of the same identity and attempt, and what to do.

        Raises:
            StoreError: that run has other settings.
        """
        ours = self._ours.get((theirs.identity, theirs.attempt))
        if ours is not None:
            for key in _OF_IDENTITY:
                if getattr(ours, key) != getattr(theirs, key):
                    raise StoreError(
                        f"{self._source.name} cannot be merged: its run {theirs.id} has the "
                        f"identity of run {ours.id} of this store and another {key}; remove one "
                        "of the two"
                    )
            if _progress(theirs) <= _progress(ours):
                return ours, MergeAction.KEPT
        for run, where in ((ours, "in this one"), (theirs, "in the other store")):
            if run is not None and run.status is Status.RUNNING:
                self.result.left_out[theirs.id] = f"a process is training it {where}"
                return ours, MergeAction.LEFT_OUT
        return ours, MergeAction.ADDED if ours is None else MergeAction.REPLACED

    def copy_rows(
        self, connection: Connection, row: AnyRow, ours: RunRecord | None, action: MergeAction
    ) -> None:
        """Add a run, replace the target's, or add what that lacks."""
        # In a JSON column, None would become JSON's null.
        values = {k: null() if v is None else v for k, v in row._mapping.items() if k != "id"}
        if row.environment is not None:
            values["environment"] = without_secrets(row.environment)
        if ours is None:
            adding = insert(_RUNS).values(values).returning(_RUNS.c.id)
            run_id = int(connection.execute(adding).scalar_one())
        else:
            run_id = ours.id
        # A replaced run goes on from theirs alone: two halves of a curve would be no training.
        of_progress = [tables.POINTS, tables.SUMMARIES, tables.CHECKPOINTS]
        if action is MergeAction.REPLACED:
            connection.execute(update(_RUNS).where(_RUNS.c.id == run_id).values(values))
            for table in of_progress:
                connection.execute(delete(table).where(table.c.run_id == run_id))
        metrics = metric_ids(connection, self._names.values())
        copied = [tables.ANALYSES]
        if action is not MergeAction.KEPT:
            copied += of_progress
        for table in copied:
            theirs = self._theirs.execute(select(table).where(table.c.run_id == row.id))
            rows = [{**each._mapping, "run_id": run_id} for each in theirs]
            if "metric_id" in table.c:
                # Each store numbers its metrics itself.
                for each in rows:
                    each["metric_id"] = metrics[self._names[each["metric_id"]]]
            put(connection, table, rows)
        links = _EVALUATIONS.join(tables.RUN_EVALUATIONS).add_columns(tables.RUN_EVALUATIONS.c.step)
        for link in self._theirs.execute(links.where(tables.RUN_EVALUATIONS.c.run_id == row.id)):
            evaluation = link._asdict()
            step = evaluation.pop("step")
            link_evaluation(connection, run_id, _insert(connection, evaluation), step)
        self.ids[row.id] = run_id

    def merge_models(self) -> None:
        """Add missing evaluations of models without a run."""
        of_models = tables.EVALUATIONS.c.subject.startswith(MODEL_SUBJECT)
        for row in self._theirs.execute(_EVALUATIONS.where(of_models)):
            with self._target.database.write_alone() as connection:
                _insert(connection, row._asdict())

    def merge_sweeps(self) -> None:
        """Add new sweeps, and the missing runs of all sweeps."""
        for sweep in self._theirs.execute(select(tables.SWEEPS).order_by(tables.SWEEPS.c.id)).all():
            planned = select(_PLANS).where(_PLANS.c.sweep_id == sweep.id)
            members = self._theirs.execute(planned.order_by(_PLANS.c.position))
            # The present command line chooses executors and trackers, and no store. The resources
            # of each run stay; they are checked where they are used.
            chosen = ("settings", "tracking")
            spec = {key: value for key, value in sweep.spec.items() if key not in chosen}
            settings = sweep.spec.get("settings")
            if isinstance(settings, dict) and isinstance(settings.get("resources"), dict):
                spec["settings"] = {"resources": settings["resources"]}
            row = {
                "name": sweep.name,
                "spec": spec,
                "created": sweep.created,
                "note": sweep.note,
                "tags": sweep.tags,
            }
            with self._target.database.write_alone() as connection:
                put(connection, tables.SWEEPS, row)
                named = select(tables.SWEEPS.c.id).where(tables.SWEEPS.c.name == sweep.name)
                sweep_id = connection.execute(named).scalar_one()
                merged = [self.ids[each.run_id] for each in members if each.run_id in self.ids]
                append_runs(connection, sweep_id, merged)
                # Only the latest attempt of each run, as `Runs.new_attempt` leaves it.
                query = select(_RUNS.c.id, _RUNS.c.identity).join(_PLANS).order_by(_RUNS.c.attempt)
                plan = connection.execute(query.where(_PLANS.c.sweep_id == sweep_id)).all()
                latest = {each.identity: each.id for each in plan}
                older = [each.id for each in plan if each.id != latest[each.identity]]
                gone = (_PLANS.c.sweep_id == sweep_id, _PLANS.c.run_id.in_(older))
                connection.execute(delete(_PLANS).where(*gone))


def _insert(connection: Connection, row: dict[str, Any]) -> int:
    """Insert a row of `_EVALUATIONS` unless it exists; return its id."""
    del row["id"], row["problem_set_id"]
    return insert_evaluation(connection, row, row.pop("problems"), row.pop("answers"))


def _progress(run: RunRecord) -> tuple[bool, int]:
    return run.status is Status.DONE, run.step
