"""What shells are offered after TAB."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from advsweep.cli.app import app
from advsweep.config.groups import conf_directory


def offered(words: str) -> str:
    environment = {
        "_ADVSWEEP_COMPLETE": "complete_bash",
        "COMP_WORDS": f"advsweep {words}",
        "COMP_CWORD": str(len(words.split(" "))),
    }
    return CliRunner().invoke(app, [], prog_name="advsweep", env=environment).stdout.strip()


def test_commands_and_options_of_all_commands_are_completed():
    names = set(offered("re").split())
    assert names >= {"retry", "report", "replay"}
    assert all(name.startswith("re") for name in names)
    assert offered("--deb") == "--debug"
    assert offered("--debug stat") == "status"
    assert offered("--debug report --asse") == "--assert"
    assert offered("describe power_a") == "power_alpha"


@pytest.mark.parametrize(
    ("words", "values"),
    [
        # As bash hands them over, for which `=` is a word of its own.
        ("run +experiment = two_stage/table1", "two_stage/table1"),
        ("run seed = 1 method =", "METHODS"),
        ("sweep seed = 1 estimator = grpo,power_a", "grpo,power_alpha"),
        # As other shells do.
        ("sweep +experiment=two_stage/table1", "+experiment=two_stage/table1"),
        ("sweep estimator=grpo,power_a", "estimator=grpo,power_alpha"),
        ("run optimizer.lr = 1", ""),
        ("run --config-dir /none estimator = power_a", ""),
        ("run est", ""),
        ("sweep +experiment=aapo/_", ""),  # files that others include
    ],
)
def test_members_of_groups_are_completed(words, values):
    methods = "\n".join(sorted(p.stem for p in (conf_directory() / "method").glob("*.yaml")))
    assert offered(words) == values.replace("METHODS", methods)


def test_runs_are_the_newest_ones_whose_id_begins_so(finished, monkeypatch):
    def ids(words):
        environment = {"_ADVSWEEP_COMPLETE": "complete_bash", "COMP_WORDS": f"advsweep {words}"}
        return finished(**environment, COMP_CWORD=str(len(words.split(" ")))).stdout.split()

    assert ids("show ") == ["6", "5", "4", "3", "2", "1"]
    assert ids("show 4") == ids("export 4") == ["4"]
    assert ids("export t") == ["two"]
    monkeypatch.setattr("advsweep.cli.completion.OFFERED", 2)  # the fork takes it over
    assert ids("show ") == ["6", "5"]
    assert ids("export ") == ["two", "6", "5"]


@pytest.mark.parametrize(
    "words", ["status --store notes.txt ", "show ", "run --config-dir none task="]
)
def test_errors_are_no_part_of_the_line_that_is_typed(advsweep, tmp_path, words):
    (tmp_path / "notes.txt").write_text("no store\n" * 200)
    environment = {"_ADVSWEEP_COMPLETE": "complete_bash", "COMP_WORDS": f"advsweep {words}"}
    done = advsweep(**environment, COMP_CWORD=str(len(words.split(" "))))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_sweep_files_are_completed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("sweep.yaml", "other.yml", "notes.txt", "x;reboot.yaml"):
        (tmp_path / name).write_text("steps: 1")
    assert offered("sweep swe") == "sweep.yaml"
    assert offered("sweep ") == "other.yml\nsweep.yaml"
    assert offered("sweep x") == ""  # the shell would run it
    assert offered("sweep sweep.yaml oth") == ""  # a second file is refused
    assert offered("sweep seed = 1 swe") == "sweep.yaml"
    (tmp_path / ".hidden.yaml").write_text("steps: 1")
    assert ".hidden.yaml" not in offered("sweep ")
