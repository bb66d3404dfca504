"""Bounds on data files: a small file may declare, or nest, more than memory holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from advsweep.errors import ConfigError

MAX_BYTES_VARIABLE = "ADVSWEEP_MAX_DATA_BYTES"
"""The environment variable that sets how many bytes one data file may hold, unpacked."""

_MAX_BYTES = 4 * 2**30
_ROW_BYTES = 256  # a row counts for at least so many, as an object in memory does
_MOST_LEVELS = 64  # of lists and objects within each other


def check_size(path: Path, size: int, rows: int = 0) -> None:
    """Refuses a file that holds more than is allowed.

    Args:
        size: bytes of its values, unpacked.
        rows: how many it has.

    Raises:
        ConfigError: it does; the message names the variable that allows more.
    """
    most = _most_bytes()
    if max(size, rows * _ROW_BYTES) > most:
        raise ConfigError(
            f"data: '{path}': expected at most {most:,} bytes, got {size:,} in {rows or 'its'} "
            f"rows; set {MAX_BYTES_VARIABLE} to allow more"
        )


def _most_bytes() -> int:
    text = os.environ.get(MAX_BYTES_VARIABLE, str(_MAX_BYTES))
    if not (text.isdecimal() and len(text) < 20):
        raise ConfigError(f"{MAX_BYTES_VARIABLE}: expected a whole number of bytes, got '{text}'")
    return int(text)


def check_depth(value: Any, where: str) -> None:
    """Refuses lists and objects that are nested deeper than functions can follow.

    Args:
        where: the file and the row, for the message.

    Raises:
        ConfigError: they are.
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
    """The characters of all texts in a value; of a dictionary's text, wherever it stands again."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, list) else 0


def _items(node: Any) -> list[Any]:
    """The lists and objects that a list or an object holds."""
    items = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [item for item in items if isinstance(item, (dict, list))]
