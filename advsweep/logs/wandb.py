"""Runs of Weights & Biases: offline run folders, or a project online.

The file `run-ID.wandb` of an offline run is a log of LevelDB's format: blocks of 32 KiB, in them
records with a checksum, which hold messages of wandb's own protocol. The package wandb has these
messages; its readers of the file are part of a program, so that the framing is read here.

Source: https://github.com/google/leveldb/blob/main/doc/log_format.md, and files of wandb 0.31.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.local_files import open_regular, outside_working_folder
from advsweep.logs.base import ImportedRun, ImportOptions, Reader, unreadable, whole_step
from advsweep.logs.names import LoggedStep
from advsweep.packages import import_extra

_ADDRESS = re.compile(r"[\w.-]+/[\w.-]+(/[\w.-]+)?")
_MAGIC = b":W&B"
_FILE_HEADER = 7
_BLOCK = 2**15
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# Bytes of a record; larger ones hold no metrics.
_LARGEST = 2**26

_OWN_STEP = "_step"


@dataclass(kw_only=True)
class Wandb(Reader):
    """Histories and configs: a file `run-ID.wandb`, folders with such files, or ENTITY/PROJECT.

    Attributes:
        run_id, display_name: of an offline run; empty until they are read.
    """

    name: ClassVar[str] = "wandb"
    table: ClassVar[str] = "wandb"

    step_keys: tuple[str, ...] = option(
        (),
        help="metrics that hold the step, in order of preference. A row without any belongs to "
        "the last step that was seen, and before the first of them to wandb's own count",
    )
    timeout: int = option(60, gt=0, help="seconds to wait for the server", identity=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._last: int | None = None
        self.run_id = ""
        self.display_name = ""

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        root = Path(source)
        reader = dataclasses.replace(self, step_keys=options.names.steps)
        if not root.exists():
            if not _ADDRESS.fullmatch(str(source)):
                raise ConfigError(
                    f"{source}: expected a .wandb file, a folder with some, or ENTITY/PROJECT, "
                    "got nothing"
                )
            yield from reader.read_project(None, str(source), options)
            return
        # `latest-run` is a link to one of the others.
        found = root.rglob("*.wandb") if root.is_dir() else [root]
        files = sorted({file.resolve() for file in found})
        if not files:
            raise ConfigError(f"{root}: expected files *.wandb of offline runs, got none")
        for file in files:
            log = reader.open(file)
            steps = [options.names.rename_step(step) for step in log.steps()]
            yield ImportedRun(
                source=log.display_name or file.stem,
                key=log.run_id or None,
                config=dict(log.config),
                steps=steps,
                left_out=log.left_out,
            )

    def read_project(self, api: Any, address: str, options: ImportOptions) -> Iterator[ImportedRun]:
        """Yield the runs of a project, oldest first.

        Args:
            api: in place of `wandb.Api()`, which reads the user's settings, among them the server.
            address: ENTITY/PROJECT, or ENTITY/PROJECT/RUN.

        Raises:
            ConfigError: the server does not answer, or has no such project.
        """
        try:
            if api is None:
                # It reads `wandb/settings` of the working folder, which may name the server that
                # gets the user's key.
                with outside_working_folder():
                    api = _package("wandb").Api(timeout=self.timeout)
            if address.count("/") == 2:
                runs = [api.run(address)]
            else:
                runs = list(api.runs(address, order="+created_at"))
            for run in runs:
                log = self.open(Path())
                rows = (log._step(dict(row)) for row in run.scan_history())
                steps = [options.names.rename_step(step) for step in rows if step is not None]
                yield ImportedRun(
                    source=run.name or run.id,
                    key=f"{run.entity}/{run.project}/{run.id}",
                    config={k: value for k, value in run.config.items() if not k.startswith("_")},
                    steps=steps,
                    left_out=log.left_out,
                )
        except ConfigError:
            raise
        except Exception as error:  # wandb raises classes of its own and of its network library.
            raise ConfigError(
                f"wandb: {address} cannot be read (`wandb login` gives access): {error}"
            ) from error

    def _step(self, row: Mapping[str, Any]) -> LoggedStep | None:
        """Return the step of a row; None, and count it, if it has none."""
        # wandb's own count rises with each call of log(), several of which may be of one step.
        keys = [key for key in self.step_keys if key != _OWN_STEP]
        named = (step for key in keys if (step := whole_step(row.get(key))) is not None)
        self._last = next(named, self._last)
        step = whole_step(row.get(_OWN_STEP)) if self._last is None else self._last
        if step is None:
            self.left_out["rows without a step"] += 1
            return None
        numbers = [
            (name, value)
            for name, value in row.items()
            # Its own keys begin with _; media and tables are mappings.
            if not name.startswith("_") and name not in keys and value is not None
        ]
        return LoggedStep(step, self._numbers(numbers))

    def steps(self) -> Iterator[LoggedStep]:
        messages = _package("wandb.proto.wandb_internal_pb2")
        for content in self._records():
            try:
                record = messages.Record.FromString(content)
            except Exception:  # noqa: BLE001 (the errors of protobuf depend on its version)
                self.left_out["damaged records"] += 1
                continue
            kind = record.WhichOneof("record_type")
            if kind == "history":
                row = {"/".join(keys): value for keys, value in self._items(record.history.item)}
                row.setdefault(_OWN_STEP, record.history.step.num)
                if (step := self._step(row)) is not None:
                    yield step
            elif kind == "run":
                self.run_id = record.run.run_id
                self.display_name = record.run.display_name
                self._update_config(record.run.config)
            elif kind == "config":
                self._update_config(record.config)

    def _items(self, items: Iterable[Any]) -> Iterator[tuple[list[str], Any]]:
        """Yield the parts of the name of each value, and the value."""
        for item in items:
            try:
                value = json.loads(item.value_json)
            except (ValueError, RecursionError):
                self.left_out["values that are not JSON"] += 1
            else:
                yield list(item.nested_key) or [item.key], value

    def _update_config(self, config: Any) -> None:
        for keys, value in self._items(config.update):
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
        """Yield the records of a file; count damaged ones, and one without its end."""
        try:
            file = open_regular(self.path.resolve())
        except OSError as error:
            raise unreadable(self.path, error) from error
        with file:
            if (start := file.read(_FILE_HEADER)) and not _MAGIC.startswith(start[:4]):
                raise ConfigError(f"{self.path}: expected a .wandb file, got another kind of file")
            parts: list[bytes] = []
            place, size = _FILE_HEADER, 0
            while True:
                left = _BLOCK - place % _BLOCK
                # A header does not cross the end of a block.
                place += left if left < _HEADER.size else 0
                file.seek(place)
                header = file.read(_HEADER.size)
                if not header and not size:
                    return
                checksum, length, kind = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
                content = file.read(length)
                if len(header) < _HEADER.size or len(content) < length:
                    self.left_out["incomplete records"] += 1
                    return
                if not _FULL <= kind <= _LAST or zlib.crc32(header[6:] + content) != checksum:
                    # Nothing tells where the next record begins, but blocks begin with one.
                    self.left_out["damaged records"] += 1
                    place += _BLOCK - place % _BLOCK
                    parts, size = [], 0
                    continue
                place += _HEADER.size + length
                if kind in (_FULL, _FIRST):
                    parts, size = [], 0
                size += length
                if size <= _LARGEST:
                    parts.append(content)
                if kind in (_FULL, _LAST):
                    if size <= _LARGEST:
                        yield b"".join(parts)
                    else:
                        self.left_out["records that are too large"] += 1
                    parts, size = [], 0


def _package(name: str) -> Any:
    # wandb reads settings of the working folder when it is imported.
    with outside_working_folder():
        return import_extra(name, "wandb", "reading runs of wandb")
