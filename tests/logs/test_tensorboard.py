"""Event files that real writers wrote: scalars, settings, damage and growth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advsweep.logs import LoggedStep, open_metric_log
from advsweep.logs.tensorboard import event_files

np = pytest.importorskip("numpy")
pytest.importorskip("tensorboard")


def _write(folder: Path, steps: int, *, first: int = 0) -> Path:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for step in range(first, first + steps):
        values = [Summary.Value(tag=f"m{i}", simple_value=step + i / 4) for i in range(2)]
        writer.add_event(Event(step=step, wall_time=1.0, summary=Summary(value=values)))
    writer.close()
    return event_files(folder)[-1]


def test_folders_of_a_trainer_are_searched(tmp_path):
    """transformers writes into a new `runs/DATE_HOST` at each start; a resumed run has two."""
    log = open_metric_log("tensorboard", tmp_path / "run")
    assert list(log.poll()) == []
    _write(tmp_path / "run" / "runs" / "Nov25_10-00-00_host", 2)
    later = _write(tmp_path / "run" / "runs" / "Nov25_11-00-00_host", 2, first=2)
    # Those of add_scalars lie below the folder of their writer.
    _write(later.parent / "loss_train", 9)
    assert [step for step, _ in list(log.steps())] == [0, 1, 2, 3]


@pytest.mark.slow
def test_torch_writes_scalars_and_hyperparameters(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        writer.add_text("args", json.dumps({"num_generations": 8, "seed": 3}))
        writer.add_scalar("train/reward", 0.5, 1)
        writer.add_scalar("train/reward", float("nan"), 2)
        writer.add_scalar("new", 0.25, 2, new_style=True)
        writer.add_histogram("h", np.arange(9.0), 2)
    log = open_metric_log("tensorboard", tmp_path)
    assert list(log.steps()) == [
        LoggedStep(1, {"train/reward": 0.5}),
        LoggedStep(2, {"new": 0.25}),
    ]
    assert log.config == {"num_generations": 8, "seed": 3}
    assert log.left_out == {"values of train/reward that are NaN or infinite": 1}


def test_a_growing_file_yields_each_step_once(tmp_path):
    file = _write(tmp_path / "whole", 6)
    data = file.read_bytes()
    grown = tmp_path / "grown" / file.name
    grown.parent.mkdir()
    log = open_metric_log("tensorboard", grown.parent)
    found = []
    for end in range(0, len(data) + 1, 17):
        grown.write_bytes(data[:end])
        found += list(log.poll())
    grown.write_bytes(data)
    found += list(log.poll())
    values = {step: {} for step, _ in found}
    for step, some in found:
        values[step] |= some
    assert values == {i: {"m0": i, "m1": i + 0.25} for i in range(6)}
    assert not log.left_out


@pytest.mark.parametrize("place", [-60, -10, -1])
def test_what_follows_a_damaged_record_is_left_out(tmp_path, place):
    file = _write(tmp_path, 4)
    data = bytearray(file.read_bytes())
    data[place] ^= 0x10
    file.write_bytes(data)
    log = open_metric_log("tensorboard", file)
    steps = list(log.steps())
    assert [step for step, _ in steps] in ([0, 1], [0, 1, 2])
    assert sum(log.left_out.values()) >= 1
