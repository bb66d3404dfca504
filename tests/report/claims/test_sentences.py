"""Findings of a report: what each difference says, and the sentence of a row."""

from __future__ import annotations

import pytest

from advsweep.report.claims.sentences import (
    describe_findings,
    judge_difference,
    list_findings,
)
from advsweep.report.data.columns import parse_outcomes
from advsweep.report.data.labels import name_group
from advsweep.report.tables.build import build_report
from advsweep.report.tables.notes import difference_notes
from advsweep.report.tables.request import ReportRequest
from advsweep.statistics import benjamini_hochberg, equivalence_p_value

SEEDS = range(5)
NOISE = [0.0, 0.01, 0.02, 0.01, 0.0]


def _report(lab, constant, rows, metrics):
    """Rows of five seeds whose metrics have these means, all of them primary outcomes."""
    for name, means in rows.items():
        for seed in SEEDS:
            # Opposite signs: the seeds' differences spread without moving the mean far.
            own = NOISE[seed] * (1 if name == "grpo" else -1) + (seed % 2) * 0.01
            points = [
                point
                for metric, mean in zip(metrics, means, strict=True)
                for point in constant(**{metric.replace("/", "__"): mean + own})
            ]
            lab.run(name, seed, points=points, solved=None)
    outcomes = parse_outcomes(list(metrics), "outcomes")
    return build_report(
        lab.store, ReportRequest("demo", columns=metrics, baseline="grpo", outcomes=outcomes)
    )


@pytest.fixture
def report(lab, constant):
    """A baseline, and three rows whose ACR and entropy differ from it."""
    rows = {"grpo": (0.5, 1.0), "fade": (0.3, 1.5), "rloo": (0.7, 0.5), "avspo": (0.5, 1.0)}
    return _report(lab, constant, rows, ["collapse/acr", "entropy/token"])


def test_outcomes_follow_the_better_direction_and_the_adjusted_p(report):
    found = {
        (name_group(report.rows[d.row].group), d.column.name): judge_difference(d)
        for d in report.differences
    }
    # Lower ACR is better; no entropy is better.
    assert found["fade", "collapse/acr"] == "better"
    assert found["rloo", "collapse/acr"] == "worse"
    assert found["fade", "entropy/token"] == "higher"
    assert found["rloo", "entropy/token"] == "lower"
    assert found["avspo", "collapse/acr"] == "not significant"


def test_rows_that_differ_have_a_sentence_each_and_the_others_one(report):
    fade, rloo, others = list_findings(report)
    assert (fade.name, fade.outcome) == ("fade", "mixed")
    # The mean of fade is 0.2 lower, and that of the noise is 0.008 lower twice.
    assert fade.text.startswith(" against grpo: better ACR, -0.216 [")
    assert "; higher H tok, +0.484 [" in fade.text
    assert (rloo.name, rloo.outcome) == ("rloo", "mixed")
    assert (others.name, others.outcome) == ("", "")
    # Both differ by -.016, and the 90 % interval of the pooled spread reaches twice as far.
    equal = "(equal within 0.032, 0.032)"
    none = "No significant difference from grpo in ACR, H tok: avspo"
    assert others.text == f"{none} {equal}."
    assert describe_findings(report)[0] == f"fade{fade.text}"


def test_a_difference_that_is_no_primary_outcome_has_no_verdict(lab, constant):
    for name, acr in (("grpo", 0.5), ("fade", 0.1)):
        for seed in SEEDS:
            points = constant(collapse__acr=acr + NOISE[seed], reward__mean=0.4 + NOISE[seed] * acr)
            lab.run(name, seed, points=points, solved=None)
    report = build_report(
        lab.store, ReportRequest("demo", columns=["collapse/acr"], baseline="grpo")
    )
    verdicts = {d.column.name: judge_difference(d) for d in report.differences}
    assert verdicts == {"reward/mean@end": "not significant", "collapse/acr": "descriptive"}
    [one] = list_findings(report)
    none = "No significant difference from grpo in mean reward end: fade"
    assert one.text == f"{none} (equal within 0.0064)."


def test_a_difference_that_the_correction_withdraws_is_not_significant(lab, constant):
    # p of fade is .022 alone, and .065 beside two rows that do not differ.
    values = {"grpo": [0.5, 0.6, 0.4], "fade": [0.53, 0.64, 0.45], "psr": [0.52, 0.58, 0.41]}
    for name, listed in {**values, "rloo": [0.48, 0.61, 0.42]}.items():
        for seed, value in enumerate(listed):
            lab.run(name, seed, points=constant(reward__mean=value), solved=None)
    report = build_report(lab.store, ReportRequest("demo", baseline="grpo"))
    [fade] = [d for d in report.primary if report.rows[d.row].group["estimator"] == "fade"]
    assert fade.comparison.p_value < 0.05 < fade.p_adjusted
    assert judge_difference(fade) == "not significant"
    [finding] = list_findings(report)
    rows = "fade (equal within 0.066); psr (equal within 0.029); rloo (equal within 0.029)"
    assert finding.text == f"No significant difference from grpo in mean reward end: {rows}."


def test_rows_are_equivalent_where_the_adjusted_test_at_a_given_margin_says_so(lab, constant):
    values = {"grpo": [0.5, 0.6, 0.4], "fade": [0.53, 0.64, 0.45], "psr": [0.5, 0.602, 0.4]}
    for name, listed in {**values, "rloo": [0.501, 0.602, 0.402]}.items():
        for seed, value in enumerate(listed):
            lab.run(name, seed, points=constant(reward__mean=value), solved=None)

    def found(margin):
        request = ReportRequest("demo", baseline="grpo", margins=[f"reward/mean@end={margin}"])
        report = build_report(lab.store, request)
        [text] = [f.text for f in list_findings(report) if "quivalent" in f.text]
        return report, text

    report, text = found(0.03)
    assert text == "Equivalent to grpo within 0.03 in mean reward end: psr; rloo."
    # fade is .04 away, and the three tests are adjusted together.
    p_values = [equivalence_p_value(d.comparison, 0.03) for d in report.primary]
    assert [d.p_equal for d in report.primary] == list(benjamini_hochberg(p_values))
    assert "p equal: of these tests at the given margin" in " ".join(difference_notes(report))
    assert found(0.0001)[1].startswith("No row is shown to be equivalent to grpo within 0.0001")
