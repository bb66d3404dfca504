"""Opening a store: where it is, what it is, and every way in which that goes wrong."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from advsweep.errors import StoreError
from advsweep.store import NewRun, open_store
from advsweep.store.schema_version import HEAD


def test_a_new_store_has_the_newest_schema(tmp_path):
    store = open_store(str(tmp_path / "a.db"))
    assert store.schema_version() == HEAD
    assert store.upgraded == []
    assert store.runs.select() == []
    with sqlite3.connect(tmp_path / "a.db") as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(HEAD,)]
        assert connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]


def test_the_argument_precedes_the_environment_and_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_store().url == f"sqlite:///{tmp_path}/advsweep.db"
    monkeypatch.setenv("ADVSWEEP_STORE", "other.db")
    assert open_store().url == f"sqlite:///{tmp_path}/other.db"
    assert open_store("third.db").name == "third.db"
    assert open_store(f"sqlite:///{tmp_path}/third.db", create=False).url == (
        open_store("sqlite:///third.db", create=False).url
    )


def test_reading_creates_no_store(tmp_path):
    path = tmp_path / "a.db"
    with pytest.raises(StoreError, match=r"no store at .*a\.db; run `advsweep run` first") as error:
        open_store(str(path), create=False)
    assert "--store" in str(error.value)
    assert not path.exists()
    path.touch()
    with pytest.raises(StoreError, match="no store at"):
        open_store(str(path), create=False)
    assert open_store(str(path)).runs.select() == []


def test_a_new_store_is_readable_by_its_owner_alone_in_any_folder(tmp_path):
    folder = tmp_path / "100 % of it"
    folder.mkdir()
    with open_store(str(folder / "a.db")) as store:
        store.sweeps.add("demo", {})
        files = sorted(folder.glob("a.db*"))
        assert [file.name for file in files] == ["a.db", "a.db-shm", "a.db-wal"]
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("line\n" * 2000)
    for create in (True, False):
        with pytest.raises(StoreError, match=r"notes\.txt: expected an advsweep store"):
            open_store(str(path), create=create)
    assert path.read_text() == "line\n" * 2000


@pytest.mark.parametrize("table", ["songs", "alembic_version"])
def test_a_database_of_another_program_is_left_alone(tmp_path, table):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE {table} (version_num TEXT)")
    for upgrade in (False, True):
        with pytest.raises(StoreError, match=rf"other tables \({table}\)"):
            open_store(str(path), upgrade=upgrade)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [(table,)]


def test_a_newer_store_is_refused(tmp_path):
    path = tmp_path / "a.db"
    open_store(str(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    for upgrade in (False, True):
        with pytest.raises(StoreError, match=r"schema \(9999\) is newer .* install a newer"):
            open_store(str(path), upgrade=upgrade)


@pytest.mark.parametrize("rows", [[], [HEAD, HEAD]])
def test_a_store_needs_one_row_in_its_version_table(tmp_path, rows):
    path = tmp_path / "a.db"
    open_store(str(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE alembic_version")
        connection.execute("CREATE TABLE alembic_version (version_num)")
        connection.executemany("INSERT INTO alembic_version VALUES (?)", [(row,) for row in rows])
    for arguments in ({}, {"create": False}, {"upgrade": True}):
        with pytest.raises(
            StoreError, match=rf"one version .* alembic_version, got {len(rows)}: it is a damaged"
        ):
            open_store(str(path), **arguments)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "expected a file"),
        ("sqlite:///:memory:", "expected a file"),
        ("mysql://somebody:secret@host/x", "expected a store as a path"),
        ("nonsense://", "expected a store as a path"),
    ],
)
def test_invalid_urls_are_refused(url, message):
    with pytest.raises(StoreError, match=message) as error:
        open_store(url)
    assert "secret" not in str(error.value)


def test_invalid_places_are_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="is no folder; make it"):
        open_store(str(tmp_path / "missing" / "a.db"))
    with pytest.raises(StoreError, match="is no folder"):
        open_store(str(tmp_path / "file" / "a.db"))
    with pytest.raises(StoreError, match="got a folder"):
        open_store(str(tmp_path))


@pytest.fixture
def powerless() -> Iterator[Path]:
    """A folder of its own, while this process has no rights that permission bits do not give."""
    folder = Path(tempfile.mkdtemp(prefix="advsweep-test-"))
    open_store(str(folder / "warm-up.db")).close()  # imports what its user may not read
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(folder, 65534, -1)
        os.chown(folder / "warm-up.db", 65534, -1)
        os.seteuid(65534)
    yield folder
    folder.chmod(0o700)
    if is_root:
        os.seteuid(0)
    shutil.rmtree(folder)


@pytest.fixture
def archive(powerless: Path, new_run: Callable[..., NewRun]) -> Path:
    """A store with one run in a folder that cannot be written."""
    with open_store(str(powerless / "archive.db")) as store:
        store.runs.add([new_run(seed=1)])
    powerless.chmod(0o500)
    return powerless / "archive.db"


def _seeds(path: Path) -> list[int]:
    with open_store(str(path), create=False) as store:
        return [run.seed for run in store.runs.select(newest_first=False)]


def test_a_store_in_a_read_only_folder_is_readable(archive):
    files = sorted(os.listdir(archive.parent))
    assert _seeds(archive) == [1]
    assert sorted(os.listdir(archive.parent)) == files
    with open_store(str(archive)) as store:
        with pytest.raises(StoreError, match=r"archive\.db: it cannot be opened for writing.*copy"):
            store.sweeps.add("demo", {})
        assert store.sweeps.select() == []


def test_a_write_ahead_log_in_a_read_only_folder_is_read(archive, new_run):
    """What a machine leaves behind that went down in the middle of a sweep."""
    archive.parent.chmod(0o700)
    crashed = archive.parent / "crashed"
    crashed.mkdir()
    with open_store(str(archive)) as writer:
        writer.runs.add([new_run(seed=2)])
        for ending in ("", "-wal", "-shm"):
            os.chmod(shutil.copy(f"{archive}{ending}", crashed), 0o400)
    crashed.chmod(0o500)
    before = {path.name: path.read_bytes() for path in crashed.iterdir()}
    assert _seeds(crashed / "archive.db") == [1, 2]
    assert {path.name: path.read_bytes() for path in crashed.iterdir()} == before
    crashed.chmod(0o700)
    (crashed / "archive.db-shm").unlink()
    crashed.chmod(0o500)
    with pytest.raises(StoreError, match="work on a copy elsewhere"):
        open_store(str(crashed / "archive.db"), create=False)
    crashed.chmod(0o700)


def test_a_store_that_cannot_be_read(powerless):
    (powerless / "warm-up.db").chmod(0o000)
    with pytest.raises(StoreError, match=r"warm-up\.db: it cannot be opened for reading"):
        open_store(str(powerless / "warm-up.db"), create=False)


def test_processes_that_create_the_same_store_at_once(tmp_path, side_by_side):
    def create(name: str) -> None:
        with open_store(str(tmp_path / "a.db")) as own:
            own.sweeps.add(name, {})

    side_by_side([partial(create, f"sweep {i}") for i in range(3)])
    with open_store(str(tmp_path / "a.db")) as store:
        assert len(store.sweeps.select()) == 3


def test_creation_waits_for_another_process_that_prepares_the_same_file(tmp_path):
    with sqlite3.connect(tmp_path / "a.db", isolation_level=None, check_same_thread=False) as other:
        # SQLite does not wait for this lock when it changes the journal mode.
        other.execute("BEGIN IMMEDIATE")
        end = threading.Timer(0.3, other.rollback)
        end.start()
        with open_store(str(tmp_path / "a.db")) as store:
            assert store.schema_version() == HEAD
        end.join()


def test_opening_loads_neither_torch_nor_alembic(tmp_path):
    open_store(str(tmp_path / "a.db")).close()
    program = (
        "import sys; from advsweep.store import open_store; open_store('a.db').runs.select()\n"
        "print([m for m in ('torch', 'alembic', 'pandas', 'scipy', 'hydra') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_gone_is_written_to_no_more(store, store_url, new_run, replaced):
    store.runs.add([new_run(0)])
    file = Path(store_url)
    moved = file.rename(file.with_name("moved.db"))
    if replaced:
        shutil.copyfile(moved, file)
    word = "replaced by another file" if replaced else "deleted or moved away"
    for call in (lambda: store.runs.add([new_run(1)]), store.runs.select):
        with pytest.raises(StoreError, match=f"the store was {word} while it was in use"):
            call()
    # A new connection would have made an empty file.
    assert file.exists() is replaced
    file.unlink(missing_ok=True)
    moved.rename(file)
    assert len(store.runs.select()) == 1


def test_a_link_to_a_store_leads_to_its_folder_of_runs(tmp_path):
    file, link = tmp_path / "real" / "advsweep.db", tmp_path / "link.db"
    file.parent.mkdir()
    link.symlink_to(file)
    with open_store(str(file)) as store, open_store(str(link)) as linked:
        assert linked.runs_directory == store.runs_directory
