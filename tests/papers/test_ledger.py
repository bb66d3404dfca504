"""The rule of the ledger: verdicts by sign and by size, and matched steps."""

from __future__ import annotations

import math

import ledger
import pandas as pd
import pytest
from ledger import Effect, LedgerVerdict, judge_effect

from advsweep.report.claims.lists import parse_claim_list

NONE = math.nan


def claim(**keys):
    document = {"claims": [{"id": "AV03x", "says": "text", **keys}]}
    return parse_claim_list(document).claims[0]


def record(difference, low, high, *, reason="", verdict="holds", n=40, p_adjusted=0.001):
    numbers = {"difference": difference, "low": low, "high": high, "p_adjusted": p_adjusted}
    return pd.Series({**numbers, "verdict": verdict, "n": n, "reason": reason})


@pytest.mark.parametrize(
    ("low", "high", "printed", "least", "verdict"),
    [
        # Printed .04, so that .02 counts.
        (0.021, 0.03, 0.04, 0.02, LedgerVerdict.IN_SIZE),
        (0.009, 0.016, 0.04, 0.02, LedgerVerdict.IN_SIGN),
        (0.009, 0.05, 0.04, 0.02, LedgerVerdict.IN_SIGN),
        (-0.003, 0.003, 0.04, 0.02, LedgerVerdict.NO_EFFECT),
        # On the other side, by less than what counts: .0016 contradicts nothing.
        (-0.0025, -0.0008, 0.04, 0.02, LedgerVerdict.NO_EFFECT),
        (-0.03, -0.01, 0.04, 0.02, LedgerVerdict.CANNOT_TELL),
        (-0.03, -0.021, 0.04, 0.02, LedgerVerdict.CONTRADICTED),
        (-0.03, 0.01, 0.04, 0.02, LedgerVerdict.CANNOT_TELL),
        # Without a printed size there is none to hold in.
        (0.03, 0.05, NONE, 0.02, LedgerVerdict.IN_SIGN),
        (-0.002, -0.001, NONE, 0.0, LedgerVerdict.CONTRADICTED),
        (-0.001, 0.001, NONE, 0.0, LedgerVerdict.CANNOT_TELL),
    ],
)
def test_an_effect_is_judged_by_its_interval_and_the_smallest_that_counts(
    low, high, printed, least, verdict
):
    effect = Effect((low + high) / 2, low, high, printed, least, is_significant=True)
    assert judge_effect(effect) is verdict


def test_an_effect_that_is_not_significant_has_no_verdict_by_sign():
    for low, high in ((0.03, 0.05), (-0.05, -0.03)):
        effect = Effect(0.0, low, high, 0.04, 0.02, is_significant=False)
        assert judge_effect(effect) is LedgerVerdict.CANNOT_TELL


def test_effects_are_in_the_claimed_direction():
    sizes = ledger.read_sizes()
    lower = claim(statement="pass@1[a] < pass@1[b]")
    found = ledger.measure_effect(
        lower, record(-0.03, -0.05, -0.01, reason="pass@1[a] < pass@1[b]:")
    )
    assert (found.found, found.low, found.high) == (0.03, 0.01, 0.05)
    assert found.least == 0.02 == sizes["margins"]["pass@"]
    falls = claim(trend={"of": "pass@1", "over": "group_size", "direction": "falls"})
    assert ledger.measure_effect(falls, record(-2.0, -3.0, -1.0)).low == 1.0


def test_a_printed_size_is_of_the_claim_without_the_margin_of_its_statement(monkeypatch):
    statement = "pass@1[a] >= pass@1[b] - 0.01"
    own = claim(statement=statement)
    recorded = record(0.0098, 0.007, 0.0126, reason=f"{statement}: left side")
    plain = ledger.measure_effect(own, recorded)
    assert (plain.low, plain.least) == (0.007, 0.0)
    sizes = {**ledger.read_sizes(), "printed": {"AV03x": {"printed": 0.024}}}
    monkeypatch.setattr(ledger, "read_sizes", lambda: sizes)
    # .0098 is a - b + .01, so that a is .0002 below b, and .012 counts.
    sized = ledger.measure_effect(own, recorded)
    assert sized.found == pytest.approx(-0.0002)
    assert sized.least == pytest.approx(0.012)
    assert judge_effect(sized) is LedgerVerdict.NO_EFFECT


@pytest.mark.parametrize(
    ("keys", "compares"),
    [
        ({"statement": "pass@1[psr] > pass@1[grpo]"}, True),
        ({"statement": "pass@1[estimator=a x=1] > pass@1[estimator=a x=2]"}, False),
        ({"statement": "pass@1[psr] > pass@1[base]"}, False),
        ({"statement": ["pass@1[psr] > pass@1[base]", "pass@1[grpo] > pass@1[base]"]}, False),
        ({"statement": "entropy/token@end[psr] < entropy/token@first10[psr]"}, False),
        ({"statement": "time/rollout[psr] < time/rollout[grpo]"}, False),
        ({"statement": "pass@1[2] > pass@1[8]", "rows": "group_size"}, False),
        ({"statement": "pass@1[token] > pass@1[sequence]", "rows": "objective.ratio"}, True),
    ],
)
def test_methods_are_told_from_settings_bases_and_costs(keys, compares):
    assert ledger.compares_methods(claim(**keys)) is compares


def test_two_methods_are_judged_at_matched_steps_alone():
    at_one_rate = "pass@1[estimator=psr] > pass@1[grpo]"
    matched = "pass@1[estimator=psr optimizer.match=step] > pass@1[grpo]"
    verdicts = {}
    for statement in (at_one_rate, matched):
        recorded = record(0.03, 0.02, 0.04, reason=f"{statement}: left side")
        verdicts[statement] = ledger.judge_part(claim(statement=statement), recorded)["verdict"]
    assert verdicts == {
        at_one_rate: "not judged: step not matched",
        matched: "holds in sign",
    }


def test_every_printed_size_is_of_a_part_that_judges_a_claim():
    import papers

    listed = papers.read_map()
    parts = set()
    for study in set(listed["judge"]) - {"", "exact"}:
        parts |= set(papers.read_parts(study).index)
    printed = ledger.read_sizes()["printed"]
    assert set(printed) <= parts
    assert all(entry["printed"] > 0 and entry["source"] for entry in printed.values())
