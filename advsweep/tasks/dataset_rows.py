"""Rows of a data set: from a file, from a folder with a file per split, or from the hub.

A small file may declare, or nest, more than memory holds, so sizes and depths are checked.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence, ValuesView
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advsweep.delimited import read_table
from advsweep.errors import ConfigError, nearest
from advsweep.machine import hub_unreachable
from advsweep.packages import import_extra
from advsweep.printable import redacted

Rows = list[dict[str, Any]]

# The environment variable with the largest size in bytes of one data file, unpacked.
MAX_BYTES_VARIABLE = "ADVSWEEP_MAX_DATA_BYTES"

_MAX_BYTES = 4 * 2**30
# A file is refused early if it unpacks to more than this, and to a thousand times its size: a
# column that repeats a value takes next to nothing in a parquet file, and gigabytes in memory.
_SUSPECT_BYTES = 2**28
_MOST_FOLD = 1000
_ROW_BYTES = 256  # least size of a row, which is about that of an object in memory
_BATCH_ROWS = 256
_MOST_LEVELS = 64  # of nested lists and objects

HUB = "hub:"
_TABLES = (".csv", ".tsv")
_ENDINGS = (".jsonl", ".ndjson", ".json", *_TABLES, ".parquet")
_EXPECTED = (
    f"a file ({', '.join(_ENDINGS)}), a folder with a file per split, or {HUB}OWNER/NAME[@REVISION]"
)


@dataclass(frozen=True)
class RowSource:
    """The place of some rows.

    Attributes:
        place: an absolute path, or `hub:OWNER/NAME[@REVISION]`.
        subset: the hub's configuration, or a subfolder; empty: none.
    """

    place: str
    subset: str = ""

    @property
    def hub_name(self) -> str:
        """The name on the hub; empty for a path."""
        return self.place.removeprefix(HUB) if self.place.startswith(HUB) else ""

    @property
    def is_here(self) -> bool:
        """Whether the data is on this machine; data from the hub is after its first download."""
        return _is_cached(self.hub_name) if self.hub_name else Path(self.place).exists()

    @property
    def changed(self) -> int:
        """The time of change of a file, or of the newest file of a folder; else 0."""
        path = Path(self.place)
        times = [0]
        if self.place and not self.hub_name:
            for file in (path, *path.rglob("*")):
                with suppress(OSError):  # a broken or circular link
                    times.append(file.stat().st_mtime_ns)
        return max(times)

    def read(self, split: str) -> Rows:
        """Return the rows of a split; a single file has the same rows for every split.

        Raises:
            ConfigError: the data is missing, empty or in an unknown format, or a library to read
                it is missing.
        """
        if self.hub_name:
            return _from_hub(self.hub_name, self.subset, split)
        path = Path(self.place)
        if not self.place or not (path.is_file() or path.is_dir()):
            what = "it is neither" if self.place and path.exists() else "there is no"
            raise ConfigError(f"task.data: expected {_EXPECTED}; {what} '{self.place}'")
        files = _files_of(path, self.subset, split) if path.is_dir() else [path]
        rows = [row for file in files for row in _from_file(file, file.stat().st_mtime_ns)]
        if not rows:
            raise ConfigError(f"task.data: expected problems, got none: '{files[0]}' is empty")
        return rows


def absolute(place: str) -> str:
    """Return a path that is valid in any working directory; places on the hub stay unchanged."""
    if not place or place.startswith(HUB):
        return place
    return str(Path(place).expanduser().absolute())


def absent_places(places: Mapping[str, str]) -> tuple[str, ...]:
    """Return which places of data are missing on this machine, as `Task.absent` does.

    Args:
        places: paths or names on the hub, by key of the task; empty: none.
    """
    absent = {k: place for k, place in places.items() if place and not RowSource(place).is_here}
    return tuple(f"task.{key}={place}" for key, place in absent.items())


def refuse_url(key: str, place: str) -> None:
    """Refuse a URL: data is read from files, and from the hub by its name.

    Raises:
        ConfigError: names the key, and no password of the URL.
    """
    if "://" in place:
        raise ConfigError(f"{key}: expected {_EXPECTED}, got the URL {redacted(place)}")


def _files_of(folder: Path, subset: str, split: str) -> list[Path]:
    """Return the files of a split: `test.jsonl`, or `test-00000-of-00002.parquet` (the hub)."""
    existing: list[Path] = []
    for directory in (folder / subset, folder, folder / "data"):
        existing = _data_files(directory.glob("*"))
        if existing:
            break
    chosen = [f for f in existing if f.stem == split or f.name.startswith(f"{split}-")]
    if not chosen and split:
        # A folder for each split, as in the archive of MATH.
        chosen = _data_files((folder / subset / split).rglob("*"))
    if not chosen:
        raise _no_file(folder, split, existing)
    return chosen


def _data_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files of data among some paths, sorted."""
    return [path for path in sorted(paths) if path.suffix in _ENDINGS and path.is_file()]


def _no_file(folder: Path, split: str, existing: Sequence[Path]) -> ConfigError:
    """Return the error that a folder has no file of a split, but some others."""
    expected = f"expected a file ({', '.join(_ENDINGS)}) of split '{split}' in '{folder}'"
    folders = _folders_with(folder, split)
    if folders:
        return ConfigError(
            f"task.data: {expected}, got the folders {', '.join(folders)} with one each: "
            f"task.subset={folders[0]} takes one (advsweep init: --set subset={folders[0]})"
        )
    names = ", ".join(file.name for file in existing) or "none"
    return ConfigError(
        f"task.data: {expected}, got {names}; name the splits by train_split and held_out_split, "
        "or give a file"
    )


def _folders_with(folder: Path, split: str) -> list[str]:
    """Return the names of the folders that have files of a split, such as `main` and `socratic`."""
    files = (file for file in sorted(folder.glob(f"*/{split}[-.]*")) if file.suffix in _ENDINGS)
    return list(dict.fromkeys(file.parent.name for file in files if split))


@functools.lru_cache(maxsize=16)
def _from_file(path: Path, changed: int) -> Rows:
    """Return the rows of a file; its time of change, `changed`, invalidates the cache."""
    if path.suffix == ".parquet":
        return _from_parquet(path)
    _check_size(path, path.stat().st_size)
    if path.suffix in _TABLES:
        return _from_table(path)
    rows = []
    number = 0
    try:
        # Some editors begin a file with a byte order mark.
        text = path.read_text(encoding="utf-8-sig")
        document = _document(text) if path.suffix == ".json" else None
        # Not splitlines: a line separator of Unicode within a text ends no line of JSON.
        entries = text.split("\n") if document is None else document
        for number, entry in enumerate(entries, start=1):  # noqa: B007 (errors name it)
            if document is not None or entry.strip():
                row = _row(entry if document is not None else json.loads(entry))
                _measure(row)
                rows.append(row)
    except (ValueError, RecursionError) as error:
        where = f", row {number}" if number else ""
        reason = str(error)
        if isinstance(error, json.JSONDecodeError):
            reason = f"expected JSON, which all files are but tables and parquet: {error}"
        elif isinstance(error, UnicodeDecodeError):
            reason = f"expected UTF-8, got the byte {error.object[error.start]:#04x}"
        elif isinstance(error, RecursionError):
            reason = "expected fewer lists and objects within each other"
        raise ConfigError(f"task.data: '{path}'{where}: {reason}") from error
    return rows


def _document(text: str) -> list[Any] | None:
    """Return the rows of a JSON file that is one document; None for a file of lines.

    A document is a list of rows, an object with such a list (and facts about the data), an object
    with a list of values for each column, or one row.

    Raises:
        ValueError: an object has several lists of rows.
    """
    start = text.lstrip()[:1]
    if start == "[":
        rows: list[Any] = json.loads(text)
        return rows
    if start != "{":
        return None
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        # Lines of JSON are one document and then more.
        if error.msg == "Extra data":
            return None
        raise
    lists = {key: value for key, value in document.items() if _is_rows(value)}
    if len(lists) == 1:
        (rows,) = lists.values()
        return rows
    if lists:
        raise ValueError(f"expected one list of rows, got {', '.join(map(repr, lists))}; split it")
    columns = [_column(value) for value in document.values()]
    sizes = {len(column) for column in columns if column is not None}
    if len(sizes) == 1 and None not in columns:
        return [dict(zip(document, values, strict=True)) for values in zip(*columns, strict=True)]
    return [document]


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _column(value: Any) -> list[Any] | None:
    """Return the values of a column: a list, or an object by numbers, as pandas writes it."""
    if isinstance(value, dict) and value and all(key.isdecimal() for key in value):
        return [*value.values()]
    return value if isinstance(value, list) else None


def _row(value: Any) -> dict[str, Any]:
    """Return a row; a list of messages is a row of one column.

    Raises:
        ValueError: the value is neither.
    """
    if isinstance(value, dict):
        return value
    if _is_rows(value) and all("role" in message or "from" in message for message in value):
        return {"messages": value}
    raise ValueError(f"expected an object with columns, got {str(value)[:40]!r}")


def _from_table(path: Path) -> Rows:
    """Return the rows of a table with a header; all values are texts."""
    try:
        table = read_table(path, most_bytes=path.stat().st_size)  # bounded already
    except ConfigError as error:
        raise ConfigError(f"task.data: {error}") from error
    return [dict(row) for _, row in table.rows()]


def _from_parquet(path: Path) -> Rows:
    arrow = import_extra("pyarrow", "data", f"task.data: '{path}'")
    from pyarrow.parquet import ParquetFile

    rows: Rows = []
    size = 0
    try:
        with ParquetFile(path) as file:
            # One kilobyte may unpack to many gigabytes: the declared size is checked before
            # unpacking, and the actual size while unpacking.
            groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
            declared = sum(group.total_byte_size for group in groups)
            _check_size(path, declared, file.metadata.num_rows)
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                rows += batch.to_pylist()
                size += sum(map(_measure, rows[-batch.num_rows :]))
                _check_size(path, size)
    except (arrow.ArrowException, OSError, RecursionError) as error:
        raise ConfigError(
            f"task.data: '{path}': expected a parquet file: {str(error).strip()}"
        ) from error
    return rows


def _is_cached(name: str) -> bool:
    """Return whether the cache of the library datasets has a folder for the repository."""
    try:
        from datasets import config
        from datasets.naming import camelcase_to_snakecase
    except ImportError:
        return False
    owner, _, repository = name.partition("@")[0].rpartition("/")
    folder = "___".join(filter(None, (owner, camelcase_to_snakecase(repository))))
    return (Path(config.HF_DATASETS_CACHE).expanduser() / folder).is_dir()


@functools.lru_cache(maxsize=16)
def _from_hub(name: str, subset: str, split: str) -> Rows:
    datasets = import_extra("datasets", "data", f"task.data: '{HUB}{name}'")
    local = f"a local copy does as well: task.data=FILE_OR_FOLDER ({', '.join(_ENDINGS)})"
    if not _is_cached(name) and (reason := hub_unreachable()):
        raise ConfigError(f"task.data: cannot load '{HUB}{name}': {reason}; {local}")
    repository, _, revision = name.partition("@")
    try:
        loaded = datasets.load_dataset(repository, subset or None, revision=revision or None)
    except Exception as error:  # four libraries raise here, each from a tree of its own
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"task.data: cannot load '{HUB}{name}': {reason}; {local}") from error
    if split not in loaded:
        hint = nearest(split, loaded)
        raise ConfigError(f"task.data: '{HUB}{name}' has no split '{split}'; {hint}")
    return [dict(row) for row in loaded[split]]


def _check_size(path: Path, size: int, rows: int = 0) -> None:
    """Refuse a file that is larger than allowed.

    Args:
        size: bytes of its values, unpacked.
        rows: number of rows, each of which takes memory even if its values take none.

    Raises:
        ConfigError: the file is too large; the message names the variable that allows more.
    """
    text = os.environ.get(MAX_BYTES_VARIABLE)
    if text is None:
        most = min(_MAX_BYTES, max(_SUSPECT_BYTES, _MOST_FOLD * path.stat().st_size))
    elif text.isdecimal() and len(text) < 20:
        most = int(text)
    else:
        raise ConfigError(f"{MAX_BYTES_VARIABLE}: expected a whole number of bytes, got '{text}'")
    if max(size, rows * _ROW_BYTES) > most:
        raise ConfigError(
            f"task.data: '{path}': expected at most {most:,} bytes, got {size:,} in "
            f"{rows or 'its'} rows; set {MAX_BYTES_VARIABLE} to allow more"
        )


def _measure(row: Any) -> int:
    """Return the number of characters of all texts in a row, counting repeated texts again.

    Raises:
        RecursionError: lists and objects are nested too deeply for recursive functions.
    """
    size = 0
    level = [row]
    for _ in range(_MOST_LEVELS + 2):
        size += sum(len(node) for node in level if isinstance(node, (str, bytes)))
        inner = [node.values() if isinstance(node, dict) else node for node in level]
        level = [item for node in inner if isinstance(node, (ValuesView, list)) for item in node]
        if not level:
            return size
    raise RecursionError
