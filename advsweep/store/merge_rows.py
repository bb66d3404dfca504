"""Merges what belongs to runs or stands beside them: evaluations, analyses, sweeps and trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, Select, delete, func, insert, select

from advsweep.store import foreign
from advsweep.store.base import insert_or_ignore
from advsweep.store.evaluations import MODEL_SUBJECT, insert_evaluation, link_evaluation
from advsweep.store.samples import insert_samples
from advsweep.store.store import Store
from advsweep.store.sweeps import append_runs
from advsweep.store.tables import (
    ANALYSES,
    EVALUATION_SAMPLES,
    EVALUATIONS,
    PROBLEM_SETS,
    RUN_EVALUATIONS,
    RUNS,
    SWEEP_RUNS,
    SWEEPS,
    TRIALS,
)

_EVALUATION = (
    PROBLEM_SETS.c.digest,
    PROBLEM_SETS.c.problems,
    # NULL for an evaluation without samples.
    select(EVALUATION_SAMPLES.c.answers)
    .where(EVALUATION_SAMPLES.c.evaluation_id == EVALUATIONS.c.id)
    .scalar_subquery()
    .label("answers"),
    *EVALUATIONS.c,
)


class RowMerger:
    """Copies rows from one store to another, each after a check.

    Attributes:
        refused: what was left out, and why, a line each.
        evaluations: the identities of the evaluations that the target lacked.
    """

    def __init__(self, target: Store, source: Store, *, dry_run: bool) -> None:
        self._target = target
        self._source = source
        self._dry_run = dry_run
        self.refused: list[str] = []
        self.evaluations: set[str] = set()

    def refuse(self, what: str, why: object) -> None:
        """Notes that something was left out."""
        self.refused.append(f"{what}: {why}")

    def merge_evaluations(self, old: int, new: int) -> None:
        """Merges the evaluations of a run; `old` is its id in the source, `new` in the target."""
        query = select(RUN_EVALUATIONS.c.step, *_EVALUATION).where(
            RUN_EVALUATIONS.c.run_id == old,
            EVALUATIONS.c.id == RUN_EVALUATIONS.c.evaluation_id,
            PROBLEM_SETS.c.id == EVALUATIONS.c.problem_set_id,
        )
        for row in self._read(query, foreign.check_link, f"evaluations of its run {old}"):
            step = row.pop("step")
            self._merge_evaluation(row, (new, step))

    def merge_models(self) -> None:
        """Merges the evaluations of models without a run."""
        query = select(*_EVALUATION).where(
            EVALUATIONS.c.subject.startswith(MODEL_SUBJECT),
            PROBLEM_SETS.c.id == EVALUATIONS.c.problem_set_id,
        )
        query = query.order_by(EVALUATIONS.c.id)
        for row in self._read(query, foreign.check_evaluation, "evaluations of models"):
            self._merge_evaluation(row)

    def _merge_evaluation(self, row: dict[str, Any], link: tuple[int, int] | None = None) -> None:
        """Adds an evaluation if it is missing, and links it to a run and a step."""
        if not self._target.evaluations.has(row["identity"]):
            self.evaluations.add(row["identity"])
        if self._dry_run:
            return
        digest, problems, answers = (row.pop(key) for key in ("digest", "problems", "answers"))
        row.pop("id")
        with self._target.database.write_alone() as connection:
            evaluation_id = insert_evaluation(connection, row, digest, problems)
            insert_samples(connection, evaluation_id, answers or [])
            if link is not None:
                run_id, step = link
                link_evaluation(connection, run_id, evaluation_id, step)

    def merge_analyses(self, old: int, new: int) -> None:
        """Merges the analyses of a run; `old` is its id in the source, `new` in the target."""
        query = select(ANALYSES).where(ANALYSES.c.run_id == old)
        found = self._read(query, foreign.check_analysis, f"analyses of its run {old}")
        rows = [{**row, "run_id": new} for row in found]
        if rows and not self._dry_run:
            with self._target.database.write_alone() as connection:
                adding = insert_or_ignore(connection, ANALYSES, "run_id", "identity")
                connection.execute(adding, rows)

    def merge_sweeps(self, ids: Mapping[int, int]) -> list[str]:
        """Adds new sweeps, and the missing runs of all sweeps.

        Args:
            ids: the ids of runs in the target by their ids in the source.

        Returns:
            The names of the new sweeps.
        """
        known = {sweep.name for sweep in self._target.sweeps.select()}
        new = []
        query = select(SWEEPS).order_by(SWEEPS.c.id)
        for sweep in self._read(query, foreign.check_sweep, "sweeps"):
            if sweep["name"] not in known:
                known.add(sweep["name"])
                new.append(sweep["name"])
            if not self._dry_run:
                self._merge_sweep(sweep, ids)
        return new

    def _merge_sweep(self, sweep: Mapping[str, Any], ids: Mapping[int, int]) -> None:
        with self._source.database.read() as connection:
            query = select(SWEEP_RUNS.c.run_id).where(SWEEP_RUNS.c.sweep_id == sweep["id"])
            old = connection.execute(query.order_by(SWEEP_RUNS.c.position)).scalars().all()
        trials = self._read_trials(sweep)
        spec = foreign.without_choices(sweep["spec"])
        values = {"name": sweep["name"], "spec": spec, "created": sweep["created"]}
        with self._target.database.write_alone() as connection:
            connection.execute(insert_or_ignore(connection, SWEEPS, "name"), values)
            named = select(SWEEPS.c.id).where(SWEEPS.c.name == sweep["name"])
            sweep_id = connection.execute(named).scalar_one()
            if new := [ids[run_id] for run_id in old if run_id in ids]:
                append_runs(connection, sweep_id, new)
                _drop_older_attempts(connection, sweep_id)
            # A search proposes trials in a fixed order, so those of two searches do not mix.
            present = select(func.count()).where(TRIALS.c.sweep_id == sweep_id)
            if trials and not connection.execute(present).scalar_one():
                rows = [{"sweep_id": sweep_id, **trial} for trial in trials]
                connection.execute(insert(TRIALS), rows)

    def _read_trials(self, sweep: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Returns all trials of a sweep, or none: a search cannot continue from some of them."""
        query = select(TRIALS.c.number, TRIALS.c.params, TRIALS.c.config_hash)
        query = query.where(TRIALS.c.sweep_id == sweep["id"])
        try:
            with foreign.reading(), self._source.database.read() as connection:
                trials = [dict(row._mapping) for row in connection.execute(query)]
                foreign.check_trials(trials)
        except foreign.ForeignError as error:
            self.refuse(f"the trials of sweep {sweep['name']}", error)
            return []
        return trials

    def _read(
        self, query: Select[Any], check: Callable[[Mapping[str, Any]], None], what: str
    ) -> list[dict[str, Any]]:
        """Returns the rows of the source that pass a check; none if they cannot be read."""
        found = []
        try:
            with foreign.reading(), self._source.database.read() as connection:
                rows = [dict(row._mapping) for row in connection.execute(query)]
        except foreign.ForeignError as error:
            self.refuse(what, error)
            return []
        for row in rows:
            try:
                with foreign.reading():
                    check(row)
            except foreign.ForeignError as error:
                self.refuse(f"one of the {what}", error)
            else:
                found.append(row)
        return found


def _drop_older_attempts(connection: Connection, sweep_id: int) -> None:
    """Leaves only the latest attempt of each run in a sweep, as `Runs.new_attempt` does."""
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
