"""Writes tidy tables to a folder, as Parquet or CSV files.

    FOLDER/runs.parquet, metrics.parquet, problems.parquet, evaluations.parquet
    FOLDER/tables.json    the format's version; the rows and the columns of each table

Tables are written to a new folder beside, portion by portion, and are then moved into place: an
export that was interrupted leaves the folder as it was. pyarrow is imported here alone.
"""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from advsweep.errors import ConfigError, ReportError
from advsweep.packages import extra_command
from advsweep.printable import spreadsheet_cell
from advsweep.report.data.tidy_tables import ColumnType, Portion, TidyTable

MANIFEST = "tables.json"
FORMAT = 1

_GROUP_ROWS = 200_000
"""Rows that are collected before they are written, as a row group of a Parquet file."""


class TableFile(ABC):
    """A table's file while it is written."""

    @abstractmethod
    def write(self, portion: Portion) -> None:
        """Appends rows."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the file."""


class CsvFile(TableFile):
    """UTF-8; missing values are empty, NaN is `nan`, times are ISO 8601, booleans in lower case.

    A text that a spreadsheet would read as a formula begins with `'`.
    """

    def __init__(self, path: Path, columns: Mapping[str, ColumnType]) -> None:
        self._columns = columns
        self._file = open(path, "x", encoding="utf-8", newline="")  # noqa: SIM115 - closed by __exit__
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(map(spreadsheet_cell, columns))

    def write(self, portion: Portion) -> None:
        columns = [_csv_cells(portion[name], kind) for name, kind in self._columns.items()]
        self._writer.writerows(zip(*columns, strict=True))

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _csv_cells(values: Any, kind: ColumnType) -> Iterable[Any]:
    listed: Sequence[Any] = values.tolist() if isinstance(values, np.ndarray) else values
    if kind is ColumnType.TEXT:
        return map(spreadsheet_cell, listed)
    if kind is ColumnType.BOOLEAN:
        return (None if value is None else str(value).lower() for value in listed)
    if kind is ColumnType.TIME:
        return (None if value is None else value.isoformat() for value in listed)
    return listed


class ParquetFile(TableFile):
    """A Parquet file, compressed with zstd; the version of the format is in its metadata."""

    def __init__(self, path: Path, columns: Mapping[str, ColumnType]) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ConfigError(
                f"--to parquet: expected pyarrow; install it with `{extra_command('data')}`"
            ) from error
        self._arrow = pyarrow
        types = {
            ColumnType.TEXT: pyarrow.string(),
            ColumnType.INTEGER: pyarrow.int64(),
            ColumnType.NUMBER: pyarrow.float64(),
            ColumnType.BOOLEAN: pyarrow.bool_(),
            ColumnType.TIME: pyarrow.timestamp("us", tz="UTC"),
        }
        fields = [pyarrow.field(name, types[kind]) for name, kind in columns.items()]
        self._schema = pyarrow.schema(fields, metadata={"advsweep.tables": str(FORMAT)})
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._waiting: list[Any] = []
        self._rows = 0

    def write(self, portion: Portion) -> None:
        arrays = [self._arrow.array(portion[field.name], field.type) for field in self._schema]
        table = self._arrow.Table.from_arrays(arrays, schema=self._schema)
        self._waiting.append(table)
        self._rows += table.num_rows
        if self._rows >= _GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        if self._waiting:
            rows = self._arrow.concat_tables(self._waiting)
            self._writer.write_table(rows, row_group_size=_GROUP_ROWS)
            self._waiting, self._rows = [], 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._write_group()
        self._writer.close()


TABLE_FILES: Mapping[str, Callable[[Path, Mapping[str, ColumnType]], TableFile]] = {
    "csv": CsvFile,
    "parquet": ParquetFile,
}
"""What writes a table's file, by the format's name, which is also the ending of the file."""


def write_tables(tables: Iterable[TidyTable], folder: Path, form: str) -> dict[str, int]:
    """Writes tables to a folder, and replaces those of an earlier export.

    Args:
        folder: new, empty, or the folder of an earlier export.
        form: a key of `TABLE_FILES`.

    Returns:
        The number of rows of each table.

    Raises:
        ReportError: the folder holds something else, or cannot be written to.
        ConfigError: pyarrow is needed and not installed.
    """
    _refuse_foreign(folder)
    try:
        with _folder_beside(folder) as new:
            manifest = {"format": FORMAT, "tables": {}}
            rows = {}
            for table in tables:
                file = f"{table.name}.{form}"
                rows[table.name] = _write(table, new / file, form)
                columns = [{"name": n, "type": kind.value} for n, kind in table.columns.items()]
                own = {"file": file, "rows": rows[table.name], "columns": columns}
                manifest["tables"][table.name] = own  # type: ignore[index]
            text = json.dumps(manifest, indent=1) + "\n"
            (new / MANIFEST).write_text(text, encoding="utf-8")
            folder.mkdir(parents=True, exist_ok=True)
            # The manifest first: it says whose files the others are.
            for path in sorted(new.iterdir(), key=lambda path: path.name != MANIFEST):
                path.replace(folder / path.name)
    except OSError as error:
        raise ReportError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return rows


def _write(table: TidyTable, path: Path, form: str) -> int:
    rows = 0
    with TABLE_FILES[form](path, table.columns) as file:
        for portion in table.portions():
            rows += len(next(iter(portion.values())))
            file.write(portion)
    return rows


def _refuse_foreign(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise ReportError(
            f"{folder}: expected a new or empty folder, or one of an earlier export; it holds "
            "other files"
        )
    if folder.exists() and not folder.is_dir():
        raise ReportError(f"{folder}: expected a folder, got a file")


@contextmanager
def _folder_beside(folder: Path) -> Iterator[Path]:
    """Yields a new folder on the same disk, and removes it."""
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name[:50]}-", dir=folder.absolute().parent))
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)
