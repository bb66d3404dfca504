"""Scalars in TensorBoard's event files, read by TensorBoard's own loader.

In an import each folder with event files is a run. A subfolder that the same process wrote, as
`add_scalars` makes it, belongs to the run above it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

from advsweep.errors import ConfigError
from advsweep.logs.base import ImportedRun, ImportOptions, Reader, existing, whole_step
from advsweep.logs.names import LoggedStep
from advsweep.packages import import_extra

# What the name of an event file contains.
EVENTS = "events.out.tfevents."

# Tags of texts that hold a run's settings as JSON; transformers writes the first.
_TEXTS = ("args/text_summary", "args", "model_config/text_summary", "config/text_summary")

# Bytes of a record beside its content: the length and two checksums.
_FRAME = 16

_WRITER = re.compile(rf".*{re.escape(EVENTS)}\d+\.(?P<process>.+\.\d+)\.\d+.*")


@dataclass(kw_only=True)
class TensorBoardEvents(Reader):
    """The scalars of one run: an event file, or all those in a folder.

    Texts of settings become the config.
    """

    name: ClassVar[str] = "tensorboard"
    table: ClassVar[str] = "tensorboard"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._loaders: dict[Path, Any] = {}
        self._read: Counter[Path] = Counter()

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        root = existing(source)
        runs = _runs(root)
        if not runs:
            raise ConfigError(f"{root}: expected event files ({EVENTS}...), got none")
        for folder, parts in runs.items():
            log = self.open(folder)
            steps = [options.names.rename_step(step) for step in log.steps()]
            for part in parts:
                inner = self.open(part)
                for step, own in inner.steps():
                    values = {f"{part.name}/{name}": value for name, value in own.items()}
                    steps.append(LoggedStep(step, options.names.apply(values)))
                log.left_out.update(inner.left_out)
                log._config = {**inner.config, **log.config}
            yield ImportedRun(
                # Above a single run, its own folder has its name.
                source=folder.name if folder == root else folder.relative_to(root).as_posix(),
                config=dict(log.config),
                steps=steps,
                left_out=log.left_out,
            )

    def poll(self) -> Iterator[LoggedStep]:
        for file in event_files(self.path):
            scalars = (each for content in self._contents(file) for each in self._values(content))
            for step, some in groupby(scalars, key=itemgetter(0)):
                yield LoggedStep(step, self._numbers((tag, value) for _, tag, value in some))

    def _contents(self, file: Path) -> Iterator[bytes]:
        """Yield the contents of the records that were added to a file, up to a damaged one."""
        loader = _module("backend.event_processing.event_file_loader").RawEventFileLoader
        if not file.is_file():
            return
        try:
            # A loader keeps its place in a growing file.
            if file not in self._loaders:
                self._loaders[file] = loader(str(file.resolve()))
            for content in self._loaders[file].Load():
                self._read[file] += len(content) + _FRAME
                yield content
        except (OSError, MemoryError, OverflowError) as error:
            # A record may declare more than memory holds.
            raise ConfigError(f"{file}: expected a log to read, got: {error}") from error
        if self._finished and self._read[file] < file.stat().st_size:
            # The loader ends silently at a record whose checksum is wrong.
            self.left_out["event files with a damaged or incomplete rest"] += 1

    def _values(self, content: bytes) -> Iterator[tuple[int, str, float]]:
        try:
            event = _module("compat.proto.event_pb2").Event.FromString(content)
        except Exception:  # noqa: BLE001 (the errors of protobuf depend on its version)
            self.left_out["damaged records"] += 1
            return
        for value in event.summary.value:
            number = _scalar(value)
            if number is not None:
                if (step := whole_step(event.step)) is None:
                    self.left_out["values without a step"] += 1
                else:
                    yield step, value.tag, number
            elif value.tag in _TEXTS and value.tensor.string_val:
                try:
                    settings = json.loads(value.tensor.string_val[0])
                except (ValueError, RecursionError):
                    continue
                if isinstance(settings, dict):
                    # What transformers writes first are the arguments of the training.
                    self._config = {**settings, **self._config}


def _runs(root: Path) -> dict[Path, list[Path]]:
    """Return the folders below each run's folder that belong to it, both sorted."""
    if not root.is_dir():
        return {root: []}
    runs: dict[Path, list[Path]] = {}
    processes: dict[Path, set[str]] = {}
    for folder in sorted({file.parent for file in root.rglob(f"*{EVENTS}*") if file.is_file()}):
        matches = (_WRITER.fullmatch(file.name) for file in event_files(folder))
        processes[folder] = {match["process"] for match in matches if match}
        above = next((f for f in folder.parents if f in runs), None)
        if above is not None and processes[folder] <= processes[above]:
            runs[above].append(folder)
        else:
            runs[folder] = []
    return runs


def event_files(path: Path) -> list[Path]:
    """Return an event file, or those in a folder, oldest first; empty without any.

    A folder without event files stands for those below it, as transformers makes `runs/DATE_HOST`.
    """
    if not path.is_dir():
        return [path] if path.exists() else []
    inside = list(path.iterdir())
    if not any(EVENTS in file.name for file in inside):
        folders = (file for file in inside if file.is_dir() and not file.is_symlink())
        inside = [file for folder in folders for file in event_files(folder)]
    # The name has the time at which the file was made.
    return sorted((f for f in inside if EVENTS in f.name), key=lambda file: file.name)


def _scalar(value: Any) -> float | None:
    """Return the number of a summary value; None for texts, histograms, images and the like."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    # Bounded first: a shape may declare more numbers than memory holds.
    if kind != "tensor" or any(dim.size != 1 for dim in value.tensor.tensor_shape.dim):
        return None
    try:
        array = _module("util.tensor_util").make_ndarray(value.tensor)
    except (TypeError, ValueError):  # No numbers, or not as many as the shape says.
        return None
    return float(array.item()) if array.size == 1 and array.dtype.kind in "fiu" else None


def _module(name: str) -> Any:
    return import_extra(f"tensorboard.{name}", "tensorboard", "reading event files")
