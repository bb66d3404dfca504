"""Reading a SQLite store in a folder that cannot be written, such as an archive.

SQLite in WAL mode makes two files beside the database, even to read it. Where it cannot make
them, the database alone is the whole store if its write-ahead log is absent or empty. With a
log, the store is read through the log's own index, or else in a private copy.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import weakref
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Any
from urllib.parse import quote

from advsweep.errors import StoreError


def is_read_only(file: Path) -> bool:
    """Whether a file exists in a folder in which this process can make no other."""
    return file.exists() and not may(file.parent, os.W_OK)


def may(path: Path, access: int) -> bool:
    """Whether this process may read (`os.R_OK`) or write (`os.W_OK`) a path."""
    return os.access(path, access, effective_ids=os.access in os.supports_effective_ids)


class ReadOnlyFile:
    """Opens connections to a database in a folder that cannot be written.

    Each connection is opened in the way that fits the files of that moment: another user, or
    another machine, may still write to them.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._folder: Path | None = None

    def connect(self, **options: Any) -> sqlite3.Connection:
        """A connection that reads what was committed last.

        Raises:
            sqlite3.Error: the file cannot be opened.
            StoreError: its write-ahead log asks for a copy, and there is no room for one.
        """
        log = self._beside("-wal")
        if not log.exists() or log.stat().st_size == 0:
            # Nobody writes: SQLite then needs no lock and no file of its own.
            return _open(self._file, "immutable=1", options)
        try:
            return _open(self._file, "mode=ro", options)
        except sqlite3.OperationalError:
            return _open(self._copy(log), "mode=rw", options)

    def _copy(self, log: Path) -> Path:
        """A private copy of the database and its log, made again only when they change."""
        stats = self._file.stat(), log.stat()
        state = "-".join(f"{each.st_size:x}-{each.st_mtime_ns:x}" for each in stats)
        try:
            return self._copied(state, log) / self._file.name
        except OSError as error:
            raise StoreError(
                f"{self._file}: its folder cannot be written, and its write-ahead log can only be "
                f"read in a copy, which could not be made: {error}; make room in {gettempdir()}, "
                "or name another folder with TMPDIR"
            ) from error

    def _copied(self, state: str, log: Path) -> Path:
        if self._folder is None:
            self._folder = Path(mkdtemp(prefix="advsweep-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        copies = self._folder / state
        if not copies.exists():
            for outdated in self._folder.iterdir():
                shutil.rmtree(outdated)
            unfinished = self._folder / "unfinished"
            unfinished.mkdir()
            for path in (self._file, log):
                shutil.copyfile(path, unfinished / path.name)
            unfinished.rename(copies)
        return copies

    def _beside(self, ending: str) -> Path:
        return self._file.with_name(self._file.name + ending)


def _open(file: Path, mode: str, options: dict[str, Any]) -> sqlite3.Connection:
    connection: sqlite3.Connection = sqlite3.connect(
        f"file:{quote(str(file))}?{mode}", uri=True, **options
    )
    try:
        # Opening alone reads nothing.
        connection.execute("SELECT name FROM sqlite_master LIMIT 1")
    except sqlite3.Error:
        connection.close()
        raise
    return connection
