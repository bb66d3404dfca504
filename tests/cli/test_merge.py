"""`advsweep merge` as a user has it."""

from __future__ import annotations

import shutil

import pytest

from advsweep.store import open_store


@pytest.fixture
def other(fake_folder, tmp_path) -> str:
    """A copy of the finished sweep's store, in another folder than that of the command."""
    there = tmp_path / "there"
    there.mkdir()
    shutil.copy(fake_folder / "advsweep.db", there / "advsweep.db")
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
    assert not (tmp_path / "advsweep-runs").exists()
