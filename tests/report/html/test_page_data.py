"""Data of the page: thinned curves, and the runs that it lists."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.report.figures.data import FigureData, NamedRuns, thin
from advsweep.report.html import render_page
from advsweep.report.html.page import collect_curves, collect_spent, describe_runs
from advsweep.report.tables.build import build_report
from advsweep.report.tables.request import ReportRequest


def test_thinning_by_hand():
    series = {
        1: (np.arange(1, 8), np.array([0.0, 1, 2, 3, 4, 5, 6])),
        # Has no steps 1 and 2, and nothing finite at 5 and 6.
        2: (np.arange(3, 8), np.array([10.0, np.nan, np.nan, np.inf, 30.0])),
    }
    grid, per, values = thin(series, points=4)
    # Seven steps in four stretches of two, the last of one.
    assert per == 2
    assert grid.tolist() == [1.5, 3.5, 5.5, 7.0]
    assert values[1].tolist() == [0.5, 2.5, 4.5, 6.0]
    np.testing.assert_array_equal(values[2], [np.nan, 10.0, np.nan, 30.0])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.integers(1, 20))
def test_a_thinned_curve_keeps_its_ends_its_bounds_and_its_mean(values, points):
    curve = np.array(values)
    grid, per, thinned = thin({1: (np.arange(len(curve)), curve)}, points)
    stretches = [curve[i : i + per] for i in range(0, len(curve), per)]
    assert len(grid) == len(stretches) <= points
    for mean, stretch in zip(thinned[1], stretches, strict=True):
        # A spike stands out by its height over the stretch's other values, divided by `per`.
        assert stretch.min() - 1e-6 <= mean <= stretch.max() + 1e-6
    whole = sum(m * len(stretch) for m, stretch in zip(thinned[1], stretches, strict=True))
    assert whole == pytest.approx(curve.sum(), rel=1e-9, abs=1e-5)


def _figure_data(lab) -> FigureData:
    return FigureData(lab.store, NamedRuns(lab.store.runs.select(newest_first=False), "demo"))


def test_the_database_thins_as_python_does(lab):
    rng = np.random.default_rng(0)
    for seed, steps in enumerate([range(1, 41), range(1, 24), range(10, 41, 3)]):
        values = [math.nan if step % 7 == 0 else rng.random() for step in steps]
        points = [("reward/mean", step, v) for step, v in zip(steps, values, strict=True)]
        lab.run("grpo", seed, points=points, solved=None)
    data = _figure_data(lab)
    for points in (1, 6, 39, 40, 100):
        grid, per, found = data.thinned("reward/mean", points)
        own_grid, own_per, expected = thin(data.series("reward/mean"), points)
        assert per == own_per
        np.testing.assert_array_equal(grid, own_grid)
        assert found.keys() == expected.keys()
        for run_id, values in expected.items():
            np.testing.assert_allclose(found[run_id], values)


def test_what_a_run_spent_is_kept_at_equal_distances(lab, constant):
    # Each step draws 4 prompts x 8 rollouts, times its metric: 1, 2, 3 and so on.
    parts = constant(time__rollout=1.0, time__reward=0.5, time__estimator=0.25, time__update=0.25)
    growing = [("cost/rollouts", step, float(step)) for step in range(1, 21)]
    lab.run("grpo", 0, points=[*growing, *parts])
    lab.run("grpo", 1, points=growing)
    spent = collect_spent(_figure_data(lab), budget=2 * 8 * 5)
    # After steps 0, 5, 10, 15 and 20; the second run has no times.
    rollouts = [20, *(32 * step * (step + 1) / 2 for step in range(0, 21, 5))]
    assert spent == {
        "rollouts": {"1": rollouts, "2": rollouts},
        "seconds": {"1": [20, 0, 10, 20, 30, 40]},
    }
    lab.run("fade", 0, sweep="other", points=constant(reward__mean=0.5))
    alone = FigureData(lab.store, NamedRuns(lab.store.runs.select(sweep="other"), "other"))
    assert collect_spent(alone) == {}


def test_the_facts_below_the_title(demo):
    runs = demo.store.runs.select(sweep="demo")
    facts = describe_runs(build_report(demo.store, ReportRequest("demo")), runs)
    n = ("n", "3 rows of 1-3 seeds, 1 base model")
    assert facts == [("steps", "20"), n, ("made", "2026-03-01")]
    for seed in range(2):
        demo.run("grpo", seed, sweep="hub", task__name="file", model__name="hf", model__path="a/b")
    runs = demo.store.runs.select(sweep="hub")
    facts = describe_runs(build_report(demo.store, ReportRequest("hub")), runs)
    assert facts[:3] == [("task", "file"), ("model", "hf"), ("model.path", "a/b")]
    assert facts[4] == ("n", "1 row of 2 seeds, 1 base model")


def test_curves_are_thinned_until_they_fit(demo):
    whole = collect_curves(_figure_data(demo))
    names = [metric["name"] for metric in whole["metrics"]]
    assert names[:2] == ["ACR", "H tok"]
    assert {metric["per"] for metric in whole["metrics"]} == {1}
    # Three metrics and the scores of evaluations of seven runs, at two steps each.
    points = 5
    few = collect_curves(_figure_data(demo), budget=8 * 7 * len(names) * points)
    assert [metric["name"] for metric in few["metrics"]] == names
    assert max(len(metric["steps"]) for metric in few["metrics"]) == points


def test_the_same_data_give_the_same_bytes_and_no_reference_to_anything_outside(demo):
    first, second = (
        render_page(build_report(demo.store, ReportRequest("demo")), demo.store) for _ in range(2)
    )
    assert first == second
    for outside in ("http:", "https:", "//cdn", "@import", "url(h"):
        assert outside not in first.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("where", [True, False])
def test_runs_that_are_not_done_are_listed_unless_some_were_chosen(demo, where):
    from advsweep.report.data.filters import parse_where
    from advsweep.store import Status

    demo.run("grpo", 9, solved=None, status=Status.FAILED)
    filters = parse_where("estimator=grpo") if where else []
    report = build_report(demo.store, ReportRequest("demo", where=filters))
    text = render_page(report, demo.store, where=filters)
    assert text.count('class="open"') == (3 if where else 8)
    assert (">failed<" in text) is not where


def test_a_page_has_the_figure_of_turns_where_there_are_turns(lab, constant):
    def figures() -> list[str]:
        report = build_report(lab.store, ReportRequest("demo"))
        page = render_page(report, lab.store)
        return [title for title in ("pass@k after training", "turns of episodes") if title in page]

    lab.run("grpo", points=constant(reward__mean=0.5))
    assert figures() == ["pass@k after training"]
    points = constant(reward__mean=0.5, turns__mean=2.0, turns__collapsed__turn_1=0.25)
    lab.run("gigpo", points=points)
    assert figures() == ["pass@k after training", "turns of episodes"]
