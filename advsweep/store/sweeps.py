"""Sweeps, the named sets of runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, delete, func, select, update

from advsweep.errors import StoreError
from advsweep.names import YAML_SUFFIXES
from advsweep.store.base import StorePart, chunks, put
from advsweep.store.lease_guard import LEASE_COLUMNS
from advsweep.store.records import Status, SweepRecord
from advsweep.store.tables import RUNS, SWEEP_RUNS, SWEEPS, TRIALS
from advsweep.store.tuning_records import TUNE_KEY, TuningRecord

# The key of a sweep's spec that holds the presets of its runs by config hash.
METHODS = "methods"

MAX_NAME = 200  # characters of the name that a sweep is given
MAX_NOTE = 4000  # characters

_TAG = re.compile(r"\w[\w.+/:-]{0,63}")


class Sweeps(StorePart):
    """The sweeps of a store.

    A run may be part of several sweeps. The runs of a sweep have a position each, in the order of
    its plan.
    """

    def add(self, name: str, spec: Mapping[str, Any]) -> int:
        """Add a sweep, or replace the spec of the sweep of that name; return its id."""
        row = {"name": name, "spec": dict(spec), "created": self._now()}
        with self._database.write() as connection:
            put(connection, SWEEPS, row)
            change = update(SWEEPS).where(SWEEPS.c.name == name)
            connection.execute(change.values(spec=row["spec"]))
            return self._require_sweep(connection, name)

    def spec(self, name: str) -> dict[str, Any]:
        """Return what the store keeps of a sweep beside its runs.

        Raises:
            NotFoundError: there is no such sweep.
        """
        with self._database.read() as connection:
            sweep_id = self._require_sweep(connection, name)
            query = select(SWEEPS.c.spec).where(SWEEPS.c.id == sweep_id)
            spec: dict[str, Any] = connection.execute(query).scalar_one()
        return spec

    def names(self) -> list[str]:
        """Return the names of all sweeps, oldest first, without a look at their runs."""
        with self._database.read() as connection:
            return list(connection.execute(select(SWEEPS.c.name).order_by(SWEEPS.c.id)).scalars())

    def select(self) -> list[SweepRecord]:
        """Return every sweep, oldest first, with the number of its runs in each status."""
        # The status of a running run depends on its lease, which no query can check.
        members = select(SWEEP_RUNS.c.sweep_id, RUNS.c.status, *LEASE_COLUMNS)
        members = members.where(SWEEP_RUNS.c.run_id == RUNS.c.id)
        with self._database.read() as connection:
            sweeps = connection.execute(select(SWEEPS).order_by(SWEEPS.c.id)).all()
            counts: dict[int, Counter[Status]] = {sweep.id: Counter() for sweep in sweeps}
            for row in connection.execute(members):
                counts[row.sweep_id][self._guard.status(row)] += 1
        return [
            SweepRecord(
                id=sweep.id,
                name=sweep.name,
                spec=sweep.spec,
                created=sweep.created,
                note=sweep.note or "",
                tags=_read_tags(sweep.tags),
                runs={status: n for status in Status if (n := counts[sweep.id][status])},
            )
            for sweep in sweeps
        ]

    def find(self, name: str) -> SweepRecord:
        """Return a sweep without the numbers of its runs.

        Raises:
            NotFoundError: there is no such sweep.
        """
        with self._database.read() as connection:
            sweep_id = self._require_sweep(connection, name)
            row = connection.execute(select(SWEEPS).where(SWEEPS.c.id == sweep_id)).one()
        return SweepRecord(
            id=row.id,
            name=row.name,
            spec=row.spec,
            created=row.created,
            note=row.note or "",
            tags=_read_tags(row.tags),
        )

    def rename(self, old: str, new: str) -> None:
        """Give a sweep another name; a tuned sweep knows that of its tuning runs again.

        Raises:
            NotFoundError: there is no such sweep.
            StoreError: another sweep has the name, or a process trains one of its runs, whose
                sweep it knows by the old name.
        """
        _check_name(new)
        with self._database.write() as connection:
            sweep_id = self._require_sweep(connection, old)
            taken = select(SWEEPS.c.id).where(SWEEPS.c.name == new)
            if connection.execute(taken).scalar() is not None:
                raise StoreError(f"there is a sweep '{new}' already; choose another name")
            if self._is_running(connection, sweep_id):
                raise StoreError(
                    f"sweep '{old}' has running runs, whose command knows it by this name; rename "
                    f"it once they have ended, or stop them: `advsweep stop {old}`"
                )
            connection.execute(update(SWEEPS).where(SWEEPS.c.id == sweep_id).values(name=new))
            for sweep in connection.execute(select(SWEEPS.c.id, SWEEPS.c.spec)).all():
                tuning = sweep.spec.get(TUNE_KEY)
                if isinstance(tuning, dict) and tuning.get("sweep") == old:
                    spec = {**sweep.spec, TUNE_KEY: {**tuning, "sweep": new}}
                    change = update(SWEEPS).where(SWEEPS.c.id == sweep.id)
                    connection.execute(change.values(spec=spec))

    def _is_running(self, connection: Connection, sweep_id: int) -> bool:
        """Whether a process trains a run of a sweep."""
        members = select(RUNS.c.status, *LEASE_COLUMNS).join(
            SWEEP_RUNS, SWEEP_RUNS.c.run_id == RUNS.c.id
        )
        rows = connection.execute(members.where(SWEEP_RUNS.c.sweep_id == sweep_id)).all()
        return any(self._guard.status(row) is Status.RUNNING for row in rows)

    def set_note(self, name: str, text: str) -> None:
        """Replace what is noted of a sweep; an empty text removes it.

        Raises:
            NotFoundError: there is no such sweep.
            StoreError: the text is too long.
        """
        if len(text) > MAX_NOTE or "\0" in text:
            raise StoreError(
                f"note: expected at most {MAX_NOTE:,} characters, got {len(text):,}; shorten it"
            )
        with self._database.write() as connection:
            sweep_id = self._require_sweep(connection, name)
            change = update(SWEEPS).where(SWEEPS.c.id == sweep_id)
            connection.execute(change.values(note=text or None))

    def set_tags(self, name: str, tags: Iterable[str]) -> None:
        """Replace the tags of a sweep.

        Raises:
            NotFoundError: there is no such sweep.
            StoreError: a tag is no word.
        """
        listed = sorted(set(tags))
        for tag in listed:
            if not _TAG.fullmatch(tag):
                raise StoreError(
                    f"tag: expected a word of at most 64 letters, digits and . _ + / : - , got "
                    f"{tag!r}"
                )
        with self._database.write() as connection:
            sweep_id = self._require_sweep(connection, name)
            change = update(SWEEPS).where(SWEEPS.c.id == sweep_id)
            connection.execute(change.values(tags=listed or None))

    def methods(self, name: str | None = None) -> dict[str, str]:
        """Return the presets `method=NAME` of the runs of a sweep, or of all, by config hash.

        The nickname is the sweep's: the run itself holds what the preset sets.
        """
        query = select(SWEEPS.c.spec).order_by(SWEEPS.c.id)
        if name is not None:
            query = query.where(SWEEPS.c.name == name)
        methods: dict[str, str] = {}
        for row in self._read(query):
            stored = row.spec.get(METHODS)
            if isinstance(stored, dict):
                methods |= {str(key): str(value) for key, value in stored.items()}
        return methods

    def tuning(self, name: str) -> TuningRecord | None:
        """Return each arm's values with their scores and its choice; None if nothing was tuned."""
        rows = self._read(select(SWEEPS.c.spec).where(SWEEPS.c.name == name))
        return TuningRecord.of_spec(rows[0].spec) if rows else None

    def release(self, name: str, run_ids: Iterable[int]) -> None:
        """Take runs out of a sweep; the runs stay in the store."""
        with self._database.write() as connection:
            sweep_id = self._require_sweep(connection, name)
            members = delete(SWEEP_RUNS).where(SWEEP_RUNS.c.sweep_id == sweep_id)
            for ids in chunks(run_ids):
                connection.execute(members.where(SWEEP_RUNS.c.run_id.in_(ids)))

    def remove(self, name: str) -> None:
        """Remove a sweep; its runs stay."""
        with self._database.write() as connection:
            sweep_id = self._require_sweep(connection, name)
            # Rows that refer to the sweep first, because of the foreign keys.
            connection.execute(delete(SWEEP_RUNS).where(SWEEP_RUNS.c.sweep_id == sweep_id))
            connection.execute(delete(TRIALS).where(TRIALS.c.sweep_id == sweep_id))
            connection.execute(delete(SWEEPS).where(SWEEPS.c.id == sweep_id))


def _check_name(name: str) -> None:
    """Refuse a name that commands would read as something else.

    Raises:
        StoreError: with what is expected.
    """
    is_line = 0 < len(name) <= MAX_NAME and name.isprintable() and name == name.strip()
    is_word_of_ours = name == "last" or name.isdecimal() or name.endswith(YAML_SUFFIXES)
    if not is_line or is_word_of_ours or "=" in name or name.startswith(("-", "~")):
        raise StoreError(
            f"name: expected a line of at most {MAX_NAME} characters without '=', which is no "
            f"number, option or file, got {name!r}"
        )


def _read_tags(stored: object) -> tuple[str, ...]:
    """Return the tags of a row; of a store from elsewhere those that are texts."""
    return tuple(tag for tag in stored if isinstance(tag, str)) if isinstance(stored, list) else ()


def append_runs(connection: Connection, sweep_id: int, run_ids: Iterable[int]) -> None:
    """Append runs to a sweep; those that are part of it keep their position."""
    query = select(func.max(SWEEP_RUNS.c.position)).where(SWEEP_RUNS.c.sweep_id == sweep_id)
    last = connection.execute(query).scalar()
    rows = [
        {"sweep_id": sweep_id, "run_id": run_id, "position": position}
        for position, run_id in enumerate(dict.fromkeys(run_ids), 0 if last is None else last + 1)
    ]
    put(connection, SWEEP_RUNS, rows)
