"""Tables with a header: delimiters, texts, damaged lines and tables with a value per line."""

from __future__ import annotations

from pathlib import Path

import pytest

from advsweep.errors import ConfigError
from advsweep.logs import LoggedStep, open_metric_log


def _read(tmp_path: Path, text: str, **options):
    file = tmp_path / "metrics.csv"
    file.write_bytes(text.encode())
    log = open_metric_log("csv", file, **options)
    return list(log.steps()), log


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


@pytest.mark.parametrize("cell", ["1,234", "0,5", "-1,234.5", "1.234,5", "1.234", '"1,000"'])
def test_a_number_of_two_meanings_is_refused(tmp_path, cell):
    with pytest.raises(ConfigError, match=r"line 2: .* no other sign, got '.*'; --decimal"):
        _read(tmp_path, f"step;a\n1;{cell}\n")
    steps, log = _read(tmp_path, 'step;a;b\n1;0.234;"0.9,0.95"\n')
    assert (steps, log.config) == ([LoggedStep(1, {"a": 0.234})], {"b": "0.9,0.95"})


@pytest.mark.parametrize(
    ("decimal", "cell", "number"),
    [
        (",", "0,5", 0.5),
        (",", "1.234,5", 1234.5),
        (",", "1.234", 1234),
        (".", "1,234.5", 1234.5),
        (".", "1.234", 1.234),
    ],
)
def test_the_decimal_sign_may_be_named(tmp_path, decimal, cell, number):
    steps, _ = _read(tmp_path, f"step;a\n1;{cell}\n", decimal=decimal)
    assert steps == [LoggedStep(1, {"a": number})]


def test_percents_are_shares(tmp_path):
    steps, _ = _read(tmp_path, "step,a\n1,45.5%\n2,50 %\n")
    assert steps == [LoggedStep(1, {"a": 0.455}), LoggedStep(2, {"a": 0.5})]


def test_a_text_where_numbers_are_is_counted(tmp_path):
    text = "step,a,b,c\n1,n/a,warm,1.2.3\n2,n/a,warm,0.5\n3,0.5,warm,1.2.3\n"
    steps, log = _read(tmp_path, text)
    assert [values for _, values in steps] == [{}, {"c": 0.5}, {"a": 0.5}]
    assert log.config == {"b": "warm"}
    assert log.left_out == {"values of a that are not numbers": 2,
                            "values of c that are not numbers": 2}  # fmt: skip


def test_a_line_is_a_value(tmp_path):
    steps, log = _read(tmp_path, "Step,Metric,Value\n1,a,0.5\n1,b,nan\n2,a,1\n2,b,\n")
    assert steps == [
        LoggedStep(1, {"a": 0.5}),
        LoggedStep(1, {}),
        LoggedStep(2, {"a": 1.0}),
        LoggedStep(2, {}),
    ]
    assert log.left_out == {"values of b that are NaN or infinite": 1}


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
        "values of a that are not numbers": 2,
    }


def test_a_table_without_a_step_is_refused_with_what_it_has(tmp_path):
    with pytest.raises(ConfigError, match=r"column of the step .* got: time, reward; name it"):
        _read(tmp_path, "time,reward\n1,2\n")
    steps, _ = _read(tmp_path, "time,reward\n1,2\n", step_keys=("time",))
    assert steps == [LoggedStep(1, {"reward": 2.0})]
