"""Whether anything was written to a store."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sqlalchemy import func, select

from advsweep.store.base import StorePart
from advsweep.store.connections import translated

if TYPE_CHECKING:
    from advsweep.store.store import Store


class Changes(StorePart):
    """Tells whether a store was written to, without reading what it holds."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._watching: sqlite3.Connection | None = None

    def mark(self) -> str:
        """Return a mark of what the store holds; it differs from earlier ones after every write.

        It may also differ without one. Marks of two store objects cannot be compared.
        """
        file = self._database.location.file
        if file is None:
            # Two transactions with equal snapshots see the same rows.
            return str(self._read(select(func.txid_current_snapshot()))[0][0])
        if self._database.opened is not None:
            self._database.opened.check()
        with translated(self._database.location):
            return self._file_mark(file)

    def _file_mark(self, file: Path) -> str:
        if self._watching is None:
            # SQLite counts what others write, as seen by one connection that stays open.
            pooled = self._database.reader.raw_connection()
            self._watching = cast("sqlite3.Connection", pooled.driver_connection)
            pooled.detach()
        [number] = self._watching.execute("PRAGMA data_version").fetchone()
        # A connection to a store in a folder without write permission may be one that sees no
        # later writes (`sqlite.file_engines`).
        log = file.with_name(f"{file.name}-wal")
        written = log.stat().st_mtime_ns if log.exists() else 0
        return f"{number} {written}"
