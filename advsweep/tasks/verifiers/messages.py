"""Messages between the process of the tests and that of a program: plain data as lines of JSON.

Their values have exactly a builtin type, and the receiver makes them anew: neither an object of the
program nor a subclass of a builtin type can be written in this format. So what the tests do with a
value is what Python's own types do.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

# Length of the longest message in bytes.
MESSAGE_BYTES = 16 * 2**20

# Number of containers that may be nested in each other.
DEPTH = 64

# The type in which iterators arrive; `encode` reads them to their end.
ITERATOR: type = type(iter([]))

_WORD = 2**63

# What the items of a message make, by the name of its type.
_MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    "int": lambda items: int(items[0], 16),
    "bytes": lambda items: bytes.fromhex(items[0]),
    "complex": lambda items: complex(*items),
    "range": lambda items: range(*items),
    "dict": lambda items: dict(zip(items[::2], items[1::2], strict=True)),
    # Two of them are equal only in the same order, unlike dictionaries.
    "OrderedDict": lambda items: OrderedDict(zip(items[::2], items[1::2], strict=True)),
    ITERATOR.__name__: iter,
    **{kind.__name__: kind for kind in (list, tuple, set, frozenset)},
}

# The items of a value, by its type; keys and values in turn, since those of JSON are texts.
_ITEMS: dict[type, Callable[[Any], Iterable[Any]]] = {
    bytes: lambda value: [value.hex()],
    complex: lambda value: [value.real, value.imag],
    range: lambda value: [value.start, value.stop, value.step],
    dict: lambda value: (item for pair in value.items() for item in pair),
    OrderedDict: lambda value: (item for pair in value.items() for item in pair),
    **dict.fromkeys((list, tuple, set, frozenset, ITERATOR), iter),
}

# Conversions from an instance of a subclass, such as Counter, to a value of the type itself.
_EXACT: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytearray: bytes,
    **{kind: kind for kind in (complex, bytes, tuple, frozenset, list, OrderedDict, dict, set)},
}


class NotPlainError(Exception):
    """A value is not plain data."""


class Channel:
    """Messages over two pipes.

    Args:
        reading: the descriptor to receive from.
        writing: the descriptor to send to.
    """

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = open(reading, "rb")  # noqa: SIM115 (until the process ends)
        self._writing = open(writing, "wb")  # noqa: SIM115

    def close(self) -> None:
        self._reading.close()
        self._writing.close()

    def send(self, *message: Any) -> None:
        # With escapes, two surrogates in a row would arrive as one character.
        text = json.dumps(message, ensure_ascii=False)
        self._writing.write(text.encode("utf-8", "surrogatepass") + b"\n")
        self._writing.flush()

    def receive(self) -> list[Any]:
        """Return the next message.

        Raises:
            EOFError: the other end is closed, or the message is too long.
            ValueError: the data is no message.
        """
        line = self._reading.readline(MESSAGE_BYTES)
        if not line.endswith(b"\n"):
            raise EOFError
        message = json.loads(line.decode("utf-8", "surrogatepass"))
        if type(message) is not list:
            raise ValueError("expected a list")
        return message


def encode(value: Any, depth: int = DEPTH) -> Any:
    """Return plain data as JSON, in which each container is a list that begins with its type.

    Raises:
        NotPlainError: the value is not plain, and has no plain value in its place.
        RecursionError: it is nested too deeply.
    """
    kind = type(value)
    if kind is int and not -_WORD < value < _WORD:
        return ["int", hex(value)]  # reading decimal digits takes quadratic time
    if value is None or kind in (bool, int, float, str):
        return value
    if depth == 0:
        raise RecursionError(f"nested more than {DEPTH} deep")
    if kind not in _ITEMS:
        # One level deeper, since a class could convert to itself for ever.
        return encode(_plain(value), depth - 1)
    return [kind.__name__, *(encode(item, depth - 1) for item in _ITEMS[kind](value))]


def _plain(value: Any) -> Any:
    """Return a value of a plain type in place of one of a subclass, of numpy, or an iterable."""
    for base, exact in _EXACT.items():
        if isinstance(value, base):
            return exact(value)
    if type(value).__module__ == "numpy" and not getattr(value, "shape", True):
        return value.item()
    if isinstance(value, Iterable):
        return iter(list(value))
    raise NotPlainError(type(value).__name__)


def decode(node: Any, depth: int = DEPTH) -> Any:
    """Return the value of what `encode` made; any exception means that it was something else."""
    if type(node) is not list:
        if type(node) is dict:
            raise ValueError("expected no object")
        return node
    if depth == 0:
        raise ValueError("nested too deeply")
    return _MAKERS[node[0]]([decode(item, depth - 1) for item in node[1:]])
