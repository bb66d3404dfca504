"""Offline runs of Weights & Biases: the file `run-ID.wandb` of a run folder.

The file is a log of LevelDB's format: blocks of 32 KiB, in them records with a checksum, which
hold messages of wandb's own protocol. The package wandb has these messages; its readers of the
file are part of a program, so that the framing is read here.

Source: https://github.com/google/leveldb/blob/main/doc/log_format.md, and files of wandb 0.31.
"""

from __future__ import annotations

import importlib
import json
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from advsweep.errors import ConfigError
from advsweep.local_files import open_regular, outside_working_folder
from advsweep.logs.base import LoggedStep, MetricLog, ValueReader, unreadable, whole_step
from advsweep.packages import extra_command

_MAGIC = b":W&B"
_FILE_HEADER = 7
_BLOCK = 2**15
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_LARGEST = 2**26
"""Bytes of a record; larger ones hold no metrics."""

_OWN_STEP = "_step"


class WandbRows(ValueReader):
    """Makes steps of the rows of a history.

    Args:
        step_keys: metrics that hold the step, in order of preference. A row without any belongs
            to the last step that was seen, and before the first of them to wandb's own count.
        left_out: where reasons are counted.
    """

    def __init__(self, step_keys: Sequence[str], left_out: Counter[str]) -> None:
        super().__init__(left_out)
        self._step_keys = [key for key in step_keys if key != _OWN_STEP]
        self._last: int | None = None

    def restart(self) -> None:
        """Forgets the last step."""
        self._last = None

    def step(self, row: Mapping[str, Any]) -> LoggedStep | None:
        """Returns the step of a row; None, and counts it, if it has none."""
        step = self._find_step(row)
        if step is None:
            self.left_out["rows without a step"] += 1
            return None
        numbers = [
            (name, value)
            for name, value in row.items()
            # Its own keys begin with _; media and tables are mappings.
            if not name.startswith("_") and name not in self._step_keys and value is not None
        ]
        return LoggedStep(step, self._numbers(numbers))

    def _find_step(self, row: Mapping[str, Any]) -> int | None:
        for key in self._step_keys:
            if (found := whole_step(row.get(key))) is not None:
                self._last = found
                return found
        return whole_step(row.get(_OWN_STEP)) if self._last is None else self._last


class WandbOffline(MetricLog):
    """The history and the config of an offline run.

    Args:
        path: the file, or the run folder with one such file.
        step_keys: metrics that hold the step, as in `WandbRows`.

    Attributes:
        run_id, display_name: of the run; empty until they are read.
    """

    kind: ClassVar[str] = "wandb"

    def __init__(self, path: Path, *, step_keys: Sequence[str] = ()) -> None:
        super().__init__(path)
        self._rows = WandbRows(step_keys, self.left_out)
        self._offset = _FILE_HEADER
        self._size = 0
        self._finished = False
        self._record: Any = None
        self.run_id = ""
        self.display_name = ""

    def read_new(self) -> list[LoggedStep]:
        return list(self.iter_new())

    def finish(self) -> None:
        self._finished = True

    def iter_new(self) -> Iterator[LoggedStep]:
        for content in self._records():
            if self._record is None:
                self._record = _record_class()
            try:
                record = self._record.FromString(content)
            except Exception:  # noqa: BLE001 (the errors of protobuf depend on its version)
                self.left_out["damaged records"] += 1
                continue
            kind = record.WhichOneof("record_type")
            if kind == "history":
                if (step := self._history(record.history)) is not None:
                    yield step
            elif kind == "run":
                self.run_id = record.run.run_id
                self.display_name = record.run.display_name
                self._update_config(record.run.config)
            elif kind == "config":
                self._update_config(record.config)

    def _history(self, history: Any) -> LoggedStep | None:
        values: dict[str, Any] = {}
        for item in history.item:
            name = "/".join(item.nested_key) or item.key
            try:
                values[name] = json.loads(item.value_json)
            except (ValueError, RecursionError):
                self.left_out["values that are not JSON"] += 1
        values.setdefault(_OWN_STEP, history.step.num)
        return self._rows.step(values)

    def _update_config(self, config: Any) -> None:
        for item in config.update:
            try:
                value = json.loads(item.value_json)
            except (ValueError, RecursionError):
                self.left_out["settings that are not JSON"] += 1
                continue
            keys = list(item.nested_key) or [item.key]
            if keys[0].startswith("_"):
                continue
            node = self._config
            for key in keys[:-1]:
                inner = node.setdefault(key, {})
                if not isinstance(inner, dict):
                    inner = node[key] = {}
                node = inner
            node[keys[-1]] = value

    def _records(self) -> Iterator[bytes]:
        """Yields the complete records that were added; a cut one waits for the next call."""
        try:
            file = open_regular(self._file())
        except FileNotFoundError:
            return
        except OSError as error:
            raise unreadable(self.path, error) from error
        with file:
            if (start := file.read(_FILE_HEADER)) and not _MAGIC.startswith(start[:4]):
                raise ConfigError(f"{self.path}: expected a .wandb file, got another kind of file")
            size_before, self._size = self._size, file.seek(0, 2)
            if self._size < size_before:
                # Written anew.
                self._offset = _FILE_HEADER
                self._rows.restart()
            place, size = self._offset, 0
            parts: list[bytes] = []
            while True:
                if _BLOCK - place % _BLOCK < _HEADER.size:
                    place += _BLOCK - place % _BLOCK
                file.seek(place)
                header = file.read(_HEADER.size)
                if len(header) < _HEADER.size:
                    break
                checksum, length, kind = _HEADER.unpack(header)
                content = file.read(length)
                if len(content) < length:
                    break
                if not _FULL <= kind <= _LAST or zlib.crc32(header[6:] + content) != checksum:
                    # Nothing tells where the next record begins, but blocks begin with one.
                    self.left_out["damaged records"] += 1
                    place += _BLOCK - place % _BLOCK
                    self._offset, parts, size = place, [], 0
                    continue
                place += _HEADER.size + length
                size += length
                if kind in (_FULL, _FIRST):
                    parts, size = [], length
                if size <= _LARGEST:
                    parts.append(content)
                if kind in (_FULL, _LAST):
                    self._offset = place
                    if size <= _LARGEST:
                        yield b"".join(parts)
                    else:
                        self.left_out["records that are too large"] += 1
                    parts, size = [], 0
            if self._finished and self._size > self._offset:
                self.left_out["incomplete records"] += 1
                self._offset = self._size

    def _file(self) -> Path:
        if self.path.is_dir():
            files = sorted(self.path.glob("*.wandb"))
            if not files:
                raise FileNotFoundError
            return files[0].resolve()
        return self.path.resolve()


def _record_class() -> Any:
    try:
        # wandb reads settings of the working folder when it is imported.
        with outside_working_folder():
            return importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    except ImportError as error:
        raise ConfigError(
            "wandb: expected the package wandb to read its files, got: not installed; "
            f"install it with `{extra_command('wandb')}`"
        ) from error
