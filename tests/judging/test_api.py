"""`advsweep.judge` in Python."""

from __future__ import annotations

import pytest

import advsweep
from advsweep.errors import AdvsweepError
from advsweep.judging.api import JudgedEstimator


def halved(rewards):
    return (rewards - rewards.mean(-1, keepdim=True)) / 2


def test_checks_of_a_function_as_frames():
    found = advsweep.judge(halved, checks=True)
    assert isinstance(found, JudgedEstimator)
    assert found.verdict is None
    assert found.sentences == []
    assert list(found.checks["name"])[:2] == ["shape and numbers", "equal rewards"]
    dr_grpo = found.relatives.set_index("name").loc["dr_grpo"]
    assert dr_grpo["factor"] == pytest.approx(1 / 2)
    # m_S = p (1 - p)/2 · 7/8 at G = 8: .5 · .5 / 2 · 7/8 = .109.
    assert found.masses.set_index("rate").loc[0.5, "success"] == pytest.approx(0.109375)
    assert found.report is None
    assert "halved" in repr(found)
    assert "1/2 added to every reward changes nothing" in str(found)


def test_rloo_is_judged_at_once():
    found = advsweep.judge("rloo", progress=False)
    assert found.verdict == "the same"
    assert found.plain()["verdict"]["kind"] == "the same"
    assert found.outcomes.empty
    assert found.sweep is None


def test_what_is_no_range_is_refused():
    with pytest.raises(AdvsweepError, match="range: expected one of easy, middle, hard"):
        advsweep.judge("psr", range="medium")


def test_a_sweep_file_is_the_setting(tmp_path):
    path = tmp_path / "arms.yaml"
    path.write_text(
        "task: {name: bandit, seed: seed}\n"
        "sweep: {common: {backend: bandit}, seeds: [0, 1, 2, 3, 4, 5], "
        "blocks: [{estimator: [rloo]}]}\n"
    )
    found = advsweep.judge("psr", path, "steps=30", checks=True)
    assert found.plain()["setting"]["name"] == "arms"
    with pytest.raises(AdvsweepError, match="ready: expected KEY=VALUE or a sweep file"):
        advsweep.judge("psr", "ready", checks=True)
