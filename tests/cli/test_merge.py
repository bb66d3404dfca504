"""`advsweep merge` as a user has it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from advsweep.store import open_store


@pytest.fixture
def other(fake_folder, tmp_path) -> str:
    """A copy of the finished sweep's store, in another folder than that of the command."""
    there = tmp_path / "there"
    there.mkdir()
    shutil.copy(fake_folder / "advsweep.db", there / "advsweep.db")
    shutil.copytree(fake_folder / "advsweep-runs", there / "advsweep-runs")
    return "there/advsweep.db"


@pytest.mark.slow
def test_a_merged_sweep_makes_the_same_report(advsweep, finished, other, tmp_path):
    open_store(str(tmp_path / "advsweep.db")).close()
    planned = advsweep("merge", other, "--dry-run")
    assert "(nothing was changed)\n  runs: 6 added\n" in planned.stdout
    done = advsweep("merge", other)
    assert done.returncode == 0, done.stderr
    # Runs share the evaluation of their base model.
    assert done.stdout.splitlines()[1:] == [*("  runs: 6 added", "  sweeps added: two")]
    report = ("report", "two", "--format", "csv")
    assert advsweep(*report).stdout == finished(*report).stdout
    shown = advsweep("show", "last", "--format", "json")
    [*_, checkpoint] = json.loads(shown.stdout)["checkpoints"]
    assert Path(checkpoint["path"]).is_relative_to(tmp_path / "advsweep-runs")
    assert Path(checkpoint["path"]).is_dir()


def test_a_runs_folder_that_is_a_link_has_to_be_named(advsweep, other, tmp_path):
    runs = tmp_path / "there" / "advsweep-runs"
    runs.rename(tmp_path / "aside")
    runs.symlink_to(tmp_path / "aside", target_is_directory=True)
    open_store(str(tmp_path / "advsweep.db")).close()
    done = advsweep("merge", other)
    assert (done.returncode, done.stdout) == (2, "")
    assert "got a symbolic link; if you created it, pass --other-runs" in done.stderr
    assert not (tmp_path / "advsweep-runs").exists()
    assert advsweep("merge", other, "--other-runs", "aside").returncode == 0


def test_malformed_data_is_refused_in_one_line(advsweep, other, tmp_path):
    connection = sqlite3.connect(tmp_path / other)
    with connection:
        connection.execute("UPDATE sweeps SET name = char(27) || ']52;c;x'")
    connection.close()
    done = advsweep("merge", other)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line == (
        f"advsweep: {other} cannot be merged: sweeps 1: name: expected a short line, got "
        "'\\x1b]52;c;x'; it is damaged, or another program wrote it: take another copy of it"
    )
    with open_store(str(tmp_path / "advsweep.db")) as store:
        assert store.runs.select() == []
