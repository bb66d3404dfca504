"""`advsweep export`, as a user has it, and the columns that docs/tracking.md describes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tracking.md"


@pytest.fixture
def two(fake_folder, tmp_path, monkeypatch):
    """The finished sweep, in the test's folder."""
    shutil.copytree(fake_folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(two, monkeypatch, capsys, in_process, tmp_path):
    """`call(*ARGUMENTS)` in the folder of the test: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)  # `in_process` went to the folder that must not change
    return in_process


def test_the_page_describes_every_column(call):
    assert call("export", "two", "tables", "--to", "csv")[0] == 0
    tables = json.loads(Path("tables/tables.json").read_text())["tables"]
    sections = re.split(r"^`(\w+)`: a row per", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    described = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert described.keys() == tables.keys()
    for name, table in tables.items():
        assert len(pd.read_csv(f"tables/{name}.csv")) == table["rows"] > 0
        names = {column["name"] for column in table["columns"]}
        fixed = {n for n in names if not n.startswith(("config.", "summary.", "score."))}
        listed = re.findall(r"^\| (`.*?) \|", described[name], re.MULTILINE)
        words = {word for cell in listed for word in re.findall(r"`([^`]+)`", cell)}
        assert {word for word in words if "." not in word} == fixed


def test_a_tracker_gets_each_run(call):
    for _ in range(2):
        code, out, err = call("export", "two", "out", "--to", "tensorboard")
        assert (code, out, err) == (0, "out\n", "tensorboard: 6 sent\n")
    assert len({path.parent for path in Path("out").glob("*/events.out.*")}) == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["two", "out", "--to", "parket"], ["no format is called 'parket'", "did you mean"]),
        (["two", "out", "--to", "none"], ["no format is called 'none'"]),
        (["twoo", "out", "--to", "csv"], ["twoo"]),
        (["two", "out", "--to", "csv", "--step=3"], ["--step", "--to hf"]),
        (["two", "out", "--to", "csv", "--set", "project=x"], ["--set", "tracker"]),
        (["two", "out", "--to", "wandb", "--set", "projcet=x"], ["did you mean 'project'"]),
        (["two", "out", "--to", "wandb", "--set", "mode=online"], ["--set mode", "omit DIR"]),
        (["two", "out", "--to", "trackio", "--set", "project=a/b"], ["tracking.project"]),
        (["two", "advsweep-runs", "--to", "csv"], ["expected a new or empty folder"]),
        (["two", "--to", "csv"], ["--table", "without DIR"]),
        (["two", "--to", "parquet", "--table", "runs"], ["--table", "--to csv"]),
        (["1"], ["DIR", "weights"]),
        (["two", "--to", "wandbb"], ["no format is called 'wandbb'", "did you mean 'wandb'"]),
        (["two", "--to", "wandb", "--set", "mode=disabled"], ["expected a tracker that sends"]),
        (["two", "--to", "wandb", "--set", "mode=of"], ["tracking.mode", "online, offline"]),
        (["two", "--to", "wandb", "--set", "project"], ["'project': expected KEY=VALUE"]),
        (["two", "--to", "wandb", "--set", "project=a,b"], ["project=a,b: expected KEY=VALUE"]),
    ],
)
def test_mistakes_are_refused(call, arguments, words):
    code, out, err = call("export", *arguments)
    assert (code, out) == (2, "")
    assert all(word in err for word in words), err
    assert not Path("out").exists()


def test_a_folder_with_other_files_is_refused(call, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.tex").write_text("precious")
    for to in ("hf", "tensorboard"):
        code, out, err = call("export", "1", str(folder), "--to", to)
        assert (code, out) == (2, "")
        assert "such as thesis.tex; name another folder" in err
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
    assert call("export", "1", "new", "--to", "tensorboard")[0] == 0
    # The folder of an earlier export is written again.
    assert call("export", "1", "new", "--to", "tensorboard")[0] == 0
