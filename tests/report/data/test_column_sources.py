"""What a column is a number of: the names of sources, and what each kind of them answers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.report.data.column_choice import choose_columns, read_columns
from advsweep.report.data.columns import column_of, parse_column
from advsweep.report.data.cutoffs import CutoffSteps
from advsweep.report.data.evaluation_choice import select_evaluations
from advsweep.report.data.evaluation_sources import (
    LAWS,
    Law,
    PassAtK,
    ProblemChoice,
    ProblemMean,
    RarefiedEntropy,
)
from advsweep.report.data.evaluations import EvaluationsByTask
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.data.run_data import RunData
from advsweep.report.data.source_names import parse_source
from advsweep.report.data.sources import Metric, Reached, Total
from advsweep.report.data.windows import Window

HIGHER, LOWER, NEITHER = MetricDirection.HIGHER, MetricDirection.LOWER, MetricDirection.NEITHER
SHARE = (0.0, 1.0)


@pytest.mark.parametrize(
    ("text", "source", "label", "direction", "bounds"),
    [
        ("collapse/acr", Metric("collapse/acr"), "ACR", LOWER, SHARE),
        ("my/metric", Metric("my/metric"), "my/metric", NEITHER, None),
        ("val/acc/mean@16", Metric("val/acc/mean@16"), "val/acc/mean@16", NEITHER, None),
        ("total/steps", Total("steps"), "all steps", NEITHER, None),
        ("pass@8", PassAtK(8), "p@8", HIGHER, SHARE),
        (
            "pass@8[gsm8k,level=3,split=train,above=guess]",
            PassAtK(8, "guess", problems=ProblemChoice("gsm8k", level=3, is_train=True)),
            "gsm8k level 3 train p@8 - guess",
            HIGHER,
            None,
        ),
        (
            "pass@1[base=0.1:0.5]",
            PassAtK(1, problems=ProblemChoice(base=(0.1, 0.5))),
            "base 0.1-0.5 p@1",
            HIGHER,
            SHARE,
        ),
        (
            "pass@1[mean]",
            PassAtK(1, problems=ProblemChoice(is_mean=True)),
            "mean p@1",
            HIGHER,
            SHARE,
        ),
        ("entropy/answer", ProblemMean("entropy/answer"), "H ans", NEITHER, None),
        ("entropy/right_rarefied", RarefiedEntropy(), "H right/8", NEITHER, None),
        ("entropy/right_rarefied[m=16]", RarefiedEntropy(16), "H right/16", NEITHER, None),
        (
            "entropy/right_rarefied_share",
            RarefiedEntropy(is_share=True),
            "has 8 right",
            NEITHER,
            SHARE,
        ),
        ("law/a", Law("a"), "law/a", LOWER, None),
        ("law/aic/power", Law("aic", "power"), "law/aic/power", NEITHER, None),
    ],
)
def test_a_source_by_its_name(text, source, label, direction, bounds):
    parsed = parse_source(text)
    assert parsed == source
    assert (parsed.direction, parsed.range) == (direction, bounds)
    assert column_of(parsed) == parse_column(text)
    assert (column_of(parsed).name, column_of(parsed).header) == (text, label)


@pytest.mark.parametrize(
    ("text", "curve", "evaluation", "interval"),
    [
        ("collapse/acr", False, False, False),
        ("collapse/acr@first10", False, False, False),
        ("collapse/acr@min", True, False, False),
        ("total/steps", False, False, False),
        ("total/steps@pass@1=0.5", True, False, False),
        ("pass@8", False, True, True),
        ("pass@8[mean]", False, True, False),
        ("pass@8[above=guess]", False, True, False),
        ("pass@8[base=0:0.5]", False, True, False),
        ("pass@8@selected", True, False, False),
        ("entropy/answer@end", True, False, False),
        ("law/b", False, True, False),
        ("reached@pass@1=0.5", True, False, False),
    ],
)
def test_what_a_column_needs(text, curve, evaluation, interval):
    column = parse_column(text)
    assert column.needs_training_curve is curve
    source = column.of_one_evaluation
    assert (source is not None) is evaluation
    assert (source is not None and source.has_bootstrap_interval) is interval


CHOICES = st.builds(
    ProblemChoice,
    task=st.none() | st.sampled_from(["gsm8k", "aime-24"]),
    level=st.none() | st.integers(0, 9),
    base=st.none() | st.sampled_from([(0.0, 0.5), (0.125, 1.0)]),
    is_train=st.booleans(),
)
SOURCES = st.one_of(
    st.builds(Metric, st.sampled_from(["collapse/acr", "a", "val/acc/mean@16"])),
    st.builds(PassAtK, st.integers(1, 512), st.none() | st.just("guess"), problems=CHOICES),
    st.builds(RarefiedEntropy, st.integers(2, 64), st.booleans(), problems=CHOICES),
    st.builds(ProblemMean, st.sampled_from(["entropy/right", "kl/base"]), problems=CHOICES),
    st.builds(Law, st.sampled_from(["mse", "aic"]), st.sampled_from(LAWS), problems=CHOICES),
)
WINDOWS = st.one_of(
    st.builds(Window, st.sampled_from(["end", "last", "min", "argmax", "slope", "var"])),
    st.builds(Window, st.just("first"), st.integers(1, 999).map(float)),
    st.builds(Window, st.sampled_from(["steps_to=", "share>", "share<"]), st.floats(-9, 9)),
)


@given(SOURCES, st.none() | WINDOWS, st.sampled_from(["", "@steps=5", "@pass@1[level=2]=0.5"]))
def test_a_column_is_what_its_text_says(source, window, cutoff):
    text = f"{source}" if window is None else f"{source}@{window}"
    column = parse_column(text + cutoff)
    assert (column.source, column.window, str(column)) == (source, window, text + cutoff)
    assert ("" if column.at is None else f"@{column.at.text}") == cutoff


@pytest.fixture
def data(lab, constant):
    """One run of 20 steps: 32 rollouts a step, pass@1 from 1/8 over 1/2 to 3/4."""
    points = constant(cost__rollouts=1.0)
    points += [("collapse/acr", step, step / 20) for step in range(1, 21)]
    run = lab.run(solved=(4, 2), points=points)
    lab.evaluate(run, "between", 10, (2, 2))
    runs = lab.store.runs.select()
    return RunData(lab.store, runs, select_evaluations(lab.store, runs, along=True))


@pytest.mark.parametrize(
    ("source", "window", "at_end", "at_step_15"),
    [
        (Metric("collapse/acr"), None, 10.5 / 20, 8 / 20),
        (Metric("collapse/acr"), Window("max"), 1, 15 / 20),
        (Metric("collapse/acr"), Window("end"), 15.5 / 20, 10.5 / 20),
        (Total("rollouts"), None, 640, 480),
        (Total("steps"), None, 20, 15),
        (PassAtK(1), None, 3 / 4, 5 / 8),
        (PassAtK(1), Window("max"), 3 / 4, 1 / 2),
        (ProblemMean("entropy/answer"), None, 0.75, 0.625),
        (Reached(), None, None, 1),
        (Metric("absent"), None, None, None),
    ],
)
def test_the_number_of_each_source(data, source, window, at_end, at_step_15):
    (run_id,) = data.ids
    at = CutoffSteps({run_id: 15.0})
    for expected, found in [
        (at_end, source.values(data, window)),
        (at_step_15, source.values_at(data, window, at)),
    ]:
        assert found == ({} if expected is None else {run_id: pytest.approx(expected)})


def test_runs_that_never_come_to_a_cutoff_have_no_number_there(data):
    (run_id,) = data.ids
    at = CutoffSteps({run_id: math.nan})
    assert PassAtK(1).values_at(data, None, at) == {}
    assert Reached().values_at(data, None, at) == {run_id: 0}


def test_a_curve_is_read_once(data, monkeypatch):
    first = data.curves(Metric("collapse/acr"))
    monkeypatch.setattr(type(data.store.metrics), "series", None)
    assert data.curves(Metric("collapse/acr")) is first


def test_stars_stand_for_what_the_runs_have(data):
    written = read_columns(["pass@*", "pass@1[level=*]", "pass@1", "collapse/acr@max"])
    assert [item.needs_training_curve for item in written] == [False, False, False, True]
    names = [column.name for column in choose_columns(written, data.evaluated)]
    levels = ["pass@1[level=0]", "pass@1[level=1]"]
    assert names == ["pass@1", "pass@2", *levels, "collapse/acr@max"]


def test_a_logged_share_stands_for_pass_at_k_of_runs_without_an_evaluation():
    nothing = EvaluationsByTask({}, None)
    assert PassAtK(8).logged_metric(nothing) == "pass_at_8"
    assert PassAtK(8, "guess").logged_metric(nothing) is None
    assert PassAtK(8, problems=ProblemChoice(level=1)).logged_metric(nothing) is None
