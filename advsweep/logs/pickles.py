"""Plain data in pickles, which are programs: nothing in one is imported or called.

Its opcodes are read as text. What is not plain data becomes None.
"""

from __future__ import annotations

import pickletools
from typing import Any

_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_CONSTANTS = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None}
_LITERALS = frozenset(
    {"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
)
_MEMORIZING = frozenset({"BINPUT", "LONG_BINPUT", "MEMOIZE"})
_RECALLING = frozenset({"BINGET", "LONG_BINGET"})
_FILLING = frozenset({"SETITEM", "SETITEMS", "APPEND", "APPENDS"})


def plain_pickle(data: bytes) -> Any:
    """Return the plain data in a pickle; the attributes of an object stand for it.

    Raises:
        ValueError, LookupError, TypeError: it is damaged, or no pickle.
    """
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    marks: list[int] = []
    for code, value, _ in pickletools.genops(data):
        if code.name == "STOP":
            return stack[-1]
        if code.name == "MARK":
            marks.append(len(stack))
            continue
        if code.name in _MEMORIZING:
            key = len(memo) if value is None else value
            memo[key] = stack[-1]
            continue
        # What an opcode takes off the stack: so many, or all since the last mark.
        needs = [kind.name for kind in code.stack_before]
        start = len(stack) - len(needs)
        if "mark" in needs:
            start = marks.pop() - needs.index("mark")
        if start < 0:
            raise ValueError("an opcode takes more than there is")
        taken = stack[start:]
        del stack[start:]
        made = memo[value] if code.name in _RECALLING else _made_by(code.name, value, taken)
        stack += [made] * len(code.stack_after)
    raise ValueError("a pickle without its end")


def _made_by(name: str, value: Any, taken: list[Any]) -> Any:
    """Return what an opcode puts on the stack; None for what is not plain data.

    Args:
        value: the argument of the opcode.
        taken: what it takes off the stack.
    """
    if name in _LITERALS:
        return value
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if name in _EMPTY:
        return _EMPTY[name]()
    if name in _FILLING:
        return _filled(*taken)
    if name == "BUILD":
        return taken[-1]  # The attributes of an object.
    return None  # A class, an object of one, or a call, of which nothing is known.


def _filled(container: Any, *items: Any) -> Any:
    """Put items into a dictionary or a list, and return it; anything else stays as it is."""
    if isinstance(container, dict):
        container |= zip(items[::2], items[1::2], strict=True)
    elif isinstance(container, list):
        container += items
    return container
