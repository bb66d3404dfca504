"""Runs: what is planned, and what became of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, Text, cast, func, insert, null, select, update

from advsweep.errors import StoreError
from advsweep.redaction import redacted_command
from advsweep.store import run_queries
from advsweep.store.base import StorePart, chunks, insert_or_ignore, peer_ids
from advsweep.store.owners import LEASE_COLUMNS, host_name
from advsweep.store.records import NewRun, Peer, RunLine, RunOutline, RunRecord, Status
from advsweep.store.run_folders import folder_name
from advsweep.store.run_queries import all_columns, in_sweep, to_records
from advsweep.store.sweeps import append_runs
from advsweep.store.tables import RUNS, SWEEP_RUNS

if TYPE_CHECKING:
    from advsweep.store.owners import AnyRow

REVISIONS = "revisions"
"""The key of an environment that holds the revisions above 1 of a run's components."""


class Runs(StorePart):
    """The runs of a store.

    A run is identified by its identity and attempt. A done run never changes: `new_attempt` adds
    a second record of the same identity. The status of a running run whose lease is over reads
    as `LOST`, so that no record claims to run for ever.
    """

    def add(self, runs: Sequence[NewRun], sweep: str | None = None) -> list[int]:
        """Adds runs; returns the id of each, in the same order.

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
            sweep_id = None if sweep is None else self._require_sweep(connection, sweep)
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
        """Adds another attempt of a run, which replaces it in its sweeps; returns its id.

        The old record stays as it is.
        """
        # Alone, because the number of the attempt follows from those that exist.
        with self._database.write_alone() as connection:
            old = self._row(connection, run_id)
            attempts = select(func.max(RUNS.c.attempt)).where(RUNS.c.identity == old.identity)
            if self._patience.repeats and (made := _later_attempt(connection, old)):
                return made
            planned = NewRun(**{f.name: getattr(old, f.name) for f in fields(NewRun)})
            values = self._values(planned, connection.execute(attempts).scalar_one() + 1)
            adding = insert(RUNS).values(values).returning(RUNS.c.id)
            new: int = connection.execute(adding).scalar_one()
            connection.execute(
                update(SWEEP_RUNS).where(SWEEP_RUNS.c.run_id == run_id).values(run_id=new)
            )
        return new

    def set_stopping(self, run_ids: Sequence[int], rule: Mapping[str, Any] | None) -> None:
        """Sets the early-stopping rule of runs; None for no rule.

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
        """Removes runs with their metrics, checkpoint records and evaluations.

        Evaluations that other runs share stay, and so do files.

        Raises:
            StoreError: a process is training one of the runs.
        """
        with self._database.write() as connection:
            for ids in chunks(run_ids):
                self._refuse_running(connection, ids)
                run_queries.remove_runs(connection, ids)

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
        """Returns runs, newest first or in the order of the sweep's plan.

        Args:
            sweep: only runs of this sweep.
            ids: only these runs, in this order.
            status: only runs of this status.
            limit: at most this many runs.
        """
        with self._database.read() as connection:
            query, order = all_columns(status), RUNS.c.id
            if sweep is not None:
                query = in_sweep(query, self._require_sweep(connection, sweep))
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
            records = to_records(self._shared, connection, rows)
        matching = [run for run in records if status is None or run.status is status]
        return matching[:limit]

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
            if not absent:
                continue
            known = connection.execute(select(RUNS.c.id).where(RUNS.c.id.in_(absent))).scalars()
            if missing := sorted(absent.difference(known)):
                raise self._no_run(missing[0])
        return [rows[i] for i in ids if i in rows]

    def count(self, *, sweep: str | None = None, status: Status | None = None) -> int:
        """Returns the number of runs of a sweep, a status, both or neither."""
        counts = self.count_by_status(sweep)
        return sum(counts.values()) if status is None else counts[status]

    def count_by_status(self, sweep: str | None = None) -> Mapping[Status, int]:
        """Returns the number of runs in every status, of a sweep or of the store."""
        counts: Counter[Status] = Counter()
        with self._database.read() as connection:
            sweep_id = None if sweep is None else self._require_sweep(connection, sweep)
            running = in_sweep(select(RUNS.c.status, *LEASE_COLUMNS), sweep_id)
            for row in connection.execute(running.where(RUNS.c.status == Status.RUNNING)):
                counts[self._guard.status(row)] += 1
            others = in_sweep(select(RUNS.c.status, func.count()), sweep_id)
            others = others.where(RUNS.c.status != Status.RUNNING).group_by(RUNS.c.status)
            for status, count in connection.execute(others):
                counts[status] += count
        return {status: counts[status] for status in Status}

    def lines(self, sweep: str | None = None) -> list[RunLine]:
        """Returns every run without its config, newest first."""
        with self._database.read() as connection:
            sweep_id = None if sweep is None else self._require_sweep(connection, sweep)
            return run_queries.select_lines(connection, self._guard, sweep_id)

    def outlines(self, sweep: str | None = None) -> list[RunOutline]:
        """Returns every run in short form, by id or in the order of the sweep's plan."""
        with self._database.read() as connection:
            sweep_id = None if sweep is None else self._require_sweep(connection, sweep)
            return run_queries.select_outlines(connection, self._guard, sweep_id)

    def last_finished(self, status: Status, sweep: str | None = None, *, limit: int) -> list[int]:
        """Returns the ids of the runs that ended last with this status, newest first."""
        with self._database.read() as connection:
            sweep_id = None if sweep is None else self._require_sweep(connection, sweep)
            query = in_sweep(select(RUNS.c.id), sweep_id).where(RUNS.c.status == status)
            query = query.order_by(RUNS.c.finished.desc(), RUNS.c.id.desc()).limit(limit)
            return list(connection.execute(query).scalars())

    def peers(self, run_id: int) -> list[Peer]:
        """Returns a run and all runs that share a sweep with it, by id."""
        columns = (
            RUNS.c.id,
            RUNS.c.config_hash,
            RUNS.c.step,
            RUNS.c.steps,
            RUNS.c.status == Status.DONE,
        )
        query = select(*columns).where(RUNS.c.id.in_(peer_ids(run_id))).order_by(RUNS.c.id)
        with self._database.read() as connection:
            return [Peer(*row) for row in connection.execute(query).all()]

    def find(self, key: str) -> RunRecord:
        """Returns the run that a user names by an id, the start of an identity, or `last`.

        `last` is the run that was started last, or else added last. Of several attempts of one
        identity it is the latest.

        Raises:
            NotFoundError: no identity, or more than one, starts with the key.
        """
        with self._database.read() as connection:
            run_id = run_queries.find_id(connection, key.lower())
            if run_id is None:
                raise run_queries.not_found(connection, key, self._database.location.name)
            return to_records(self._shared, connection, [self._row(connection, run_id)])[0]

    def find_attempt(self, identity: str, attempt: int) -> RunRecord | None:
        """Returns one attempt of an identity; None if it does not exist."""
        query = all_columns().where(RUNS.c.identity == identity, RUNS.c.attempt == attempt)
        with self._database.read() as connection:
            records = to_records(self._shared, connection, connection.execute(query).all())
        return records[0] if records else None

    def set_environment(self, run_id: int, environment: Mapping[str, Any]) -> None:
        """Stores how a run was made: commit, versions, hardware and command."""
        with self._database.write() as connection:
            self._require_run(connection, run_id)
            self._guard.require(connection, run_id)
            connection.execute(
                update(RUNS).where(RUNS.c.id == run_id).values(environment=dict(environment))
            )

    def environment(self, run_id: int) -> dict[str, Any]:
        """Returns how a run was made; empty for a run that never started."""
        return self.environments([run_id]).get(run_id, {})

    def environments(self, run_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Returns how each run was made; runs that never started are left out.

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
        """Returns the different environments of some runs, in a fixed order."""
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
        """Returns the revisions above 1 of each run's components, by config key.

        Runs that recorded no revisions are left out.
        """
        found: dict[int, dict[str, int]] = {}
        with self._database.read() as connection:
            for ids in chunks(run_ids):
                query = select(RUNS.c.id, RUNS.c.environment[REVISIONS]).where(RUNS.c.id.in_(ids))
                found.update((i, own) for i, own in connection.execute(query) if own is not None)
        return found

    def _row(self, connection: Connection, run_id: int) -> AnyRow:
        row = connection.execute(all_columns().where(RUNS.c.id == run_id)).one_or_none()
        if row is None:
            raise self._no_run(run_id)
        return row

    def to_record(self, row: AnyRow) -> RunRecord:
        """Converts a row of the table `runs`, as a run without sweeps.

        Raises:
            StoreError: the row has a value that advsweep does not write.
        """
        return run_queries.to_record(self._shared, row)


def _later_attempt(connection: Connection, old: AnyRow) -> int | None:
    """Returns the newest attempt after this one that has not started."""
    query = select(RUNS.c.id).where(
        RUNS.c.identity == old.identity,
        RUNS.c.attempt > old.attempt,
        RUNS.c.status == Status.PENDING,
        RUNS.c.started.is_(None),
    )
    return connection.execute(query.order_by(RUNS.c.attempt.desc()).limit(1)).scalar()


def without_secrets(environment: dict[str, Any]) -> dict[str, Any]:
    """Returns an environment with the secrets in its command masked."""
    command = environment.get("command")
    if not isinstance(command, str):
        return environment
    return {**environment, "command": redacted_command(command)}
