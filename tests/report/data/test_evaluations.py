"""Columns of evaluations: entropies of right answers, training problems, fewer samples between."""

from __future__ import annotations

import math

import pytest

from advsweep.errors import ReportError
from advsweep.report import build_report
from advsweep.report.data.columns import parse_column


def values(lab, *columns):
    report = build_report(lab.store, "demo", columns=list(columns))
    [row] = [row for row in report.rows if row.n and "grpo" in row.group.values()]
    return {name: cell.mean for name, cell in row.cells.items()}


def test_the_entropy_of_right_answers_leaves_out_unsolved_problems(lab):
    """.125 nats per right answer of a problem: 2 of the first, none of the second."""
    lab.run(solved=(2, 0))
    assert values(lab, "entropy/right") == {"entropy/right": pytest.approx(0.25)}


def test_columns_of_training_problems(lab):
    """Held out .5 and 0; on training problems 1 and .5."""
    run = lab.run(solved=(2, 0))
    lab.evaluate(run, "train", 20, (4, 2), prompt="other ", split="train")
    found = values(lab, "pass@1", "pass@1[split=train]", "entropy/answer[level=1,split=train]")
    assert list(found.values()) == pytest.approx([0.25, 0.75, 0.5])


def test_without_training_problems_their_column_is_refused(lab):
    lab.run()
    with pytest.raises(ReportError, match=r"evaluation\.train_problems says on how many"):
        values(lab, "pass@1[split=train]")


def test_curves_take_evaluations_of_fewer_samples(lab):
    """pass@1 is 0 at step 0, .5 of two samples at step 5, and .25 of four at the end."""
    run = lab.run(solved=(2, 0), base_solved=(0, 0))
    lab.evaluate(run, "between", 5, (1, 1), n=2, k=[1])
    found = values(lab, "pass@1@max", "pass@1@argmax", "pass@1", "pass@4", "pass@2@max")
    assert found["pass@1@max"] == 0.5
    assert found["pass@1@argmax"] == 5
    assert found["pass@1"] == 0.25
    assert found["pass@4"] == 0.5
    assert found["pass@2@max"] == 1


def test_a_k_above_the_samples_between_has_no_curve(lab):
    run = lab.run(solved=(2, 0))
    other = lab.run(seed=1, solved=(4, 0))
    lab.evaluate(run, "between", 5, (1, 1), n=2, k=[1])
    lab.evaluate(other, "between 1", 5, (1, 1))
    report = build_report(lab.store, "demo", columns=["pass@4@max"])
    [cell] = [row.cells["pass@4@max"] for row in report.rows if row.n > 1]
    known = [value for value in cell.values if not math.isnan(value)]
    assert known == [1.0]


@pytest.mark.parametrize(
    "name", ["pass@8[split=held_out]", "pass@8[split=train,split=train]", "pass@8[split=]"]
)
def test_other_splits_are_no_columns(name):
    assert parse_column(name) is None


def test_the_split_is_part_of_the_header():
    column = parse_column("pass@8[level=3,split=train]")
    assert column is not None
    assert column.is_train
    assert column.header == "level 3 train p@8"
