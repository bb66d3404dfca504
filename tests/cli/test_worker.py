"""`advsweep worker` as a user has it."""

from __future__ import annotations

import json
import shutil

import pytest

from advsweep.store import open_store


def test_a_worker_with_nothing_to_do_ends(finished):
    done = finished("worker", "two")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "worker: 0 done\n")


def test_a_sweep_that_is_not_there(finished):
    done = finished("worker", "tow")
    assert done.returncode == 2
    assert "no sweep 'tow'" in done.stderr


def test_what_a_worker_cannot_take(finished):
    for arguments, words in (
        (("two", "one"), "expected one sweep, got two, one"),
        (("two", "executor=ray"), "executor=ray: expected a key of resources"),
        (("two", "resources.cpu=2"), "has no parameter 'cpu'"),
        (("two", "executor.address=auto"), "local has no parameter 'address'"),
    ):
        done = finished("worker", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr


@pytest.mark.slow
def test_a_worker_does_what_is_left_in_the_folder_that_is_named(advsweep, fake_folder, tmp_path):
    shutil.copy(fake_folder / "advsweep.db", tmp_path / "advsweep.db")
    with open_store(str(tmp_path / "advsweep.db")) as store:
        again = store.runs.new_attempt(1)
    done = advsweep("worker", "two", "--jobs", "1", "--runs", "elsewhere")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-2:] == [f"run {again} (grpo seed=0) done", "worker: 1 done"]
    run = json.loads(advsweep("show", str(again), "--format", "json").stdout)
    assert (run["status"], run["step"]) == ("done", 12)
    assert list((tmp_path / "elsewhere").glob("grpo-*-2/checkpoints/step-000012"))
    assert not (tmp_path / "advsweep-runs").exists()
