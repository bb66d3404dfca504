"""The process of the program: runs it and serves the requests of the tests.

Everything here shares a process with the program, which can change all of it. So `tester` trusts
no answer of this process, except in a trusted test.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import types
from typing import Any

from advsweep.tasks.verifiers.sandbox.inside.wire import Channel, NotPlainError, decode, encode

_TEXT = 1_000  # characters of an exception's text


class Program:
    """A program and what it defines."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._names: dict[str, Any] = {}

    def serve(self) -> None:
        """Answer requests until the other end is closed, or a value is not plain."""
        while True:
            request, *arguments = self._channel.receive()
            try:
                reply = getattr(self, request)(*arguments)
            except NotPlainError:
                return
            except BaseException as error:  # noqa: BLE001 (programs raise anything, exits included)
                text = ""
                with contextlib.suppress(Exception):  # of a class of the program
                    text = str(error)[:_TEXT]
                reply = ("error", [kind.__name__ for kind in type(error).__mro__], text)
            self._channel.send(*reply)

    def load(self, imports: str, program: str) -> tuple[Any, ...]:
        """Run a program after the imports of its tests' setup, which it may use."""
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        self._names = vars(module)
        sys.argv = [""]
        with contextlib.suppress(Exception):  # the tests run them too, and report failures
            exec(imports, self._names)
        exec(compile(program, "<answer>", "exec"), self._names)
        return ("value", None, None)

    def call(self, path: list[Any], arguments: Any, named: Any) -> tuple[Any, ...]:
        """Call a function, or a method of a new instance.

        Args:
            path: the name of the function, or of a class and of its method.
        """
        first, *method = path
        if first not in self._names:
            raise NameError(first)
        target = self._names[first]
        if method:
            target = getattr(target(), *method)
        arguments, named = decode(arguments), decode(named)
        result = target(*arguments, **named)
        # A function that changes its arguments returns None, by Python's convention.
        changed = [*arguments, *named.values()] if result is None else None
        return ("value", encode(result), encode(changed))

    def script(self, program: str, text: str) -> tuple[Any, ...]:
        """Run a program with a text as standard input; return what it prints."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as printed:
            given.write(text.encode())
            given.seek(0)
            os.dup2(given.fileno(), 0)
            os.dup2(printed.fileno(), 1)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 (the program may close it)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            try:
                self.load("", program)
            except SystemExit as end:
                if end.code:
                    raise
            for thread in threading.enumerate():  # as Python does when a script ends
                if thread is not threading.current_thread() and not thread.daemon:
                    thread.join()
            sys.stdout.flush()
            printed.seek(0)
            return ("value", printed.read().decode(errors="replace"), None)

    def trusted(self, setup: str, tests: str) -> tuple[Any, ...]:
        """Run tests beside the program, whose objects they use."""
        for source in (setup, tests):
            exec(compile(source, "<tests>", "exec"), self._names)
        return ("value", True, None)


def run(channel: Channel) -> None:
    """Serve a program until its tests are over."""
    try:
        Program(channel).serve()
    finally:
        os._exit(0)  # skip exit handlers and threads of the program
