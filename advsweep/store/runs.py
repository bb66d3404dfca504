"""Runs: what is planned, and what became of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Connection,
    Select,
    Text,
    case,
    cast,
    delete,
    func,
    insert,
    null,
    select,
    update,
)

from advsweep.errors import NotFoundError, StoreError, nearest
from advsweep.printable import redacted_command
from advsweep.store.base import StorePart, chunks, insert_or_ignore, peer_ids
from advsweep.store.evaluations import remove_unused_problems
from advsweep.store.imported import is_calibration, is_imported
from advsweep.store.owners import LEASE_COLUMNS, host_name
from advsweep.store.records import NewRun, Peer, RunOutline, RunRecord, Status
from advsweep.store.run_folders import folder_name
from advsweep.store.sweeps import append_runs
from advsweep.store.tables import EVALUATIONS, METADATA, RUN_EVALUATIONS, RUNS, SWEEP_RUNS, SWEEPS
from advsweep.tasks.controls import titled

if TYPE_CHECKING:
    from advsweep.store.owners import AnyRow

REVISIONS = "revisions"
"""The key of an environment that holds the revisions above 1 of a run's components."""

_DERIVED = ("sweeps", "estimator", "status", "host", "directory")
_COPIED = tuple(field.name for field in fields(RunRecord) if field.name not in _DERIVED)

_HEX = re.compile(r"[0-9a-f]{4,64}")
_ID_DIGITS = 18  # SQLite refuses larger numbers
_SHOWN = 10  # characters of an identity in a message
_LISTED = 12  # ids among which a message suggests the nearest


class Runs(StorePart):
    """The runs of a store.

    A run is identified by its identity and attempt. A done run never changes: `new_attempt` adds
    a second record of the same identity. The status of a running run whose lease is over reads
    as `LOST`, so that no record claims to run for ever.
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
        if not runs:
            return []
        for run in runs:
            # A row that is refused when it is read would make the whole store unreadable.
            folder_name(identity=run.identity, attempt=1, estimator=run.estimator, seed=run.seed)
        new = [self._values(run, attempt=1) for run in runs]
        # Alone: on a server, two processes that add the same runs in other orders would deadlock.
        with self._database.write_alone() as connection:
            sweep_id = self._sweep_id(connection, sweep)
            # Runs up to this id existed before; only their configs may need an update.
            before = connection.execute(select(func.max(RUNS.c.id))).scalar() or 0
            connection.execute(insert_or_ignore(connection, RUNS, "identity", "attempt"), new)
            latest: dict[str, int] = {}
            for identities in chunks({run.identity for run in runs}):
                query = select(RUNS.c.identity, func.max(RUNS.c.id)).where(
                    RUNS.c.identity.in_(identities)
                )
                rows = connection.execute(query.group_by(RUNS.c.identity))
                latest.update((identity, run_id) for identity, run_id in rows)
            ids = [latest[run.identity] for run in runs]
            known = [run_id for run_id in latest.values() if run_id <= before]
            self._update_configs(connection, known, {run.identity: run.config for run in runs})
            if sweep_id is not None:
                append_runs(connection, sweep_id, ids)
        return ids

    def _sweep_id(self, connection: Connection, sweep: str | None) -> int | None:
        return None if sweep is None else self._require_sweep(connection, sweep)

    def _update_configs(
        self, connection: Connection, ids: Sequence[int], configs: Mapping[str, Mapping[str, Any]]
    ) -> None:
        for some in chunks(ids):
            query = select(RUNS).where(RUNS.c.id.in_(some), RUNS.c.status != Status.DONE)
            for row in connection.execute(query).all():
                config = dict(configs[row.identity])
                if row.config != config and self._guard.status(row) is not Status.RUNNING:
                    connection.execute(
                        update(RUNS).where(RUNS.c.id == row.id).values(config=config)
                    )

    def _values(self, run: NewRun, attempt: int) -> dict[str, Any]:
        return {
            **{f.name: getattr(run, f.name) for f in fields(run)},
            "config": dict(run.config),
            "attempt": attempt,
            "status": Status.PENDING,
            "step": 0,
            "created": self._now(),
            "stop_requested": False,
        }

    def new_attempt(self, run_id: int) -> int:
        """Add another attempt of a run, which replaces it in its sweeps; return its id.

        The old record stays as it is.
        """
        # Alone, because the number of the attempt follows from those that exist.
        with self._database.write_alone() as connection:
            old = self._row(connection, run_id)
            if self._patience.repeats:
                # The first try may have added it before its connection broke.
                query = select(RUNS.c.id).where(
                    RUNS.c.identity == old.identity,
                    RUNS.c.attempt > old.attempt,
                    RUNS.c.status == Status.PENDING,
                    RUNS.c.started.is_(None),
                )
                made: int | None = connection.execute(
                    query.order_by(RUNS.c.attempt.desc()).limit(1)
                ).scalar()
                if made is not None:
                    return made
            attempts = select(func.max(RUNS.c.attempt)).where(RUNS.c.identity == old.identity)
            planned = NewRun(**{f.name: getattr(old, f.name) for f in fields(NewRun)})
            values = self._values(planned, connection.execute(attempts).scalar_one() + 1)
            adding = insert(RUNS).values(values).returning(RUNS.c.id)
            new: int = connection.execute(adding).scalar_one()
            connection.execute(
                update(SWEEP_RUNS).where(SWEEP_RUNS.c.run_id == run_id).values(run_id=new)
            )
        return new

    def set_stopping(self, run_ids: Sequence[int], rule: Mapping[str, Any] | None) -> None:
        """Set the early-stopping rule of runs; None for no rule.

        A run that another rule has pruned becomes interrupted, so that it can be resumed. A run
        that this rule has pruned stays pruned.
        """
        plain = None if rule is None else dict(rule)
        with self._database.write() as connection:
            for ids in chunks(run_ids):
                query = select(RUNS.c.id, RUNS.c.stopping).where(RUNS.c.id.in_(ids))
                others = [i for i, known in connection.execute(query) if known != plain]
                change = update(RUNS).where(RUNS.c.id.in_(others))
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
        with self._database.write() as connection:
            for ids in chunks(run_ids):
                self._refuse_running(connection, ids)
                _remove_rows(connection, ids)

    def _refuse_running(self, connection: Connection, run_ids: Sequence[int]) -> None:
        query = select(RUNS.c.id, RUNS.c.status, *LEASE_COLUMNS).where(RUNS.c.id.in_(run_ids))
        rows = {row.id: row for row in connection.execute(query.with_for_update())}
        for run_id in run_ids:
            if run_id not in rows:
                raise self._no_run(run_id)
            row = rows[run_id]
            if self._guard.status(row) is Status.RUNNING:
                raise StoreError(
                    f"run {run_id} is being trained by process {row.pid} on "
                    f"{host_name(row.host)}; `advsweep stop {run_id}` stops it"
                )

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
        with self._database.read() as connection:
            query, order = _all_columns(), RUNS.c.id
            if status is not None:
                recorded = Status.RUNNING if status is Status.LOST else status
                query = query.where(RUNS.c.status == recorded)
            if sweep is not None:
                query = _in_sweep(query, self._require_sweep(connection, sweep))
                order = RUNS.c.id if newest_first else SWEEP_RUNS.c.position
            query = query.order_by(order.desc() if newest_first else order)
            # No query can check leases, on which the difference of running and lost depends.
            if ids is None and status not in (Status.RUNNING, Status.LOST):
                query = query.limit(limit)
            rows = (
                connection.execute(query).all()
                if ids is None
                else self._in_order(connection, query, ids)
            )
            records = self._records(connection, rows)
        return [run for run in records if status is None or run.status is status][:limit]

    def _in_order(
        self, connection: Connection, query: Select[Any], ids: Sequence[int]
    ) -> list[AnyRow]:
        rows: dict[int, AnyRow] = {}
        for some in chunks(ids):
            rows.update(
                (row.id, row) for row in connection.execute(query.where(RUNS.c.id.in_(some)))
            )
            # A run that is absent has another status or sweep, or does not exist.
            absent = set(some).difference(rows)
            known = connection.execute(select(RUNS.c.id).where(RUNS.c.id.in_(absent))).scalars()
            if missing := sorted(absent.difference(known)):
                raise self._no_run(missing[0])
        return [rows[i] for i in ids if i in rows]

    def count(self, *, sweep: str | None = None, status: Status | None = None) -> int:
        """Return the number of runs of a sweep, a status, both or neither."""
        counts = self.count_by_status(sweep)
        return sum(counts.values()) if status is None else counts[status]

    def count_by_status(self, sweep: str | None = None) -> Mapping[Status, int]:
        """Return the number of runs in every status, of a sweep or of the store."""
        with self._database.read() as connection:
            query = _in_sweep(
                select(RUNS.c.status, *LEASE_COLUMNS), self._sweep_id(connection, sweep)
            )
            counts = Counter(map(self._guard.status, connection.execute(query)))
        return {status: counts[status] for status in Status}

    def outlines(self, sweep: str | None = None) -> list[RunOutline]:
        """Return every run in short form, by id or in the order of the sweep's plan."""
        stored = [RUNS.c[name] for name in RunOutline._fields[:-3]]
        query = select(*stored, RUNS.c.host, RUNS.c.status, RUNS.c.process_started)
        # Only running runs need a heartbeat; converting it takes as long as the rest of a row.
        beat = case((RUNS.c.status == Status.RUNNING, RUNS.c.heartbeat))
        query = query.add_columns(beat.label("heartbeat"))
        with self._database.read() as connection:
            sweep_id = self._sweep_id(connection, sweep)
            query = _in_sweep(query.order_by(RUNS.c.id), sweep_id)
            sweeps = _sweep_names(connection)
            # One row at a time: the texts of all configs would take most of the memory.
            outlines = [
                RunOutline._make(
                    [
                        *row[: len(stored)],
                        host_name(row.host),
                        self._guard.status(row),
                        sweeps.get(row.id, ()),
                    ]
                )
                for row in connection.execute(query)
            ]
            planned = select(SWEEP_RUNS.c.run_id, SWEEP_RUNS.c.position)
            planned = planned.where(SWEEP_RUNS.c.sweep_id == sweep_id)
            positions = {row.run_id: row.position for row in connection.execute(planned)}
        # Sorted here, because SQLite would sort whole rows, configs included.
        return sorted(outlines, key=lambda run: positions.get(run.id, 0))

    def last_finished(self, status: Status, sweep: str | None = None, *, limit: int) -> list[int]:
        """Return the ids of the runs that ended last with this status, newest first."""
        with self._database.read() as connection:
            query = _in_sweep(select(RUNS.c.id), self._sweep_id(connection, sweep))
            query = query.where(RUNS.c.status == status)
            query = query.order_by(RUNS.c.finished.desc(), RUNS.c.id.desc()).limit(limit)
            return list(connection.execute(query).scalars())

    def peers(self, run_id: int) -> list[Peer]:
        """Return a run and all runs that share a sweep with it, by id."""
        columns = (RUNS.c.id, RUNS.c.config_hash, RUNS.c.step, RUNS.c.steps)
        query = select(*columns, RUNS.c.status == Status.DONE)
        query = query.where(RUNS.c.id.in_(peer_ids(run_id))).order_by(RUNS.c.id)
        with self._database.read() as connection:
            return [Peer(*row) for row in connection.execute(query).all()]

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
                raise _not_found(connection, key, self._database.location.name)
            return self._records(connection, [self._row(connection, run_id)])[0]

    def find_attempt(self, identity: str, attempt: int) -> RunRecord | None:
        """Return one attempt of an identity; None if it does not exist."""
        query = _all_columns().where(RUNS.c.identity == identity, RUNS.c.attempt == attempt)
        with self._database.read() as connection:
            records = self._records(connection, connection.execute(query).all())
        return records[0] if records else None

    def set_environment(self, run_id: int, environment: Mapping[str, Any]) -> None:
        """Store how a run was made: commit, versions, hardware and command."""
        with self._database.write() as connection:
            self._require_run(connection, run_id)
            self._guard.require(connection, run_id)
            connection.execute(
                update(RUNS).where(RUNS.c.id == run_id).values(environment=dict(environment))
            )

    def environment(self, run_id: int) -> dict[str, Any]:
        """Return how a run was made; empty for a run that never started."""
        return self.environments([run_id]).get(run_id, {})

    def environments(self, run_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return how each run was made; runs that never started are left out.

        Secrets in commands are masked, because older versions stored them.
        """
        found: dict[int, dict[str, Any]] = {}
        with self._database.read() as connection:
            for ids in chunks(run_ids):
                query = select(RUNS.c.id, RUNS.c.environment).where(RUNS.c.id.in_(ids))
                rows = connection.execute(query.where(RUNS.c.environment.is_not(None)))
                found.update((row.id, without_secrets(row.environment)) for row in rows)
        return found

    def distinct_environments(self, run_ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return the different environments of some runs, in a fixed order."""
        found: set[str] = set()
        with self._database.read() as connection:
            for ids in chunks(run_ids):
                # PostgreSQL compares texts, but not JSON documents.
                query = select(cast(RUNS.c.environment, Text)).where(RUNS.c.id.in_(ids)).distinct()
                found.update(
                    connection.execute(query.where(RUNS.c.environment.is_not(None))).scalars()
                )
        return [without_secrets(json.loads(text)) for text in sorted(found)]

    def revisions(self, run_ids: Sequence[int]) -> dict[int, dict[str, int]]:
        """Return the revisions above 1 of each run's components, by config key.

        Runs that recorded no revisions are left out.
        """
        found: dict[int, dict[str, int]] = {}
        with self._database.read() as connection:
            for ids in chunks(run_ids):
                query = select(RUNS.c.id, RUNS.c.environment[REVISIONS]).where(RUNS.c.id.in_(ids))
                found.update((i, own) for i, own in connection.execute(query) if own is not None)
        return found

    def _row(self, connection: Connection, run_id: int) -> AnyRow:
        row = connection.execute(_all_columns().where(RUNS.c.id == run_id)).one_or_none()
        if row is None:
            raise self._no_run(run_id)
        return row

    def _records(self, connection: Connection, rows: Iterable[AnyRow]) -> list[RunRecord]:
        listed = list(rows)
        sweeps = _sweep_names(connection, [row.id for row in listed])
        return [self.to_record(row, sweeps.get(row.id, ())) for row in listed]

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
            **{name: getattr(row, name) for name in _COPIED},
            sweeps=sweeps,
            estimator=titled(row.estimator, row.config) if is_ours else row.estimator,
            status=self._guard.status(row),
            host=host_name(row.host),
            directory=self._shared.runs_directory / folder,
        )


def without_secrets(environment: dict[str, Any]) -> dict[str, Any]:
    """Return an environment with the secrets in its command masked."""
    command = environment.get("command")
    if not isinstance(command, str):
        return environment
    return {**environment, "command": redacted_command(command)}


def _all_columns() -> Select[Any]:
    # Without environments, which are large and rarely needed.
    return select(*(c for c in RUNS.c if c is not RUNS.c.environment))


def _in_sweep(query: Select[*tuple[Any, ...]], sweep_id: int | None) -> Select[*tuple[Any, ...]]:
    """Restrict a query to the runs of a sweep; None for all runs."""
    if sweep_id is None:
        return query
    return query.join(SWEEP_RUNS, SWEEP_RUNS.c.run_id == RUNS.c.id).where(
        SWEEP_RUNS.c.sweep_id == sweep_id
    )


def _sweep_names(
    connection: Connection, run_ids: Sequence[int] | None = None
) -> dict[int, tuple[str, ...]]:
    """Return the sorted names of the sweeps of each run, of some runs or of all."""
    query = select(SWEEP_RUNS.c.run_id, SWEEPS.c.name).order_by(SWEEPS.c.name)
    query = query.join(SWEEPS, SWEEPS.c.id == SWEEP_RUNS.c.sweep_id)
    queries = [query]
    if run_ids is not None:
        queries = [query.where(SWEEP_RUNS.c.run_id.in_(ids)) for ids in chunks(run_ids)]
    found: dict[int, tuple[str, ...]] = {}
    for some in queries:
        for run_id, name in connection.execute(some):
            found[run_id] = (*found.get(run_id, ()), name)
    return found


def _find_id(connection: Connection, key: str) -> int | None:
    """Return the id of the run that a key names (see `Runs.find`); None without one.

    Raises:
        NotFoundError: the identities of several runs start with the key.
    """
    if key == "last":
        newest = func.coalesce(RUNS.c.started, RUNS.c.created).desc(), RUNS.c.id.desc()
        # Calibrations, which runs start on their own account, count only without other runs.
        first: int | None = None
        for run_id, config in connection.execute(
            select(RUNS.c.id, RUNS.c.config).order_by(*newest)
        ):
            if not is_calibration(config):
                return int(run_id)
            first = first or int(run_id)
        return first
    if key.isascii() and key.isdigit() and len(key) <= _ID_DIGITS:
        query = select(RUNS.c.id).where(RUNS.c.id == int(key))
        by_id: int | None = connection.execute(query).scalar()
        if by_id is not None:
            return by_id
    if not _HEX.fullmatch(key):
        return None
    latest = select(RUNS.c.identity, func.max(RUNS.c.id)).where(RUNS.c.identity.startswith(key))
    found = connection.execute(latest.group_by(RUNS.c.identity).limit(6)).all()
    if len(found) > 1:
        some = ", ".join(identity[: max(_SHOWN, len(key) + 2)] for identity, _ in found[:5])
        more = ", ..." if len(found) > 5 else ""
        raise NotFoundError(
            f"'{key}' starts the identities of several runs ({some}{more}); give more of it"
        )
    return found[0][1] if found else None


def _not_found(connection: Connection, key: str, store: str) -> NotFoundError:
    """Return the error for a key that names no run, with a suggestion."""
    if key == "last":
        return NotFoundError(f"there are no runs in {store} yet")
    query = select(RUNS.c.id).order_by(RUNS.c.id.desc()).limit(_LISTED + 1)
    newest = connection.execute(query).scalars().all()
    if key in connection.execute(select(SWEEPS.c.name)).scalars().all():
        hint = f"'{key}' is a sweep: `advsweep ls {key}` lists its runs"
    elif len(newest) <= _LISTED:
        hint = nearest(key, map(str, newest))
    else:
        hint = f"the newest is run {newest[0]}; `advsweep ls` lists them"
    return NotFoundError(
        f"no run '{key}' in {store}: expected an id, the first 4 or more characters of an "
        f"identity, or 'last'; {hint}"
    )


def _remove_rows(connection: Connection, run_ids: Sequence[int]) -> None:
    """Remove runs and all rows about them; evaluations that other runs share stay."""
    linked = select(RUN_EVALUATIONS.c.evaluation_id).where(RUN_EVALUATIONS.c.run_id.in_(run_ids))
    evaluations = set(connection.execute(linked).scalars())
    # Children first, because of the foreign keys.
    for table in reversed(METADATA.sorted_tables):
        for column in table.columns:
            if column.references(RUNS.c.id):
                connection.execute(delete(table).where(column.in_(run_ids)))
    for ids in chunks(evaluations):
        shared = select(RUN_EVALUATIONS.c.evaluation_id)
        unshared = (EVALUATIONS.c.id.in_(ids), EVALUATIONS.c.id.not_in(shared))
        connection.execute(delete(EVALUATIONS).where(*unshared))
    if evaluations:
        remove_unused_problems(connection)
    connection.execute(delete(RUNS).where(RUNS.c.id.in_(run_ids)))
