"""The state of transformers' Trainer: its history, as far as the file goes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advsweep.errors import ConfigError
from advsweep.logs import LoggedStep, open_metric_log, read_all

HISTORY = [
    {"step": 1, "epoch": 0.5, "reward": 0.25, "kl": None},
    {"step": 2, "epoch": 1.0, "reward": float("nan")},
    {"train_runtime": 1.0},
]


def _state(history) -> str:
    return json.dumps(
        {
            "max_steps": 2,
            "global_step": 2,
            "best_metric": None,
            "log_history": history,
            "stateful_callbacks": {"x": {"args": {}}},
        },
        indent=2,
    )


def test_the_history_and_the_settings_are_read(tmp_path):
    file = tmp_path / "trainer_state.json"
    file.write_text(_state(HISTORY))
    log = open_metric_log("trainer_state", file)
    assert read_all(log) == [
        LoggedStep(1, {"epoch": 0.5, "reward": 0.25}),
        LoggedStep(2, {"epoch": 1.0}),
    ]
    assert log.config == {"max_steps": 2}
    assert log.left_out == {"values that are NaN or infinite": 1, "entries without a step": 1}


def test_of_a_folder_the_longest_history_counts(tmp_path):
    for step in (10, 9):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(_state([{"step": step, "a": 1}]))
    log = open_metric_log("trainer_state", tmp_path)
    assert log.read_new() == [LoggedStep(10, {"a": 1.0})]
    assert log.read_new() == []
    end = tmp_path / "trainer_state.json"
    end.write_text(_state([{"step": 10, "a": 1}, {"step": 11, "a": 2}]))
    os.utime(end, (2**31, 2**31))
    assert log.read_new() == [LoggedStep(11, {"a": 2.0})]


def test_a_history_that_was_rewritten_is_read_again(tmp_path):
    file = tmp_path / "trainer_state.json"
    log = open_metric_log("trainer_state", file)
    assert log.read_new() == []
    file.write_text(_state([{"step": 1, "a": 1}, {"step": 2, "a": 1}]))
    assert len(log.read_new()) == 2
    file.write_text(_state([{"step": 1, "a": 1}, {"step": 2, "a": 7}, {"step": 3, "a": 1}]))
    assert [step.step for step in log.read_new()] == [1, 2, 3]


def test_another_document_is_refused(tmp_path):
    file = tmp_path / "trainer_state.json"
    file.write_text("[1]")
    with pytest.raises(ConfigError, match="expected a state of a trainer"):
        open_metric_log("trainer_state", file).read_new()


@settings(
    deadline=None,
    derandomize=True,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 600))
def test_a_cut_file_yields_its_complete_entries(tmp_path: Path, cut: int):
    text = _state([{"step": step, "a": step / 7} for step in range(6)])
    file = tmp_path / "trainer_state.json"
    file.write_text(text[:cut])
    log = open_metric_log("trainer_state", file)
    steps = read_all(log)
    assert steps == [LoggedStep(i, {"a": i / 7}) for i in range(len(steps))]
    assert len(steps) == max(text[:cut].count("}") - text[:cut].count("}\n  ]\n}"), 0) or cut > 300
    assert (cut >= len(text)) != (log.left_out["incomplete files"] == 1)
