"""The process of a program: it runs scripts in processes of their own, or answers calls."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib
import io
import os
import resource
import signal
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

from advsweep.tasks.verifiers import isolation
from advsweep.tasks.verifiers.messages import Channel, NotPlainError, decode, encode

_TEXT = 1_000  # characters of an exception's text
_STREAMS = (("stdin", 0, "rb"), ("stdout", 1, "wb"), ("stderr", 2, "wb"))


class Host:
    """Starts the processes of a program; it runs nothing of the program itself.

    Args:
        folder: the working folder; empty, and emptied after each script.
        modules: names of the modules that a Python has when it begins with a program.
        limits: as `isolation.limit` takes them.
        has_own_processes: whether all processes in sight are the program's.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        folder: str,
        modules: set[str],
        limits: list[tuple[str, int, int]],
        has_own_processes: bool,
    ) -> None:
        self._channel = channel
        self._folder = folder
        self._limits = limits
        self._has_own_processes = has_own_processes
        self._kept = set(os.listdir(folder))
        self._has_imported = False
        # Here and not in each process: forks then share the memory.
        _forget_modules(modules)
        atexit._clear()
        # The first that is registered runs last, behind the script's own.
        atexit.register(_end_quickly)

    def serve(self) -> None:
        """Serve until the other end is closed; return in the process of a script alone."""
        while True:
            try:
                request, *arguments = self._channel.receive()
            except (EOFError, ValueError):
                os._exit(0)
            if request == "load":
                self._serve_calls(*arguments)
            elif self._is_script(*arguments):
                return

    def _serve_calls(self, *arguments: Any) -> None:
        pid = isolation.fork()
        if pid:
            # The tests notice the end of the program's process if no other one has the pipe.
            self._channel.close()
            os.waitpid(pid, 0)
            os._exit(0)
        try:
            self._become_ordinary()
            program = Program(self._channel)
            program.answer("load", *arguments)
            program.serve()
        finally:
            os._exit(0)  # skip exit handlers and threads of the program

    def _is_script(self, program: str, text: str) -> bool:
        """Run a script and send what it prints; return whether this is the script's process."""
        if not self._has_imported:
            self._import_for(program)
        with open(sys.argv[0], "wb") as source:
            source.write(program.encode("utf-8", "surrogatepass"))
        given = self._temporary("given", text.encode("utf-8", "surrogatepass"))
        printed = self._temporary("printed", b"", os.O_WRONLY)
        reading = os.open(f"{self._folder}/printed", os.O_RDONLY)
        os.unlink(f"{self._folder}/given")
        os.unlink(f"{self._folder}/printed")
        pid = isolation.fork()
        if pid == 0:
            os.dup2(given, 0)
            os.dup2(printed, 1)
            isolation.close_others()
            self._become_ordinary()
            _open_streams()
            gc.freeze()  # so that `_end_quickly` looks at objects of the script alone
            return True
        _, status = os.waitpid(pid, 0)
        self._end_descendants()
        with open(reading, "rb") as file_object:
            output = file_object.read().decode(errors="replace")
        os.close(given)
        os.close(printed)
        self._clear_folder()
        if status:
            self._channel.send("error", ["RuntimeError"], f"it ended with status {status}")
        else:
            self._channel.send("value", output, None)
        return False

    def _import_for(self, program: str) -> None:
        """Import what a script imports first, so that its processes share the time and memory."""
        self._has_imported = True
        for name in _imported_names(program):
            # Any failure is one of the script, too.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        gc.freeze()  # what the sandbox has made is no object in sight, and stays shared memory

    def _temporary(self, name: str, content: bytes, mode: int = os.O_RDONLY) -> int:
        """Return the descriptor of a new file: as `python FILE < given > printed` has them."""
        path = f"{self._folder}/{name}"
        with open(path, "xb") as file:
            file.write(content)
        return os.open(path, mode)

    def _become_ordinary(self) -> None:
        """Confine the process of a program, and make it look like that of `python FILE`."""
        isolation.show_memory()
        isolation.forbid_calls(own_processes=self._has_own_processes)
        isolation.limit([self._left_of(*limit) for limit in self._limits])

    def _left_of(self, name: str, soft: int, hard: int) -> tuple[str, int, int]:
        """Return what earlier scripts have left of a limit: of CPU time, at least a second."""
        if name != "CPU":
            return name, soft, hard
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = int(used.ru_utime + used.ru_stime)
        return name, max(soft - spent, 1), max(hard - spent, 1)

    def _end_descendants(self) -> None:
        """End what a script has left running: it could change the files of the next one."""
        while True:
            victims = [-1] if self._has_own_processes else isolation.children()
            for victim in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return

    def _clear_folder(self) -> None:
        for name in set(os.listdir(self._folder)) - self._kept:
            path = f"{self._folder}/{name}"
            if os.path.isdir(path) and not os.path.islink(path):
                _remove_tree(path)
            else:
                os.unlink(path)


def _remove_tree(path: str) -> None:
    import shutil  # rarely needed, and slow to import

    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)


def _forget_modules(kept: set[str]) -> None:
    """Leave the modules of a Python that begins with a program: it imports others anew."""
    for name in set(sys.modules) - kept:
        del sys.modules[name]
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            with contextlib.suppress(AttributeError):
                delattr(sys.modules[parent], child)


def _open_streams() -> None:
    """Open the standard streams as Python does when it begins."""
    for name, descriptor, mode in _STREAMS:
        before = getattr(sys, name)
        raw = io.FileIO(descriptor, mode[0], closefd=False)
        raw.name = f"<{name}>"
        buffer = io.BufferedReader(raw) if mode == "rb" else io.BufferedWriter(raw)
        stream = io.TextIOWrapper(
            buffer,
            encoding=before.encoding,
            errors=before.errors,
            newline="\n",
            line_buffering=name == "stderr",
        )
        setattr(stream, "mode", mode[0])  # noqa: B010 (read-only for type checkers alone)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


# Of the C library: it writes what that library's streams hold, and destroys no object of Python.
# Python's lock is kept, so that no thread runs meanwhile.
_EXIT = ctypes.PyDLL(None).exit

# Those of a class whatever its metaclass says, which may run code of the script.
_BASES = type.__dict__["__mro__"].__get__
_NAMES_OF_CLASS = type.__dict__["__dict__"].__get__


def _end_quickly() -> None:
    """End the process as Python would end it, if destroying its objects would show nothing.

    To destroy all objects takes Python more than twice the time of a short script, since it copies
    all memory that this process shares with the host. Where the end of an object may do something,
    or the script has not come to its last line, this returns, and Python goes on.
    """
    is_at_end = sys._getframe().f_back is None  # a script can call its exit handlers, too
    if is_at_end and _has_succeeded() and _has_first_streams() and not _has_finalizers():
        # What cannot be written is found again by Python, which ends with a status that says so.
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            _EXIT(0)
    gc.unfreeze()  # objects that are in cycles with frozen ones are to be destroyed, too


def _has_succeeded() -> bool:
    """Return whether the script has come to its last line."""
    # Python removes the name at the end of a script, and not where it exits.
    has_exited = "__file__" in vars(sys.modules.get("__main__", sys))
    return not has_exited and not hasattr(sys, "last_type")


def _has_first_streams() -> bool:
    """Return whether the standard streams are those that Python began with."""
    streams = ((sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__))
    return all(stream is first and type(stream) is io.TextIOWrapper for stream, first in streams)


def _has_finalizers() -> bool:
    """Return whether the end of an object of the script may run or write something.

    Files, generators and the like have `__del__`, too.
    """
    objects = gc.get_objects()
    # An instance without attributes is no object of these, but its class is.
    classes = set(map(type, objects)) | {
        value for value in objects if issubclass(type(value), type)
    }
    for kind in classes:
        if any("__del__" in _NAMES_OF_CLASS(base) for base in _BASES(kind)):
            return True
    return any(
        issubclass(type(value), weakref.ref) and value.__callback__ is not None for value in objects
    )


# They do something that is seen when they are imported.
_VISIBLE_IMPORTS = {"antigravity", "this", "__main__", "main", "sitecustomize", "usercustomize"}


def _imported_names(program: str) -> list[str]:
    """Return the modules of the import statements that stand at the beginning of a line."""
    names = []
    for line in program.splitlines():
        statement, _, rest = line.partition(" ")
        if statement == "from":
            names += rest.split()[:1]
        elif statement == "import":
            names += [clause.split()[0] for clause in rest.split(",") if clause.strip()]
    return [name for name in names if name.strip(".;").partition(".")[0] not in _VISIBLE_IMPORTS]


class Program:
    """A program and what it defines."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._names: dict[str, Any] = {}

    def serve(self) -> None:
        """Answer requests until the other end is closed, or a value is not plain."""
        while True:
            request, *arguments = self._channel.receive()
            self.answer(request, *arguments)

    def answer(self, request: str, *arguments: Any) -> None:
        """Send the answer to one request.

        Raises:
            NotPlainError: the answer is no plain data, which is a wrong answer.
        """
        handlers: dict[str, Callable[..., tuple[Any, ...]]] = {
            "load": self._load,
            "call": self._call,
            "trusted": self._trusted,
        }
        try:
            reply = handlers[request](*arguments)
        except NotPlainError:
            raise  # the tests find the channel closed
        except BaseException as error:  # noqa: BLE001 (programs raise anything, exits included)
            # Names and a text alone: an exception object could answer for itself in the tests.
            text = ""
            with contextlib.suppress(Exception):  # of a class of the program
                text = str(error)[:_TEXT]
            reply = ("error", [kind.__name__ for kind in type(error).__mro__], text)
        self._channel.send(*reply)

    def _load(self, imports: str, program: str) -> tuple[Any, ...]:
        """Run a program after the imports of its tests' setup, which it may use."""
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        self._names = vars(module)
        with contextlib.suppress(Exception):  # the tests run them too, and report failures
            exec(compile(imports, "<setup>", "exec", dont_inherit=True), self._names)
        exec(compile(program, sys.argv[0], "exec", dont_inherit=True), self._names)
        return ("value", None, None)

    def _call(self, path: list[Any], arguments: Any, named: Any) -> tuple[Any, ...]:
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
        arguments = decode(arguments)
        named = decode(named)
        result = target(*arguments, **named)
        return ("value", encode(result), encode([*arguments, *named.values()]))

    def _trusted(self, setup: str, tests: str) -> tuple[Any, ...]:
        """Run tests beside the program, whose objects they use."""
        for source in (setup, tests):
            exec(compile(source, "<tests>", "exec", dont_inherit=True), self._names)
        return ("value", True, None)
