"""`advsweep import` as a user has it: logs of real writers become reports and pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def _jsonl(folder: Path) -> None:
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


@pytest.mark.slow
def test_events_that_torch_wrote_become_a_report_and_a_page(advsweep, tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    for estimator, gain in (("grpo", 0.0), ("rloo", 0.25)):
        for seed in range(3):
            with SummaryWriter(tmp_path / "runs" / f"{estimator}-s{seed}") as writer:
                writer.add_text(
                    "args", json.dumps({"num_generations": 8, "output_dir": f"o{seed}"})
                )
                for step in range(1, 31):
                    writer.add_scalar("train/reward", step / 64 + gain + seed / 128, step)
                    writer.add_scalar("train/frac_reward_zero_std", 0.25, step)
                    writer.add_scalar("train/entropy", 1.5, step)
    words = ("import", "tensorboard", "runs", "--name-pattern", "{estimator}-s{seed}")
    done = advsweep(*words)
    assert done.returncode == 0, done.stderr
    assert "6 runs (6 new), 180 steps (180 new), 3 metrics" in done.stdout
    report = json.loads(advsweep("report", "--format", "json").stdout)
    assert [row["group"] for row in report["rows"]] == [
        {"estimator": "grpo"},
        {"estimator": "rloo"},
    ]
    cells = report["rows"][1]["metrics"]
    # The last ten steps are 21 to 30, on average 25.5, and the seeds 0, 1/128 and 2/128.
    assert cells["reward/mean@end"]["mean"] == pytest.approx(25.5 / 64 + 0.25 + 1 / 128)
    assert cells["collapse/acr@end"]["mean"] == 0.25
    assert cells["entropy/token@end"]["mean"] == 1.5
    page = advsweep("report", "--format", "html")
    assert page.returncode == 0, page.stderr
    assert "<!doctype html>" in page.stdout.lower()
    assert "reward/mean" in page.stdout
    figure = advsweep("plot", "--figure", "curves", "--metric", "reward/mean", "--format", "csv")
    assert figure.returncode == 0, figure.stderr
    assert "rloo" in figure.stdout
