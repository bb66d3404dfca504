"""Claims on pass@k are judged above chance alone."""

from __future__ import annotations

import pytest

from advsweep.report.claims.assertions import ClaimVerdict
from advsweep.report.claims.lists import evaluate_claims, parse_claim_list
from advsweep.report.data.columns import parse_column
from advsweep.report.tables.build import build_report
from advsweep.report.tables.chance import chance_column
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.types import NoteKind
from advsweep.tasks.base import Split
from advsweep.tasks.countdown import Countdown

TASK = {"name": "countdown", "levels": [0], "held_out_per_level": 2}
AT_CHANCE = ClaimVerdict.AT_CHANCE


@pytest.fixture
def lab(lab):
    """Runs on two problems; a guess is right in 1/6 and 2/6, so that guessing has .25.

    Two guesses have (11/36 + 20/36) / 2 = .431. Of 20 samples the base solves 10 and 2: pass@1 is
    .3, which is .05 above guessing.
    """
    problems = Countdown(levels=(0,), held_out_per_level=2).problems(Split.HELD_OUT)
    lab.problems, lab.samples = [(p.id, p.prompt) for p in problems], 20
    return lab


def _judge(lab, *claims, grpo=(16, 10), base=(12, 12)):
    """Judges claims on runs of grpo, and of rloo that solves two samples more of each."""
    for seed in range(3):
        for estimator, more in (("grpo", 0), ("rloo", 2)):
            solved = [number + more + seed % 2 for number in grpo]
            lab.run(estimator, seed, solved=solved, base_solved=base, task=TASK)
    entries = [{"id": f"c{i}", "says": "so", **claim} for i, claim in enumerate(claims)]
    common = {"sweep": "demo"}
    return evaluate_claims(
        lab.store, parse_claim_list({"common": common, "claims": entries})
    ).results


HIGHER = {"metric": "pass@1", "of": "rloo", "than": "grpo", "direction": "higher"}


@pytest.mark.parametrize(
    ("solved", "shown"),
    [({"base": (10, 2)}, "base 0.3"), ({"grpo": (4, 4), "base": (12, 12)}, "grpo 0.217")],
)
def test_at_chance_base_or_baseline_withhold_the_verdict(lab, solved, shown):
    """The base must be more than .05 above guessing, and so must what rloo is compared with."""
    better, equal, change, absolute = _judge(
        lab,
        HIGHER,
        {**HIGHER, "direction": "within", "margin": 0.5},
        {**HIGHER, "by": "10%"},
        {"statement": "pass@1[rloo] > 0.1"},
        **solved,
    )
    of_base = "base" in solved and "grpo" not in solved
    verdicts = [result.verdict for result in (better, equal, change, absolute)]
    # A comparison with a number has no baseline but the base.
    assert verdicts == [AT_CHANCE] * 3 + [AT_CHANCE if of_base else ClaimVerdict.HOLDS]
    assert better.reason.startswith(
        "not judged: at chance: pass@1 must be more than 0.050 above guess: guess 0.250, "
    )
    assert shown in better.reason
    # The numbers stand, without a test.
    assert "left side - right side = +0.1000" in better.reason
    assert better.p_value != better.p_value
    assert better.difference == pytest.approx(0.1)


def test_each_part_is_held_against_chance_at_its_own_k(lab):
    """At k = 1 guessing has .25 and grpo .317; at k = 2 it has .431, and grpo .445."""
    one, two, wrong = _judge(
        lab,
        {"statement": "pass@1[rloo] > pass@1[grpo]"},
        {"statement": ["pass@1[rloo] > pass@1[grpo]", "pass@2[rloo] > pass@2[grpo]"]},
        {"statement": ["pass@1[rloo] < pass@1[grpo]", "pass@2[rloo] > pass@2[grpo]"]},
        grpo=(12, 0),
    )
    assert [one.verdict, two.verdict] == [ClaimVerdict.HOLDS, AT_CHANCE]
    assert "pass@2 must be more than 0.050 above guess: guess 0.431" in two.reason
    # A part above chance still contradicts the whole.
    assert wrong.verdict is ClaimVerdict.CONTRADICTED


def test_a_row_below_chance_is_no_reason_to_withhold(lab):
    """That a method ruins the model is judged where its base and the baseline are above chance."""
    [result] = _judge(lab, {"statement": "pass@1[grpo] < pass@1[base]"}, grpo=(1, 1))
    assert result.verdict is ClaimVerdict.HOLDS


@pytest.mark.parametrize(("base", "verdict"), [(0.019, AT_CHANCE), (0.021, ClaimVerdict.HOLDS)])
def test_small_chances_need_a_small_margin(lab, base, verdict):
    """A guess among 100 behaviours is right in .01: the base must have twice that, not .06."""
    bandit = {"name": "bandit", "rates": [0.5], "levels": [0], "prompts_per_level": 1}
    bandit |= {"behaviours": 100, "correct": 1}
    lab.problems, lab.samples = [("held_out/0", "0:")], 1000
    for seed in range(3):
        run_id = lab.run("grpo", seed, task=bandit, solved=None)
        lab.evaluate(run_id, f"run{seed}@20", 20, [300 + seed], task="bandit")
        lab.evaluate(run_id, "base:x", 0, [round(1000 * base)], task="bandit")
    claim = {"id": "x", "says": "so", "sweep": "demo", "statement": "pass@1[grpo] > pass@1[base]"}
    [result] = evaluate_claims(lab.store, parse_claim_list({"claims": [claim]})).results
    assert result.verdict is verdict


def test_claims_about_points_have_the_mean_of_all_bases(lab):
    trend = {"of": "pass@1", "over": "group_size", "direction": "rises"}
    for size in (2, 4, 8):
        for seed in range(2):
            lab.run("grpo", seed, solved=(size, 12), base_solved=(4, 4), task=TASK, group_size=size)
    claim = {"id": "x", "says": "so", "sweep": "demo", "trend": trend}
    [result] = evaluate_claims(lab.store, parse_claim_list({"claims": [claim]})).results
    assert result.verdict is AT_CHANCE
    assert "bases 0.2" in result.reason


@pytest.mark.parametrize(
    ("column", "plain"),
    [
        ("pass@8", "pass@8"),
        ("pass@8@pass@1=0.5", "pass@8"),
        ("pass@8[above=guess]", "pass@8"),
        ("pass@8[level=3]", "pass@8[level=3]"),
        ("pass@8[countdown,level=3]@slope", "pass@8[countdown,level=3]"),
        ("pass@8[base=0:0.5]", None),
        ("pass@8[mean]", None),
        ("entropy/right", None),
        ("exact/pass@8@end", None),
    ],
)
def test_the_column_in_which_guessing_is_compared(column, plain):
    found = chance_column(parse_column(column))
    assert (None if found is None else found.name) == plain


@pytest.mark.parametrize(
    ("base", "caution"),
    [
        ((12, 12), []),
        (
            (10, 2),
            [
                "at chance, so that claims on it are not judged: pass@1 must be more than 0.050 "
                "above guess: guess 0.250, base 0.300, grpo 0.667",
                "at chance, so that claims on it are not judged: pass@5 must be more than 0.050 "
                "above guess: guess 0.733, base 0.716, grpo 0.993",
            ],
        ),
    ],
)
def test_a_report_cautions_where_claims_are_not_judged(lab, base, caution):
    """grpo solves 16 + 10, 17 + 11 and 16 + 10 of 40 samples: .65, .7 and .65.

    The outcomes are pass@1 and pass@5, k of a quarter of the samples. Of five guesses one is right
    in (1 - (5/6)^5 + 1 - (4/6)^5) / 2 = .733, of five samples of the base (.984 + .447) / 2.
    """
    _judge(lab, HIGHER, base=base)
    report = build_report(lab.store, ReportRequest("demo", columns=["pass@2"]))
    assert [
        text for text in report.texts(NoteKind.CAUTION) if text.startswith("at chance")
    ] == caution
