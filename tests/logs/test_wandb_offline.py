"""Offline files of Weights & Biases: framing by hand, and a file that wandb wrote."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

from advsweep.errors import ConfigError
from advsweep.logs import LoggedStep, open_metric_log

pytest.importorskip("wandb")
HEADER = b":W&B\xe1\xbe\x00"


def frames(contents: list[bytes]) -> bytes:
    """The log format: blocks of 32 KiB, a header of 7 bytes for each part of a record."""
    data = HEADER
    for content in contents:
        rest, first = content, True
        while True:
            room = 2**15 - len(data) % 2**15
            if room < 7:
                data += b"\0" * room
                continue
            part, rest = rest[: room - 7], rest[room - 7 :]
            kind = (1 if first else 4) if not rest else (2 if first else 3)
            crc = zlib.crc32(bytes([kind]) + part)
            data += struct.pack("<IHB", crc, len(part), kind) + part
            first = False
            if not rest:
                break
    return data


def rows_of(rows: list[dict], config: dict | None = None) -> list[bytes]:
    from wandb.proto import wandb_internal_pb2 as messages

    records = [messages.Record()]
    records[0].run.run_id = "abc"
    records[0].run.display_name = "grpo-s1"
    for key, value in (config or {}).items():
        records[0].run.config.update.add(key=key, value_json=json.dumps(value))
    for number, row in enumerate(rows):
        record = messages.Record()
        for key, value in {**row, "_step": number}.items():
            record.history.item.add(nested_key=key.split("."), value_json=json.dumps(value))
        record.history.step.num = number
        records.append(record)
    return [record.SerializeToString() for record in records]


def test_rows_and_config_are_read(tmp_path):
    file = tmp_path / "run-abc.wandb"
    rows = [
        {"reward": 0.5, "a.b": 1},
        {"reward": "NaN", "train/global_step": 10},
        {"reward": 0.75, "media": {"_type": "image"}},
    ]
    file.write_bytes(frames(rows_of(rows, {"estimator": "grpo", "_wandb": {}})))
    log = open_metric_log("wandb", file, step_keys=("train/global_step", "_step"))
    assert list(log.steps()) == [
        LoggedStep(0, {"reward": 0.5, "a/b": 1.0}),
        LoggedStep(10, {}),
        LoggedStep(10, {"reward": 0.75}),
    ]
    assert (log.run_id, log.display_name) == ("abc", "grpo-s1")
    assert log.config == {"estimator": "grpo"}
    assert log.left_out == {
        "values of reward that are NaN or infinite": 1,
        "values of media that are not numbers": 1,
    }


def test_records_that_span_blocks(tmp_path):
    file = tmp_path / "run-abc.wandb"
    file.write_bytes(
        frames(rows_of([{"x" * 150 + str(i): i for i in range(500)}, {"reward": 1.0}]))
    )
    log = open_metric_log("wandb", file)
    assert [(step, len(values)) for step, values in log.steps()] == [(0, 500), (1, 1)]
    assert not log.left_out


def test_damage_costs_the_rest_of_a_block(tmp_path):
    file = tmp_path / "run-abc.wandb"
    data = bytearray(frames(rows_of([{"a": 1}, {"a": 2}, {"a": 3}])))
    data[data.rindex(b"3")] ^= 1  # another number, and no other damage
    file.write_bytes(data)
    log = open_metric_log("wandb", file)
    assert [step for step, _ in list(log.steps())] == [0, 1]
    assert log.left_out == {"damaged records": 1}


def test_a_cut_record_is_counted_at_the_end(tmp_path):
    file = tmp_path / "run-abc.wandb"
    file.write_bytes(frames(rows_of([{"a": 1}, {"a": 2}]))[:-2])
    log = open_metric_log("wandb", file)
    assert list(log.steps()) == [LoggedStep(0, {"a": 1.0})]
    assert log.left_out == {"incomplete records": 1}


def test_another_file_is_refused(tmp_path):
    file = tmp_path / "run-abc.wandb"
    file.write_text("hello, this is text")
    with pytest.raises(ConfigError, match=r"expected a \.wandb file"):
        list(open_metric_log("wandb", file).steps())


@pytest.mark.slow
def test_a_file_that_wandb_wrote(tmp_path: Path):
    import wandb

    settings = wandb.Settings(console="off", silent=True, x_disable_meta=True, x_disable_stats=True)
    run = wandb.init(
        mode="offline", project="p", dir=str(tmp_path), config={"seed": 1}, settings=settings
    )
    for i in range(3):
        run.log({"reward": i / 4, "nest": {"x": i}})
    run.finish()
    wandb.teardown()  # Its process writes the file until then.
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    (file,) = folder.glob("*.wandb")
    log = open_metric_log("wandb", file)
    assert list(log.steps()) == [LoggedStep(i, {"reward": i / 4, "nest/x": i}) for i in range(3)]
    assert log.config == {"seed": 1}
    assert not log.left_out
