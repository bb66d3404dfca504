"""A report in a few lines: sentences, and a table of few columns."""

from __future__ import annotations

import pytest

from advsweep.report import Report, build_report, describe_findings, lay_out_short, shorten_report
from advsweep.writing import write_table


@pytest.fixture
def report(demo) -> Report:
    return build_report(demo.store, "demo")


def test_every_compared_row_has_a_sentence(report):
    *sentences, family = describe_findings(report)
    compared = {d.row for d in report.differences}
    assert len(sentences) == len(compared) > 0
    for sentence in sentences:
        assert f" against {report.baseline}: " in sentence
        assert sentence.endswith(".")
    assert family == (
        "p adj is adjusted over 2 differences: 2 primary outcomes x 1 arm (p@1, H right), by "
        "Benjamini-Hochberg."
    )


def test_a_report_without_differences_says_why(demo):
    report = build_report(demo.store, "demo", baseline="none", columns=["pass@1"])
    assert report.differences == ()
    for sentence in describe_findings(report):
        assert sentence[0].isupper()


def test_few_columns_keep_their_numbers(report):
    short = shorten_report(report)
    names = [column.name for column in short.columns]
    assert names[0] == "collapse/acr@end"
    assert set(names[1:]) == {"pass@1", "pass@2"}
    assert short.rows == report.rows
    assert short.differences == report.differences


def test_a_report_without_pass_at_k_keeps_its_first_columns(demo):
    names = [
        f"{metric}{part}" for part in ("", "@end") for metric in ("entropy/token", "collapse/acr")
    ]
    names.append("cost/rollouts")
    short = shorten_report(build_report(demo.store, "demo", columns=names))
    assert [column.name for column in short.columns] == names[:4]


def test_the_sentence_of_a_row_is_about_the_primary_outcomes(demo):
    report = build_report(demo.store, "demo", columns=["pass@2", "collapse/acr"])
    [sentence, _] = describe_findings(report)
    assert "p@1 (" in sentence
    assert "H right (" in sentence
    assert "p@2" not in sentence
    assert "ACR" not in sentence


def test_it_fits_a_terminal_of_80_characters(report):
    text = write_table(lay_out_short(shorten_report(report)), width=80, styled=False, wrapped=True)
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) <= 12
    assert "mean ± half the 95 % Student t interval over seeds" in text
