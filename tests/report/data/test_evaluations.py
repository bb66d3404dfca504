"""Columns of evaluations: entropies of right answers, training problems, fewer samples between."""

from __future__ import annotations

import math

import pytest

from advsweep.errors import ReportError
from advsweep.names import SELECTED_STEP
from advsweep.report.tables.build import build_report
from advsweep.report.tables.request import ReportRequest


def values(lab, *columns):
    report = build_report(lab.store, ReportRequest("demo", columns=list(columns)))
    [row] = [row for row in report.rows if row.n and "grpo" in row.group.values()]
    return {name: row.cells[name].mean for name in columns}


def test_the_entropy_of_right_answers_leaves_out_unsolved_problems(lab):
    """.125 nats per right answer of a problem: 2 of the first, none of the second."""
    lab.run(solved=(2, 0))
    assert values(lab, "entropy/right") == {"entropy/right": pytest.approx(0.25)}


def test_rarefied_entropies_are_of_problems_with_enough_right_answers(lab):
    """Of 3 + 1 right answers two differ with a chance of 1/2; of 2 + 2, with one of 2/3.

    The second problem has no three right answers. Two draws of three from 3 + 1 leave out one of
    the three: 3/4 of the choices are 2 + 1, with an entropy of log 3 - 2/3 log 2.
    """
    run = lab.run(solved=None)
    lab.evaluate(run, "end", 20, (4, 2), right=[[3, 1], [2]], kl=[0.5, math.nan])
    two, three = "entropy/right_rarefied[m=2]", "entropy/right_rarefied[m=3,level=0]"
    shares = ["entropy/right_rarefied_share[m=2]", "entropy/right_rarefied_share[m=3]"]
    found = values(lab, two, three, *shares, "entropy/right_rarefied", "kl/base")
    of_three = math.log(3) - 2 / 3 * math.log(2)
    assert found[two] == pytest.approx(math.log(2) / 2 / 2)
    assert found[three] == pytest.approx(3 / 4 * of_three)
    assert [found[name] for name in shares] == [1, 0.5]
    assert math.isnan(found["entropy/right_rarefied"])
    assert found["kl/base"] == 0.5


def test_columns_of_training_problems(lab):
    """Held out .5 and 0; on training problems 1 and .5."""
    run = lab.run(solved=(2, 0))
    lab.evaluate(run, "train", 20, (4, 2), prompt="other ", split="train")
    found = values(lab, "pass@1", "pass@1[split=train]", "entropy/answer[level=1,split=train]")
    assert list(found.values()) == pytest.approx([0.25, 0.75, 0.5])


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
    report = build_report(lab.store, ReportRequest("demo", columns=["pass@4@max"]))
    [cell] = [row.cells["pass@4@max"] for row in report.rows if row.n > 1]
    known = [value for value in cell.values if not math.isnan(value)]
    assert known == [1.0]


def test_columns_of_the_step_that_validation_problems_chose(lab):
    """Step 5 of 0: 1/4, 5: 5/8, 20: 1/4; the validation problem itself is in no column."""
    run = lab.run(solved=(2, 0))
    lab.evaluate(run, "between", 5, (4, 1), right=[[3, 1], [1]], kl=[0.5, 0.25])
    lab.evaluate(run, "validated", 20, (4, 4), prompt="other ", split="validation")
    lab.store.metrics.set_summaries(run, {SELECTED_STEP: 5})
    names = ("pass@1@selected", "pass@1", "kl/base@selected", "pass@2[level=1]@selected")
    found = values(lab, *names, "entropy/right_rarefied[m=2]@selected")
    # Of 1 + 3 samples, 2 have the one right answer with a chance of 1/2.
    assert list(found.values()) == pytest.approx([5 / 8, 1 / 4, 0.375, 0.5, math.log(2) / 2])


def test_an_evaluation_that_has_the_validation_problems_is_not_that_of_the_step(lab):
    """As `advsweep eval` with other settings may make, of all held-out problems."""
    run = lab.run(solved=(2, 0))
    lab.evaluate(run, "validated", 20, (4, 4), split="validation")
    lab.store.metrics.set_summaries(run, {SELECTED_STEP: 20})
    with pytest.raises(ReportError, match=r"evaluation\.select_on chooses steps"):
        values(lab, "pass@1@selected")
