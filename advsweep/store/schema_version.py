"""The schema version of a store: how stores are created, checked and migrated.

A new store is created from `tables.METADATA`; migrations are for older stores. The version
stands in a table `alembic_version`, since earlier releases migrated with Alembic.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy import Column, Connection, Index, Table, inspect, text

from advsweep.errors import NoStoreError, StoreError
from advsweep.local_files import FILE_MODE
from advsweep.printable import printable_line
from advsweep.store import tables
from advsweep.store.connections import BUSY_SECONDS, Database, Location, translated
from advsweep.store.patience import Patience
from advsweep.store.postgres import check_encoding
from advsweep.store.unknown_seeds import forget_made_up_seeds

_RUNS, _EVALUATIONS = tables.RUNS, tables.EVALUATIONS

# Changes a store, and returns what it did in words.
Change = Callable[[Connection], str]

# What each version of the schema added: nullable columns, tables and indexes; and what it changed.
MIGRATIONS: Mapping[str, Sequence[Column[object] | Table | Index | Change]] = {
    "0001": [],
    "0002": [_RUNS.c.stage, *(i for i in _RUNS.indexes if i.name == "ix_runs_config_hash")],
    "0003": [_RUNS.c.failure],
    "0004": [_RUNS.c.stopping, tables.TRIALS],
    "0005": [tables.ANALYSES],
    "0006": [_EVALUATIONS.c.right_entropy],
    "0007": [tables.EVALUATION_SAMPLES],
    "0008": [_EVALUATIONS.c.kl_base, _EVALUATIONS.c.right_counts],
    "0009": [forget_made_up_seeds],
    "0010": [tables.SWEEPS.c.note, tables.SWEEPS.c.tags],
}

HEAD = max(MIGRATIONS)

_CREATE_VERSION = """
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)
"""


def prepare(database: Database, *, create: bool, upgrade: bool) -> list[str]:
    """Create or upgrade a store if necessary and allowed.

    Returns:
        One line for each migration of a store that existed before.

    Raises:
        NoStoreError: it does not exist and `create` is False.
        StoreError: it cannot be opened or written, is not a store, has a newer schema, or has
            an older one and `upgrade` is False.
    """
    location = database.location
    name = location.name
    if location.file is not None:
        _prepare_file(location.file, name, create=create)
    with database.read() as connection:
        if location.file is None:
            check_encoding(connection, name)
        version = read_version(location, connection)
    if version == HEAD:
        return []
    if version is None and not create:
        raise _no_store(name)
    if version is not None and not upgrade:
        raise StoreError(
            f"{name}: its schema ({version}) is older than this advsweep's ({HEAD}); "
            f"run `advsweep db upgrade --store {name}`"
        )
    if version is None and location.file is not None:
        # Despite its timeout, SQLite fails at once if another process is changing the mode too.
        Patience(BUSY_SECONDS).call(lambda: _use_write_ahead_log(database))
    with database.write_alone() as connection:
        # Another process may have done it in the meantime.
        before = read_version(location, connection)
        if before is not None:
            return _migrate(connection, before)
        tables.METADATA.create_all(connection)
        connection.execute(text(_CREATE_VERSION))
        connection.execute(text(f"INSERT INTO alembic_version VALUES ('{HEAD}')"))
        return []


def _no_store(name: str) -> NoStoreError:
    return NoStoreError(
        f"there is no store at {name}; run `advsweep run` first or name one with --store"
    )


def _prepare_file(file: Path, name: str, *, create: bool) -> None:
    """Refuse a file that cannot be a store; create it if that is allowed.

    Args:
        name: how messages call the store.

    Raises:
        NoStoreError: it does not exist or is empty, and `create` is False.
        StoreError: it is a folder, or in none.
    """
    if file.is_dir():
        raise StoreError(f"{name}: expected a file for the store, got a folder")
    # SQLite would create the file.
    if not create and not (os.path.exists(file) and os.path.getsize(file)):
        raise _no_store(name)
    if not file.parent.is_dir():
        raise StoreError(
            f"{name}: the store cannot be made, as {file.parent} is no folder; make it "
            "or name another place with --store"
        )
    if create:
        # Readable by its owner alone; SQLite gives its other files the same mode. If the file
        # exists or cannot be created, SQLite opens it or reports why.
        with suppress(OSError):
            os.close(os.open(file, os.O_CREAT | os.O_EXCL, FILE_MODE))


def read_version(location: Location, connection: Connection) -> str | None:
    """Return the schema version of a store; None for an empty database.

    Raises:
        StoreError: it is another program's database, newer than this advsweep, or has a view in
            place of a table, or triggers, which advsweep never makes.
    """
    names = inspect(connection).get_table_names()
    if not names:
        return None
    if "alembic_version" not in names or "sweep_runs" not in names:
        some = ", ".join(sorted(names)[:3])
        raise StoreError(
            f"{location.name}: expected an advsweep store, got a database with other tables "
            f"({some}); name another with --store"
        )
    versions = connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all()
    version: str = versions[0] if len(versions) == 1 else ""
    expected = ""
    if len(versions) != 1:
        expected = f"one version in its table alembic_version, got {len(versions)}"
    elif version not in MIGRATIONS:
        raise StoreError(
            f"{location.name}: its schema ({version}) is newer than this advsweep's ({HEAD}); "
            "install a newer advsweep"
        )
    elif version == HEAD and (missing := tables.METADATA.tables.keys() - set(names)):
        expected = f"a table {min(missing)}, got none"
    if expected:
        raise StoreError(
            f"{location.name}: expected {expected}: it is a damaged store, or an incomplete copy "
            "of one; take another copy of it"
        )
    if location.file is not None:
        # A trigger would change what commands write.
        query = text("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        if (trigger := connection.execute(query).scalar()) is not None:
            raise StoreError(
                f"{location.name}: expected a store without triggers, got the trigger "
                f"{printable_line(str(trigger))}; remove it, or name another store with --store"
            )
    return version


def _use_write_ahead_log(database: Database) -> None:
    # The file stores the mode, which cannot be changed within a transaction.
    with translated(database.location), closing(database.writer.raw_connection()) as connection:
        connection.cursor().execute("PRAGMA journal_mode = WAL")


def _migrate(connection: Connection, version: str) -> list[str]:
    """Add and change what versions after the given one did; return one line for each."""
    changes = []
    for later, added in sorted(MIGRATIONS.items()):
        if later <= version:
            continue
        done = [_apply(connection, item) for item in added]
        changes.append(f"{later}: {', '.join(done)}")
    connection.execute(text(f"UPDATE alembic_version SET version_num = '{HEAD}'"))
    return changes


def _apply(connection: Connection, item: Column[object] | Table | Index | Change) -> str:
    """Make one change of a migration, and return it in words."""
    if isinstance(item, Column):
        kind = item.type.compile(connection.dialect)
        connection.execute(text(f'ALTER TABLE {item.table.name} ADD COLUMN "{item.name}" {kind}'))
        return str(item)
    if isinstance(item, (Table, Index)):
        item.create(connection)
        return str(item.name)
    return item(connection)
