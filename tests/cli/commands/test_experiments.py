"""`advsweep experiments`: the sweep files, ours and the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from advsweep.cli.app import app

MINE = """# @package _global_
# yaml-language-server: $schema=../../schema.json
# Mine: two seeds.
defaults:
  - study/_shared

sweep: {seeds: 2}
"""


@pytest.mark.slow
def test_every_sweep_file_is_listed_with_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "experiment" / "study"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(MINE, encoding="utf-8")
    (folder / "_shared.yaml").write_text("# @package _global_\nsteps: 7\n", encoding="utf-8")
    arguments = ["experiments", "--config-dir", str(tmp_path), "--format", "json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    rows = {row.pop("name"): row for row in json.loads(done.stdout)}
    assert rows["study/mine"] == {
        "task": "countdown",
        "model": "tiny",
        "description": "Mine: two seeds.",
    }
    assert rows["avspo/table1_qwen25_math_1_5b"]["model"] == "Qwen/Qwen2.5-Math-1.5B"
    assert rows["demo"]["description"].startswith("Four estimators")
    assert not any(name.rpartition("/")[2].startswith("_") for name in rows)
