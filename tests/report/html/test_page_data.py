"""Data of the page: thinned curves, and the runs that it lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.report.figures.data import FigureData
from advsweep.report.html import render_page
from advsweep.report.html.page import collect_curves, thin
from advsweep.report.tables.build import build_report


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
    return FigureData(lab.store, lab.store.runs.select(newest_first=False), "demo")


def test_curves_are_thinned_until_they_fit(demo):
    whole = collect_curves(_figure_data(demo))
    names = [metric["name"] for metric in whole["metrics"]]
    assert names[:2] == ["collapse/acr", "entropy/token"]
    assert {metric["per"] for metric in whole["metrics"]} == {1}
    # Three metrics and the scores of evaluations of seven runs, at two steps each.
    points = 5
    few = collect_curves(_figure_data(demo), budget=8 * 7 * len(names) * points)
    assert [metric["name"] for metric in few["metrics"]] == names
    assert max(len(metric["steps"]) for metric in few["metrics"]) == points


def test_the_same_data_give_the_same_bytes_and_no_reference_to_anything_outside(demo):
    first, second = (render_page(build_report(demo.store, "demo"), demo.store) for _ in range(2))
    assert first == second
    for outside in ("http:", "https:", "//cdn", "@import", "url(h"):
        assert outside not in first.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("where", [True, False])
def test_runs_that_are_not_done_are_listed_unless_some_were_chosen(demo, where):
    from advsweep.report.data.runs import parse_where
    from advsweep.store import Status

    demo.run("grpo", 9, solved=None, status=Status.FAILED)
    filters = parse_where("estimator=grpo") if where else []
    report = build_report(demo.store, "demo", where=filters)
    text = render_page(report, demo.store, where=filters)
    assert text.count('class="open"') == (3 if where else 8)
    assert (">failed<" in text) is not where
