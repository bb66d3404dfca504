"""Runs: what is planned, and what became of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, case, delete, func, insert, null, select, update

from advsweep.errors import NotFoundError, StoreError
from advsweep.names import PROCESSOR, VECTOR_CAPABILITY
from advsweep.printable import redacted_command
from advsweep.store.base import StorePart, chunks, put, rows_among
from advsweep.store.evaluations import remove_unused_problems
from advsweep.store.imported import is_calibration, is_imported
from advsweep.store.lease_guard import LEASE_COLUMNS
from advsweep.store.owners import host_name
from advsweep.store.records import NewRun, RunProgress, RunRecord, Status, StepCounts
from advsweep.store.run_folders import folder_name
from advsweep.store.sweeps import append_runs
from advsweep.store.tables import (
    CHECKPOINTS,
    EVALUATIONS,
    METADATA,
    RUN_EVALUATIONS,
    RUNS,
    SWEEP_RUNS,
    SWEEPS,
)
from advsweep.tasks.controls import titled

if TYPE_CHECKING:
    from advsweep.store.lease_guard import AnyRow

# The key of an environment that holds the revisions above 1 of a run's components.
REVISIONS = "revisions"

# That of the sources of its plug-ins or its program, and within it those of the hash of its
# settings without sources, and of the sources by config key.
SOURCES = "sources"
DEFINITION = "definition"
PARTS = "parts"

# That of the repository of its program.
PROGRAM = "program"

_DERIVED = ("sweeps", "estimator", "status", "host", "directory", "method")
_COPIED = tuple(field.name for field in fields(RunRecord) if field.name not in _DERIVED)
_copied_values = attrgetter(*_COPIED)
_PLANNED = tuple(field.name for field in fields(NewRun))

# Without environments, which are large and rarely needed.
_LIGHT_COLUMNS = select(*(column for column in RUNS.c if column is not RUNS.c.environment))

_HEX = re.compile(r"[0-9a-f]{4,64}")
_ID_DIGITS = 18  # SQLite refuses larger numbers
_SHOWN = 10  # characters of an identity in a message


class Runs(StorePart):
    """The runs of a store.

    A run is identified by its identity and attempt. A done run never changes: `new_attempt` adds
    a second record of the same identity. The status of a running run whose lease is over reads
    as `LOST`, so that no record claims to be running when nothing runs it.
    """

    def add(self, runs: Sequence[NewRun], sweep: str | None = None) -> list[int]:
        """Add runs; return the id of each, in the same order.

        A run whose identity exists keeps its record. The id is then that of its latest attempt.
        Unless it is done or running, it takes the given config, which can differ only in what
        does not change its result.

        Args:
            sweep: a sweep that all of them become part of, in this order.

        Raises:
            StoreError: a run has a value that cannot be part of the name of its folder, such as
                an estimator name with other characters; none of the runs is added.
        """
        for run in runs:
            # A row that is refused when it is read would make the whole store unreadable.
            folder_name(identity=run.identity, attempt=1, estimator=run.estimator, seed=run.seed)
        # Alone: on a server, two processes that add the same runs in other orders would deadlock.
        with self._database.write_alone() as connection:
            sweep_id = self._sweep_id(connection, sweep)
            existing = _latest_ids(connection, [run.identity for run in runs])
            missing = [run for run in runs if run.identity not in existing]
            put(connection, RUNS, [self._values(run, attempt=1) for run in missing])
            added = _latest_ids(connection, [run.identity for run in missing])
            configs = {run.identity: dict(run.config) for run in runs if run.identity in existing}
            self._update_configs(connection, existing.values(), configs)
            latest = existing | added
            ids = [latest[run.identity] for run in runs]
            if sweep_id is not None:
                append_runs(connection, sweep_id, ids)
        return ids

    def _update_configs(
        self,
        connection: Connection,
        run_ids: Iterable[int],
        configs: Mapping[str, dict[str, Any]],
    ) -> None:
        """Give runs that are neither done nor running the config of their identity."""
        columns = (RUNS.c.id, RUNS.c.identity, RUNS.c.config, RUNS.c.status, *LEASE_COLUMNS)
        query = select(*columns).where(RUNS.c.status != Status.DONE)
        for row in list(rows_among(connection, query, RUNS.c.id, run_ids)):
            config = configs[row.identity]
            if row.config != config and self._guard.status(row) is not Status.RUNNING:
                change = update(RUNS).where(RUNS.c.id == row.id)
                connection.execute(change.values(config=config))

    def _values(self, run: NewRun | AnyRow, attempt: int) -> dict[str, Any]:
        return {
            **{name: getattr(run, name) for name in _PLANNED},
            "config": dict(run.config),
            "attempt": attempt,
            "status": Status.PENDING,
            "step": 0,
            "created": self._now(),
            "stop_requested": False,
        }

    def new_attempt(self, run_id: int, config: Mapping[str, Any] | None = None) -> int:
        """Add another attempt of a run, which replaces it in its sweeps; return its id.

        The old record stays as it is.

        Args:
            config: the attempt's config, which can differ from that of the run only in what does
                not change its result; None: that of the run.
        """
        # Alone, because the number of the attempt follows from those that exist.
        with self._database.write_alone() as connection:
            old = self._row(connection, run_id)
            last = connection.execute(
                select(RUNS.c.id, RUNS.c.attempt, RUNS.c.status, RUNS.c.started)
                .where(RUNS.c.identity == old.identity)
                .order_by(RUNS.c.attempt.desc())
                .limit(1)
            ).one()
            fresh = last.status is Status.PENDING and last.started is None
            if self._patience.repeats and fresh and last.attempt > old.attempt:
                # The first try added it before its connection broke.
                return int(last.id)
            values = self._values(old, last.attempt + 1)
            if config is not None:
                values["config"] = dict(config)
            adding = insert(RUNS).values(values).returning(RUNS.c.id)
            new: int = connection.execute(adding).scalar_one()
            change = update(SWEEP_RUNS).where(SWEEP_RUNS.c.run_id == run_id)
            connection.execute(change.values(run_id=new))
        return new

    def set_stopping(self, run_ids: Sequence[int], rule: Mapping[str, Any] | None) -> None:
        """Set the early-stopping rule of runs; None for no rule.

        A run that another rule has pruned becomes interrupted, so that it can be resumed. A run
        that this rule has pruned stays pruned.
        """
        plain = None if rule is None else dict(rule)
        query = select(RUNS.c.id, RUNS.c.stopping)
        with self._database.write() as connection:
            rows = rows_among(connection, query, RUNS.c.id, run_ids)
            for ids in chunks([row.id for row in rows if row.stopping != plain]):
                change = update(RUNS).where(RUNS.c.id.in_(ids))
                # None would become JSON's null instead of NULL.
                connection.execute(change.values(stopping=null() if plain is None else plain))
                pruned = change.where(RUNS.c.status == Status.PRUNED)
                connection.execute(pruned.values(status=Status.INTERRUPTED))

    def remove(self, run_ids: Sequence[int]) -> None:
        """Remove runs with their metrics, checkpoint records and evaluations.

        Evaluations that other runs share stay, and so do files.

        Raises:
            StoreError: a process is training one of the runs.
        """
        query = select(RUNS.c.id, RUNS.c.status, *LEASE_COLUMNS).with_for_update()
        with self._database.write() as connection:
            rows = {row.id: row for row in rows_among(connection, query, RUNS.c.id, run_ids)}
            for run_id in run_ids:
                if run_id not in rows:
                    raise self._no_run(run_id)
                row = rows[run_id]
                if self._guard.status(row) is Status.RUNNING:
                    raise StoreError(
                        f"run {run_id} is being trained by process {row.pid} on "
                        f"{host_name(row.host)}; `advsweep stop {run_id}` stops it"
                    )
            for ids in chunks(run_ids):
                _remove_rows(connection, ids)

    def select(
        self,
        *,
        sweep: str | None = None,
        ids: Sequence[int] | None = None,
        status: Status | None = None,
        limit: int | None = None,
        newest_first: bool = True,
    ) -> list[RunRecord]:
        """Return runs, newest first or in the order of the sweep's plan.

        Args:
            sweep: only runs of this sweep.
            ids: only these runs, in this order.
            status: only runs of this status.
            limit: at most this many runs.
        """
        query, order = _LIGHT_COLUMNS, RUNS.c.id
        if status is not None:
            recorded = Status.RUNNING if status is Status.LOST else status
            query = query.where(RUNS.c.status == recorded)
        with self._database.read() as connection:
            if sweep is not None:
                query = _in_sweep(query, self._require_sweep(connection, sweep))
                order = RUNS.c.id if newest_first else SWEEP_RUNS.c.position
            query = query.order_by(order.desc() if newest_first else order)
            if ids is not None:
                chosen = {row.id: row for row in rows_among(connection, query, RUNS.c.id, ids)}
                rows = [chosen[i] for i in ids if i in chosen]
                # A run that is absent has another status or sweep, or does not exist.
                absent = set(ids) - chosen.keys()
                existing = rows_among(connection, select(RUNS.c.id), RUNS.c.id, absent)
                if missing := absent.difference(row.id for row in existing):
                    raise self._no_run(min(missing))
            else:
                # No query can check leases, on which the difference of running and lost depends.
                checked = status in (Status.RUNNING, Status.LOST)
                rows = list(connection.execute(query if checked else query.limit(limit)))
            records = self._records(connection, rows)
        return [run for run in records if status is None or run.status is status][:limit]

    def by_identity(self, sweep: str) -> dict[str, RunRecord]:
        """Return the runs of a sweep; of several attempts the one that is done, else the last."""
        runs = self.select(sweep=sweep)
        runs.sort(key=lambda run: (run.status is Status.DONE, run.attempt))
        return {run.identity: run for run in runs}

    def count(self, *, sweep: str | None = None, status: Status | None = None) -> int:
        """Return the number of runs of a sweep, a status, both or neither."""
        counts = self.count_by_status(sweep)
        return sum(counts.values()) if status is None else counts[status]

    def count_by_status(self, sweep: str | None = None) -> Mapping[Status, int]:
        """Return the number of runs in every status, of a sweep or of the store."""
        query = select(RUNS.c.status, *LEASE_COLUMNS)
        with self._database.read() as connection:
            query = _in_sweep(query, self._sweep_id(connection, sweep))
            counts = Counter(map(self._guard.status, connection.execute(query)))
        return {status: counts[status] for status in Status}

    def count_steps(self, sweep: str | None = None) -> StepCounts:
        """Return how many steps the runs of a sweep, or all runs, have done, and should do.

        Done and pruned runs count in full: they need no more training. A failed run counts with
        what a retry keeps, the step of its newest checkpoint.
        """
        complete = RUNS.c.status.in_((Status.DONE, Status.PRUNED))
        has_failed = RUNS.c.status == Status.FAILED
        kept = (
            select(func.max(CHECKPOINTS.c.step))
            .where(CHECKPOINTS.c.run_id == RUNS.c.id)
            .scalar_subquery()
        )
        done = case(
            (complete, RUNS.c.steps), (has_failed, func.coalesce(kept, 0)), else_=RUNS.c.step
        )
        query = select(func.sum(done), func.sum(RUNS.c.steps))
        with self._database.read() as connection:
            query = _in_sweep(query, self._sweep_id(connection, sweep))
            counts = connection.execute(query).one()
        return StepCounts(*(count or 0 for count in counts))

    def progress(self, sweep: str | None = None) -> list[RunProgress]:
        """Return how far every run of a sweep, or of the store, is, in the order of their ids."""
        own = (RUNS.c.id, RUNS.c.step, RUNS.c.steps, RUNS.c.stage, RUNS.c.stop_requested)
        with self._database.read() as connection:
            sweep_id = self._sweep_id(connection, sweep)
            query = _in_sweep(select(*own, RUNS.c.status, *LEASE_COLUMNS), sweep_id)
            rows = connection.execute(query.order_by(RUNS.c.id)).all()
        return [
            RunProgress(
                id=row.id,
                status=self._guard.status(row),
                step=row.step,
                steps=row.steps,
                stage=row.stage,
                stop_requested=row.stop_requested,
            )
            for row in rows
        ]

    def last_finished(self, status: Status, sweep: str | None = None, *, limit: int) -> list[int]:
        """Return the ids of the runs that ended last with this status, newest first."""
        with self._database.read() as connection:
            query = _in_sweep(select(RUNS.c.id), self._sweep_id(connection, sweep))
            query = query.where(RUNS.c.status == status)
            query = query.order_by(RUNS.c.finished.desc(), RUNS.c.id.desc()).limit(limit)
            return list(connection.execute(query).scalars())

    def find(self, key: str) -> RunRecord:
        """Return the run that a user names by an id, the start of an identity, or `last`.

        `last` is the run that was started last, or else added last. Of several attempts of one
        identity it is the latest.

        Raises:
            NotFoundError: no identity, or more than one, starts with the key.
        """
        with self._database.read() as connection:
            run_id = _find_id(connection, key.lower())
            if run_id is None:
                store = self._database.location.name
                if key == "last":
                    raise NotFoundError(f"there are no runs in {store} yet")
                sweeps = connection.execute(select(SWEEPS.c.name)).scalars().all()
                hint = f"'{key}' is a sweep: `advsweep ls {key}` lists its runs"
                raise NotFoundError(
                    f"no run '{key}' in {store}: expected an id, the first 4 or more characters "
                    "of an identity, or 'last'; "
                    + (hint if key in sweeps else "`advsweep ls` lists the runs")
                )
            return self._records(connection, [self._row(connection, run_id)])[0]

    def set_environment(self, run_id: int, environment: Mapping[str, Any]) -> None:
        """Store how a run was made: commit, versions, hardware and command."""
        change = update(RUNS).where(RUNS.c.id == run_id).values(environment=dict(environment))
        with self._database.write() as connection:
            self._require_run(connection, run_id)
            self._guard.require(connection, run_id)
            connection.execute(change)

    def environment(self, run_id: int) -> dict[str, Any]:
        """Return how a run was made; empty for a run that never started."""
        return self.environments([run_id]).get(run_id, {})

    def environments(self, run_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return how each run was made; runs that never started are left out.

        Secrets in commands are masked, because older versions stored them.
        """
        query = select(RUNS.c.id, RUNS.c.environment).where(RUNS.c.environment.is_not(None))
        rows = self._read_among(query, RUNS.c.id, run_ids)
        return {row.id: without_secrets(row.environment) for row in rows}

    def revisions(self, run_ids: Sequence[int]) -> dict[int, dict[str, int]]:
        """Return the revisions above 1 of each run's components, by config key.

        Runs that recorded no revisions are left out.
        """
        query = select(RUNS.c.id, RUNS.c.environment[REVISIONS])
        rows = self._read_among(query, RUNS.c.id, run_ids)
        return {run_id: revisions for run_id, revisions in rows if revisions is not None}

    def sources(self, run_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return the sources of each run's plug-ins or program, by config key.

        Each has `name`, `digest` and the short hashes of its `files`. Runs without any are left
        out, as are those of versions of advsweep that did not record them.
        """
        query = select(RUNS.c.id, RUNS.c.environment[SOURCES])
        rows = self._read_among(query, RUNS.c.id, run_ids)
        return {run_id: sources[PARTS] for run_id, sources in rows if _is_sources(sources)}

    def programs(self, run_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return the repository that each run's program was started in; see `git_state`."""
        query = select(RUNS.c.id, RUNS.c.environment[PROGRAM])
        rows = self._read_among(query, RUNS.c.id, run_ids)
        return {run_id: program for run_id, program in rows if isinstance(program, dict)}

    def vector_capabilities(self, run_ids: Sequence[int]) -> dict[int, str]:
        """Return which vector instructions torch used in each run, such as AVX2.

        Runs that recorded none are left out.
        """
        query = select(RUNS.c.id, RUNS.c.environment[PROCESSOR])
        rows = self._read_among(query, RUNS.c.id, run_ids)
        return {
            run_id: str(processor[VECTOR_CAPABILITY])
            for run_id, processor in rows
            if isinstance(processor, dict) and VECTOR_CAPABILITY in processor
        }

    def done_ids(self, identities: Iterable[str]) -> dict[str, int]:
        """Return the ids of completed runs by identity; of several attempts the last one."""
        query = select(RUNS.c.identity, RUNS.c.id).where(RUNS.c.status == Status.DONE)
        rows = self._read_among(query.order_by(RUNS.c.id), RUNS.c.identity, [*identities])
        return {row.identity: row.id for row in rows}

    def by_definition(self, estimators: Iterable[str]) -> dict[str, list[int]]:
        """Return the ids of the started runs of some estimators by the hash of their settings.

        That is `Run.definition`, which leaves the sources of plug-ins and programs out. For runs
        of versions of advsweep that did not record sources it is their identity.
        """
        query = select(RUNS.c.id, RUNS.c.identity, RUNS.c.environment[SOURCES].label("sources"))
        query = query.where(RUNS.c.started.is_not(None)).order_by(RUNS.c.id)
        ids: dict[str, list[int]] = {}
        for row in self._read_among(query, RUNS.c.estimator, [*estimators]):
            is_recorded = _is_sources(row.sources)
            definition = row.sources[DEFINITION] if is_recorded else row.identity
            ids.setdefault(str(definition), []).append(row.id)
        return ids

    def _row(self, connection: Connection, run_id: int) -> AnyRow:
        row = connection.execute(_LIGHT_COLUMNS.where(RUNS.c.id == run_id)).one_or_none()
        if row is None:
            raise self._no_run(run_id)
        return row

    def _records(self, connection: Connection, rows: Sequence[AnyRow]) -> list[RunRecord]:
        query = select(SWEEP_RUNS.c.run_id, SWEEPS.c.name).join(SWEEPS).order_by(SWEEPS.c.name)
        sweeps: dict[int, tuple[str, ...]] = {}
        ids = [row.id for row in rows]
        for run_id, name in rows_among(connection, query, SWEEP_RUNS.c.run_id, ids):
            sweeps[run_id] = (*sweeps.get(run_id, ()), name)
        return [self.to_record(row, sweeps.get(row.id, ())) for row in rows]

    def to_record(self, row: AnyRow, sweeps: tuple[str, ...] = ()) -> RunRecord:
        """Convert a row of the table `runs`.

        Raises:
            StoreError: the row has a value that cannot be part of the name of a folder.
        """
        try:
            folder = folder_name(
                identity=row.identity, attempt=row.attempt, estimator=row.estimator, seed=row.seed
            )
        except StoreError as error:
            raise StoreError(
                f"{self._database.location.name}: run {row.id}: {error}; advsweep did not write "
                "this; restore the store from a copy"
            ) from error
        is_ours = not is_imported(row.config)
        return RunRecord(
            **dict(zip(_COPIED, _copied_values(row), strict=True)),
            sweeps=sweeps,
            estimator=titled(row.estimator, row.config) if is_ours else row.estimator,
            status=self._guard.status(row),
            host=host_name(row.host),
            directory=self._store.runs_directory / folder,
        )


def _is_sources(value: Any) -> bool:
    """Return whether a value is what advsweep records of sources; stores come from others too."""
    if not isinstance(value, dict) or not isinstance(value.get(PARTS), dict):
        return False
    parts = value[PARTS].values()
    return all(isinstance(p, dict) and {"name", "digest", "files"} <= p.keys() for p in parts)


def without_secrets(environment: dict[str, Any]) -> dict[str, Any]:
    """Return an environment with the secrets in its command masked."""
    command = environment.get("command")
    if not isinstance(command, str):
        return environment
    return {**environment, "command": redacted_command(command)}


def _in_sweep(query: Select[*tuple[Any, ...]], sweep_id: int | None) -> Select[*tuple[Any, ...]]:
    """Restrict a query to the runs of a sweep; None for all runs."""
    if sweep_id is None:
        return query
    return query.join(SWEEP_RUNS, SWEEP_RUNS.c.run_id == RUNS.c.id).where(
        SWEEP_RUNS.c.sweep_id == sweep_id
    )


def _latest_ids(connection: Connection, identities: Iterable[str]) -> dict[str, int]:
    """Return the id of the latest attempt of each identity that the store has."""
    query = select(RUNS.c.identity, func.max(RUNS.c.id).label("id")).group_by(RUNS.c.identity)
    rows = rows_among(connection, query, RUNS.c.identity, identities)
    return {row.identity: row.id for row in rows}


def _find_id(connection: Connection, key: str) -> int | None:
    """Return the id of the run that a key names (see `Runs.find`); None without one.

    Raises:
        NotFoundError: the identities of several runs start with the key.
    """
    if key == "last":
        newest = func.coalesce(RUNS.c.started, RUNS.c.created).desc(), RUNS.c.id.desc()
        rows = connection.execute(select(RUNS.c.id, RUNS.c.config).order_by(*newest))
        # Calibrations, which runs start on their own account, count only without other runs.
        calibrations = []
        for run_id, config in rows:
            if not is_calibration(config):
                return int(run_id)
            calibrations.append(run_id)
        return calibrations[0] if calibrations else None
    if key.isascii() and key.isdigit() and len(key) <= _ID_DIGITS:
        query = select(RUNS.c.id).where(RUNS.c.id == int(key))
        by_id: int | None = connection.execute(query).scalar()
        if by_id is not None:
            return by_id
    if not _HEX.fullmatch(key):
        return None
    latest = select(RUNS.c.identity, func.max(RUNS.c.id)).where(RUNS.c.identity.startswith(key))
    matches = connection.execute(latest.group_by(RUNS.c.identity).limit(6)).all()
    if len(matches) > 1:
        some = ", ".join(identity[: max(_SHOWN, len(key) + 2)] for identity, _ in matches[:5])
        raise NotFoundError(
            f"'{key}' starts the identities of several runs ({some}); give more of it"
        )
    return matches[0][1] if matches else None


def _remove_rows(connection: Connection, run_ids: Sequence[int]) -> None:
    """Remove runs and all rows about them; evaluations that other runs share stay."""
    linked = select(RUN_EVALUATIONS.c.evaluation_id).where(RUN_EVALUATIONS.c.run_id.in_(run_ids))
    evaluations: Iterable[int] = set(connection.execute(linked).scalars())
    # Children first, because of the foreign keys.
    for table in reversed(METADATA.sorted_tables):
        for column in table.columns:
            if column.references(RUNS.c.id):
                connection.execute(delete(table).where(column.in_(run_ids)))
    for ids in chunks(evaluations):
        shared = select(RUN_EVALUATIONS.c.evaluation_id)
        unshared = (EVALUATIONS.c.id.in_(ids), EVALUATIONS.c.id.not_in(shared))
        connection.execute(delete(EVALUATIONS).where(*unshared))
    remove_unused_problems(connection)
    connection.execute(delete(RUNS).where(RUNS.c.id.in_(run_ids)))
