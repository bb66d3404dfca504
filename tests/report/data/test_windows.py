"""Windows on curves, and columns that are made of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.errors import NotFoundError
from advsweep.report.data.columns import parse_column, range_of
from advsweep.report.data.cutoffs import parse_cutoff
from advsweep.report.data.windows import Window
from advsweep.report.tables.build import build_report
from advsweep.report.tables.render import lay_out
from advsweep.report.tables.request import ReportRequest

KINDS = (
    *("mean", "first", "end", "min", "max", "argmin", "argmax"),
    *("slope", "var", "steps_to=", "share>", "share<"),
)
CURVE = (np.array([10, 20, 30, 40, 50]), np.array([0.5, 0.2, math.nan, 0.2, 0.9]))


def parse_window(text):
    column = parse_column(f"a/b@{text}")
    return None if column is None else column.window


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("min", 0.2),
        ("max", 0.9),
        ("argmin", 20),  # the first of two
        ("argmax", 50),
        ("first20", 0.35),
        ("end", 0.9),  # after step 40
        # Around the mean of .45, values are .05, -.25, -.25, .45; deviations of steps from 30 are
        # -20, -10, 10, 20: their products sum up to 8, their squares to 1,000; times 100 steps.
        ("slope", 100 * 8 / 1000),
        ("var", (0.05**2 + 2 * 0.25**2 + 0.45**2) / 3),
        # From .5 down to .2 in ten steps, .3 comes after two thirds of them.
        ("steps_to=0.3", 10 + 20 / 3),
        ("steps_to=0.9", 50),
        ("steps_to=1", math.nan),
        ("share>0.2", 0.5),
        ("share<0.3", 0.5),
        ("share>-1e0", 1),
    ],
)
def test_by_hand(text, value):
    window = parse_window(text)
    assert window is not None
    assert window.of(CURVE) == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_curves_have_no_number(kind):
    assert math.isnan(Window(kind, 3).of((np.array([]), np.array([]))))
    assert math.isnan(Window(kind, 3).of(CURVE, end=5))


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30),
    st.floats(-1e3, 1e3),
    st.integers(1, 30),
)
def test_properties(values, x, end):
    curve = np.arange(1, len(values) + 1), np.array(values)

    def of(text, until=None):
        return parse_window(text).of(curve, until)

    assert of("min") <= math.fsum(values) / len(values) + 1e-9
    assert curve[1][int(of("argmax")) - 1] == of("max")
    equal = values.count(x) / len(values)
    assert of(f"share>{x!r}") + of(f"share<{x!r}") + equal == pytest.approx(1)
    assert of("slope") == pytest.approx(100 * np.polyfit(*curve, 1)[0], abs=1e-6)
    reached = of(f"steps_to={x!r}")
    if not math.isnan(reached):
        assert np.interp(reached, *curve) == pytest.approx(x, abs=1e-6)
    elif values[0] != x:
        assert min(values) > x or max(values) < x
    # A window up to a step is that of the shorter curve.
    short = curve[0][:end], curve[1][:end]
    assert of("var", end) == pytest.approx(Window("var").of(short), nan_ok=True)


@pytest.mark.parametrize(
    ("name", "of", "window", "at"),
    [
        ("collapse/acr@min", "collapse/acr", "min", None),
        ("val/acc/mean@16@slope", "val/acc/mean@16", "slope", None),
        ("pass@8@max", "pass@8", "max", None),
        ("pass@8[gsm8k,level=3]@steps_to=0.5", "pass@8[gsm8k,level=3]", "steps_to=0.5", None),
        ("pass@32@pass@1=0.45", "pass@32", None, "pass@1=0.45"),
        ("pass@32[level=3]@pass@1[level=3]=0.45", "pass@32[level=3]", None, "pass@1[level=3]=0.45"),
        ("collapse/acr@share>0.5@rollouts=500", "collapse/acr", "share>0.5", "rollouts=500"),
    ],
)
def test_names(name, of, window, at):
    column = parse_column(name)
    assert column is not None
    assert (column.name, column.source) == (name, parse_column(of).source)
    assert column.window == (None if window is None else parse_window(window))
    assert column.at == (None if at is None else parse_cutoff(at))
    assert column.needs_training_curve


@pytest.mark.parametrize(
    "name",
    [
        *("pass@1=0.45", "total/steps@min", "a@b@c", "pass@8@pass@1=0.4@pass@1=0.5", "a>3", "@min"),
        *("entropy/right_rarefied[m=1]", "entropy/right[m=2]", "pass@8[split=held_out]"),
        *("pass@8[split=train,split=train]", "pass@8[split=]", "collapse/acr@selected"),
        *("total/steps@selected", "@selected"),
    ],
)
def test_names_of_no_column(name):
    assert parse_column(name) is None


def test_ranges():
    assert range_of("pass@1@max") == range_of("collapse/acr@pass@1=0.4") == (0, 1)
    assert range_of("optim/norm@share>3") == range_of("reached@pass@1=0.4") == (0, 1)
    assert range_of("estimator/triggered") == range_of("collapse/all_wrong@end") == (0, 1)
    assert range_of("collapse/acr@slope") is range_of("pass@1@argmax") is None


@pytest.fixture
def rising(lab):
    """Three seeds of grpo and fade: pass@1 goes from 1/8 at the start to 1/2 at step 10, and to 1.

    That of fade's seeds 1 and 2 ends at 1/4 instead. Collapse rises by .05 in each step.
    """
    points = [("collapse/acr", step, step / 20) for step in range(1, 21)]
    for estimator in ("grpo", "fade"):
        for seed in range(3):
            low = estimator == "fade" and seed > 0
            run = lab.run(estimator, seed, solved=(2, 0) if low else (4, 4), points=points)
            if not low:
                lab.evaluate(run, f"{estimator} {seed} 10", 10, (2, 2))
    return lab


def _values(report, column, row="grpo"):
    [found] = [r for r in report.rows if r.group["estimator"] == row]
    return found.cells[column].values


def test_columns_of_windows(rising):
    names = [
        *("collapse/acr@max", "collapse/acr@slope", "collapse/acr@share>0.5"),
        *("pass@1@min", "pass@1@argmax", "pass@1@steps_to=0.25", "collapse/acr@steps_to=0.4"),
        *("pass@1@first10", "pass@2@end"),
    ]
    report = build_report(rising.store, ReportRequest("demo", columns=names))
    of = {name: _values(report, name)[0] for name in names}
    assert of == pytest.approx(
        {
            "collapse/acr@max": 1.0,
            "collapse/acr@slope": 5.0,
            "collapse/acr@share>0.5": 0.5,
            "pass@1@min": 0.125,
            "pass@1@argmax": 20,
            "pass@1@steps_to=0.25": 10 / 3,
            # The mean of steps 4 to 13 is 8.5 / 20, and of 3 to 12 it is 7.5 / 20.
            "collapse/acr@steps_to=0.4": 12.5,
            "pass@1@first10": (1 / 8 + 1 / 2) / 2,
            "pass@2@end": 1.0,
        }
    )
    assert all(math.isnan(report.rows[0].cells[name].mean) for name in names)  # the base


def test_values_where_another_column_is_equal(rising):
    names = ["pass@2@pass@1=0.5", "total/steps@pass@1=0.5", "reached@pass@1=0.5"]
    names += ["collapse/acr@pass@1=0.5", "pass@1@max@pass@1=0.5", "pass@2"]
    report = build_report(rising.store, ReportRequest("demo", columns=names))
    # With 2 of 4 right, pass@2 is 1 - 1/6.
    assert _values(report, names[0])[0] == pytest.approx(5 / 6)
    assert _values(report, names[1])[0] == 10
    assert _values(report, names[2], "fade") == (1, 0, 0)
    assert _values(report, names[3])[0] == pytest.approx(5.5 / 20)
    assert _values(report, names[4])[0] == 0.5
    assert _values(report, "pass@2") == (1, 1, 1)
    assert np.isnan(_values(report, names[0], "fade")).tolist() == [False, True, True]
    [remark] = report.remarks
    left_out = "runs that do not come to it are left out of its numbers: fade (seeds 1, 2)"
    assert remark == f"@pass@1=0.5: at steps 10; {left_out}"


def test_equal_values_show_how_many_runs_reach_them(rising):
    at = parse_cutoff("pass@1=0.5")
    report = build_report(rising.store, ReportRequest("demo", columns=["pass@2"], at=at))
    assert [column.name for column in report.columns] == ["pass@2", "reached"]
    cells = {row.group["estimator"]: row.cells["reached"] for row in report.rows}
    assert (cells["grpo"].mean, cells["fade"].mean) == (1, pytest.approx(1 / 3))
    assert math.isnan(cells["fade"].low)
    assert {d.column for d in report.differences} <= {"pass@2"}
    assert any("fade (seeds 1, 2)" in note for note in lay_out(report).notes)
    assert not any("zero spread" in note and "reached" in note for note in lay_out(report).notes)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("collapse/arc@min", "no run of the table has a metric 'collapse/arc'; did you mean"),
        ("pass@8@collapse/arc=1", "pass@8@collapse/arc=1: no run has a metric 'collapse/arc'"),
        ("reached@pass@1@min=1", "no column is called"),
        ("reached", "no run of the table has a metric 'reached'"),
    ],
)
def test_windows_of_what_is_not_there(rising, name, message):
    with pytest.raises(NotFoundError, match=message):
        build_report(rising.store, ReportRequest("demo", columns=[name]))
