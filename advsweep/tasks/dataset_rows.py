"""Rows of a data set: from a file, from a folder with a file per split, or from the hub.

A small file may declare, or nest, more than memory holds, so sizes and depths are checked.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.errors import ConfigError, nearest
from advsweep.machine import hub_unreachable
from advsweep.packages import extra_command

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

Rows = list[dict[str, Any]]

MAX_BYTES_VARIABLE = "ADVSWEEP_MAX_DATA_BYTES"
"""The environment variable with the largest size in bytes of one data file, unpacked."""

_MAX_BYTES = 4 * 2**30
# A file is refused early if it unpacks to more than this, and to a thousand times its size: a
# column that repeats a value takes next to nothing in a parquet file, and gigabytes in memory.
_SUSPECT_BYTES, _MOST_FOLD = 2**28, 1000
_ROW_BYTES = 256  # least size of a row, which is about that of an object in memory
_MOST_LEVELS = 64  # of nested lists and objects

HUB = "hub:"
_LINES, _JSON, _PARQUET = (".jsonl", ".ndjson"), (".json",), (".parquet",)
_BATCH_ROWS = 256
_ENDINGS = (*_LINES, *_JSON, *_PARQUET)
_EXPECTED = (
    f"a file ({', '.join(_ENDINGS)}), a folder with a file per split, or {HUB}OWNER/NAME[@REVISION]"
)


@dataclass(frozen=True)
class Source:
    """The place of some rows.

    Attributes:
        place: an absolute path, or `hub:OWNER/NAME[@REVISION]`.
        subset: the hub's configuration, or a subfolder; empty: none.
    """

    place: str
    subset: str = ""

    @property
    def is_file(self) -> bool:
        return not self.place.startswith(HUB) and Path(self.place).is_file()

    @property
    def is_here(self) -> bool:
        """Whether the data is on this machine; data from the hub is after its first download."""
        if self.place.startswith(HUB):
            return _is_cached(self.place.removeprefix(HUB))
        return Path(self.place).exists()

    def read(self, split: str) -> Rows:
        """Return the rows of a split; a single file has the same rows for every split.

        Raises:
            ConfigError: the data is missing, empty or in an unknown format, or a library to read
                it is missing.
        """
        if not self.place:
            raise ConfigError(f"data: expected {_EXPECTED}, got nothing")
        if self.place.startswith(HUB):
            return _from_hub(self.place.removeprefix(HUB), self.subset, split)
        path = Path(self.place)
        if path.is_dir():
            files = _files_of(path, self.subset, split)
        elif path.is_file():
            files = [path]
        else:
            what = "it is neither" if path.exists() else "there is no"
            raise ConfigError(f"data: expected {_EXPECTED}; {what} '{path}'")
        rows = [row for file in files for row in _from_file(file, file.stat().st_mtime_ns)]
        if not rows:
            raise ConfigError(f"data: expected problems, got none: '{files[0]}' is empty")
        return rows


def absolute(place: str) -> str:
    """Return a path that is valid in any working directory; places on the hub stay unchanged."""
    if not place or place.startswith(HUB):
        return place
    return str(Path(place).expanduser().absolute())


def _files_of(folder: Path, subset: str, split: str) -> list[Path]:
    """Return the files of a split: `test.jsonl`, or `test-00000-of-00002.parquet` (the hub)."""
    places = dict.fromkeys((folder / subset, folder, folder / "data"))
    listings = (sorted(filter(_is_data, place.glob("*"))) for place in places)
    found = next(filter(None, listings), [])
    chosen = [f for f in found if f.stem == split or f.name.startswith(f"{split}-")]
    if chosen:
        return chosen
    if not found:
        raise ConfigError(f"data: expected files ({', '.join(_ENDINGS)}) in '{folder}', got none")
    names = ", ".join(file.name for file in found)
    raise ConfigError(
        f"data: expected a file of split '{split}' in '{folder}', got {names}; name the splits by "
        f"train_split and held_out_split, or give a file as data"
    )


def _is_data(file: Path) -> bool:
    return file.suffix in _ENDINGS and file.is_file()


@functools.lru_cache(maxsize=16)
def _from_file(path: Path, changed: int) -> Rows:
    """Return the rows of a file; its time of change, `changed`, invalidates the cache."""
    if path.suffix in _PARQUET:
        return _from_parquet(path)
    check_size(path, path.stat().st_size)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"data: '{path}': expected a text in UTF-8, got byte {error.object[error.start]:#04x} "
            f"at position {error.start:,}"
        ) from error
    if path.suffix in _JSON and text.lstrip().startswith("["):
        return [_mapping(row, f"'{path}', entry {i}") for i, row in _parsed(text, path)]
    return [
        _mapping(row, f"'{path}', line {number}")
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
        for _, row in _parsed(f"[{line}]", path, number)
    ]


def _parsed(text: str, path: Path, line: int = 0) -> Iterator[tuple[int, Any]]:
    try:
        return enumerate(json.loads(text), start=1)
    except json.JSONDecodeError as error:
        where = f"line {line or error.lineno}"
        reason = f"expected JSON: {error.msg}"
        if path.suffix not in _ENDINGS:
            reason += f"; expected one of {', '.join(_ENDINGS)}, as other files are JSON lines"
        raise ConfigError(f"data: '{path}', {where}: {reason}") from error
    except (ValueError, RecursionError) as error:
        where = f"'{path}', line {line}" if line else f"'{path}'"
        reason = (
            "lists and objects within each other, too many"
            if isinstance(error, RecursionError)
            else f"a number of more than {sys.get_int_max_str_digits():,} digits"
        )
        raise ConfigError(f"data: {where}: expected rows of plain values, got {reason}") from error


def _mapping(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise ConfigError(f"data: {where}: expected an object with columns, got {str(row)[:40]!r}")
    check_depth(row, where)
    return dict(row)


def _from_parquet(path: Path) -> Rows:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ConfigError(
            f"data: '{path}' needs pyarrow, which is not installed; install it with "
            f"`{extra_command('data')}`, or give JSON lines"
        ) from error
    try:
        with ParquetFile(path) as file:
            return list(_in_batches(path, file))
    except (ArrowException, OSError) as error:
        raise ConfigError(
            f"data: '{path}': expected a parquet file: {str(error).strip()}"
        ) from error


def _in_batches(path: Path, file: ParquetFile) -> Iterator[dict[str, Any]]:
    """Yield the rows of a parquet file, in which one kilobyte may unpack to many gigabytes.

    The declared size is checked before unpacking, and the actual size while unpacking.
    """
    metadata = file.metadata
    groups = range(metadata.num_row_groups)
    declared = sum(metadata.row_group(group).total_byte_size for group in groups)
    check_size(path, declared, metadata.num_rows)
    size = number = 0
    for batch in file.iter_batches(batch_size=_BATCH_ROWS):
        for row in batch.to_pylist():
            number += 1
            check_depth(row, f"'{path}', row {number}")
            size += size_of(row)
            yield row
        check_size(path, size)


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
    local = f"a local copy does as well: task.data=FILE_OR_FOLDER ({', '.join(_ENDINGS)})"
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            f"data: '{HUB}{name}' needs the library datasets, which is not installed; "
            f"install it with `{extra_command('data')}`; {local}"
        ) from error
    if not _is_cached(name) and (reason := hub_unreachable()):
        raise ConfigError(f"data: cannot load '{HUB}{name}': {reason}; {local}")
    repository, _, revision = name.partition("@")
    try:
        loaded = datasets.load_dataset(repository, subset or None, revision=revision or None)
    except Exception as error:  # four libraries raise here, each from a tree of its own
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"data: cannot load '{HUB}{name}': {reason}; {local}") from error
    if split not in loaded:
        hint = nearest(split, loaded)
        raise ConfigError(f"data: '{HUB}{name}' has no split '{split}'; {hint}")
    return [dict(row) for row in loaded[split]]


@functools.lru_cache(maxsize=8)
def _read_level_file(path: str, changed: int) -> Mapping[str, int]:
    levels = {}
    for row in Source(path).read(""):
        if not isinstance(row.get("level"), int) or "id" not in row:
            raise ConfigError(
                f"level_file: expected lines with an id and a level, a whole number, in "
                f"'{path}', got {str(row)[:60]}"
            )
        levels[str(row["id"])] = row["level"]
    return levels


def read_levels(path: str) -> Mapping[str, int]:
    if not path:
        return {}
    if not Path(path).is_file():
        raise ConfigError(f"level_file: expected a file of JSON lines, got '{path}'")
    return _read_level_file(path, Path(path).stat().st_mtime_ns)


def check_size(path: Path, size: int, rows: int = 0) -> None:
    """Refuse a file that is larger than allowed.

    Args:
        size: bytes of its values, unpacked.
        rows: number of rows.

    Raises:
        ConfigError: the file is too large; the message names the variable that allows more.
    """
    most = _most_bytes(path)
    if max(size, rows * _ROW_BYTES) > most:
        raise ConfigError(
            f"data: '{path}': expected at most {most:,} bytes, got {size:,} in {rows or 'its'} "
            f"rows; set {MAX_BYTES_VARIABLE} to allow more"
        )


def _most_bytes(path: Path) -> int:
    text = os.environ.get(MAX_BYTES_VARIABLE)
    if text is None:
        return min(_MAX_BYTES, max(_SUSPECT_BYTES, _MOST_FOLD * path.stat().st_size))
    if not (text.isdecimal() and len(text) < 20):
        raise ConfigError(f"{MAX_BYTES_VARIABLE}: expected a whole number of bytes, got '{text}'")
    return int(text)


def check_depth(value: Any, where: str) -> None:
    """Refuse lists and objects that are nested too deeply for recursive functions.

    Args:
        where: the file and the row, for the message.

    Raises:
        ConfigError: the nesting is too deep.
    """
    level, depth = [value], 0
    while level := [item for node in level for item in _items(node)]:
        depth += 1
        if depth > _MOST_LEVELS:
            raise ConfigError(
                f"data: {where}: expected at most {_MOST_LEVELS} lists and objects within each "
                "other, got more"
            )


def size_of(value: Any) -> int:
    """Return the number of characters of all texts in a value, counting repeated texts again."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, list) else 0


def _items(node: Any) -> list[Any]:
    """Return the lists and objects directly inside a list or an object."""
    items = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [item for item in items if isinstance(item, (dict, list))]
