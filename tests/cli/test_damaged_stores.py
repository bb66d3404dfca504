"""Values in a store that advsweep never writes end a command with one line that names them."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from advsweep.store import open_store
from advsweep.store.checks import find_damage

# Each has a value of a wrong kind, a document of a wrong kind, or a reference to nothing.
DAMAGED = {
    "UPDATE runs SET heartbeat = 'soon'": ("ls", "runs has 'soon' in the column heartbeat"),
    "UPDATE runs SET created = 9e999": ("show 1", "runs has inf in the column created"),
    "UPDATE runs SET status = 'odd'": ("status", "runs has 'odd' in the column status"),
    "UPDATE runs SET failure = -1": ("report two", "runs has '-1' in the column failure"),
    "UPDATE evaluations SET settings = '[1]'": (
        "report two",
        "evaluations has '[1]' in the column settings",
    ),
    "UPDATE problem_sets SET problems = '{}'": (
        "export two --to csv --table problems",
        "problem_sets has '{}' in the column problems",
    ),
    "DELETE FROM problem_sets": ("report two", "evaluations refers to one of problem_sets"),
}


@pytest.mark.parametrize("statement", DAMAGED)
def test_the_value_is_named(statement, fake_folder, advsweep, tmp_path):
    command, words = DAMAGED[statement]
    file = tmp_path / "advsweep.db"
    shutil.copy(fake_folder / "advsweep.db", file)
    with sqlite3.connect(file) as connection:
        connection.execute(statement)
    connection.close()
    done = advsweep(*command.split())
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"advsweep: the store {file} is damaged: expected what advsweep writes")
    assert words in line


def test_a_sound_store_has_no_damage(fake_folder: Path) -> None:
    with (
        open_store(str(fake_folder / "advsweep.db"), create=False) as store,
        store.database.read() as connection,
    ):
        assert find_damage(connection) is None
