"""Findings of a report: what each difference says, and the sentence of a row."""

from __future__ import annotations

import pytest

from advsweep.report import build_report
from advsweep.report.claims.judge_differences import find_differences, judge_differences
from advsweep.report.tables.comparison import name_group

SEEDS = range(5)


@pytest.fixture
def report(lab, constant):
    """A baseline, and four rows whose ACR, entropy and reward differ from it."""
    noise = [0.0, 0.01, 0.02, 0.01, 0.0]
    rows = {
        "grpo": (0.5, 1.0, 0.4),
        "fade": (0.3, 1.5, 0.4),
        "rloo": (0.7, 0.5, 0.4),
        "avspo": (0.5, 1.0, 0.4),
    }
    for name, (acr, entropy, reward) in rows.items():
        for seed in SEEDS:
            # Opposite signs: the seeds' differences spread without moving the mean far.
            own = noise[seed] * (1 if name == "grpo" else -1) + (seed % 2) * 0.01
            points = constant(
                collapse__acr=acr + own, entropy__token=entropy + own, reward__mean=reward
            )
            lab.run(name, seed, points=points, solved=None)
    columns = ["collapse/acr", "entropy/token", "reward/mean"]
    return build_report(lab.store, "demo", columns=columns, baseline="grpo")


def test_outcomes_follow_the_better_direction_and_the_interval(report):
    found = {
        (name_group(report.rows[one.difference.row].group), one.column.name): one.outcome
        for one in judge_differences(report)
    }
    # Lower ACR is better; no entropy is better; the reward is the same for every seed.
    assert found["fade", "collapse/acr"] == "better"
    assert found["rloo", "collapse/acr"] == "worse"
    assert found["fade", "entropy/token"] == "higher"
    assert found["rloo", "entropy/token"] == "lower"
    assert found["avspo", "collapse/acr"] == "cannot tell"
    assert {outcome for (_, column), outcome in found.items() if column == "reward/mean"} == {
        "same for every seed"
    }


def test_a_row_has_a_sentence_for_each_family_with_its_numbers(report):
    findings = find_differences(judge_differences(report), report)
    named = {name_group(report.rows[one.row].group): [] for one in findings}
    for one in findings:
        named[name_group(report.rows[one.row].group)].append(one)
    collapse, entropy, reward = named["fade"]
    assert (collapse.outcome, entropy.outcome, reward.outcome) == (
        "better",
        "higher",
        "cannot tell",
    )
    # The mean of fade is 0.2 lower, and that of the noise is 0.008 lower twice.
    assert collapse.text.startswith("better ACR (-0.216 [")
    assert reward.text == "the same difference for every seed: reward/mean (+0.000 no spread)"
    undecided = named["avspo"][0]
    assert undecided.outcome == "cannot tell"
    assert undecided.text.startswith("the data cannot tell for ACR (about ")


def test_a_difference_that_the_correction_withdraws_is_not_settled(lab, constant):
    # p of fade is 0.015 alone, and 0.077 beside four rows that do not differ.
    deltas = [0.05, 0.12, 0.10, 0.06]
    for seed, delta in enumerate(deltas):
        lab.run("grpo", seed, points=constant(collapse__acr=0.5), solved=None)
        lab.run("fade", seed, points=constant(collapse__acr=0.5 - delta), solved=None)
        for size in range(2, 6):
            wave = 0.01 * (-1) ** (seed + size)
            points = constant(collapse__acr=0.5 + wave)
            lab.run("rloo", seed, points=points, solved=None, estimator__c=size)
    report = build_report(lab.store, "demo", columns=["collapse/acr"], baseline="grpo")
    judged = judge_differences(report)
    [fade] = [one for one in judged if report.rows[one.difference.row].group["estimator"] == "fade"]
    assert fade.difference.comparison.p_value < 0.05 < fade.difference.p_adjusted
    assert fade.outcome == "not settled"
    [first, *_] = find_differences(judged, report)
    assert first.text.startswith("not settled after the correction")
    assert f", p adj {fade.difference.p_adjusted:.3f})" in first.text
    assert first.outcome == "cannot tell"


def test_findings_with_a_significant_difference_come_first_and_may_be_mixed(lab, constant):
    wave = [0.0, 0.01, 0.02, 0.01, 0.0]
    means = {"grpo": (0.5, 0.2), "rloo": (0.5, 0.2), "fade": (0.3, 0.4)}
    for name, (acr, wrong) in means.items():
        for seed in SEEDS:
            own = wave[seed] * (1 if name == "grpo" else -1) + (seed % 2) * 0.01
            points = constant(collapse__acr=acr + own, collapse__all_wrong=wrong + own)
            lab.run(name, seed, points=points, solved=None)
    columns = ["collapse/acr", "collapse/all_wrong"]
    report = build_report(lab.store, "demo", columns=columns, baseline="grpo")
    judged = judge_differences(report)
    findings = find_differences(judged, report)
    names = [name_group(report.rows[one.row].group) for one in findings]
    assert (names, [one.outcome for one in findings]) == (
        ["fade", "rloo"],
        ["mixed", "cannot tell"],
    )
    assert findings[0].text.startswith("better ACR (")
    assert "; worse collapse/all_wrong (" in findings[0].text
