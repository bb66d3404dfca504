"""The kinds of claims, each with numbers that can be checked on paper."""

from __future__ import annotations

import math

import pytest

from advsweep.errors import ConfigError
from advsweep.report.claims.assertions import ClaimVerdict
from advsweep.report.claims.lists import evaluate_claims, parse_claim_list
from advsweep.statistics import compare_paired, regress
from advsweep.store import Status

REWARD = "reward/mean"
HOLDS, CONTRADICTED = ClaimVerdict.HOLDS, ClaimVerdict.CONTRADICTED
TREND = {"of": "a", "over": "b", "direction": "falls"}
CANNOT_TELL, NOT_JUDGED = ClaimVerdict.CANNOT_TELL, ClaimVerdict.NOT_JUDGED


@pytest.fixture
def rewards(lab, constant):
    """Adds runs of estimators with these rewards, one for each seed."""

    def add(values, sweep="main", **config):
        for estimator, own in values.items():
            for seed, reward in enumerate(own):
                points = constant(reward__mean=reward)
                lab.run(estimator, seed, points=points, sweep=sweep, **config)
        return lab

    return add


def _evaluate(lab, *claims, **common):
    entries = [{"id": str(i), "says": "so", **claim} for i, claim in enumerate(claims)]
    common = {"sweep": "main", **common}
    return evaluate_claims(
        lab.store, parse_claim_list({"common": common, "claims": entries})
    ).results


def _one(lab, claim, **common):
    [result] = _evaluate(lab, claim, **common)
    return result


def _compared(direction, **more):
    return {"metric": REWARD, "of": "b", "than": "a", "direction": direction, **more}


def test_a_relative_change_by_hand(rewards):
    """b is a times 1.5, 1.4 and 1.6: the mean of b - 1.3 a is .09, with s = .0436."""
    lab = rewards({"a": (0.4, 0.5, 0.45), "b": (0.6, 0.7, 0.72)})
    result = _one(lab, _compared("higher", by="30%"))
    b_a = compare_paired([0.6 - 0.52, 0.7 - 0.65, 0.72 - 0.585], [0, 0, 0])
    assert (result.verdict, result.n) == (CANNOT_TELL, 3)
    assert result.p_value == pytest.approx(b_a.p_value)
    # 2.02 / 1.35 - 1; the interval holds the share for which that test finds no difference.
    assert result.difference == pytest.approx(2.02 / 1.35 - 1)
    assert result.low < 0.3 < result.difference < result.high
    for end in (result.low, result.high):
        own = [b - (1 + end) * a for a, b in ((0.4, 0.6), (0.5, 0.7), (0.45, 0.72))]
        assert compare_paired(own, [0, 0, 0]).p_value == pytest.approx(0.05)
    assert "relative change +49.6%" in result.reason


def test_verdicts_on_relative_changes(rewards):
    lab = rewards({"a": (0.4, 0.5, 0.45), "b": (0.6, 0.7, 0.72)})
    claims = [
        _compared("higher", by="10%"),
        _compared("higher", by=1.5),
        _compared("not lower", by="5%"),
        _compared("lower", by="5 %"),
        _compared("within", by="90%"),
        _compared("within", by="5%"),
    ]
    verdicts = [result.verdict for result in _evaluate(lab, *claims)]
    assert verdicts == [HOLDS, CONTRADICTED, HOLDS, CONTRADICTED, HOLDS, CONTRADICTED]


def test_equivalence_is_two_one_sided_tests(rewards):
    """b - a is .06 ± .0248 at 95 %, and ± .0169 at 90 %: t(.95; 2) = 2.920 times .01/√3."""
    lab = rewards({"a": (0.5, 0.6, 0.4), "b": (0.55, 0.66, 0.47)})
    half = 2.919986 * 0.01 / math.sqrt(3)
    margins = 0.06 + half + 1e-4, 0.03, 0.06 + half - 1e-4
    inside, outside, between = (_one(lab, _compared("within", margin=m)) for m in margins)
    assert [r.verdict for r in (inside, outside, between)] == [HOLDS, CONTRADICTED, CANNOT_TELL]
    # One-sided, at the nearer end of the margin: just below and just above 5 %.
    assert inside.p_value < 0.05 < between.p_value < 0.052
    assert inside.difference == pytest.approx(0.06)
    assert "90 % interval [+0.04314, +0.07686] over 3 seeds" in inside.reason
    assert between.more is not None


def test_r2_of_a_trend(rewards):
    """Rewards .2, .4, .5, .7, .8 over five rows at 1 to 5: R² = .9868."""
    for x, reward in zip(range(1, 6), (0.2, 0.4, 0.5, 0.7, 0.8), strict=True):
        lab = rewards({"a": (reward, reward)}, group_size=x)
    trend = {"of": REWARD, "over": "group_size", "direction": "rises", "r2": 0.3}
    holds, open_, falls = _evaluate(
        lab,
        {"trend": trend},
        {"trend": {**trend, "r2": 0.95}},
        {"trend": {**trend, "direction": "falls"}},
    )
    line = regress(range(1, 6), (0.2, 0.4, 0.5, 0.7, 0.8))
    assert line.r_squared.value == pytest.approx(0.15**2 / (0.1 * 0.228) * 100 / 100, abs=1e-3)
    assert [r.verdict for r in (holds, open_, falls)] == [HOLDS, CANNOT_TELL, CONTRADICTED]
    # Fisher's z: artanh √.9868 = 2.508, less artanh √.3 = .6155, times √2.
    z = (math.atanh(math.sqrt(line.r_squared.value)) - math.atanh(math.sqrt(0.3))) * math.sqrt(2)
    assert holds.p_value == pytest.approx(math.erfc(z / math.sqrt(2)))
    assert f"95 % interval [{line.r_squared.low:.3f}, 0.999]" in holds.reason
    assert "R² >= 0.3" in holds.reason


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (_compared("higher"), ClaimVerdict.EQUAL),
        (_compared("lower", margin=0.1), ClaimVerdict.EQUAL),
        (_compared("lower", by="30%"), ClaimVerdict.EQUAL),
        (_compared("not lower"), HOLDS),
        (_compared("within", margin=0.1), HOLDS),
        ({"statement": f"{REWARD}[b] - {REWARD}[a] > 0"}, ClaimVerdict.EQUAL),
        # A number that no seed changes is judged: it says nothing of another row.
        ({"statement": f"{REWARD}[c] > 0.5"}, CONTRADICTED),
    ],
)
def test_identical_runs_are_equal_and_contradict_nothing(rewards, claim, verdict):
    lab = rewards({"a": (0.4, 0.5, 0.45), "b": (0.4, 0.5, 0.45), "c": (0.5, 0.5, 0.5)})
    result = _one(lab, claim)
    assert result.verdict is verdict
    assert math.isnan(result.p_value) or verdict is HOLDS
    if verdict is ClaimVerdict.EQUAL:
        assert result.reason.startswith("equal by construction: ")
        assert "the same numbers for each of 3 seeds" in result.reason


def test_parts_of_a_claim_are_corrected_among_themselves(rewards):
    """b - a is -.06, -.05 and -.07, p = .009; c - a is .1, -.1 and .3, p = .48.

    Holm doubles p of the first of two parts, and makes it .09 of ten.
    """
    lab = rewards({"a": (0.5, 0.6, 0.4), "b": (0.44, 0.55, 0.33), "c": (0.6, 0.5, 0.7)})
    wrong, open_ = f"{REWARD}[b] > {REWARD}[a]", f"{REWARD}[c] > {REWARD}[a]"
    alone, two, ten = _evaluate(
        lab,
        {"statement": wrong},
        {"statement": [wrong, open_]},
        {"statement": [wrong, *(f"{open_} + {i / 1000}" for i in range(9))]},
        sweep="main",
    )
    p_value = compare_paired([-0.06, -0.05, -0.07], [0, 0, 0]).p_value
    assert [alone.verdict, two.verdict] == [CONTRADICTED, CONTRADICTED]
    assert two.p_value == pytest.approx(2 * p_value)
    assert "among 2 parts (Holm)" in two.reason
    # The clearest of the other parts does not contradict either.
    assert ten.verdict is CANNOT_TELL
    both = _one(lab, {"statement": [f"{REWARD}[b] < {REWARD}[a]", f"{REWARD}[c] < {REWARD}[a]"]})
    assert both.verdict is CANNOT_TELL
    # To hold is to hold in each part: no correction, and the largest p.
    held = _one(
        lab, {"statement": [f"{REWARD}[b] < {REWARD}[a]", f"{REWARD}[b] < {REWARD}[a] + 1"]}
    )
    assert held.verdict is HOLDS
    assert held.p_value == pytest.approx(p_value)


def test_a_confounded_claim_has_its_numbers_and_no_verdict(rewards):
    lab = rewards({"a": (0.5, 0.6, 0.4), "b": (0.44, 0.55, 0.33)})
    confounded, other = _evaluate(
        lab, _compared("higher", confounded="step not matched"), _compared("higher")
    )
    assert confounded.verdict is ClaimVerdict.STEP_NOT_MATCHED
    assert confounded.reason.startswith(f"not judged: step not matched: {REWARD}[b] > ")
    assert confounded.difference == pytest.approx(-0.06)
    # It is no test, and does not count among those of the list.
    assert math.isnan(confounded.p_value)
    assert other.p_adjusted == other.p_value
    with pytest.raises(ConfigError, match="confounded: expected 'step not matched', got 'x'"):
        _evaluate(lab, _compared("higher", confounded="x"))


def test_what_is_not_finished_cannot_be_told(rewards, lab):
    rewards({"a": (0.5, 0.6, 0.4)})
    lab.run("b", 0, sweep="main", status=Status.PENDING)
    lab.run("b", 1, sweep="main", status=Status.FAILED)
    lab.store.sweeps.add("empty", {})
    unfinished, nothing, unknown, condition = _evaluate(
        lab,
        _compared("higher"),
        {**_compared("higher"), "sweep": "empty"},
        {**_compared("higher"), "of": "c"},
        {**_compared("higher"), "where": "estimater=a"},
    )
    assert unfinished.verdict is CANNOT_TELL
    assert "no run of [b] is finished (1 pending, 1 failed)" in unfinished.reason
    assert [r.verdict for r in (nothing, unknown, condition)] == [
        *(CANNOT_TELL, NOT_JUDGED, NOT_JUDGED)
    ]


def test_a_cutoff_is_told_with_the_runs_that_do_not_come_to_it(lab):
    for seed in range(2):
        a = lab.run("a", seed, solved=(4, 4), sweep="main")
        lab.evaluate(a, f"a {seed}", 10, (2, 2))
        lab.run("b", seed, solved=(1, 0), sweep="main")
    result = _one(lab, {"statement": "total/steps[a] < 19", "at": "pass@1=0.5"})
    assert "; each run as it was where pass@1 first comes to 0.5, at steps 10" in result.reason
    assert result.reason.endswith("are left out of its numbers: b (seeds 0, 1)")


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (_compared("up"), "direction: expected one of higher, lower, not lower"),
        (_compared("higher", margin=-1), "margin: expected a number >= 0"),
        (
            {"metric": REWARD, "of": "b", "direction": "lower"},
            "a metric needs .* 'than' is missing",
        ),
        ({"trend": {"over": "b", "direction": "falls"}}, "trend: expected a mapping of of, over"),
        ({"trend": {**TREND, "direction": "up"}}, "trend.direction: expected one of rises, falls"),
        ({"trend": {**TREND, "within": {"a": 1}}}, "trend.within: expected a list of keys"),
        ({"trend": {**TREND, "amid": "size"}}, "trend: no key is called 'amid'"),
        (_compared("higher", by="much"), "by: expected a share such as 30%, got 'much'"),
        (_compared("higher", by="30%", margin=1), "by: expected a row under 'than', and no margin"),
        (_compared("within"), "within: expected a margin above 0"),
        ({"trend": {**TREND, "r2": 1}}, "trend.r2: expected"),
    ],
)
def test_kinds_that_cannot_be_read(claim, message):
    with pytest.raises(ConfigError, match=f"^claim x: {message}"):
        parse_claim_list({"claims": [{"id": "x", "says": "so", **claim}]})
