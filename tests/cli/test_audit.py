"""The audit of printed tables: each check on tables whose answer is known."""

from __future__ import annotations

import json
import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.errors import ConfigError
from advsweep.report.audit import audit, lay_out, read_cells

HEAD = "name,group,benchmark,value,size,samples,k,seeds,spread,bold\n"


@pytest.fixture
def table(tmp_path):
    def written(*lines, head=HEAD):
        path = tmp_path / "table.csv"
        path.write_text(head + "".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return written


@pytest.fixture
def audited(table):
    return lambda *lines: audit(read_cells(table(*lines)))


@pytest.mark.parametrize(
    ("value", "samples", "k", "seeds", "can_be"),
    [
        ("23.3", 1, 1, 1, True),  # 7/30
        ("23.4", 1, 1, 1, False),  # 7/30 = 23.33
        ("66.7", 1, 1, 1, True),  # 20/30 = 66.67, rounded
        ("66.6", 1, 1, 1, True),  # the same, cut off
        ("66.5", 1, 1, 1, False),
        ("50.3", 256, 256, 1, False),  # the share of 30 problems that some sample solves
        ("50.3", 256, 128, 1, True),  # not told: one of very many numbers
        ("24.4", 1, 1, 3, True),  # 22/90
        ("24.0", 1, 1, 3, False),  # 21/90 = 23.33, 22/90 = 24.44
        ("24.0", 32, 1, 1, True),  # 230/960 = 23.96
        ("0.0", 1, 1, 1, True),
        ("100.0", 1, 1, 1, True),
    ],
)
def test_numbers_that_cannot_be_are_found(audited, value, samples, k, seeds, can_be):
    found = audited(f"a,,AIME24,{value},30,{samples},{k},{seeds},,")
    assert [finding.kind for finding in found.findings] == ["impossible"] * (not can_be)


@given(st.integers(2, 400), st.integers(1, 4), st.integers(1, 5), st.data())
def test_no_true_number_is_found(tmp_path_factory, size, samples, seeds, data):
    """Whatever is counted, and however it is rounded, can be."""
    steps = size * samples * seeds
    share = data.draw(st.integers(0, steps)) / steps
    digits = data.draw(st.integers(0, 3))
    cut = math.floor(share * 100 * 10**digits + 1e-9) / 10**digits
    path = tmp_path_factory.mktemp("table") / "table.csv"
    for value in (f"{100 * share:.{digits}f}", f"{cut:.{digits}f}"):
        # The second row makes the table one of percents.
        lines = [
            f"a,,x,{value},{size},{samples},1,{seeds},,",
            f"b,,x,{50:.{digits}f},{size},,1,1,,",
        ]
        path.write_text(HEAD + "\n".join(lines), encoding="utf-8")
        assert not audit(read_cells(path)).findings


@pytest.mark.parametrize(
    ("printed", "fits"),
    [
        ("40.0", True),  # (30 + 50) / 2
        ("40.1", True),  # as far as rounding goes
        ("40.3", False),
        ("45.0", True),  # over all problems: (10 x 30 + 30 x 50) / 40
    ],
)
def test_averages_follow_from_their_rows(audited, printed, fits):
    found = audited("a,,x,30.0,10,,,,,", "a,,y,50.0,30,,,,,", f"a,,Avg,{printed},,,,,,")
    assert [finding.kind for finding in found.findings] == ["average"] * (not fits)
    if not fits:
        assert "(30.0 + 50.0) / 2 = 40" in found.findings[0].text


def test_an_average_with_a_missing_number_is_not_judged(audited):
    lines = ["a,,x,30.0,10,,,,,", "a,,y,,30,,,,,", "a,,z,10.0,10,,,,,", "a,,Avg,77.0,,,,,,"]
    assert not audited(*lines).findings


def test_means_of_runs_that_are_numbers_of_one_run(audited):
    """Three numbers of three runs lie on the grid of one with a probability of 1/27."""
    one = [f"a,,{n},{v},30,1,1,3,," for n, v in (("x", "23.3"), ("y", "26.7"), ("z", "30.0"))]
    found = audited(*one)
    assert [finding.kind for finding in found.findings] == ["one run"]
    assert "0.037" in found.findings[0].text
    assert not audited(*one[:2]).findings  # 1/9
    assert not audited(*one[:2], "a,,z,31.1,30,1,1,3,,").findings  # 28/90 is of three runs


def test_means_of_several_runs_are_rarely_taken_for_one(audited):
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(200):
        counts = rng.binomial(30, 0.4, (4, 3)).mean(axis=1) / 30
        false += bool(
            audited(*(f"a,,{i},{100 * c:.1f},30,1,1,3,," for i, c in enumerate(counts))).findings
        )
    assert false <= 8  # (1/3)⁴ of 200: 2.5


def test_bold_numbers_are_compared_with_the_best_other(audited):
    """By hand: p = .55, √(.55 · .45 · 2/500) = .0315; .1/.0315 = 3.18, least 2.80 · .0315."""
    found = audited(
        *("a,,x,60.0,500,1,1,1,,yes", "b,,x,50.0,500,1,1,1,,", "c,,x,40.0,500,1,1,1,,"),
        *("a,,y,30.0,30,1,1,1,,yes", "b,,y,23.3,30,1,1,1,,"),
    )
    x, y = found.bold
    assert (x.rival, x.survives, y.survives) == ("b", "yes", "no")
    assert x.p_answers == x.p_problems == pytest.approx(2 * 0.00149, abs=2e-5)  # of two
    assert x.least_answers == x.least_problems == pytest.approx(2.80 * 0.03146, abs=1e-4)


def test_many_answers_make_a_difference_sure_on_these_problems_alone(audited):
    """64 answers to each of 30 problems: √(.55 · .45 · 2/1920) = .0161; of problems .128."""
    (found,) = audited("a,,x,60.0,30,64,1,1,,1", "b,,x,50.0,30,64,1,1,,").bold
    assert found.survives == "on these problems"
    assert found.least_answers == pytest.approx(2.80 * 0.01606, abs=1e-4)
    assert found.least_problems == pytest.approx(2.80 * 0.12845, abs=1e-3)


def test_a_bold_number_below_another_does_not_survive(audited):
    (found,) = audited("a,,x,50.0,500,1,1,1,,1", "b,,x,60.0,500,1,1,1,,").bold
    assert found.p_answers < 0.05
    assert found.survives == "no"


def test_spreads_over_runs_replace_the_noise_of_answers(audited):
    """Welch: √(4 + 4)/√3 = 1.63 points; 5/1.63 = 3.06 with 4 degrees of freedom: p = .0376."""
    found = audited("a,,x,55.0,500,1,1,3,2.0,1", "b,,x,50.0,500,1,1,3,2.0,")
    assert found.bold[0].p_answers == pytest.approx(0.0376, abs=1e-4)


def test_groups_are_apart_and_shares_equal_percents(audited):
    percents = audited("a,m,x,60.0,50,1,1,1,,1", "b,m,x,50.0,50,1,1,1,,", "c,n,x,90.0,50,1,1,1,,")
    shares = audited("a,m,x,.600,50,1,1,1,,1", "b,m,x,.500,50,1,1,1,,", "c,n,x,.900,50,1,1,1,,")
    assert percents.bold[0].rival == "b"
    assert shares.bold[0].p_answers == pytest.approx(percents.bold[0].p_answers)


def test_a_bold_number_below_the_best_of_its_group_asks_for_the_groups(table, capsys):
    right = ["a,m,x,60.0,50,1,1,1,,1", "b,m,x,50.0,50,1,1,1,,", "c,n,x,90.0,50,1,1,1,,"]
    assert audit(read_cells(table(*right))).misgrouped == []
    wrong = audit(read_cells(table(*[line.replace(",n,", ",m,") for line in right])))
    [cell] = wrong.misgrouped
    assert (cell.name, cell.text, cell.best, cell.best_text) == ("a", "60.0", "c", "90.0")
    notes = " ".join(lay_out(wrong).notes)
    assert "1 bold number below the best of the group: is `group` right?" in notes
    assert "m a has 60.0 on x, and c, the best of its group 'm', 90.0." in notes
    # A bold number that ties with the best is right.
    tie = audit(read_cells(table("a,m,x,60.0,50,1,1,1,,1", "b,m,x,60.0,50,1,1,1,,")))
    assert tie.misgrouped == []


def test_sizes_that_fit_a_column_are_named(audited):
    # 22.5, 27.5, 17.5 and 52.5 are 9, 11, 7 and 21 of 40, and no multiples of 1/30.
    values = ("22.5", "27.5", "17.5", "52.5")
    found = audited(*[f"r{i},,AIME24,{value},30,1,1,1,," for i, value in enumerate(values)])
    [fitting] = found.fitting
    assert (fitting.benchmark, fitting.numbers, fitting.given) == ("AIME24", 4, 30)
    assert fitting.sizes == (40,)
    assert "AIME24: all 4 numbers can be with 40 problems in place of 30." in lay_out(found).notes
    # The same as means of two runs of 20 problems.
    runs = audited(*[f"r{i},,AIME24,{value},30,1,1,2,," for i, value in enumerate(values)])
    assert runs.fitting[0].sizes == (20,)


def test_no_size_is_named_where_any_would_fit_or_none_is_needed(audited):
    assert audited("a,,x,23.3,30,1,1,1,,", "b,,x,26.7,30,1,1,1,,").fitting == []
    # One number of three digits fits many sizes by chance: 24.0 is also 6 of 25.
    one = audited("a,,x,24.0,30,1,1,3,,")
    assert all(25 % size == 0 for fitting in one.fitting for size in fitting.sizes)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["a,,x,60.0,,1,1,1,,"], "line 2: expected the number of problems of x in size"),
        (["a,,x,60.0,30,1,1,1,,", "b,,x,.583,30,1,1,1,,"], "got .583 (b on x) among percents"),
        (["a,,x,sixty,30,1,1,1,,"], "line 2: expected a number in value, got 'sixty'"),
        (["a,,x,nan,30,1,1,1,,"], "expected a number in value, got 'nan'"),
        (["a,,x,160.0,30,1,1,1,,"], "expected values from 0 to 100"),
        (["a,,x,-1.0,30,1,1,1,,", "a,,y,7.0,30,1,1,1,,"], "expected values from 0 to 100"),
        (["a,,x,60.0,30,1,2,1,,"], "at most the 1 sample of a problem in k, got '2'"),
        (["a,,x,60.0,0,1,1,1,,"], "a whole number above 0 in size, got '0'"),
        (["a,,x,,30,1,1,1,,"], "expected numbers, got empty values"),
        (["a,,x,1e-5,30,1,1,1,,"], "expected a number in value, got '1e-5'"),
        (["a,,x,0e999999999,30,1,1,1,,"], "expected a number in value, got '0e999999999'"),
        ([], "expected numbers, got empty values"),
        (["a,,x,60.0,30"], "line 2: expected 10 cells as in the header, got 5"),
    ],
)
def test_mistakes_are_told_in_one_line(table, lines, told):
    with pytest.raises(ConfigError) as error:
        read_cells(table(*lines))
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (HEAD.replace("spread", "std"), "got 'std'; did you mean 'spread'?"),
        (HEAD.replace("bold", "Best"), "got 'Best'; did you mean 'bold'?"),
        (HEAD.replace("spread", "value"), "got 'value' twice"),
        ("name,size\n", "got none called benchmark, value"),
    ],
)
def test_columns_are_never_ignored(table, head, told):
    with pytest.raises(ConfigError) as error:
        read_cells(table(head=head))
    assert "line 1: " in str(error.value)
    assert told in str(error.value)


def test_the_command_prints_findings_and_exits_with_1(table, in_process):
    path = table("a,,AIME24,23.4,30,1,1,1,,1", "b,,AIME24,23.3,30,1,1,1,,")
    code, out, _ = in_process("audit", str(path))
    assert code == 1
    assert "23.4 is no multiple of 1/30" in out
    code, out, _ = in_process("audit", str(path), "--format", "json")
    assert [finding["kind"] for finding in json.loads(out)["findings"]] == ["impossible"]
    path = table("b,,AIME24,23.3,30,1,1,1,,")
    assert in_process("audit", str(path))[0] == 0


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "table.csv")
    with pytest.raises(ConfigError, match=r"expected a text file, got: no regular file"):
        read_cells(tmp_path / "table.csv")


def test_a_table_is_bounded(table, monkeypatch):
    monkeypatch.setattr("advsweep.report.audit.MOST_BYTES", 200)
    line = "a,,x,60.0,30,1,1,1,,"
    assert read_cells(table(line))
    with pytest.raises(ConfigError, match="expected at most 200 bytes of text, got more"):
        read_cells(table(*[line] * 20))
