"""Values of Python as words of a command line: `seed=range(3)` becomes `seed=0,1,2`.

A list is swept over, as in a sweep file; a value that is itself a list stands in another list. A
text is what the command line has after the `=`: `"grpo,fade"` is two values. An element of a list
is a value, whatever it holds.
"""

from __future__ import annotations

import numbers
import re
import types
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from advsweep.errors import ConfigError
from advsweep.function_text import write_text_of

# What Hydra's grammar reads as the text that it is; numbers and constants have it too.
_PLAIN = re.compile(r"[A-Za-z_/][\w/.:@%+-]*(?<!:)")
_CONSTANTS = frozenset({"true", "false", "null", "nan", "inf"})


def words_of(values: Mapping[str, Any]) -> list[str]:
    """Return an override for each key, such as `estimator=grpo,fade`.

    A class or a function stands for its text (`function_text`), as FILE.py does on the command
    line.

    Raises:
        ConfigError: a key is no text, or a value cannot be written.
    """
    words = []
    for key, value in values.items():
        if not isinstance(key, str):
            raise ConfigError(f"expected config keys as texts, got {key!r}")
        words.append(f"{key}={_written(key, value)}")
    return words


def _written(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable) and not isinstance(value, (Mapping, str, bytes, Enum)):
        texts = [_element(key, each) for each in value]
        if not texts:
            raise ConfigError(f"{key}: expected at least one value to sweep over, got none")
        return ",".join(texts)
    return _element(key, value)


def _element(key: str, value: Any) -> str:
    """Write one value in Hydra's grammar."""
    if isinstance(value, (type, types.FunctionType)) and not _is_enum_class(value):
        return write_text_of(value, key)
    if isinstance(value, Enum):
        return _element(key, value.value)
    if value is None:
        return "null"
    if isinstance(value, bool) or type(value).__name__ == "bool_":
        return str(bool(value)).lower()
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))
    if isinstance(value, (str, Path)):
        return _quoted(str(value))
    if isinstance(value, Mapping):
        pairs = [f"{_quoted(str(name))}:{_element(key, each)}" for name, each in value.items()]
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return "[" + ",".join(_element(key, each) for each in value) + "]"
    raise ConfigError(
        f"{key}: expected numbers, texts, lists, mappings, a function or a class, got "
        f"{type(value).__name__}"
    )


def _is_enum_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Enum)


def _quoted(text: str) -> str:
    """Return a text that the grammar reads as itself, in quotes where it needs them."""
    if _PLAIN.fullmatch(text) and text.lower() not in _CONSTANTS:
        return text
    # A backslash counts before a quote alone.
    escaped = re.sub(r"(\\*)'", lambda match: 2 * match[1] + "\\'", text)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    doubled = "\\" * trailing
    return f"'{escaped}{doubled}'"
