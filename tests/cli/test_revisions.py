"""Runs of two revisions of a component in one store: what `ls`, `report`, `plan`, `sweep` say."""

from __future__ import annotations

import json
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
def raised(before, monkeypatch) -> Command:
    """Likewise, once `rloo` has risen to revision 2."""
    monkeypatch.setattr(ESTIMATORS.get("rloo"), "revision", 2)
    return before


@pytest.fixture
def after(command, folders, monkeypatch, tmp_path) -> Command:
    """`command` beside a copy of runs 1 to 6, of two revisions of `rloo`."""
    shutil.copytree(folders["after"], tmp_path / "after")
    monkeypatch.chdir(tmp_path / "after")
    monkeypatch.setattr(ESTIMATORS.get("rloo"), "revision", 2)
    return command


def test_a_plan_says_which_runs_of_an_older_revision_are_not_reused(raised):
    expected = "2 runs of an older revision of estimator 'rloo' are not reused (runs 3-4)"
    assert expected in raised(*PLAN, *SWEEP)[1]
    [warning] = json.loads(raised(*PLAN, *SWEEP, "--format", "json")[0])["warnings"]
    assert expected in warning
    assert (
        "1 run of an older revision of estimator 'rloo' is not reused (run 4)"
        in (raised(*PLAN, "estimator=rloo", "seed=1", *SMALL)[1])
    )
    # Other seeds and another group size reuse none in any case.
    *others, seeds = SWEEP
    for changed in (["seed=2,3"], [seeds, "group_size=4"]):
        assert "revision" not in raised(*PLAN, *others, *changed)[1], changed


def test_sweep_and_run_warn_before_training_outdated_runs_again(after):
    with open_store(None, create=False) as store:
        assert store.runs.revisions(range(1, 7)) == {i: {} for i in range(1, 5)} | {
            i: {"estimator": 2} for i in (5, 6)
        }
    assert "revision" not in after("sweep", *SWEEP)[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ESTIMATORS.get("rloo"), "revision", 3)
        printed = after("sweep", *SWEEP)[1]
        assert (
            "4 runs of an older revision of estimator 'rloo' are not reused (runs 3-6)" in printed
        )
        patch.setattr(ESTIMATORS.get("rloo"), "revision", 4)
        expected = after("run", "estimator=rloo", "seed=1", *SMALL)[1]
        assert "3 runs of an older revision of estimator 'rloo' are not reused (runs 4, 6, 8)" in (
            expected
        )


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
