"""The process of the tests: the program's code never runs here, nor do objects of its classes.

Names of the program are stubs, which send plain arguments to its process and return plain
results.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from advsweep.tasks.verifiers.sandbox.inside.wire import (
    CLASS,
    Channel,
    NotPlainError,
    decode,
    encode,
)

# They would end an iteration of the tests without an error.
_ENDS = (StopIteration, StopAsyncIteration)


class Stub:
    """A function of the program; or the class `Solution`, which has functions.

    The tests can call it, nothing else: whether it is true, or equal to a value, is for the
    program to say, and so is no answer. Each call of a method is of a new instance.
    """

    __slots__ = ("__call", "__path")

    def __init__(self, call: Callable[..., Any], *path: str) -> None:
        self.__call = call
        self.__path = path

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.__path == (CLASS,):
            return self
        return self.__call(self.__path, arguments, named)

    def __getattr__(self, name: str) -> Stub:
        if self.__path != (CLASS,) or name.startswith("_"):
            raise AttributeError(name)
        return Stub(self.__call, CLASS, name)


def _refuse(*_: Any) -> NoReturn:
    os._exit(1)  # an exception could be caught by the tests


for _name in ("bool", "hash", "eq", "ne"):  # what every other object can do
    setattr(Stub, f"__{_name}__", _refuse)


class Tester:
    """Runs tests in which the names of the program are stubs.

    Args:
        order: `program`, `given` (what the program may use), `setup` and `tests` are sources;
            `names` are the names that the tests take from the program; `scripts` are pairs of
            standard input and output; `trusted` says whether the tests run in the program's
            process.
    """

    def __init__(self, channel: Channel, order: dict[str, Any]) -> None:
        self._channel = channel
        self._order = order

    def run(self) -> None:
        """Run the tests; return if all pass, and raise an exception of any kind if one fails."""
        order = self._order
        for text, expected in order["scripts"]:
            if not _same_output(self._ask("script", order["program"], text), expected):
                raise AssertionError("another output")
        if not order["tests"]:
            return
        self._ask("load", order["given"], order["program"])
        if order["trusted"]:
            self._ask("trusted", order["setup"], order["tests"])
            return
        names = {"__name__": "__main__"} | {n: Stub(self._call, n) for n in order["names"]}
        for source in (order["setup"], order["tests"]):
            exec(compile(source, "<tests>", "exec"), names)

    def _call(self, path: tuple[str, ...], arguments: Any, named: dict[str, Any]) -> Any:
        try:
            sent = encode([list(arguments), named])
        except NotPlainError:
            _refuse()
        return self._ask("call", path, *sent[1:], given=[*arguments, *named.values()])

    def _ask(self, *request: Any, given: list[Any] | None = None) -> Any:
        """Return the program's answer to a request.

        Args:
            given: arguments that the program may change in place if it returns None. One that
                also returned a value could empty what the tests compare that value with.
        """
        try:
            self._channel.send(*request)
            kind, *parts = self._channel.receive()
            if kind == "error":
                error: Exception | None = _exception(*parts)
            else:
                error, (value, changed) = None, map(decode, parts)
                if value is None and changed:
                    for old, new in zip(given or [], changed, strict=True):
                        _change(old, new)
        except Exception:  # noqa: BLE001 (any error of a malformed answer)
            os._exit(1)
        if error is not None:
            raise error
        return value


def _change(old: Any, new: Any) -> None:
    """Give an argument the contents that the program has left in it."""
    if isinstance(old, list) and type(new) is list:
        old[:] = new
    elif (isinstance(old, dict) and type(new) is dict) or (type(old) is type(new) is set):
        old.clear()
        old.update(new)


def _exception(kinds: list[str], text: str) -> Exception:
    """Return the nearest builtin exception among the names of a class's bases."""
    for name in kinds:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _ENDS):
            try:
                return kind(str(text))
            except TypeError:  # one that takes more than a text
                break
    return RuntimeError(str(text))


def _same_output(printed: Any, expected: str) -> bool:
    """Compare outputs line by line, and lines of numbers by value, as LiveCodeBench does."""
    ours, theirs = (
        [line.strip() for line in text.strip().split("\n")] for text in (printed, expected)
    )
    return len(ours) == len(theirs) and all(
        one == other or _numbers(one) == _numbers(other) != []
        for one, other in zip(ours, theirs, strict=True)
    )


def _numbers(line: str) -> list[Decimal]:
    """Return the numbers of a line; empty if it has anything else."""
    try:
        return [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return []
