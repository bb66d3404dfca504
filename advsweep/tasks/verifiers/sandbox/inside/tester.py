"""The process of the tests: the program's code never runs here, nor do objects of its classes.

Names of the program are proxies that forward each operation to the process of the program.
Results are decoded to exact builtin types, so comparisons in the tests are those of Python's own
types. Objects of other types stay in the program's process. A test that compares one of them with
a value gets False.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Sequence
from typing import Any

from advsweep.tasks.verifiers.sandbox.inside.wire import (
    COMPARISONS,
    OPERATIONS,
    Channel,
    Decoder,
    Encoder,
)

CONTROL = "__control__"
"""The name of the function that replaces assertions in the control (see `submission`)."""

_ENDS = (StopIteration, StopAsyncIteration)


class Proxy:
    """A proxy of an object in the process of the program.

    Operations are forwarded. Comparisons are forwarded only if both sides are objects of the
    program, because then the test needs their own equality. A proxy never equals a value.
    """

    __slots__ = ("__forward", "__number")

    def __init__(self, forward: Callable[..., Any], number: int) -> None:
        object.__setattr__(self, "_Proxy__forward", forward)
        object.__setattr__(self, "_Proxy__number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.__forward("call", self, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return self.__forward("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__forward("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__forward("delattr", self, name)

    def __instancecheck__(self, item: Any) -> bool:
        return isinstance(item, Proxy) and self.__forward("isinstance", item, self) is True

    def __hash__(self) -> int:
        return hash(self.__number)


def _forwarded(operation: str, *, between: bool = False) -> Callable[..., Any]:
    def method(self: Proxy, *arguments: Any) -> Any:
        if between and type(arguments[0]) is not Proxy:
            return NotImplemented
        forward = object.__getattribute__(self, "_Proxy__forward")
        return forward(operation, self, *arguments)

    return method


for _operation in OPERATIONS:
    setattr(Proxy, f"__{_operation.rstrip('_')}__", _forwarded(_operation))
for _operation in COMPARISONS:
    setattr(Proxy, f"__{_operation}__", _forwarded(_operation, between=True))


class AssertionControl:
    """Replaces assertions in the control: it compares values with an object that equals nothing.

    A value that claims to be equal is forged. `passes` is true if such a value passed every
    assertion that was reached.
    """

    def __init__(self) -> None:
        self._reached = self._forged = 0

    def __call__(self, *values: Any) -> bool:
        impossible = object()
        forged = any(bool(value == impossible) for value in values)
        self._reached += 1
        self._forged += forged
        return forged

    @property
    def passes(self) -> bool:
        return 0 < self._reached == self._forged


class Tester:
    """Runs tests in which the names of the program are proxies.

    Args:
        order: `program`, `imports`, `setup` and `tests` are sources, `names` are the names that
            the tests take from the program, `shared` the classes that the setup defines.
    """

    def __init__(self, channel: Channel, order: dict[str, Any]) -> None:
        self._channel = channel
        self._order = order
        self._names: dict[str, Any] = {"__name__": "__main__", CONTROL: AssertionControl()}
        self._exceptions: dict[str, type[Exception]] = {}
        self._functions: list[Any] = []
        self._proxies: dict[int, Proxy] = {}

    def run(self) -> None:
        """Run the tests; return if all pass, and raise an exception of any kind if one fails."""
        order = self._order
        self._ask(
            {
                "do": "load",
                "program": order["program"],
                "setup": order["setup"],
                "shared": order["shared"],
            }
        )
        for name in order["names"]:
            self._bind(name)
        for source in (order["imports"], order["setup"], order["tests"]):
            exec(compile(source, "<tests>", "exec"), self._names)

    def _bind(self, name: str) -> None:
        reply = self._ask({"do": "name", "name": name})
        if "missing" in reply:
            return
        if "exception" in reply:
            base = _exception(reply["exception"])
            self._names[name] = self._exceptions[name] = type(name, (base,), {})
        else:
            self._names[name] = self._value(reply)

    def _operate(self, name: str, *arguments: Any, **named: Any) -> Any:
        encoder = Encoder(self._encode)
        message = {
            "do": "operate",
            "name": name,
            "arguments": encoder.node(arguments),
            "named": {key: encoder.node(value) for key, value in named.items()},
        }
        message["table"] = encoder.table()
        reply = self._ask(message, may_end=name == "next")
        return self._value(reply, encoder.objects)

    def _ask(self, message: dict[str, Any], *, may_end: bool = False) -> dict[str, Any]:
        """Send a message; the program may call functions of the tests before the reply."""
        self._channel.send(message)
        while True:
            try:
                reply = self._channel.receive()
                is_callback = reply.get("do") == "callback"
                call = self._callback(reply) if is_callback else None
                error = self._error(reply, may_end) if "error" in reply else None
            except Exception:  # noqa: BLE001 (any error of a malformed message)
                os._exit(1)
            if error is not None:
                raise error
            if call is None:
                return reply
            self._channel.send(self._called(*call))

    def _callback(self, message: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        decoder = self._decoder(message["table"])
        function = self._functions[message["number"]]
        arguments = decoder.node(message["arguments"])
        named = {key: decoder.node(node) for key, node in message["named"].items()}
        return function, arguments, named

    def _called(self, function: Any, arguments: list[Any], named: dict[str, Any]) -> dict[str, Any]:
        try:
            value = function(*arguments, **named)
        except Exception as error:  # noqa: BLE001 (the program may expect it)
            return {"error": type(error).__name__, "text": str(error)}
        encoder = Encoder(self._encode)
        node = encoder.node(value)
        return {"value": node, "table": encoder.table()}

    def _error(self, reply: dict[str, Any], may_end: bool) -> Exception:
        kinds, text = reply["error"], reply["text"]
        if type(text) is not str:
            raise ValueError("the text of an error is a text")
        for kind in kinds:
            if kind in self._exceptions:
                return self._exceptions[kind](text)
        kind = _exception(kinds)
        if issubclass(kind, _ENDS) and not may_end:
            return RuntimeError(text)
        try:
            return kind(text)
        except TypeError:  # one that takes more than a text
            return RuntimeError(text)

    def _value(self, reply: dict[str, Any], known: Sequence[Any] = ()) -> Any:
        try:
            return self._decoder(reply["table"], known).node(reply["value"])
        except Exception:  # noqa: BLE001 (any error of a malformed value)
            os._exit(1)

    def _decoder(self, table: Any, known: Sequence[Any] = ()) -> Decoder:
        return Decoder(table, self._decode, self._instance, known)

    def _encode(self, encoder: Encoder, value: Any) -> Any:
        if type(value) is Proxy:
            return ["h", object.__getattribute__(value, "_Proxy__number")]
        kind = type(value)
        if kind.__name__ in self._order["shared"] and self._names.get(kind.__name__) is kind:
            return encoder.reference(value)
        if callable(value):
            if value not in self._functions:
                self._functions.append(value)
            return ["k", self._functions.index(value)]
        raise TypeError(f"a test cannot give a program an object of type {kind.__name__}")

    def _decode(self, node: list[Any]) -> Any:
        tag, number = node
        if tag == "k":
            return self._functions[number]
        if tag != "h" or type(number) is not int:
            raise ValueError("no value")
        return self._proxies.setdefault(number, Proxy(self._operate, number))

    def _instance(self, name: str) -> Any:
        kind = self._names.get(name)
        if name not in self._order["shared"] or not isinstance(kind, type):
            raise ValueError("no class of the tests")
        return object.__new__(kind)


def _exception(kinds: Any) -> type[Exception]:
    """Return the nearest builtin exception among the names of a class's bases."""
    for name in kinds:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind
    return RuntimeError
