"""`advsweep judge` on the command line: checks, a dry run, and what is refused."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def idea(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("idea")
    monkeypatch.setenv("ADVSWEEP_CACHE", str(folder / "cache"))
    path = folder / "idea.py"
    path.write_text(
        "def advantages(rewards, scale=1.0):\n"
        "    return scale * (rewards - rewards.mean(dim=1, keepdim=True))\n"
    )
    return path


def test_checks_print_sentences_within_80_columns(idea, succeeds):
    printed, _ = succeeds("judge", str(idea), "estimator.scale=0.5", "--checks")
    assert "idea (idea.py:1, advantages): it can be used" in printed
    assert "this is dr_grpo times 1/2" in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 80


def test_a_dry_run_says_what_a_judge_takes(idea, succeeds):
    printed, _ = succeeds("judge", str(idea), "--dry-run", "--jobs", "2", "--format", "json")
    record = json.loads(printed)
    # Five rates on two bases; twelve seeds of the idea, of RLOO and of its A/A.
    assert record["plan"]["runs"] == 10 + 3 * 12
    assert record["plan"]["sweep"] == "judge-idea-middle"
    assert record["plan"]["store"].startswith(str(idea.parent / "cache"))
    assert record["verdict"] is None
    text, _ = succeeds("judge", str(idea), "--dry-run", "--jobs", "2")
    # Nothing was measured here.
    assert text.rstrip().endswith("if this machine is as fast as the leaderboard's, and idle")


def test_rloo_by_another_name_needs_no_training(idea, succeeds):
    idea.write_text(
        "def advantages(rewards):\n"
        "    others = (rewards.sum(1, True) - rewards) / (rewards.shape[1] - 1)\n"
        "    return rewards - others\n"
    )
    printed, _ = succeeds("judge", str(idea))
    assert "idea: rloo by construction" in printed


def test_what_cannot_be_judged_is_one_line(idea, refused):
    refused(
        ["ready: expected KEY=VALUE or a sweep file behind the estimator"],
        "judge",
        str(idea),
        "ready",
    )
    idea.write_text("def advantages(rewards):\n    return rewards / rewards.sum(1, True)\n")
    refused(["idea.py:1: advantages: expected finite advantages"], "judge", str(idea))
    refused(["no estimator is called 'ida'"], "judge", "ida")
    refused(["expected both or none"], "judge", "psr", "--data", "problems.jsonl")
    data = ("--data", "problems.jsonl", "--model", "model")
    refused(
        ["--data: expected no sweep file beside it, got own.yaml"],
        "judge",
        "psr",
        "own.yaml",
        *data,
    )
    refused(["expected one sweep file, got a.yaml, b.yaml"], "judge", "psr", "a.yaml", "b.yaml")
