"""Which evaluations of a task were made alike."""

from __future__ import annotations

import pytest

from advsweep.report.data.bases import group_bases
from advsweep.report.data.evaluation_choice import select_evaluations
from advsweep.report.data.protocols import EvaluatedRuns, EvaluationSelector


def _select(lab, **options):
    records = lab.store.evaluations.select([run.id for run in lab.store.runs.select()])
    steps = {run.id: run.steps for run in lab.store.runs.select()}
    return EvaluationSelector(EvaluatedRuns(steps, {}, **options), records)


@pytest.fixture
def twice(lab):
    """Two runs that were evaluated with 4 samples, and then one with 8 and one with 16."""
    runs = [lab.run(seed=seed) for seed in range(2)]
    lab.store.evaluations._now = lambda: lab.store.runs.select()[0].created.replace(hour=13)
    for run, n in zip(runs, (8, 16), strict=True):
        lab.evaluate(run, f"{run} again", 20, (2, 2), n=n)
    return lab, runs


def test_the_protocol_that_all_runs_share_counts(twice):
    lab, runs = twice
    task = _select(lab).tasks["countdown"]
    assert {run: task.final[run].settings["n"] for run in runs} == dict.fromkeys(runs, 4)
    assert task.protocol == {
        "task": "countdown",
        "n": 4,
        "temperature": 1.0,
        "seed": 0,
        "problems": 2,
    }


def test_mixed_protocols_take_the_newest_of_each_run(twice):
    lab, runs = twice
    final = _select(lab, mixed=True).tasks["countdown"].final
    assert [final[run].settings["n"] for run in runs] == [8, 16]


def test_a_lender_does_not_decide_and_takes_part_if_it_can(twice):
    lab, (run, lender) = twice
    # Alone the run has the newer evaluation of 8 samples, which the lender lacks.
    assert _select(lab, lenders={lender}).tasks["countdown"].final.keys() == {run}
    lab.evaluate(lender, "alike", 20, (1, 1), n=8)
    final = _select(lab, lenders={lender}).tasks["countdown"].final
    assert {key: record.settings["n"] for key, record in final.items()} == {run: 8, lender: 8}


def test_differing_evaluations_name_the_keys(lab):
    for seed, n in enumerate((4, 8)):
        lab.samples = n
        lab.run(seed=seed)
    selected = _select(lab)
    assert selected.tasks == {}
    assert "evaluation.n: 4 (1 run) and 8 (1 run)" in selected.differing["countdown"]


@pytest.mark.parametrize(
    ("bases", "families"),
    [
        # By configuration, the base of each seed; the families by seeds and members.
        ({"a": "xxx", "b": "xx"}, [((), ["x"])]),
        ({"a": "xyz", "b": "xy"}, [((0, 1, 2), ["x", "y", "z"])]),
        ({"a": "xyz", "b": "uvw"}, [((0, 1, 2), ["x", "y", "z"]), ((0, 1, 2), ["u", "v", "w"])]),
        # Seed 1 would have two bases, or two of three seeds one base.
        ({"a": "xyz", "b": "xw"}, [((0, 1, 2), ["x", "y", "z"]), ((0, 1), ["x", "w"])]),
        ({"a": "xx", "b": "xxy"}, [((), ["x"]), ((0, 1, 2), ["x", "x", "y"])]),
    ],
)
def test_families_of_bases(lab, bases, families):
    for estimator, letters in bases.items():
        for seed, letter in enumerate(letters):
            lab.run(estimator, seed, base=letter)
    runs = lab.store.runs.select(newest_first=False)
    found = group_bases(runs, select_evaluations(lab.store, runs))
    subjects = [[base.subject for base in family.members] for family in found]
    assert list(zip([family.seeds for family in found], subjects, strict=True)) == families
