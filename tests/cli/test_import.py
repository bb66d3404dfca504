"""`advsweep import` as a user has it: logs become a report and a page."""

from __future__ import annotations

import json

import pytest


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


@pytest.mark.slow
def test_mistakes_are_one_line(advsweep, tmp_path):
    (tmp_path / "x.csv").write_text("time,reward\n1,2\n")
    for words, expected in (
        (("csvv", "x.csv"), "did you mean 'csv'"),
        (("csv", "y.csv"), "expected a file or a folder of logs, got nothing"),
        (("csv", "x.csv"), "--map COLUMN=step"),
        (("csv", "x.csv", "--map", "x"), "--map: expected THEIRS=OURS"),
        (("csv", "x.csv", "--set", "x"), "'x': expected KEY=VALUE"),
    ):
        done = advsweep("import", *words)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert expected in done.stderr
