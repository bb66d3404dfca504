"""Imports tables and JSON lines: one file per run, or several runs in one, told apart by columns.

A folder stands for all its files of the format. Columns called `estimator`, `seed`, `run`,
`run_id` or `run_name` tell the runs of a file apart, or those that `--by` names.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.importing.base import ImportedRun, Importer, ImportOptions
from advsweep.importing.settings import parse_value
from advsweep.logs.base import LoggedStep, TextLog, iter_all
from advsweep.logs.csv_file import CsvFile
from advsweep.logs.json_lines import JsonLines

BY = ("estimator", "seed", "run", "run_id", "run_name")
"""Columns that tell the runs of one file apart."""

MAX_RUNS = 10_000
"""Runs of one file."""


@dataclass(kw_only=True)
class LineFiles(Importer):
    """Reads runs of text files with a step in each line."""

    endings: ClassVar[tuple[str, ...]]

    @abstractmethod
    def open(self, path: Path, options: ImportOptions, by: tuple[str, ...]) -> TextLog:
        """Opens the log of a file."""

    def read(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        root = Path(source)
        files = find_files(root, self.endings)
        if not files:
            some = ", ".join(f"*{ending}" for ending in self.endings)
            raise ConfigError(f"{root}: expected a file, or a folder with {some}, got none")
        for file in files:
            place = file.name if file == root else file.relative_to(root).as_posix()
            yield from self._read_file(file, place, options)

    def _read_file(self, file: Path, place: str, options: ImportOptions) -> Iterator[ImportedRun]:
        log = self.open(file, options, options.by or BY)
        steps: dict[tuple[str, ...], list[LoggedStep]] = {}
        for step in iter_all(log):
            if log.tag in steps or len(steps) < MAX_RUNS:
                steps.setdefault(log.tag, []).append(options.names.rename_step(step))
            else:
                log.left_out[f"lines of more than {MAX_RUNS:,} runs"] += 1
        if not steps:
            if file.stat().st_size == 0:
                log.left_out["empty files"] += 1
            yield ImportedRun(place, dict(log.config), [], left_out=log.left_out)
            return
        for number, (tag, own) in enumerate(steps.items()):
            tags = {key: text for key, text in zip(log.by, tag, strict=False) if text}
            parts = [f"{key}={text}" for key, text in tags.items()] if len(steps) > 1 else []
            yield ImportedRun(
                source="/".join([place, *parts]),
                config={**log.config, **{key: parse_value(text) for key, text in tags.items()}},
                steps=own,
                # What is wrong with a file is told once.
                left_out={} if number else log.left_out,
            )


@dataclass(kw_only=True)
class CsvImporter(LineFiles):
    """Tables with a header: `step,reward,...`, or `step,name,value`."""

    name: ClassVar[str] = "csv"
    table: ClassVar[str] = "csv"
    endings: ClassVar[tuple[str, ...]] = (".csv", ".tsv")

    decimal: str = option("", help="decimal sign, . or ,; empty: as the cells show it")

    def open(self, path: Path, options: ImportOptions, by: tuple[str, ...]) -> TextLog:
        return CsvFile(path, step_keys=options.names.steps, by=by, decimal=self.decimal)


@dataclass(kw_only=True)
class JsonLinesImporter(LineFiles):
    """JSON lines, an object with a step in each."""

    name: ClassVar[str] = "jsonl"
    table: ClassVar[str] = "jsonl"
    endings: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")

    def open(self, path: Path, options: ImportOptions, by: tuple[str, ...]) -> TextLog:
        return JsonLines(path, step_keys=options.names.steps, by=by)


def find_files(root: Path, endings: tuple[str, ...]) -> list[Path]:
    """Returns a file, or all files of a folder whose names end so, sorted."""
    if root.is_dir():
        return sorted(f for f in root.rglob("*") if f.name.endswith(endings) and f.is_file())
    if not root.exists():
        raise ConfigError(f"{root}: expected a file or a folder, got nothing")
    return [root]
