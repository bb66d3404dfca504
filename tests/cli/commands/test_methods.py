"""`advsweep methods`: presets, ours and the user's own, with what they resolve to."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from advsweep.cli.app import app
from advsweep.config.groups import conf_directory

MINE = """# @package _global_
# Mine: a wider clip.
# Of no paper.
defaults:
  - override /estimator: rloo
  - override /objective: clipped
  - override /rollout: plain

objective:
  clip_high: 0.5
"""


@pytest.fixture
def listed() -> Callable[..., str]:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["methods", *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def test_every_preset_is_listed_with_its_axes(listed: Callable[..., str]) -> None:
    found = {row["name"]: row for row in json.loads(listed("--format", "json"))}
    assert set(found) == {path.stem for path in (conf_directory() / "method").glob("*.yaml")}
    assert found["a_grae_on_dr_grpo"] == {
        "name": "a_grae_on_dr_grpo",
        "estimator": {"name": "a_grae", "base": "dr_grpo"},
        "objective": {"name": "clipped", "aggregation": "constant"},
        "rollout": {"name": "plain"},
        "description": "A-GRAE (arXiv:2602.05548) on Dr. GRPO: its advantages, and one constant "
        "for all lengths.",
    }


@pytest.mark.slow
def test_the_table_shows_axes_as_they_are_typed(listed: Callable[..., str]) -> None:
    table = listed().splitlines()
    [gspo] = [line for line in table if line.startswith("gspo ")]
    assert "clipped ratio=sequence kl_coef=0.001" in gspo
    rows = list(csv.DictReader(io.StringIO(listed("--format", "csv"))))
    assert [row["name"] for row in rows] == [line.split()[0] for line in table[1:]]


@pytest.mark.slow
def test_folders_of_ones_own_come_first(listed: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "method").mkdir()
    for name in ("mine", "gspo"):
        (tmp_path / "method" / f"{name}.yaml").write_text(MINE, encoding="utf-8")
    (tmp_path / "method" / "bare.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /estimator: fade\n", encoding="utf-8"
    )
    rows = json.loads(listed("--format", "json", "--config-dir", str(tmp_path)))
    found = {row["name"]: row for row in rows}
    for name in ("mine", "gspo"):
        assert found[name]["estimator"] == {"name": "rloo"}
        assert found[name]["objective"] == {"name": "clipped", "clip_high": 0.5}
        assert found[name]["description"] == "Mine: a wider clip."
    assert (found["bare"]["estimator"]["name"], found["bare"]["description"]) == ("fade", "")
    assert found["grpo"]["estimator"] == {"name": "grpo"}
