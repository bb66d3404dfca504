"""The start of a sandbox: a supervisor that forks two processes for each program.

One process runs the tests, the other the program. The supervisor never reads an order (a program
with its tests), so the memory that the forked processes inherit holds nothing of any program.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import tempfile
import time
from typing import Any, NoReturn

from advsweep.tasks.verifiers.sandbox.inside import isolation, program
from advsweep.tasks.verifiers.sandbox.inside.tester import Tester
from advsweep.tasks.verifiers.sandbox.inside.wire import Channel

STARTED = "+"
"""Sent just before the program starts; an end before that is not the program's fault."""

_ANSWER_BYTES = 256


def main(settings: dict[str, Any]) -> None:
    """Run programs until the standard input ends.

    Each comes as a byte and, on the same line, an order for `Tester` with a `word`. The answer is
    a line: `STARTED` when the program starts, then the word if it passes.

    Args:
        settings: `seconds` that a program may take; `limits` as `isolation.limit` takes them;
            `root` and `scratch`, the arguments of `isolation.enter_root` and
            `isolation.enter_scratch`; without namespaces `root` is None.
    """
    isolation.hide_memory()
    isolation.adopt_orphans()
    if settings["root"]:
        isolation.enter_root(**settings["root"])
    limits = isolation.limits()
    # Without seccomp a program may have changed the limits. Then another supervisor takes over.
    while os.read(0, 1) and isolation.limits() == limits:
        if settings["root"]:
            _run(settings, isolation.SCRATCH)
        else:
            prefix = "advsweep-code-"
            with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
                _run(settings, folder)
        os.write(1, b"\n")


def _run(settings: dict[str, Any], folder: str) -> None:
    """Run the next program; forward what the process of its tests writes, as it comes."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _run_tests(settings, folder, writing)
    os.close(writing)
    written, deadline = 0, time.monotonic() + settings["seconds"]
    while written < _ANSWER_BYTES:
        left = max(deadline - time.monotonic(), 0.0)
        if not select.select([reading], [], [], left)[0] or not (new := os.read(reading, 64)):
            break
        written += os.write(1, new)
    os.close(reading)
    _end_all(pid, settings)


def _end_all(pid: int, settings: dict[str, Any]) -> None:
    """Kill the processes of the tests and of the program, and all their descendants.

    In namespaces this process is the first one and kills all others. Without namespaces it
    adopts processes whose parents have ended.
    """
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
        isolation.enter_scratch(**settings["scratch"])
        isolation.separate_children()
    os.chdir(folder)
    os.environ["HOME"] = os.environ["TMPDIR"] = tempfile.tempdir = folder
    if not settings["root"]:
        # Before the fork, or else the kernel could not signal the program's process at the end of
        # this one.
        isolation.drop_capabilities()
        isolation.stay_in(folder)
    to_tests, from_program = os.pipe()
    to_program, from_tests = os.pipe()
    if os.fork() == 0:
        _run_program(settings, to_program, from_program)
    os.close(from_program)
    os.close(to_program)
    channel = Channel(to_tests, from_tests)
    order = json.loads(_rest_of_line())
    channel.receive()
    _confine(settings)
    os.write(answer, STARTED.encode())
    try:
        Tester(channel, order).run()
        os.write(answer, order["word"].encode())
    finally:
        os._exit(0)


def _rest_of_line() -> bytes:
    data = b""
    while not data.endswith(b"\n") and (more := os.read(0, 2**20)):
        data += more
    return data


def _run_program(settings: dict[str, Any], reading: int, writing: int) -> NoReturn:
    isolation.end_with_parent()
    if settings["root"]:
        isolation.see_own_processes()
        os.setsid()  # its process group would else be that of the supervisor
    _confine(settings)
    isolation.close_others(reading, writing)
    channel = Channel(reading, writing)
    channel.send("ready")
    program.run(channel)
    raise AssertionError("the program's process ends with it")


def _confine(settings: dict[str, Any]) -> None:
    """Take from this process what neither tests nor programs may have."""
    isolation.drop_capabilities()
    isolation.forbid_calls(own_processes=bool(settings["root"]))
    isolation.limit(settings["limits"])
    isolation.close_standard()
