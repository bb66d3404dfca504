"""Tables with a header: delimiters, texts, damaged lines and tables with a value per line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advsweep.errors import ConfigError
from advsweep.logs import LoggedStep, open_metric_log, read_all

anything = settings(
    deadline=None,
    derandomize=True,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def _read(tmp_path: Path, text: str, **options):
    file = tmp_path / "metrics.csv"
    file.write_bytes(text.encode())
    log = open_metric_log("csv", file, **options)
    return read_all(log), log


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_column_is_a_metric(tmp_path, delimiter):
    text = 'step,reward,"note"\r\n1,0.25,warm-up\n2,,warm-up\n3,1e-3,warm-up\n'
    steps, log = _read(tmp_path, "\ufeff" + text.replace(",", delimiter))
    assert steps == [
        LoggedStep(1, {"reward": 0.25}),
        LoggedStep(2, {}),
        LoggedStep(3, {"reward": 0.001}),
    ]
    assert log.config == {"note": "warm-up"}
    assert not log.left_out


def test_numbers_with_a_comma(tmp_path):
    steps, _ = _read(tmp_path, "step;reward\n1;0,5\n")
    assert steps == [LoggedStep(1, {"reward": 0.5})]


def test_a_line_is_a_value(tmp_path):
    steps, log = _read(tmp_path, "Step,Metric,Value\n1,a,0.5\n1,b,nan\n2,a,1\n2,b,\n")
    assert steps == [
        LoggedStep(1, {"a": 0.5}),
        LoggedStep(1, {}),
        LoggedStep(2, {"a": 1.0}),
        LoggedStep(2, {}),
    ]
    assert log.left_out == {"values that are NaN or infinite": 1}


def test_a_header_that_comes_again_is_no_line(tmp_path):
    text = "step,a\n1,1\nstep,a\n2,2\nstep,a,b\n3,3,4\n"
    steps, log = _read(tmp_path, text)
    assert steps == [
        LoggedStep(1, {"a": 1.0}),
        LoggedStep(2, {"a": 2.0}),
        LoggedStep(3, {"a": 3.0, "b": 4.0}),
    ]
    assert not log.left_out


def test_the_last_value_of_a_line_without_its_end_may_be_cut(tmp_path):
    steps, log = _read(tmp_path, "step,a,b\n1,0.5,0.25\n2,0.5,0.2")
    assert steps == [LoggedStep(1, {"a": 0.5, "b": 0.25}), LoggedStep(2, {"a": 0.5})]
    assert log.left_out == {"last values of a line without its end": 1}


def test_damaged_lines_are_counted(tmp_path):
    text = "step,a,b\n1,1\nx,1,2\n2,1,2,3\n3,1,2,\n4,text,1\n5,other,1\n" + "6," + "9" * 200_000
    steps, log = _read(tmp_path, text + ",1\n")
    assert steps == [
        LoggedStep(3, {"a": 1.0, "b": 2.0}),
        LoggedStep(4, {"b": 1.0}),
        LoggedStep(5, {"b": 1.0}),
    ]
    assert log.left_out == {
        "incomplete lines": 2,
        "lines without a step": 1,
        "lines with more cells than the header": 1,
        "values that are not numbers": 1,
    }


def test_tags_tell_the_runs_of_a_table_apart(tmp_path):
    file = tmp_path / "runs.csv"
    file.write_text("estimator,seed,step,reward\ngrpo,0,1,0.1\nrloo,0,1,0.2\ngrpo,0,2,0.3\n")
    log = open_metric_log("csv", file, by=("estimator", "seed"))
    found = [(log.tag, step) for step in log.iter_new()]
    assert found == [
        (("grpo", "0"), LoggedStep(1, {"reward": 0.1})),
        (("rloo", "0"), LoggedStep(1, {"reward": 0.2})),
        (("grpo", "0"), LoggedStep(2, {"reward": 0.3})),
    ]
    assert log.config == {}


def test_a_table_without_a_step_is_refused_with_what_it_has(tmp_path):
    with pytest.raises(ConfigError, match=r"column of the step .* got: time, reward; name it"):
        _read(tmp_path, "time,reward\n1,2\n")
    steps, _ = _read(tmp_path, "time,reward\n1,2\n", step_keys=("time",))
    assert steps == [LoggedStep(1, {"reward": 2.0})]


@anything
@given(st.text("step,01.5\n\"';\t-e", max_size=80))
def test_any_table_reads_or_is_refused(tmp_path, text):
    try:
        steps, _ = _read(tmp_path, "step,a,b\n" + text)
    except ConfigError:
        return
    assert all(step.step >= 0 for step in steps)


@anything
@given(
    st.lists(st.tuples(st.integers(0, 99), st.floats(-1e6, 1e6)), max_size=6), st.integers(0, 99)
)
def test_a_cut_table_has_no_wrong_value(tmp_path, rows, cut):
    text = "step,a\n" + "".join(f"{step},{value!r}\n" for step, value in rows)
    steps, _ = _read(tmp_path, text[: 7 + cut])
    for found, (step, value) in zip(steps, rows, strict=False):
        if found.values:
            assert (found.step, found.values["a"]) == (step, value)
