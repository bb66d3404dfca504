"""Values and messages between the process of the tests and the process of the program.

A message is JSON. Values have exactly a builtin type: instances of subclasses are reduced to their
builtin base, and other objects stay in their process and are referred to by number. Mutable
containers are rows of the message's table, so that a call can change its arguments in place, and
shared or circular references survive.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

MESSAGE_BYTES = 16 * 2**20
"""Length of the longest message in bytes."""

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
"""Names in `operator` of the comparisons of two objects."""

OPERATIONS = (
    *("iter", "next", "len", "bool", "str", "repr", "int", "float", "abs", "reversed", "divmod"),
    *("getitem", "setitem", "delitem", "contains", "neg", "pos", "invert", "index", "add", "sub"),
    *("mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift"),
    *("rshift", "enter", "exit"),
)
"""Names in `builtins` or `operator` of the other operations of tests on an object."""

_HEADER = 8
_WORD = 2**63
_TYPES = (
    *(bool, int, float, complex, str, bytes, bytearray),
    *(tuple, list, dict, set, frozenset, range, object, type),
)
_NAMED_TYPES = {kind.__name__: kind for kind in _TYPES}

# Values of the standard library, by module and name, with the arguments that make an equal one.
_STANDARD: dict[tuple[str, str], Callable[[Any], tuple[Any, ...]]] = {
    ("decimal", "Decimal"): lambda v: (str(v),),
    ("fractions", "Fraction"): lambda v: (v.numerator, v.denominator),
    ("datetime", "date"): lambda v: (v.year, v.month, v.day),
    ("datetime", "timedelta"): lambda v: (v.days, v.seconds, v.microseconds),
    ("collections", "deque"): lambda v: (tuple(v), v.maxlen),
}


# Conversions from an instance of a subclass to a value of the builtin type itself.
_EXACT: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    **{kind: kind for kind in (tuple, frozenset, list, dict, set)},
}


class Channel:
    """Messages over two pipes, each after its length in bytes.

    Args:
        reading: the descriptor to receive from.
        writing: the descriptor to send to.
    """

    def __init__(self, reading: int, writing: int) -> None:
        self.descriptors = (reading, writing)
        self._reading = open(reading, "rb")  # noqa: SIM115 (until the process ends)
        self._writing = writing

    def send(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises:
            ValueError: it is too long.
            OSError: the other end is closed.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > MESSAGE_BYTES:
            raise ValueError(f"a message of {len(body)} bytes, more than {MESSAGE_BYTES}")
        data = memoryview(len(body).to_bytes(_HEADER, "big") + body)
        while data:
            data = data[os.write(self._writing, data) :]

    def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            EOFError: the other end is closed.
            ValueError: the data is not a message.
        """
        length = int.from_bytes(self._read(_HEADER), "big")
        if length > MESSAGE_BYTES:
            raise ValueError("message too long")
        message = json.loads(self._read(length))
        if type(message) is not dict:
            raise ValueError("a message is an object")
        return message

    def _read(self, count: int) -> bytes:
        data = self._reading.read(count)
        if len(data) < count:
            raise EOFError
        return data


class Encoder:
    """Writes the values of one message.

    Args:
        known: mutable objects that the other side already has; they keep their numbers.
        other: encodes an object that is not a value, or raises TypeError.
    """

    def __init__(self, other: Callable[[Encoder, Any], Any], known: Sequence[Any] = ()) -> None:
        self._other = other
        self._objects = list(known)
        self._numbers = {id(item): number for number, item in enumerate(self._objects)}

    @property
    def objects(self) -> list[Any]:
        """The mutable objects of the message, in the order of its table."""
        return self._objects

    def table(self) -> list[Any]:
        """Return the contents of the mutable objects; call it after the last `node`."""
        rows: list[Any] = []
        while len(rows) < len(self._objects):  # encoding contents may add objects
            rows.append(self._contents(self._objects[len(rows)]))
        return rows

    def node(self, value: Any) -> Any:
        """Return a value as JSON."""
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -_WORD <= value < _WORD else ["i", hex(value)]
        if kind is float:
            return value if math.isfinite(value) else ["f", repr(value)]
        if kind in (list, dict, set, bytearray):
            return self.reference(value)
        if kind is tuple or kind is frozenset:
            return ["t" if kind is tuple else "z", *map(self.node, value)]
        if kind is bytes:
            return ["b", value.hex()]
        if kind is complex:
            return ["c", self.node(value.real), self.node(value.imag)]
        if kind is range:
            return ["g", *map(self.node, (value.start, value.stop, value.step))]
        if kind is type and value in _TYPES:
            return ["n", value.__name__]
        if (kind.__module__, kind.__name__) in _STANDARD:
            name = kind.__module__, kind.__name__
            return ["v", *name, *map(self.node, _STANDARD[name](value))]
        return self._subclass(value)

    def reference(self, value: Any) -> Any:
        """Return a reference to a mutable object, which becomes a row of the table."""
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return ["r", number]

    def _subclass(self, value: Any) -> Any:
        for base, exact in _EXACT.items():
            if isinstance(value, base):
                reduced = exact(value)
                # Without the check, a class whose conversion lies would recurse for ever.
                return self.node(reduced) if type(reduced) is base else self._other(self, value)
        return self._other(self, value)

    def _contents(self, value: Any) -> Any:
        if type(value) is list:
            return ["l", *map(self.node, value)]
        if type(value) is set:
            return ["s", *map(self.node, value)]
        if type(value) is bytearray:
            return ["y", value.hex()]
        if type(value) is dict:
            return ["d", *([self.node(k), self.node(v)] for k, v in value.items())]
        fields = [[name, self.node(field)] for name, field in vars(value).items()]
        return ["o", type(value).__name__, *fields]


class Decoder:
    """Reads the values of one message.

    Args:
        table: the table of the message, with None for each unchanged object.
        other: decodes what `Encoder`'s `other` encodes, or raises ValueError.
        instance: an empty instance of a class by its name, or raises ValueError.
        known: mutable objects that the message may change in place.
    """

    def __init__(
        self,
        table: Any,
        other: Callable[[list[Any]], Any],
        instance: Callable[[str], Any],
        known: Sequence[Any] = (),
    ) -> None:
        if type(table) is not list or len(table) < len(known):
            raise ValueError("a table is a list")
        self._other = other
        self.objects = list(known)
        kinds: dict[str, Callable[[], Any]] = {"l": list, "s": set, "y": bytearray, "d": dict}
        for row in table[len(known) :]:
            make = instance(row[1]) if row[0] == "o" else kinds[row[0]]()
            self.objects.append(make)
        for item, row in zip(self.objects, table, strict=True):
            if row is not None:
                self._fill(item, row)

    def node(self, node: Any) -> Any:
        """Return the value of a node."""
        if type(node) is not list:
            return node
        tag, *parts = node
        if tag == "r":
            number = parts[0]
            if type(number) is not int or number < 0:
                raise ValueError("no row of the table")
            return self.objects[number]
        if tag == "t":
            return tuple(map(self.node, parts))
        if tag == "z":
            return frozenset(map(self.node, parts))
        if tag == "i":
            return int(parts[0], 16)
        if tag == "f":
            return float(parts[0])
        if tag == "b":
            return bytes.fromhex(parts[0])
        if tag == "c":
            return complex(self._float(parts[0]), self._float(parts[1]))
        if tag == "g":
            return range(*map(self.node, parts))
        if tag == "n":
            return _NAMED_TYPES[parts[0]]
        if tag == "v":
            module, name, *arguments = parts
            if (module, name) not in _STANDARD:
                raise ValueError("no value of the standard library")
            __import__(module)
            return getattr(sys.modules[module], name)(*map(self.node, arguments))
        return self._other(node)

    def _float(self, node: Any) -> float:
        value = self.node(node)
        if type(value) is not float:
            raise ValueError("no float")
        return value

    def _fill(self, item: Any, row: Any) -> None:
        kind, *contents = row
        if kind == "l" and type(item) is list:
            item[:] = map(self.node, contents)
        elif kind == "s" and type(item) is set:
            changed = set(map(self.node, contents))
            if changed != item:
                item.clear()
                item.update(changed)
        elif kind == "y" and type(item) is bytearray:
            item[:] = bytes.fromhex(contents[0])
        elif kind == "d" and type(item) is dict:
            changed_items = {self.node(key): self.node(value) for key, value in contents}
            item.clear()
            item.update(changed_items)
        elif kind == "o" and type(item).__name__ == contents[0]:
            fields = {_name(key): self.node(value) for key, value in contents[1:]}
            vars(item).clear()
            vars(item).update(fields)
        else:
            raise ValueError("an object does not change its type")


def _name(key: Any) -> str:
    if type(key) is not str or not key.isidentifier() or key.startswith("__"):
        raise ValueError("no name of an attribute")
    return key
