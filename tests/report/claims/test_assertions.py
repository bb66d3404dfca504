"""Assertions about the data of a report."""

from __future__ import annotations

import pytest

from advsweep.errors import ConfigError, NotFoundError
from advsweep.report.claims.assertions import ClaimVerdict, evaluate_assertion, parse_assertion
from advsweep.report.tables.build import build_report
from advsweep.report.tables.request import ReportRequest


def _evaluate(lab, text, **options):
    assertion = parse_assertion(text)
    report = build_report(
        lab.store, ReportRequest(None, columns=assertion.columns, baseline="none", **options)
    )
    return evaluate_assertion(report, assertion)


@pytest.fixture
def lab(lab, constant):
    """Rewards of three seeds: b is above a by 0.05, 0.06 and 0.07, c by 0.1, -0.1 and 0.3."""
    values = {"a": (0.5, 0.6, 0.4), "b": (0.55, 0.66, 0.47), "c": (0.6, 0.5, 0.7)}
    for estimator, rewards in values.items():
        for seed, reward in enumerate(rewards):
            lab.run(estimator, seed, points=constant(reward__mean=reward), sweep=None)
    lab.run("one", 0, points=constant(reward__mean=0.9), sweep=None)
    for seed in (7, 8, 9):
        reward = 0.8 + seed / 1000
        lab.run("late", seed, points=constant(reward__mean=reward), sweep=None)
    return lab


VERDICTS = {
    # b - a is 0.06 ± 0.0248, t(0.975; 2) s / √3 with s = 0.01.
    "reward/mean[b] >= reward/mean[a]": ClaimVerdict.HOLDS,
    "reward/mean[b] > reward/mean[a] + 0.03": ClaimVerdict.HOLDS,
    "reward/mean[b] >= reward/mean[a] + 0.04": ClaimVerdict.CANNOT_TELL,
    "reward/mean[b] >= reward/mean[a] + 0.08": ClaimVerdict.CANNOT_TELL,
    "reward/mean[b] >= reward/mean[a] + 0.09": ClaimVerdict.CONTRADICTED,
    "reward/mean[a] <= reward/mean[b] - 0.1": ClaimVerdict.CONTRADICTED,
    "-reward/mean[b] + reward/mean[a] < 0.01 - 0.02": ClaimVerdict.HOLDS,
    "reward/mean[c] >= reward/mean[a]": ClaimVerdict.CANNOT_TELL,
    # 2 b - a is 0.6, 0.72 and 0.54: 0.62 ± 0.23.
    "2*reward/mean[b] - reward/mean[a] > 0.38": ClaimVerdict.HOLDS,
    "2 * reward/mean[b] - reward/mean[a] > 0.4": ClaimVerdict.CANNOT_TELL,
    # No seed has rewards above 0.9, so that the share is 0; its > compares no sides.
    "reward/mean@share>0.9[b] < 0.1": ClaimVerdict.HOLDS,
    # A column in the place of a row's name, and keys.
    "pass@1[level=0][estimator=b] >= 0.5": ClaimVerdict.HOLDS,
    # The base model has 1 of 4 and 0 of 4; the runs 2 of 4 and 0 of 4.
    "pass@1[b] > pass@1[base]": ClaimVerdict.HOLDS,
    "pass@1[base] > 0.1": ClaimVerdict.CANNOT_TELL,
    # All seeds have 0.25, so nothing is left open.
    "pass@1[b] > 0.25": ClaimVerdict.CONTRADICTED,
    "reward/mean[one] > 0.1": ClaimVerdict.CANNOT_TELL,
    # No seed in common.
    "reward/mean[late] > reward/mean[b] + 0.05": ClaimVerdict.CANNOT_TELL,
    "reward/mean[late] > reward/mean[b] - 0.5": ClaimVerdict.HOLDS,
    "reward/mean[late] > reward/mean[b] + reward/mean[a]": ClaimVerdict.CANNOT_TELL,
}


def test_verdicts(lab):
    assert {text: _evaluate(lab, text).verdict for text in VERDICTS} == VERDICTS


def test_the_sentence_has_the_numbers(lab):
    assert _evaluate(lab, "reward/mean[b] >= reward/mean[a]").text == (
        "holds: reward/mean[b] >= reward/mean[a]: left side - right side = +0.0600, 95 % interval "
        "[+0.0352, +0.0848] over 3 seeds (reward/mean[b] = 0.560, reward/mean[a] = 0.500)"
    )
    text = _evaluate(lab, "reward/mean[c] >= reward/mean[a]").text
    # 0.1 with s = 0.2: 34 seeds by the noncentral t distribution.
    assert text.endswith(
        "; the interval includes 0; 34 seeds would give 80 % power at the observed effect"
    )
    assert "of each, unpaired" in _evaluate(lab, "reward/mean[late] > reward/mean[b] - 0.5").text
    assert "that takes two seeds or more that" in _evaluate(lab, "reward/mean[one] > 0").text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected one of >=, >, <= and < between two sides"),
        ("1 > 2", r"expected COLUMN\[ROW\] on a side"),
        ("pass@1 > 0", "got 'pass@1' in"),
        ("pass@1[a]*2 > 1", r"got 'pass@1\[a\]\*2' in"),
        ("1.2.3 > pass@1[a]", "got '1.2.3' in"),
    ],
)
def test_invalid_assertions_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_assertion(text)


def test_unknown_rows_and_columns_are_refused(lab):
    with pytest.raises(NotFoundError, match="no row is called 'lat'; did you mean 'late'"):
        _evaluate(lab, "reward/mean[lat] > 0")
    with pytest.raises(NotFoundError, match="a metric 'reward/men'; did you mean"):
        _evaluate(lab, "reward/men[b] > 0")


def test_an_ambiguous_row_is_refused(lab, constant):
    for seed in range(2):
        points = constant(reward__mean=0.1)
        lab.run("a", seed, points=points, sweep=None, group_size=4)
    with pytest.raises(ConfigError) as error:
        _evaluate(lab, "reward/mean[a] > 0")
    assert str(error.value) == (
        "--assert: [a] could be [estimator=a group_size=8] and [estimator=a group_size=4]; give "
        "more of its keys"
    )
    assert (
        _evaluate(lab, "reward/mean[estimator=a group_size=4] < 0.2").verdict is ClaimVerdict.HOLDS
    )


def test_equal_values_for_every_seed_are_noted(lab, constant):
    for estimator, reward in (("d", 0.8), ("e", 0.7)):
        for seed in range(3):
            points = constant(reward__mean=reward, cost__rollouts=reward)
            lab.run(estimator, seed, points=points, sweep=None)
    found = _evaluate(lab, "reward/mean[d] > reward/mean[e]")
    assert found.text.endswith(
        "is the same for every seed, so that this is no interval: do seeds differ?"
    )
    assert "every seed" not in _evaluate(lab, "reward/mean[b] > reward/mean[e]").text
    # Seeds do not change costs.
    assert "every seed" not in _evaluate(lab, "cost/rollouts[d] > cost/rollouts[e]").text


def test_a_base_of_each_seed_is_paired_with_its_runs(lab):
    """Bases solve 1, 2 and 3 of 8 samples, and each run 1 of 8 more than its own base."""
    for seed in range(3):
        own = {"base": f"base:{seed}", "base_solved": (1 + seed, 0)}
        lab.run("paired", seed, solved=(2 + seed, 0), sweep="own", **own)
    assertion = parse_assertion("pass@1[paired] > pass@1[base]")
    report = build_report(
        lab.store, ReportRequest("own", columns=assertion.columns, baseline="none")
    )
    result = evaluate_assertion(report, assertion)
    assert result.verdict is ClaimVerdict.HOLDS
    # Unpaired, a spread of 1/8 in both would hide it.
    assert "unpaired" not in result.reason
    assert (result.n, result.low) == (3, pytest.approx(1 / 8))
    # A base of each seed is a sample like any other, which a shared one is not.
    result = evaluate_assertion(report, parse_assertion("pass@1[base] > 0"))
    assert result.n == 3
