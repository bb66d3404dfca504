"""Runs of two revisions of a component in one store: what `ls`, `report`, `plan`, `sweep` say."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from advsweep.cli import main
from advsweep.estimators import ESTIMATORS
from advsweep.store import open_store

SMALL = ["executor=debug", "backend=fake", "steps=2", "evaluation.n=4", "evaluation.k=[1,2]"]
PLAN = ("sweep", "--dry-run")
SWEEP = ["--name=two", *SMALL, "estimator=grpo,rloo", "seed=0,1"]
Command = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory, cache_directory) -> dict[str, Path]:
    """A store with runs 1 to 4, and the same with runs 5 and 6, of revision 2 of `rloo`."""
    made = {}
    for name in ("before", "after"):
        made[name] = tmp_path_factory.mktemp("revisions") / name
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ADVSWEEP_CACHE", str(cache_directory))
            patch.setattr("sys.argv", ["advsweep", "sweep", *SWEEP])
            if name == "after":
                shutil.copytree(made["before"], made[name])
                patch.setattr(ESTIMATORS.get("rloo"), "revision", 2)
            made[name].mkdir(exist_ok=True)
            patch.chdir(made[name])
            with pytest.raises(SystemExit) as exit_:
                main()
            assert not exit_.value.code
    return made


@pytest.fixture
def command(monkeypatch, capsys, cache_directory) -> Command:
    """`advsweep ARGUMENTS` in this process: stdout and stderr of a success."""
    monkeypatch.setenv("ADVSWEEP_CACHE", str(cache_directory))

    def called(*arguments: str) -> tuple[str, str]:
        monkeypatch.setattr("sys.argv", ["advsweep", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        printed = capsys.readouterr()
        assert not exit_.value.code, printed.err
        return printed.out, printed.err

    return called


@pytest.fixture
def before(command, folders, monkeypatch) -> Command:
    """`command` beside runs 1 to 4 of revision 1."""
    monkeypatch.chdir(folders["before"])
    return command


@pytest.fixture
def after(command, folders, monkeypatch, tmp_path) -> Command:
    """`command` beside a copy of runs 1 to 6, of two revisions of `rloo`."""
    shutil.copytree(folders["after"], tmp_path / "after")
    monkeypatch.chdir(tmp_path / "after")
    monkeypatch.setattr(ESTIMATORS.get("rloo"), "revision", 2)
    return command


def test_a_listing_says_which_runs_are_of_which_revision(after):
    for arguments in (("ls",), ("ls", "two"), ("ls", "--format", "json")):
        [expected] = after(*arguments)[1].splitlines()
        assert "estimator 'rloo' has several revisions" in expected
        assert "revision 1 in runs 3-4, revision 2 in runs 5-6" in expected
    assert "revision" not in after("ls", "--limit", "2")[1]


def test_a_report_says_so_and_how_to_leave_the_older_out(after):
    [note] = [line for line in after("report", "two")[0].splitlines() if "has several" in line]
    assert "revision 1 in runs 3-4, revision 2 in runs 5-6" in note
    assert "has several revisions" in after("report", "two", "--pool", "--rows", "estimator")[0]
    condition = note.partition("--where '")[2].partition("'")[0]
    chosen = after("report", "two", "--where", condition, "--format", "json")[0]
    assert "revisions" not in chosen
    with open_store(None, create=False) as store:
        hashes = {run.id: run.config_hash[:8] for run in store.runs.select()}
    assert condition == f"config_hash!={hashes[3]}"
    assert hashes[3] == hashes[4] != hashes[5]
