"""Values in lines of text, by regular expressions with named groups."""

from __future__ import annotations

import pytest

from advsweep.errors import ConfigError
from advsweep.logs import LoggedStep, open_metric_log

GROUPS = r"step (?P<step>\d+).*reward[=:] (?P<reward__mean>\S+)"
PAIRS = r"(?P<name>[\w/]+)=(?P<value>\S+)"


def _read(tmp_path, text, pattern):
    file = tmp_path / "console.log"
    file.write_text(text)
    log = open_metric_log("pattern", file, pattern=pattern)
    return list(log.steps()), log


def test_a_group_per_metric(tmp_path):
    text = "start\nstep 1 | reward= 0.25 done\n\x1b[32mstep 2\x1b[0m reward: 1,000 x\nstep 3\n"
    steps, log = _read(tmp_path, text, GROUPS)
    assert steps == [LoggedStep(1, {"reward/mean": 0.25}), LoggedStep(2, {"reward/mean": 1000.0})]
    assert not log.left_out


def test_names_and_values_belong_to_the_last_step(tmp_path):
    text = "a=1\n7/9 [step 7]\na=0.5 b/c=2 d=x\n8/9 [step 8]\ra=3\n"
    steps, log = _read(tmp_path, text, [r"\[step (?P<step>\d+)\](?P<none>)?", PAIRS])
    assert steps == [LoggedStep(7, {"a": 0.5, "b/c": 2.0}), LoggedStep(8, {"a": 3.0})]
    assert log.left_out["values before the first step"] == 1


def test_the_last_value_of_a_line_without_its_end_may_be_cut(tmp_path):
    steps, log = _read(tmp_path, "step 1 reward: 0.5\nstep 2 reward: 0.", GROUPS)
    assert steps == [LoggedStep(1, {"reward/mean": 0.5})]
    assert log.left_out == {"last values of a line without its end": 1}


def test_a_hostile_name_stays_text(tmp_path):
    steps, _ = _read(
        tmp_path,
        "step=1 \x1b]0;x=1\n",
        [r"(?P<name>[^= ]+)=(?P<value>\d+)", r"step=(?P<step>\d+) (?P<z>)?"],
    )
    assert all(name.isprintable() for step in steps for name in step.values)


@pytest.mark.parametrize("pattern", [(), "(", "reward", r"(?P<step>\d+)", r"(?P<name>\w+)"])
def test_patterns_without_a_value_are_refused(tmp_path, pattern):
    with pytest.raises(ConfigError, match="pattern: expected"):
        open_metric_log("pattern", tmp_path / "x", pattern=pattern)
