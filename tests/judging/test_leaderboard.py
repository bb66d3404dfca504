"""The leaderboard's results that ship with advsweep are those of the study."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import yaml

from advsweep.judging.leaderboard import OUTCOMES, RANGES, baseline_rate, read_leaderboard

ROOT = Path(__file__).parents[2]


def test_the_table_is_that_of_the_study():
    path = ROOT / "tools" / "leaderboard_table.py"
    spec = importlib.util.spec_from_file_location("leaderboard_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TABLE.read_text("utf-8") == module.table(), "run tools/leaderboard_table.py"


def test_every_range_has_all_arms_with_all_outcomes():
    for difficulty in RANGES:
        arms = {arm.name: arm for arm in read_leaderboard(difficulty)}
        assert len(arms) == 16
        assert arms["rloo"].differences == {}
        assert arms["rloo"].rate == baseline_rate(difficulty)
        for name, arm in arms.items():
            assert name == "rloo" or arm.differences.keys() == OUTCOMES.keys()
            for each in arm.differences.values():
                assert each.low < each.difference < each.high


def test_ideas_are_judged_in_the_setting_of_the_leaderboard():
    """What differs is which seeds there are, and which arms."""
    folder = ROOT / "conf" / "experiment"
    listed = yaml.safe_load((folder / "leaderboard/_common.yaml").read_text("utf-8"))
    judged = yaml.safe_load((folder / "judge/_common.yaml").read_text("utf-8"))
    for node in (listed, judged):
        node["tune"] = node.pop("sweep")["tune"]
    assert judged == listed
    for difficulty in RANGES:
        one = yaml.safe_load((folder / f"leaderboard/{difficulty}.yaml").read_text("utf-8"))
        other = yaml.safe_load((folder / f"judge/{difficulty}.yaml").read_text("utf-8"))
        assert other["task"] == one["task"]
        assert other["defaults"] == ["_study", "judge/_common", "_self_"]
