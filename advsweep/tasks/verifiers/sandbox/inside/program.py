"""The process of the program: runs it and serves the requests of the tests.

Everything here shares a process with the program, which can change all of it. So `tester` does not
trust any answer of this process.
"""

from __future__ import annotations

import builtins
import contextlib
import operator
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from advsweep.tasks.verifiers.sandbox.inside.wire import (
    COMPARISONS,
    OPERATIONS,
    Channel,
    Decoder,
    Encoder,
)

_MESSAGE = 1_000  # characters of an exception's text

_NAMES = {*OPERATIONS, *COMPARISONS, "isinstance", "getattr", "setattr", "delattr"}
_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(builtins if hasattr(builtins, name) else operator, name)
        for name in _NAMES - {"enter", "exit"}
    },
    "call": lambda function, *arguments, **named: function(*arguments, **named),
    "enter": lambda item: type(item).__enter__(item),
    "exit": lambda item, *error: type(item).__exit__(item, *error),
}


class Program:
    """The names of a program, and its objects to which the tests refer."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._module = types.ModuleType("__main__")
        self._names = vars(self._module)
        self._shared: frozenset[str] = frozenset()
        self._held: dict[int, Any] = {}
        self._callbacks: dict[int, Callable[..., Any]] = {}

    def serve(self) -> None:
        """Answer requests until the other end is closed."""
        while True:
            self._answer(self._channel.receive())

    def _answer(self, message: dict[str, Any]) -> None:
        try:
            reply = getattr(self, f"_do_{message['do']}")(message)
            self._channel.send(reply)
        except EOFError:
            raise
        except BaseException as error:  # noqa: BLE001 (programs raise anything, exits included)
            kinds = [kind.__name__ for kind in type(error).__mro__]
            try:
                text = str(error)[:_MESSAGE]
            except Exception:  # noqa: BLE001 (of a class of the program)
                text = ""
            self._channel.send({"error": kinds, "text": text})

    def _do_load(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run the program and then the setup of its tests in the same namespace."""
        sys.modules["__main__"] = self._module
        sys.argv = [""]
        exec(compile(message["program"], "<answer>", "exec"), self._names)
        with contextlib.suppress(Exception):  # the tests run it too, and report failures
            exec(compile(message["setup"], "<setup>", "exec"), self._names)
        self._shared = frozenset(message["shared"])
        return {}

    def _do_name(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a global name of the program."""
        name = message["name"]
        if name not in self._names:
            return {"missing": True}
        value = self._names[name]
        if isinstance(value, type) and issubclass(value, BaseException):
            return {"exception": [kind.__name__ for kind in value.__mro__]}
        return self._reply(value)

    def _do_operate(self, message: dict[str, Any]) -> dict[str, Any]:
        """Apply an operation to values; the reply has the new contents of mutable arguments."""
        decoder = self._decoder(message["table"])
        arguments = decoder.node(message["arguments"])
        named = {name: decoder.node(node) for name, node in message["named"].items()}
        result = _OPERATIONS[message["name"]](*arguments, **named)
        encoder = Encoder(self._encode, decoder.objects)
        node = encoder.node(result)
        table = encoder.table()
        for number, row in enumerate(message["table"]):
            if table[number] == row:
                table[number] = None
        return {"value": node, "table": table}

    def _reply(self, value: Any) -> dict[str, Any]:
        encoder = Encoder(self._encode)
        node = encoder.node(value)
        return {"value": node, "table": encoder.table()}

    def _decoder(self, table: Any) -> Decoder:
        return Decoder(table, self._decode, self._instance)

    def _encode(self, encoder: Encoder, value: Any) -> Any:
        kind = type(value)
        if kind.__name__ in self._shared and self._names.get(kind.__name__) is kind:
            return encoder.reference(value)
        if kind.__module__ == "numpy" and not getattr(value, "shape", True):
            return encoder.node(value.item())
        for number, function in self._callbacks.items():
            if function is value:
                return ["k", number]
        self._held[id(value)] = value
        return ["h", id(value)]

    def _decode(self, node: list[Any]) -> Any:
        tag, number = node
        return self._held[number] if tag == "h" else self._callback(number)

    def _instance(self, name: str) -> Any:
        return object.__new__(self._names[name])

    def _callback(self, number: int) -> Callable[..., Any]:
        """Return a function of the tests as a function of this process."""
        if number in self._callbacks:
            return self._callbacks[number]

        def function(*arguments: Any, **named: Any) -> Any:
            encoder = Encoder(self._encode)
            message = {
                "do": "callback",
                "number": number,
                "arguments": encoder.node(arguments),
                "named": {name: encoder.node(value) for name, value in named.items()},
            }
            self._channel.send({**message, "table": encoder.table()})
            while True:
                reply = self._channel.receive()
                if "do" in reply:
                    self._answer(reply)  # the function calls the program in turn
                    continue
                if "error" in reply:
                    raise getattr(builtins, reply["error"], RuntimeError)(reply["text"])
                return self._decoder(reply["table"]).node(reply["value"])

        self._callbacks[number] = function
        return function


def run(channel: Channel) -> None:
    """Serve a program until its tests are over."""
    try:
        Program(channel).serve()
    finally:
        os._exit(0)  # skip exit handlers and threads of the program
