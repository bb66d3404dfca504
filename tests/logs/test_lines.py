"""Lines of text: JSON, or what regular expressions find; what a growing file yields."""

from __future__ import annotations

import gzip
import json

import pytest

from advsweep.errors import ConfigError, UnknownNameError
from advsweep.logs import READERS, ImportOptions, LoggedStep, line_log, open_metric_log
from advsweep.logs.base import LAST_STEP, whole_step
from advsweep.logs.line_log import MAX_LINE
from advsweep.logs.names import NameMap


def test_a_line_is_a_step_with_its_numbers(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(
        '{"config": {"estimator": {"name": "grpo"}, "seed": 3}}\n'
        '{"step": 1, "reward": 0.25, "loss": {"policy": -1, "kl": 1e-3}, "run": "a"}\r\n'
        "\n"
        '{"global_step": "2", "reward": 0.5, "run": "a", "best": null}\n'
    )
    log = open_metric_log("jsonl", file)
    assert list(log.steps()) == [
        LoggedStep(1, {"reward": 0.25, "loss/policy": -1.0, "loss/kl": 0.001}),
        LoggedStep(2, {"reward": 0.5}),
    ]
    assert log.config == {"estimator": {"name": "grpo"}, "seed": 3, "run": "a"}
    assert not log.left_out


def test_verl_holds_the_values_in_data(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(
        '{"step": 4, "data": {"critic/rewards/mean": 0.5, "training/global_step": 4}}\n'
        '{"step": 5}\n'
    )
    log = open_metric_log("verl", file)
    assert list(log.steps()) == [
        LoggedStep(4, {"critic/rewards/mean": 0.5, "training/global_step": 4})
    ]
    assert log.left_out == {"lines without a mapping 'data'": 1}


def test_what_cannot_be_used_is_counted_by_its_reason(tmp_path):
    file = tmp_path / "metrics.jsonl"
    lines = [
        '{"step": 1, "a": NaN, "b": Infinity, "c": true, "d": [1], "e": 1' + "0" * 400 + "}",
        '{"step": "2", "name": "x", "f": "0.01", "g": "NaN"}',
        '{"step": 3, "name": "y"}',
        '{"reward": 1}',
        '{"step": -1, "reward": 1}',
        "[1, 2]",
        '{"step": 4, "rewa{"step": 5, "reward": 1}',
        '{"step": 6, "rew',
        '{"step": 7, "' + "n" * 201 + '": 1}',
    ]
    file.write_text("\n".join(lines))
    log = open_metric_log("jsonl", file)
    assert [step for step, _ in list(log.steps())] == [1, 2, 3, 7]
    assert log.left_out == {
        **{f"values of {name} that are NaN or infinite": 1 for name in "abeg"},
        "values of d that are not numbers": 1,
        "values of name that are texts which change within a run": 2,
        "lines without a step": 1,
        "lines whose step is no whole number from 0 to 2,147,483,647": 1,
        "lines that are not JSON objects": 1,
        "lines that are not JSON": 1,
        "incomplete lines": 1,
        "values whose names are empty or have over 200 characters": 1,
    }


def test_counts_name_a_bounded_number_of_metrics(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(json.dumps({"step": 1, **{f"m{i}": [] for i in range(50)}}) + "\n")
    log = open_metric_log("jsonl", file)
    list(log.steps())
    assert len(log.left_out) == 21
    assert log.left_out["values of further metrics that are not numbers"] == 30


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (b"PK\x03\x04" + b"\0" * 9, "a zip archive or an Excel workbook"),
        (b"PAR1" + b"\0" * 9, "a parquet table"),
        (b"\x80\x04\x95", "a pickle"),
    ],
    ids=["zip", "parquet", "pickle"],
)
def test_what_is_no_text_is_refused(tmp_path, content, form):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"metrics.jsonl: expected lines of text, got {form}"):
        list(open_metric_log("jsonl", file).steps())


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b'{"step": 1, "a": 2}\n', mtime=0),
        gzip.compress(b'[{"step": 1, "a": 2}]', mtime=0),
        '{"step": 1, "a": 2}\n'.encode("utf-16"),
        '{"step": 1, "a": 2}\n'.encode("utf-16-le"),
        b'[{"step": 1, "a": 2}]',
        b'[\n  {"step": 1,\n   "a": 2}\n]\n',
        b'{\n  "step": 1,\n  "a": 2\n}\n',
        b'{\n "step": {"0": 1},\n "a": {"0": 2}\n}',  # pandas, to_json(indent=1)
        b'{\n "step": [1],\n "a": [2]\n}',
        b'{"step": 1, "metric": "a", "value": 2}\n',
    ],
)
def test_other_forms_of_the_same_object_are_read(tmp_path, content):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(content)
    log = open_metric_log("jsonl", file)
    assert list(log.steps()) == [LoggedStep(1, {"a": 2.0})]
    assert not log.left_out


def test_a_gzip_file_that_is_cut_is_read_as_far_as_it_is_whole(tmp_path):
    file = tmp_path / "metrics.jsonl"
    lines = "".join(f'{{"step": {i}, "a": {i * 7919 % 997}}}\n' for i in range(200_000))
    file.write_bytes(gzip.compress(lines.encode(), mtime=0)[:-1000])
    log = open_metric_log("jsonl", file)
    steps = list(log.steps())
    assert steps[10] == LoggedStep(10, {"a": 10 * 7919 % 997})
    assert log.left_out["gzip files that are cut or damaged"] == 1


def test_a_document_is_read_once_it_is_complete(tmp_path):
    file = tmp_path / "metrics.json"
    log = open_metric_log("jsonl", file)
    file.write_text('[{"step": 1, "a": 2},\n')
    assert list(log.poll()) == []
    file.write_text('[{"step": 1, "a": 2},\n {"step": 2, "a": 3}]\n')
    log.finish()
    assert list(log.poll()) == [LoggedStep(1, {"a": 2.0}), LoggedStep(2, {"a": 3.0})]


@pytest.mark.parametrize(
    ("value", "why"), [("1e308", "of 1e100 or more in absolute value"), ("1e400", "that are NaN")]
)
def test_numbers_are_bounded(tmp_path, value, why):
    file = tmp_path / "metrics.jsonl"
    file.write_text(f'{{"step": 1, "a": -{value}, "b": 9e99}}\n')
    log = open_metric_log("jsonl", file)
    assert list(log.steps()) == [LoggedStep(1, {"b": 9e99})]
    (reason,) = log.left_out
    assert why in reason


def test_control_characters_of_names_are_escaped(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(json.dumps({"step": 1, "a\x1b]52;c;eA==\x07\nb": 1}) + "\n")
    assert list(open_metric_log("jsonl", file).steps()) == [
        LoggedStep(1, {r"a\x1b]52;c;eA==\x07\nb": 1.0})
    ]


def test_a_line_without_its_end_waits(tmp_path):
    file = tmp_path / "metrics.jsonl"
    log = open_metric_log("jsonl", file)
    assert list(log.poll()) == []
    file.write_text('{"step": 1, "a": 1}\n{"step": 2,')
    assert list(log.poll()) == [LoggedStep(1, {"a": 1.0})]
    assert list(log.poll()) == []
    with file.open("a") as more:
        more.write(' "a": 2}\n{"step": 3, "a": 3}')
    assert list(log.poll()) == [LoggedStep(2, {"a": 2.0})]
    log.finish()
    assert list(log.poll()) == [LoggedStep(3, {"a": 3.0})]
    assert list(log.poll()) == []
    assert not log.left_out


def test_a_file_that_became_shorter_is_read_again(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 1}\n{"st')
    log = open_metric_log("jsonl", file)
    assert len(list(log.poll())) == 2
    file.write_text('{"step": 1, "a": 5}\n')
    assert list(log.poll()) == [LoggedStep(1, {"a": 5.0})]


@pytest.mark.slow
def test_a_line_that_is_too_long_is_skipped(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"step": 1, "a": "' + b"x" * (MAX_LINE + 2**20) + b'"}\n{"step": 2}\n')
    log = open_metric_log("jsonl", file)
    assert list(log.poll()) == [LoggedStep(2, {})]
    assert log.left_out == {"lines of more than 16 MiB": 1}


def test_a_folder_is_no_log(tmp_path):
    with pytest.raises(ConfigError, match="expected a log to read"):
        list(open_metric_log("jsonl", tmp_path).poll())


def test_the_step_may_have_another_key(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "epoch": 7, "a": 1}\n')
    log = open_metric_log("jsonl", file, step_key="epoch")
    assert list(log.steps()) == [LoggedStep(7, {"step": 1.0, "a": 1.0})]


def test_unknown_kinds_and_options_are_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean jsonl"):
        open_metric_log("json", tmp_path)
    with pytest.raises(ConfigError, match=r"options\.colour: jsonl has no parameter 'colour'"):
        open_metric_log("jsonl", tmp_path, colour="red")


@pytest.mark.parametrize(
    ("value", "step"),
    [(0, 0), (7.0, 7), ("12", 12), (LAST_STEP, LAST_STEP), (LAST_STEP + 1, None)]
    + [(value, None) for value in (2.5, -1, True, "x", "nan", "inf", None, [], "1" * 33)],
)
def test_steps_are_whole_numbers(value, step):
    assert whole_step(value) == step


# Regular expressions with named groups

GROUPS = r"step (?P<step>\d+).*reward[=:] (?P<reward__mean>\S+)"
PAIRS = r"(?P<name>[\w/]+)=(?P<value>\S+)"


def _matched(tmp_path, text, pattern):
    file = tmp_path / "console.log"
    file.write_text(text)
    log = open_metric_log("pattern", file, pattern=pattern)
    return list(log.steps()), log


def test_a_group_per_metric(tmp_path):
    text = "start\nstep 1 | reward= 0.25 done\n\x1b[32mstep 2\x1b[0m reward: 1,000 x\nstep 3\n"
    steps, log = _matched(tmp_path, text, GROUPS)
    assert steps == [LoggedStep(1, {"reward/mean": 0.25}), LoggedStep(2, {"reward/mean": 1000.0})]
    assert not log.left_out


def test_names_and_values_belong_to_the_last_step(tmp_path):
    text = "a=1\n7/9 [step 7]\na=0.5 b/c=2 d=x\n8/9 [step 8]\ra=3\n"
    steps, log = _matched(tmp_path, text, [r"\[step (?P<step>\d+)\](?P<none>)?", PAIRS])
    assert steps == [LoggedStep(7, {"a": 0.5, "b/c": 2.0}), LoggedStep(8, {"a": 3.0})]
    assert log.left_out["values before the first step"] == 1


def test_the_last_value_of_a_line_without_its_end_may_be_cut(tmp_path):
    steps, log = _matched(tmp_path, "step 1 reward: 0.5\nstep 2 reward: 0.", GROUPS)
    assert steps == [LoggedStep(1, {"reward/mean": 0.5})]
    assert log.left_out == {"last values of a line without its end": 1}


def test_a_hostile_name_stays_text(tmp_path):
    steps, _ = _matched(
        tmp_path,
        "step=1 \x1b]0;x=1\n",
        [r"(?P<name>[^= ]+)=(?P<value>\d+)", r"step=(?P<step>\d+) (?P<z>)?"],
    )
    assert all(name.isprintable() for step in steps for name in step.values)


@pytest.mark.parametrize("pattern", [(), "(", "reward", r"(?P<step>\d+)", r"(?P<name>\w+)"])
def test_patterns_without_a_value_are_refused(tmp_path, pattern):
    with pytest.raises(ConfigError, match="pattern: expected"):
        open_metric_log("pattern", tmp_path / "x", pattern=pattern)


def test_reading_a_large_file_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(line_log, "_BLOCK", 64)
    monkeypatch.setattr(line_log, "_LARGE", 256)
    file = tmp_path / "metrics.jsonl"
    file.write_text(
        "".join(f'{{"step": {step:04}, "reward": 0.5}}\n' for step in range(1000, 1030))
    )
    seen = []
    options = ImportOptions(names=NameMap("jsonl"), on_read=lambda *at: seen.append(at))
    (run,) = READERS.build("jsonl").runs(file, options)
    assert len(list(run.steps)) == 30
    size = file.stat().st_size
    assert seen == [("metrics.jsonl", done, size) for done in range(256, size, 256)]
