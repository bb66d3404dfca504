"""The process of the tests: it asks the program's process, and compares plain data."""

from __future__ import annotations

import builtins
import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

from advsweep.tasks.verifiers.messages import Channel, NotPlainError, decode, encode
from advsweep.tasks.verifiers.outputs import same_output

# The only class whose methods tests may call, by the convention of LeetCode.
CLASS = "Solution"

# Tests call what this makes of a function, where a call is a statement.
STATEMENT = "_called_as_a_statement"

# They would end an iteration of the tests without an error.
_ENDS = (StopIteration, StopAsyncIteration)


class Stub:
    """A function of the program; or the class `Solution`, which has functions.

    The tests can call it, nothing else: whether it is true, or equal to a value, is for the
    program to say, and so is no answer. Each call of a method is of a new instance.
    """

    __slots__ = ("__call", "__in_place", "__path")

    def __init__(self, call: Callable[..., Any], *path: str, in_place: bool = False) -> None:
        self.__call = call
        self.__path = path
        self.__in_place = in_place

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.__path == (CLASS,):
            return self
        return self.__call(self.__path, arguments, named, self.__in_place)

    def __getattr__(self, name: str) -> Stub:
        if self.__path != (CLASS,) or name.startswith("_"):
            raise AttributeError(name)
        return Stub(self.__call, CLASS, name)

    @classmethod
    def as_statement(cls, function: Any) -> Any:
        """Return what a call that is a statement calls: it may change its arguments in place."""
        if type(function) is not cls or function.__path == (CLASS,):
            return function
        return cls(function.__call, *function.__path, in_place=True)


def _refuse(*_: Any) -> NoReturn:
    os._exit(1)  # an exception could be caught by the tests


for _name in ("bool", "hash", "eq", "ne"):  # what every other object can do
    setattr(Stub, f"__{_name}__", _refuse)


class Tester:
    """Runs tests in which the names of the program are stubs.

    Args:
        order: `program`, `given` (what the program may use), `setup` and `tests` are sources;
            `names` are the names that the tests take from the program; `scripts` are pairs of
            standard input and output; `tolerance` is that of printed fractions; `trusted` says
            whether the tests run in the program's process.

    Attributes:
        is_inconsistent: whether the program answered equal calls differently.
    """

    def __init__(self, channel: Channel, order: dict[str, Any]) -> None:
        self._channel = channel
        self._order = order
        self._answers: dict[str, list[Any]] = {}
        self.is_inconsistent = False

    def run(self) -> None:
        """Run the tests; return if all pass, and raise an exception of any kind if one fails."""
        order = self._order
        for text, expected in order["scripts"]:
            printed = self._ask("script", order["program"], text)
            if not same_output(printed, expected, order["tolerance"]):
                raise AssertionError("another output")
        if order["tests"]:
            self._run_python(order["program"])

    def _run_python(self, program: str) -> None:
        order = self._order
        self._ask("load", order["given"], program)
        if order["trusted"]:
            self._ask("trusted", order["setup"], order["tests"])
            return
        # `unittest.main` looks for the tests in the module of this name.
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        names = vars(module)
        names[STATEMENT] = Stub.as_statement
        names |= {name: Stub(self._call, name) for name in order["names"]}
        try:
            for source in (order["setup"], order["tests"]):
                exec(compile(source, "<tests>", "exec", dont_inherit=True), names)
        except SystemExit as end:
            # No exception of a program is one: the tests themselves say that they have passed.
            if end.code:
                raise

    def _call(
        self, path: tuple[str, ...], arguments: Any, named: dict[str, Any], in_place: bool
    ) -> Any:
        try:
            sent = encode([list(arguments), named])
        except NotPlainError:
            _refuse()
        given = [*arguments, *named.values()] if in_place else None
        return self._ask("call", path, *sent[1:], given=given)

    def _ask(self, *request: Any, given: list[Any] | None = None) -> Any:
        """Return the program's answer to a request.

        Args:
            given: arguments that the program may change in place. Where the result is used it
                may change none: it could empty what the tests compare the result with.
        """
        try:
            self._channel.send(*request)
            kind, *parts = answer = self._channel.receive()
            self._compare_with_earlier(request, answer)
            if kind == "error":
                error: Exception | None = _exception(*parts)
            else:
                error, (value, changed) = None, map(decode, parts)
                for old, new in zip(given or [], changed or [], strict=bool(given)):
                    if isinstance(old, list) and type(new) is list:
                        old[:] = new
                    elif isinstance(old, dict | set) and isinstance(new, dict | set):
                        old.clear()
                        old.update(new)
        except Exception:  # noqa: BLE001 (any error of a malformed answer)
            _refuse()
        if error is not None:
            raise error
        return value

    def _compare_with_earlier(self, request: tuple[Any, ...], answer: list[Any]) -> None:
        if request[0] == "call":
            earlier = self._answers.setdefault(json.dumps(request), answer)
            self.is_inconsistent |= earlier != answer


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
