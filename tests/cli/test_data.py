"""`advsweep import`, `export` and `merge`, as a user has them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from advsweep.store import open_store

PAGE = Path(__file__).parents[2] / "docs" / "tracking.md"


@pytest.fixture
def two(fake_folder, tmp_path, monkeypatch):
    """The finished sweep, in the test's folder."""
    shutil.copytree(fake_folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(two, called):
    """`call(*ARGUMENTS)` in the folder of the test: exit code, stdout, stderr."""
    return called


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
        (["two", "--to", "wandb", "--set", "mode=of"], ["tracking.mode", "online, offline"]),
        (["two", "--to", "wandb", "--set", "project"], ["'project': expected KEY=VALUE"]),
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


def _jsonl(folder):
    for estimator, gain in (("grpo", 0.0), ("rloo", 0.25)):
        for seed in range(2):
            file = folder / f"{estimator}-s{seed}.jsonl"
            rows = [{"step": i, "reward": i / 100 + gain + seed / 50} for i in range(1, 11)]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 11, "re')


@pytest.mark.slow
def test_the_block_says_what_was_taken_renamed_and_left(advsweep, tmp_path):
    (tmp_path / "logs").mkdir()
    _jsonl(tmp_path / "logs")
    words = ("import", "jsonl", "logs", "--name-pattern", "{estimator}-s{seed}", "--sweep", "x")
    planned = advsweep(*words, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.startswith("would take 4 runs (4 new), 40 steps (40 new), 1 metric\n")
    done = advsweep(*words)
    assert done.stdout.splitlines() == [
        "took       4 runs (4 new), 40 steps (40 new), 1 metric",
        "renamed    reward -> reward/mean",
        "kept       nothing",
        "left out   incomplete lines (4)",
    ]
    again = json.loads(advsweep(*words, "--format", "json").stdout)
    assert {run["action"] for run in again["runs"]} == {"unchanged"}
    rows = json.loads(advsweep("report", "x", "--format", "json").stdout)["rows"]
    assert [row["group"]["estimator"] for row in rows] == ["grpo", "rloo"]
    assert "reward/mean" in advsweep("report", "x", "--format", "html").stdout


def test_a_run_of_dumps_is_imported_and_shown(called, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    line = {"content": [said], "rewards": [1.0], "idx": 0}
    own = {"token_ids": [[1, 2]], "token_loss_mask": [[0, 1]], "advantages": [[0.0, 0.0]]}
    folder = tmp_path / "exp"
    folder.mkdir()
    (folder / "train_data_step1.jsonl").write_text(json.dumps({**line, **own}))
    (folder / "val_data_step1.jsonl").write_text(json.dumps(line))
    code, out, err = called("import", "rollouts", "exp")
    assert (code, err) == (0, "")
    assert re.match(
        r"took       1 run \(1 new\), 1 step \(1 new\), \d\d metrics, 1 evaluation\n", out
    )
    code, out, err = called("show", "last")
    assert (code, err) == (0, "\n`advsweep show 1 --full` has every key, metric and evaluation.\n")
    assert "evaluation after step 1: imported, n=1, 1 problem, sampled by imported" in out


@pytest.mark.slow
def test_mistakes_are_one_line(advsweep, tmp_path):
    (tmp_path / "x.csv").write_text("time,reward\n1,2\n2,3\n")
    for words, expected in (
        (("csvv", "x.csv"), "did you mean 'csv'"),
        (("csv", "y.csv"), "expected a file or a folder of logs, got nothing"),
        (("csv", "x.csv"), "=step if it is the step"),
        (("csv", "x.csv", "--map", "x"), "--map: expected THEIRS=OURS"),
        (("csv", "x.csv", "--set", "x"), "'x': expected KEY=VALUE"),
    ):
        done = advsweep("import", *words)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert expected in done.stderr


@pytest.fixture
def other(fake_folder, tmp_path):
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
