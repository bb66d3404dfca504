"""The state of transformers' Trainer: its history, as far as the file goes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from advsweep.errors import ConfigError
from advsweep.logs import LoggedStep, open_metric_log

HISTORY = [
    {"step": 1, "epoch": 0.5, "reward": 0.25, "kl": None},
    {"step": 2, "epoch": 1.0, "reward": float("nan")},
    {"train_runtime": 1.0},
]


def _state(history, at=2) -> str:
    return json.dumps(
        {
            "max_steps": 2,
            "global_step": at,
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
    assert list(log.steps()) == [
        LoggedStep(1, {"epoch": 0.5, "reward": 0.25}),
        LoggedStep(2, {"epoch": 1.0}),
    ]
    assert log.config == {"max_steps": 2}
    assert log.left_out == {
        "values of reward that are NaN or infinite": 1,
        "entries without a step": 1,
    }


def _checkpoints(folder: Path, last: int, every: int = 10) -> list[Path]:
    """The states of a training with a checkpoint after every ten steps, oldest first."""
    files = []
    for at in range(every, last + 1, every):
        file = folder / f"checkpoint-{at}" / "trainer_state.json"
        file.parent.mkdir(parents=True)
        file.write_text(_state([{"step": step, "a": step} for step in range(1, at + 1)], at))
        files.append(file)
    return files


def _steps(folder: Path) -> tuple[list[int], dict[str, int]]:
    log = open_metric_log("trainer_state", folder)
    return [step for step, _ in list(log.steps())], dict(log.left_out)


@pytest.mark.parametrize("newest", range(4))
def test_times_of_change_say_nothing(tmp_path, newest):
    """As after `cp -r` or a download: 9 sorts after 10, and any file may be the youngest."""
    files = [*_checkpoints(tmp_path, 9, 9), *_checkpoints(tmp_path, 30)]
    for number, file in enumerate(files):
        time = 2**31 if number == newest else 2**30 + number
        os.utime(file, (time, time))
    assert _steps(tmp_path) == (list(range(1, 31)), {})


def test_the_own_file_of_a_folder_counts_if_it_goes_as_far(tmp_path):
    (older, newest) = _checkpoints(tmp_path, 20)
    own = tmp_path / "trainer_state.json"
    ending = {"step": 20, "train_loss": 1}
    own.write_text(_state([*json.loads(newest.read_text())["log_history"], ending], 20))
    os.utime(own, (1, 1))
    assert _steps(tmp_path) == ([*range(1, 21), 20], {})
    # Of an earlier training that ended sooner.
    own.write_text(older.read_text())
    assert _steps(tmp_path) == (list(range(1, 21)), {})


def test_a_cut_state_is_not_preferred(tmp_path):
    *_, before, newest = _checkpoints(tmp_path, 40)
    newest.write_text(newest.read_text()[:400])
    cut = "states that are cut (checkpoint-40/trainer_state.json)"
    assert _steps(tmp_path) == (list(range(1, 31)), {cut: 1})
    newest.unlink()
    assert _steps(tmp_path) == (list(range(1, 31)), {})
    for file in tmp_path.glob("*/*.json"):
        file.write_text(file.read_text()[:-200])
    steps, left_out = _steps(tmp_path)
    assert steps == []
    assert f"states that are cut ({before.parent.name}/{before.name})" in left_out


def test_a_folder_that_grows(tmp_path):
    log = open_metric_log("trainer_state", tmp_path)
    assert list(log.poll()) == []
    found = []
    for file in _checkpoints(tmp_path / "later", 30):
        text, target = file.read_text(), tmp_path / file.parent.name / file.name
        target.parent.mkdir()
        target.write_text(text[:300])
        found += list(log.poll())
        target.write_text(text)
        found += list(log.poll())
        assert list(log.poll()) == []
    assert found == [LoggedStep(step, {"a": step}) for step in range(1, 31)]
    assert not log.left_out


def test_a_history_that_was_rewritten_is_read_again(tmp_path):
    file = tmp_path / "trainer_state.json"
    log = open_metric_log("trainer_state", file)
    assert list(log.poll()) == []
    file.write_text(_state([{"step": 1, "a": 1}, {"step": 2, "a": 1}]))
    assert len(list(log.poll())) == 2
    file.write_text(_state([{"step": 1, "a": 1}, {"step": 2, "a": 7}, {"step": 3, "a": 1}]))
    assert [step.step for step in list(log.poll())] == [1, 2, 3]


def test_another_document_is_refused(tmp_path):
    file = tmp_path / "trainer_state.json"
    file.write_text("[1]")
    with pytest.raises(ConfigError, match="expected a state of a trainer"):
        list(open_metric_log("trainer_state", file).poll())


@pytest.mark.parametrize("cut", [0, 1, 300, -200, -1])
def test_a_cut_file_yields_nothing_and_is_named(tmp_path: Path, cut: int):
    text = _state([{"step": step, "a": step / 7} for step in range(6)])
    file = tmp_path / "trainer_state.json"
    file.write_text(text[:cut])
    log = open_metric_log("trainer_state", file)
    assert list(log.steps()) == []
    assert log.left_out == {"states that are cut (trainer_state.json)": 1}
