"""The arguments of a training with transformers' Trainer, as plain data.

transformers writes them beside each model as a pickle, `training_args.bin`. A pickle is a program:
here its opcodes are read as text, nothing in it is imported or called, and what is not plain data
becomes None.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
import zlib
from pathlib import Path
from typing import Any

from advsweep.local_files import open_regular
from advsweep.yaml_files import read_yaml

_LARGEST = 2**20
_TEXTS = ("training_args.json", "training_args.yaml")
_PICKLE = "training_args.bin"

_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_CONSTANTS = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None}
_LITERALS = frozenset(
    {"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
)
_ADDING = {"SETITEMS": 0, "SETITEM": 2, "APPENDS": 0, "APPEND": 1}
_DAMAGED = (
    *(OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)


def read_arguments(folder: Path) -> dict[str, Any]:
    """Return the arguments in an output folder or its newest checkpoint; empty if unreadable."""
    newest = sorted(folder.glob("checkpoint-*"), key=_number, reverse=True)
    for place in (folder, *newest):
        for file in (place / name for name in (*_TEXTS, _PICKLE)):
            try:
                found = plain_pickle(_unpacked(file)) if file.name == _PICKLE else read_yaml(file)
            except _DAMAGED:
                continue
            if isinstance(found, dict) and found:
                return found
    return {}


def _number(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdecimal() and len(number) <= 12 else 0


def _unpacked(file: Path) -> bytes:
    with open_regular(file.resolve()) as stream:
        archive = zipfile.ZipFile(io.BytesIO(stream.read(_LARGEST)))
    (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
    return archive.open(name).read(_LARGEST)


def plain_pickle(data: bytes) -> Any:
    """Return the plain data in a pickle; the attributes of an object stand for it.

    Raises:
        ValueError, LookupError, TypeError: it is damaged, or no pickle.
    """
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    marks: list[int] = []

    for code, value, _ in pickletools.genops(data):
        name = code.name
        if name in _LITERALS:
            stack.append(value)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if value is None else value] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[value])
        elif name in _ADDING:
            start = marks.pop() if name.endswith("S") else len(stack) - _ADDING[name]
            items, target = stack[start:], stack[start - 1]
            del stack[start:]
            if isinstance(target, dict):
                target |= zip(items[::2], items[1::2], strict=True)
            elif isinstance(target, list):
                target += items
        elif name == "BUILD":
            del stack[-2]
        elif name == "STOP":
            return stack[-1]
        else:
            before = [kind.name for kind in code.stack_before]
            if "mark" in before:
                del stack[marks.pop() :]
                before = before[: before.index("mark")]
            del stack[len(stack) - len(before) :]
            stack += [None] * len(code.stack_after)
    return None
