"""Runs and sweeps: what is planned, and what became of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, Text, cast, func, insert, null, select, update

from advsweep.errors import NotFoundError, StoreError, nearest
from advsweep.redaction import redacted_command
from advsweep.store.base import StorePart, chunks
from advsweep.store.owners import host_name
from advsweep.store.records import NewRun, RunRecord, Status, SweepRecord
from advsweep.store.run_folders import folder_name
from advsweep.store.tables import Run, Sweep, SweepRun

if TYPE_CHECKING:
    from advsweep.store.base import AnyRow

REVISIONS = "revisions"
"""Where an environment has the revisions above 1 of a run's components, by config key."""

_HEX = re.compile(r"[0-9a-f]{4,64}")
_ID_DIGITS = 18  # of an id at most; SQLite refuses larger numbers
_SHOWN = 10  # characters of an identity in a message


class Runs(StorePart):
    """The part of a store that holds runs and sweeps."""

    def add_sweep(self, name: str, spec: Mapping[str, Any]) -> int:
        """Adds a sweep, or gives the one of that name a new spec; returns its id."""
        values = {"name": name, "spec": dict(spec), "created": self._now()}
        with self._write() as connection:
            connection.execute(self._insert_or_update(Sweep, "name", update="spec"), values)
            return self._require_sweep(connection, name)

    def add(self, runs: Sequence[NewRun], sweep: str | None = None) -> list[int]:
        """Adds the runs that are not there yet; returns the id of each, in the same order.

        A run whose identity is there already keeps its record, whatever its state; where it
        has several attempts, the id is the latest one's. While it is neither done nor running
        it takes the config that is given, which differs in what cannot change its result.

        Args:
            sweep: a sweep that all of them become part of, in this order.

        Raises:
            NotFoundError: there is no such sweep.
            StoreError: a run has a value that its folder could not be named by, such as an
                estimator whose name has other characters; none of the runs is added.
        """
        if not runs:
            return []
        for run in runs:
            # What is refused when it is read would make the whole store unreadable.
            folder_name(identity=run.identity, attempt=1, estimator=run.estimator, seed=run.seed)
        new = [self._fresh(run, attempt=1) for run in runs]
        with self._write_alone() as connection:
            sweep_id = None if sweep is None else self._require_sweep(connection, sweep)
            before = connection.execute(select(func.max(Run.id))).scalar() or 0
            connection.execute(self._insert_or_ignore(Run, "identity", "attempt"), new)
            latest: dict[str, int] = {}
            for identities in chunks({run.identity for run in runs}):
                query = select(Run.identity, func.max(Run.id)).where(Run.identity.in_(identities))
                rows = connection.execute(query.group_by(Run.identity))
                latest.update((identity, run_id) for identity, run_id in rows)
            ids = [latest[run.identity] for run in runs]
            known = [run_id for run_id in latest.values() if run_id <= before]
            self._renew_configs(connection, known, {run.identity: run.config for run in runs})
            if sweep_id is not None:
                self._add_to_sweep(connection, sweep_id, ids)
        return ids

    def _renew_configs(
        self, connection: Connection, ids: Sequence[int], configs: Mapping[str, Mapping[str, Any]]
    ) -> None:
        for some in chunks(ids):
            query = select(Run.__table__).where(Run.id.in_(some), Run.status != Status.DONE)
            for row in connection.execute(query).all():
                config = dict(configs[row.identity])
                if row.config != config and self._status(row) is not Status.RUNNING:
                    connection.execute(update(Run).where(Run.id == row.id).values(config=config))

    def _fresh(self, run: NewRun, attempt: int) -> dict[str, Any]:
        return {
            **{f.name: getattr(run, f.name) for f in fields(run)},
            "config": dict(run.config),
            "attempt": attempt,
            "status": Status.PENDING,
            "step": 0,
            "created": self._now(),
            "stop_requested": False,
        }

    def _add_to_sweep(self, connection: Connection, sweep_id: int, ids: Sequence[int]) -> None:
        query = select(func.max(SweepRun.position)).where(SweepRun.sweep_id == sweep_id)
        last = connection.execute(query).scalar()
        start = 0 if last is None else last + 1
        rows = [
            {"sweep_id": sweep_id, "run_id": run_id, "position": position}
            for position, run_id in enumerate(dict.fromkeys(ids), start)
        ]
        connection.execute(self._insert_or_ignore(SweepRun, "sweep_id", "run_id"), rows)

    def new_attempt(self, run_id: int) -> int:
        """Adds a run once more, which takes the old one's place in its sweeps; returns its id.

        The old record stays as it is.
        """
        with self._write_alone() as connection:
            old = self._row(connection, run_id)
            query = select(func.max(Run.attempt)).where(Run.identity == old.identity)
            if self._patience.repeats and (made := self._later_attempt(connection, old)):
                return made
            planned = NewRun(
                identity=old.identity,
                config_hash=old.config_hash,
                seed=old.seed,
                config=old.config,
                steps=old.steps,
                estimator=old.estimator,
                backend=old.backend,
            )
            values = self._fresh(planned, connection.execute(query).scalar_one() + 1)
            new = connection.execute(insert(Run).values(values).returning(Run.id)).scalar_one()
            connection.execute(update(SweepRun).where(SweepRun.run_id == run_id).values(run_id=new))
        return new

    def _later_attempt(self, connection: Connection, old: AnyRow) -> int | None:
        """The newest attempt that has taken a run's place and was not begun; None without one."""
        query = select(Run.id).where(
            Run.identity == old.identity,
            Run.attempt > old.attempt,
            Run.status == Status.PENDING,
            Run.started.is_(None),
        )
        return connection.execute(query.order_by(Run.attempt.desc()).limit(1)).scalar()

    def set_stopping(self, run_ids: Sequence[int], rule: Mapping[str, Any] | None) -> None:
        """Says which rule may stop runs early; None for no rule.

        A run that was pruned by another rule is interrupted from now on, so that it can be
        had again. One that was pruned by this rule stays as it is.
        """
        plain = None if rule is None else dict(rule)
        with self._write() as connection:
            for ids in chunks(run_ids):
                query = select(Run.id, Run.stopping).where(Run.id.in_(ids))
                others = [i for i, known in connection.execute(query) if known != plain]
                given = update(Run).where(Run.id.in_(others))
                connection.execute(given.values(stopping=null() if plain is None else plain))
                pruned = given.where(Run.status == Status.PRUNED)
                connection.execute(pruned.values(status=Status.INTERRUPTED))

    def select(
        self,
        *,
        sweep: str | None = None,
        ids: Sequence[int] | None = None,
        status: Status | None = None,
        limit: int | None = None,
        newest_first: bool = True,
    ) -> list[RunRecord]:
        """The runs that fit, newest first, or else in the order of the sweep's plan.

        Args:
            ids: only these, and in this order.
            limit: no more than these many.

        Raises:
            NotFoundError: there is no such sweep or id.
        """
        with self._read() as connection:
            query, order = _matching(status), Run.id
            if sweep is not None:
                sweep_id = self._require_sweep(connection, sweep)
                query = query.join(SweepRun, SweepRun.run_id == Run.id)
                query = query.where(SweepRun.sweep_id == sweep_id)
                order = Run.id if newest_first else SweepRun.position
            query = query.order_by(order.desc() if newest_first else order)
            if limit is not None and ids is None and not _is_decided_late(status):
                query = query.limit(limit)
            rows = connection.execute(query).all() if ids is None else []
            if ids is not None:
                rows = self._in_order_of(ids, connection, query)
            records = self._records(connection, rows)
        fitting = [r for r in records if status is None or r.status is status]
        return fitting[:limit]

    def count(self, *, sweep: str | None = None, status: Status | None = None) -> int:
        """How many runs `runs` would return without a limit."""
        if _is_decided_late(status):
            return len(self.select(sweep=sweep, status=status))
        with self._read() as connection:
            query = select(func.count()).select_from(Run)
            if status is not None:
                query = query.where(Run.status == status)
            if sweep is not None:
                query = query.join(SweepRun, SweepRun.run_id == Run.id).where(
                    SweepRun.sweep_id == self._require_sweep(connection, sweep)
                )
            return connection.execute(query).scalar_one()

    def find(self, key: str) -> RunRecord:
        """The run that a user means by an id, the start of an identity, or `last`.

        `last` is the one that was started last, or else added last. Of several attempts of
        one identity it is the latest.

        Raises:
            NotFoundError: there is none, or more than one identity starts like that.
        """
        with self._read() as connection:
            run_id = self._find(connection, key.lower())
            if run_id is None:
                raise NotFoundError(self._not_found(connection, key))
            return self._records(connection, [self._row(connection, run_id)])[0]

    def _find(self, connection: Connection, key: str) -> int | None:
        if key == "last":
            newest = func.coalesce(Run.started, Run.created).desc(), Run.id.desc()
            return connection.execute(select(Run.id).order_by(*newest)).scalar()
        if key.isascii() and key.isdigit() and len(key) <= _ID_DIGITS:
            by_id = connection.execute(select(Run.id).where(Run.id == int(key))).scalar()
            if by_id is not None:
                return by_id
        if not _HEX.fullmatch(key):
            return None
        query = select(Run.identity, func.max(Run.id)).where(Run.identity.startswith(key))
        found = connection.execute(query.group_by(Run.identity).limit(6)).all()
        if len(found) > 1:
            some = ", ".join(identity[: max(_SHOWN, len(key) + 2)] for identity, _ in found[:5])
            more = ", ..." if len(found) > 5 else ""
            raise NotFoundError(
                f"'{key}' starts the identities of several runs ({some}{more}); give more of it"
            )
        return found[0][1] if found else None

    def _not_found(self, connection: Connection, key: str) -> str:
        where = self._engines.location.name
        if key == "last":
            return f"there are no runs in {where} yet"
        query = select(Run.id).order_by(Run.id.desc()).limit(13)
        newest = connection.execute(query).scalars().all()
        if key in connection.execute(select(Sweep.name)).scalars().all():
            hint = f"'{key}' is a sweep: `advsweep ls {key}` lists its runs"
        elif len(newest) <= 12:
            hint = nearest(key, map(str, newest))
        else:
            hint = f"the newest is run {newest[0]}; `advsweep ls` lists them"
        return (
            f"no run '{key}' in {where}: expected an id, the first 4 or more characters of an "
            f"identity, or 'last'; {hint}"
        )

    def sweeps(self) -> list[SweepRecord]:
        """Every sweep, oldest first, with the states of its runs."""
        with self._read() as connection:
            sweeps = connection.execute(select(Sweep.__table__).order_by(Sweep.id)).all()
            tallies: dict[int, dict[Status, int]] = {sweep.id: {} for sweep in sweeps}
            lease = (Run.host, Run.pid, Run.process_started, Run.heartbeat)
            running = select(SweepRun.sweep_id, Run.status, *lease).where(
                SweepRun.run_id == Run.id, Run.status == Status.RUNNING
            )
            for row in connection.execute(running):
                tally, status = tallies[row.sweep_id], self._status(row)
                tally[status] = tally.get(status, 0) + 1
            rest = select(SweepRun.sweep_id, Run.status, func.count()).where(
                SweepRun.run_id == Run.id, Run.status != Status.RUNNING
            )
            for sweep_id, status, count in connection.execute(
                rest.group_by(SweepRun.sweep_id, Run.status)
            ):
                tallies[sweep_id][status] = count
        order = list(Status)
        return [
            SweepRecord(
                id=sweep.id,
                name=sweep.name,
                spec=sweep.spec,
                created=sweep.created,
                runs=dict(sorted(tallies[sweep.id].items(), key=lambda kv: order.index(kv[0]))),
            )
            for sweep in sweeps
        ]

    def set_environment(self, run_id: int, environment: Mapping[str, Any]) -> None:
        """Keeps where and with what a run was made: commit, versions, hardware, command."""
        with self._write() as connection:
            self._require_run(connection, run_id)
            self._require_lease(connection, run_id)
            connection.execute(
                update(Run).where(Run.id == run_id).values(environment=dict(environment))
            )

    def environments(self, run_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Where and with what each run was made; runs that never started are left out.

        Secrets in commands are masked: older versions have stored them.
        """
        found: dict[int, dict[str, Any]] = {}
        with self._read() as connection:
            for ids in chunks(run_ids):
                query = select(Run.id, Run.environment).where(Run.id.in_(ids))
                rows = connection.execute(query.where(Run.environment.is_not(None)))
                found.update((row.id, without_secrets(row.environment)) for row in rows)
        return found

    def revisions(self, run_ids: Sequence[int]) -> dict[int, dict[str, int]]:
        """The revisions above 1 of each run's components, by config key.

        Runs of which none were recorded are left out.
        """
        found: dict[int, dict[str, int]] = {}
        revisions = Run.environment[REVISIONS]
        with self._read() as connection:
            for ids in chunks(run_ids):
                query = select(Run.id, revisions).where(Run.id.in_(ids))
                found.update((i, own) for i, own in connection.execute(query) if own is not None)
        return found

    def distinct_environments(self, run_ids: Sequence[int]) -> list[dict[str, Any]]:
        """The environments of some runs, those that are alike once, in a fixed order."""
        found: set[str] = set()
        with self._read() as connection:
            for ids in chunks(run_ids):
                # PostgreSQL compares texts, and not the documents that they hold.
                query = select(cast(Run.environment, Text)).where(Run.id.in_(ids)).distinct()
                found.update(
                    connection.execute(query.where(Run.environment.is_not(None))).scalars()
                )
        return [without_secrets(json.loads(text)) for text in sorted(found)]

    def environment(self, run_id: int) -> dict[str, Any]:
        """Where and with what a run was made; empty for one that never started."""
        return self.environments([run_id]).get(run_id, {})

    def _row(self, connection: Connection, run_id: int) -> AnyRow:
        self._require_run(connection, run_id)
        return connection.execute(select(Run.__table__).where(Run.id == run_id)).one()

    def _in_order_of(
        self, ids: Sequence[int], connection: Connection, query: Select[Any]
    ) -> list[AnyRow]:
        rows: dict[int, AnyRow] = {}
        for some in chunks(ids):
            rows.update((row.id, row) for row in connection.execute(query.where(Run.id.in_(some))))
            absent = set(some).difference(rows)
            if not absent:
                continue
            known = connection.execute(select(Run.id).where(Run.id.in_(absent))).scalars()
            if missing := sorted(absent.difference(known)):
                raise NotFoundError(f"no run {missing[0]} in {self._engines.location.name}")
        return [rows[i] for i in ids if i in rows]

    def _status(self, row: AnyRow) -> Status:
        """The recorded status, but `LOST` for a run that is running no more."""
        status: Status = row.status
        if status is Status.RUNNING and not self._is_held(row):
            return Status.LOST
        return status

    def _records(self, connection: Connection, rows: Sequence[AnyRow]) -> list[RunRecord]:
        sweeps: dict[int, list[str]] = {}
        for ids in chunks(row.id for row in rows):
            query = select(SweepRun.run_id, Sweep.name).where(
                SweepRun.sweep_id == Sweep.id, SweepRun.run_id.in_(ids)
            )
            for run_id, name in connection.execute(query.order_by(Sweep.name)):
                sweeps.setdefault(run_id, []).append(name)
        return [self._record(row, tuple(sweeps.get(row.id, ()))) for row in rows]

    def _record(self, row: AnyRow, sweeps: tuple[str, ...]) -> RunRecord:
        return RunRecord(
            id=row.id,
            identity=row.identity,
            attempt=row.attempt,
            config_hash=row.config_hash,
            seed=row.seed,
            sweeps=sweeps,
            estimator=row.estimator,
            backend=row.backend,
            status=self._status(row),
            step=row.step,
            steps=row.steps,
            stage=row.stage,
            config=row.config,
            created=row.created,
            started=row.started,
            finished=row.finished,
            heartbeat=row.heartbeat,
            host=host_name(row.host),
            pid=row.pid,
            stop_requested=row.stop_requested,
            failure=row.failure,
            stopping=row.stopping,
            error=row.error,
            traceback=row.traceback,
            directory=self._directory(row),
        )

    def _directory(self, row: AnyRow) -> Path:
        """The run's folder.

        Raises:
            StoreError: the row holds what advsweep does not write, and no folder's name.
        """
        try:
            name = folder_name(
                identity=row.identity, attempt=row.attempt, estimator=row.estimator, seed=row.seed
            )
        except StoreError as error:
            raise StoreError(
                f"{self._engines.location.name}: run {row.id}: {error}; this was not written by "
                "advsweep, and `advsweep merge` into a new store leaves such runs out"
            ) from error
        return self.runs_directory / name


def _matching(status: Status | None) -> Select[Any]:
    # Environments are large, and asked for by themselves.
    query: Select[Any] = select(
        *(c for c in Run.__table__.c if c is not Run.__table__.c.environment)
    )
    if status is None:
        return query
    return query.where(Run.status == (Status.RUNNING if status is Status.LOST else status))


def _is_decided_late(status: Status | None) -> bool:
    """Whether a status depends on processes and clocks, which no query sees."""
    return status in (Status.RUNNING, Status.LOST)


def without_secrets(environment: dict[str, Any]) -> dict[str, Any]:
    """An environment as stored, with the secrets in its command masked."""
    command = environment.get("command")
    if not isinstance(command, str):
        return environment
    return {**environment, "command": redacted_command(command)}
