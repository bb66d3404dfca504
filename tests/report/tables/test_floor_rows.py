"""Rows of floors, and columns above them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from advsweep.errors import NotFoundError, ReportError
from advsweep.report.claims.assertions import evaluate_assertion, parse_assertion
from advsweep.report.data.columns import parse_column, range_of
from advsweep.report.data.evaluation_sources import PassAtK, ProblemChoice
from advsweep.report.tables.build import build_report
from advsweep.report.tables.render import lay_out, render
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.types import Subject
from advsweep.tasks.base import Split
from advsweep.tasks.countdown import Countdown

TASK = {"name": "countdown", "levels": [0], "held_out_per_level": 2}


@pytest.fixture
def lab(lab):
    """Runs on two problems: 8 and 6 make 2, and 9 and 7 make 16.

    Of the six expressions over two digits, a guess, one and two are right.
    """
    problems = Countdown(levels=(0,), held_out_per_level=2).problems(Split.HELD_OUT)
    assert [p.prompt for p in problems] == ["86=02:", "97=16:"]
    lab.problems = [(p.id, p.prompt) for p in problems]
    return lab


def _two_seeds(lab, **config):
    for seed in range(2):
        lab.run("grpo", seed, solved=(2, 3 + seed), task=TASK, **config)


def _row(report, name):
    return next(row for row in report.rows if row.group["estimator"] == name)


def test_a_floor_has_a_row_below_the_base(lab):
    _two_seeds(lab)
    report = build_report(lab.store, ReportRequest("demo"))
    assert [row.group["estimator"] for row in report.rows] == ["base", "guess", "grpo"]
    floor = _row(report, "guess")
    assert (floor.subject, floor.seeds, floor.runs) == (Subject.FLOOR, (), 0)
    # A guess fails with a chance of 5/6 and 2/3, and two guesses of 25/36 and 16/36.
    assert floor.cells["pass@1"].mean == pytest.approx((1 / 6 + 2 / 6) / 2)
    assert floor.cells["pass@2"].mean == pytest.approx((11 / 36 + 20 / 36) / 2)
    assert floor.cells["entropy/answer"].n == 0
    # Exact: neither an interval over seeds nor one over problems.
    cell = floor.cells["pass@2"]
    assert all(math.isnan(end) for end in (cell.low, cell.high, cell.over_problems))
    [note] = [note for note in lay_out(report).notes if note.startswith("guess: ")]
    assert note == (
        "guess: chance baseline: uniform expressions over the given digits; "
        "pass@k = 1 - (1 - p)ᵏ of each problem, computed exactly"
    )


def test_a_floor_is_never_marked_and_counts_no_missing_numbers(lab):
    for estimator in ("grpo", "rloo"):
        for seed in range(3):
            # Worse than guessing.
            lab.run(estimator, seed, solved=(0, seed % 2), task=TASK)
    report = build_report(lab.store, ReportRequest("demo", columns=["pass@1", "entropy/answer"]))
    text = render(report, "markdown")
    assert "**0.25" not in text
    assert "have no number" not in text


@pytest.mark.parametrize("columns", [["entropy/answer"], ["collapse/acr"], ["total/steps"]])
def test_reports_without_pass_at_k_have_no_floors(lab, constant, columns):
    _two_seeds(lab, points=constant(collapse__acr=0.5))
    report = build_report(lab.store, ReportRequest("demo", columns=columns))
    assert [row.group["estimator"] for row in report.rows] == ["base", "grpo"]


def test_columns_above_a_floor(lab):
    _two_seeds(lab)
    names = ["pass@1", "pass@1[above=guess]", "pass@2[above=guess]", "pass@1[level=0,above=guess]"]
    report = build_report(lab.store, ReportRequest("demo", columns=names))
    # Of 4 samples 2 and 3, or 2 and 4, are right; less 1/4.
    grpo = _row(report, "grpo").cells
    assert grpo["pass@1[above=guess]"].values == pytest.approx((3 / 8, 4 / 8))
    # The first problem alone is of level 0.
    assert grpo["pass@1[level=0,above=guess]"].values == pytest.approx((1 / 3, 1 / 3))
    # pass@2 of 2 of 4 is 5/6, of 3 or 4 of 4 it is 1.
    assert grpo["pass@2[above=guess]"].values == pytest.approx([11 / 12 - 31 / 72] * 2)
    assert _row(report, "base").cells["pass@1[above=guess]"].mean == pytest.approx(1 / 8 - 1 / 4)
    assert _row(report, "guess").cells["pass@1[above=guess]"].mean == pytest.approx(0)
    # A floor is subtracted from every row, which changes no difference: it is the same outcome.
    report = build_report(lab.store, ReportRequest("demo", columns=names[:2], baseline="base"))
    assert [d.column.name for d in report.differences] == ["pass@1", "entropy/right"]


def test_a_column_above_a_floor_along_the_training(lab):
    for seed in range(2):
        run = lab.run("grpo", seed, solved=(2, 4), task=TASK)
        lab.evaluate(run, f"{seed}@10", 10, (2, 2))
    names = ["pass@1[above=guess]@max", "pass@1[above=guess]@steps=10"]
    cells = _row(build_report(lab.store, ReportRequest("demo", columns=names)), "grpo").cells
    assert cells[names[0]].values == pytest.approx((1 / 2, 1 / 2))
    assert cells[names[1]].values == pytest.approx((1 / 4, 1 / 4))


def test_assertions_and_baselines_take_a_floor_as_an_exact_number(lab):
    for seed in range(3):
        lab.run("grpo", seed, solved=(2, 2 + seed), task=TASK)
    assertion = parse_assertion("pass@1[grpo] > pass@1[guess]")
    report = build_report(lab.store, ReportRequest("demo", columns=["pass@1"], baseline="guess"))
    result = evaluate_assertion(report, assertion)
    # 4/8, 5/8 and 6/8, less 1/4.
    assert result.difference == pytest.approx(3 / 8)
    assert result.n == 3
    [difference] = report.differences
    assert difference.comparison.difference == pytest.approx(3 / 8)
    assert difference.comparison.low == pytest.approx(result.low)


def test_problems_that_are_not_the_tasks_have_no_floor(lab):
    lab.problems = [(lab.problems[0][0], "68=03:"), lab.problems[1]]
    _two_seeds(lab)
    report = build_report(lab.store, ReportRequest("demo", columns=["pass@1"]))
    assert [row.group["estimator"] for row in report.rows] == ["base", "grpo"]
    with pytest.raises(NotFoundError, match="chance baselines none"):
        build_report(lab.store, ReportRequest("demo", columns=["pass@1[above=guess]"]))


@pytest.mark.parametrize(
    "task",
    [{"name": "countdown", "levels": [77]}, {"name": "countdown", "of_the_future": 1}],
)
def test_a_task_that_cannot_be_built_has_no_floor(lab, task):
    lab.run("grpo", 0, task=task)
    report = build_report(lab.store, ReportRequest("demo", columns=["pass@1"]))
    assert [row.group["estimator"] for row in report.rows] == ["base", "grpo"]


def _evaluate_seeds(lab, seeds, **task):
    """Adds runs whose seeds draw their problems, each evaluated on its own."""
    settings = {"name": "countdown", "levels": [0], "held_out_per_level": 2, **task}
    for seed in seeds:
        own = Countdown(levels=(0,), held_out_per_level=2, seed=seed)
        lab.problems = [(p.id, p.prompt) for p in own.problems(Split.HELD_OUT)]
        for estimator in ("grpo", "rloo"):
            lab.run(estimator, seed, task={**settings, "seed": "seed"}, base=f"base:{seed}")


def test_seeds_with_problems_of_their_own_have_floors_of_their_own(lab):
    """Runs, bases and floors pair by seed, although every seed has other problems."""
    _evaluate_seeds(lab, range(3))
    report = build_report(
        lab.store, ReportRequest("demo", columns=["pass@1", "pass@1[above=guess]"])
    )
    base, floor = _row(report, "base"), _row(report, "guess")
    assert base.seeds == floor.seeds == (0, 1, 2)
    expected = []
    for seed in range(3):
        problems = Countdown(levels=(0,), held_out_per_level=2, seed=seed)
        expected.append(np.mean(list(problems.floors()["guess"].rates.values())))
    assert len(set(expected)) > 1
    assert floor.cells["pass@1"].values == pytest.approx(expected)
    own = _row(report, "grpo")
    above = own.cells["pass@1[above=guess]"].values
    assert above == pytest.approx(np.array(own.cells["pass@1"].values) - expected)
    result = evaluate_assertion(report, parse_assertion("pass@1[guess] < pass@1[grpo]"))
    assert result.n == 3
    assert "unpaired" not in result.reason
    assert render(report, "csv")


def test_problems_of_the_wrong_seed_are_not_evaluated_alike(lab):
    """Only the problems that a run's own seed draws are those of its seed."""
    _evaluate_seeds(lab, (0, 1))
    lab.run("grpo", 2, task={**TASK, "seed": "seed"}, base="base:2")  # those of seed 1
    with pytest.raises(ReportError, match="the problems themselves"):
        build_report(lab.store, ReportRequest("demo", columns=["pass@1"]))


def test_floors_that_agree_for_all_seeds_are_one(lab):
    """The guess of a bandit is right as often on every table."""
    bandit = {"name": "bandit", "levels": [0, 1], "prompts_per_level": 1, "seed": "seed"}
    bandit |= {"behaviours": 4, "correct": 1}
    lab.problems = [("held_out/0", "0:"), ("held_out/1", "1:")]
    for seed in range(2):
        run_id = lab.run("grpo", seed, task=bandit, solved=None)
        lab.evaluate(run_id, f"run{seed}@20", 20, (2, 1), task="bandit")
    floor = _row(
        build_report(lab.store, ReportRequest("demo", columns=["pass@1", "pass@2"])), "guess"
    )
    assert (floor.seeds, floor.n) == ((), 1)
    assert floor.cells["pass@1"].mean == pytest.approx(1 / 4)
    assert floor.cells["pass@2"].mean == pytest.approx(1 - 9 / 16)


def test_names_of_columns_above_a_floor():
    column = parse_column("pass@8[gsm8k,level=3,above=walker]")
    assert column.source == PassAtK(8, "walker", problems=ProblemChoice("gsm8k", level=3))
    assert column.header == "gsm8k level 3 p@8 - walker"
    # It may be below 0.
    assert range_of("pass@8[above=walker]") is None
    assert range_of("pass@8") == (0.0, 1.0)
    for wrong in ("entropy/answer[above=guess]", "pass@1[above=]", "pass@1[above=a,above=b]"):
        assert parse_column(wrong) is None
