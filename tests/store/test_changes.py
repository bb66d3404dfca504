"""The mark of a store's contents."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from advsweep.errors import StoreError
from advsweep.store import open_store


def test_a_mark_differs_after_every_write_and_after_no_reading(tmp_path):
    file = str(tmp_path / "advsweep.db")
    with open_store(file) as watching, open_store(file) as other:
        seen = [watching.changes.mark()]
        for write in (
            lambda: other.sweeps.add("demo", {}),
            lambda: watching.sweeps.set_note("demo", "mine"),
            lambda: other.sweeps.set_note("demo", "theirs"),
        ):
            write()
            seen.append(watching.changes.mark())
            watching.sweeps.select()
            other.runs.count()
            assert watching.changes.mark() == seen[-1]
        assert len(set(seen)) == 4


def test_the_mark_holds_no_transaction_open(tmp_path):
    file = str(tmp_path / "advsweep.db")
    with open_store(file) as watching, open_store(file) as other:
        watching.changes.mark()
        other.sweeps.add("demo", {})
        with closing(sqlite3.connect(file)) as connection:
            [busy, *_] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert busy == 0


def test_a_store_that_vanished_has_no_mark(tmp_path):
    file = tmp_path / "advsweep.db"
    with open_store(str(file)) as store:
        store.changes.mark()
        file.rename(tmp_path / "away.db")
        with pytest.raises(StoreError, match="deleted or moved away"):
            store.changes.mark()


@pytest.mark.slow
def test_the_mark_of_a_server(postgres_url):
    with open_store(postgres_url) as watching, open_store(postgres_url) as other:
        first = watching.changes.mark()
        other.sweeps.add("demo", {})
        second = watching.changes.mark()
        other.sweeps.set_note("demo", "mine")
        assert len({first, second, watching.changes.mark()}) == 3
