"""What runs in a sandbox, apart from `isolation`: the tests and the program, in two processes.

Standard library alone, so that it starts quickly. One process runs the tests, the other the
program; between them pass messages, each a line of JSON. Their values have exactly a builtin type,
and the receiver makes them anew: neither an object of the program nor a subclass of a builtin type
can be written in this format. So what the tests do with a value is what Python's own types do.

A supervisor forks both. It never reads the order (the program with its tests), so the memory that
the forked processes inherit holds nothing of it.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from advsweep.tasks.verifiers import isolation

# Length of the longest message in bytes.
MESSAGE_BYTES = 16 * 2**20

# Number of containers that may be nested in each other.
DEPTH = 64

# The type in which iterators arrive; `encode` reads them to their end.
ITERATOR: type = type(iter([]))

# The only class whose methods tests may call, by the convention of LeetCode.
CLASS = "Solution"

_WORD = 2**63

# What the items of a message make, by the name of its type.
_MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    "int": lambda items: int(items[0], 16),
    "bytes": lambda items: bytes.fromhex(items[0]),
    "complex": lambda items: complex(*items),
    "range": lambda items: range(*items),
    "dict": lambda items: dict(zip(items[::2], items[1::2], strict=True)),
    ITERATOR.__name__: iter,
    **{kind.__name__: kind for kind in (list, tuple, set, frozenset)},
}

# The items of a value, by its type; keys and values in turn, since those of JSON are texts.
_ITEMS: dict[type, Callable[[Any], Iterable[Any]]] = {
    bytes: lambda value: [value.hex()],
    complex: lambda value: [value.real, value.imag],
    range: lambda value: [value.start, value.stop, value.step],
    dict: lambda value: (item for pair in value.items() for item in pair),
    **dict.fromkeys((list, tuple, set, frozenset, ITERATOR), iter),
}

# Conversions from an instance of a subclass, such as Counter, to a value of the type itself.
_EXACT: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytearray: bytes,
    **{kind: kind for kind in (complex, bytes, tuple, frozenset, list, dict, set)},
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
                return  # the tests find the channel closed, which is a wrong answer
            except BaseException as error:  # noqa: BLE001 (programs raise anything, exits included)
                # Names and a text alone: an exception object could answer for itself in the tests.
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
            # Descriptors and not only sys.stdin: programs read with os.read and subprocesses, too.
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
                        if isinstance(old, list) and type(new) is list:
                            old[:] = new
                        elif isinstance(old, dict | set) and type(new) in (dict, set):
                            old.clear()
                            old.update(new)
        except Exception:  # noqa: BLE001 (any error of a malformed answer)
            os._exit(1)
        if error is not None:
            raise error
        return value


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


# Sent just before the program starts; an end before that is not the program's fault.
STARTED = "+"

_ANSWER_BYTES = 256


def main(settings: dict[str, Any]) -> None:
    """Supervise a program and its tests: the only process that lives as long as they may.

    The standard input has an order for `Tester` with a `word`. The answer is a line: `STARTED`
    when the program starts, then the word if it passes.

    Args:
        settings: `seconds` that a program may take; `limits` as `isolation.limit` takes them;
            `root`, the arguments of `isolation.enter_root`; None without namespaces.
    """
    # Before anything of the program runs: the order will be in this process's standard input.
    isolation.hide_memory()
    isolation.adopt_orphans()  # a daemon would else escape to the system's first process
    if settings["root"]:
        isolation.enter_root(**settings["root"])
        _supervise(settings, isolation.SCRATCH)
    else:
        prefix = "advsweep-code-"
        with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
            _supervise(settings, folder)
    os.write(1, b"\n")


def _supervise(settings: dict[str, Any], folder: str) -> None:
    """Forward what the process of the tests writes, as it comes; then end all processes.

    In namespaces this process is the first one and kills all others. Without namespaces it
    adopts processes whose parents have ended.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _run_tests(settings, folder, writing)
    os.close(writing)
    # The deadline is the supervisor's own: a limit on CPU time does not end a program that sleeps.
    # At most a few bytes, so that a flood cannot fill the memory of the judging process.
    written, deadline = 0, time.monotonic() + settings["seconds"]
    while written < _ANSWER_BYTES:
        left = max(deadline - time.monotonic(), 0.0)
        if not select.select([reading], [], [], left)[0] or not (new := os.read(reading, 64)):
            break
        written += os.write(1, new)
    # Until there is no child left: one that forks while it is killed leaves another.
    victims = [pid]
    while True:
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
        victims = [-1] if settings["root"] else isolation.children()


def _run_tests(settings: dict[str, Any], folder: str, answer: int) -> NoReturn:
    """Run the process of the tests, which forks that of the program."""
    isolation.end_with_parent()
    if settings["root"]:
        isolation.separate_children()
    os.chdir(folder)
    os.environ["HOME"] = os.environ["TMPDIR"] = tempfile.tempdir = folder
    if not settings["root"]:
        # Before the fork, or else the kernel could not signal the program's process at the end of
        # this one.
        isolation.drop_capabilities()
        isolation.stay_in(folder)
    # A pipe for each direction, so that neither side reads what it wrote itself.
    to_tests, from_program = os.pipe()
    to_program, from_tests = os.pipe()
    if os.fork() == 0:
        _run_program(settings, to_program, from_program)
    os.close(from_program)
    os.close(to_program)
    channel = Channel(to_tests, from_tests)
    # Read after the fork, so that the program's memory never held the tests, nor the word that
    # stands for a pass.
    order = json.loads(open(0, "rb", closefd=False).readline())  # noqa: SIM115
    # The program's process has confined itself before it says that it is ready.
    channel.receive()
    _confine(settings)
    os.write(answer, STARTED.encode())
    try:
        Tester(channel, order).run()
        os.write(answer, order["word"].encode())
    finally:
        os._exit(0)


def _run_program(settings: dict[str, Any], reading: int, writing: int) -> NoReturn:
    isolation.end_with_parent()
    if settings["root"]:
        isolation.see_own_processes()
        os.setsid()  # its process group would else be that of the supervisor
    _confine(settings)
    # Of the pipes to the supervisor none stays open, by which the program could send the word.
    isolation.close_others(reading, writing)
    channel = Channel(reading, writing)
    channel.send("ready")
    try:
        Program(channel).serve()
    finally:
        os._exit(0)  # skip exit handlers and threads of the program


def _confine(settings: dict[str, Any]) -> None:
    """Take from this process what neither tests nor programs may have."""
    # In this order: dropping them sets no_new_privs, without which there is no filter.
    isolation.drop_capabilities()
    isolation.forbid_calls(own_processes=bool(settings["root"]))
    isolation.limit(settings["limits"])
    isolation.close_standard()
