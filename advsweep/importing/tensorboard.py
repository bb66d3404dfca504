"""Imports the event files of TensorBoard: each folder that has some is a run.

A subfolder that the same process wrote, as `add_scalars` and `add_hparams` make them, belongs to
the run above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from advsweep.errors import ConfigError
from advsweep.importing.base import ImportedRun, Importer, ImportOptions
from advsweep.logs.base import LoggedStep, iter_all
from advsweep.logs.tensorboard import EVENTS, TensorBoardEvents, event_files

_WRITER = re.compile(rf".*{re.escape(EVENTS)}\d+\.(?P<process>.+\.\d+)\.\d+.*")
_TIME = re.compile(r"\d+(\.\d+)?")


@dataclass(kw_only=True)
class TensorBoardImporter(Importer):
    """Scalars of event files; settings come from texts and hyperparameters in them."""

    name: ClassVar[str] = "tensorboard"
    table: ClassVar[str] = "tensorboard"

    def read(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        root = Path(source)
        if not root.exists():
            raise ConfigError(f"{root}: expected a file or a folder of events, got nothing")
        runs = _runs(root)
        if not runs:
            raise ConfigError(f"{root}: expected event files ({EVENTS}...), got none")
        for folder, parts in runs.items():
            # Above a single run, its own folder has its name.
            place = folder.name if folder == root else folder.relative_to(root).as_posix()
            yield _read_run(folder, parts, place, options)


def _read_run(folder: Path, parts: list[Path], place: str, options: ImportOptions) -> ImportedRun:
    logs = [TensorBoardEvents(part) for part in parts]
    left_out = logs[0].left_out
    config: dict[str, Any] = {}
    steps: list[LoggedStep] = []
    for part, log in zip(parts, logs, strict=True):
        # Hyperparameters have a folder named after the time.
        prefix = "" if part == folder or _TIME.fullmatch(part.name) else f"{part.name}/"
        for step in iter_all(log):
            values = {f"{prefix}{name}": value for name, value in step.values.items()}
            steps.append(options.names.rename_step(LoggedStep(step.step, values)))
        config = {**log.config, **config}
        if log is not logs[0]:
            left_out += log.left_out
    return ImportedRun(source=place, config=config, steps=steps, left_out=left_out)


def _runs(root: Path) -> dict[Path, list[Path]]:
    """Returns the folders of each run by the folder that names it, both sorted."""
    if not root.is_dir():
        return {root: [root]}
    folders = sorted({file.parent for file in root.rglob(f"*{EVENTS}*") if file.is_file()})
    runs: dict[Path, list[Path]] = {}
    for folder in folders:
        above = next((f for f in folder.parents if f in runs), None)
        if above is not None and _processes(folder) <= _processes(above):
            runs[above].append(folder)
        else:
            runs[folder] = [folder]
    return runs


def _processes(folder: Path) -> set[str]:
    matches = (_WRITER.fullmatch(file.name) for file in event_files(folder))
    return {match["process"] for match in matches if match}
