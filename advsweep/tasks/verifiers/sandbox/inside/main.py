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
import time
from typing import Any

from advsweep.tasks.verifiers.sandbox.inside import isolation, program
from advsweep.tasks.verifiers.sandbox.inside.tester import Tester
from advsweep.tasks.verifiers.sandbox.inside.wire import Channel

STARTED = b"+"
"""Sent just before the program starts; an end before that is not the program's fault."""

_ANSWER_BYTES = 256


def main(settings: dict[str, Any]) -> None:
    """Run programs until the standard input ends.

    Each comes as a line of JSON, `{"folder": its working folder or null, "seconds": its time,
    "length": N}`, and an order of N bytes for `Tester`. The answer is a line: `STARTED` if the
    program was started, then the order's word if it passed.

    Args:
        settings: `limits` as `isolation.limit` takes them; `root` and `scratch`, the arguments of
            `isolation.enter_root` and `isolation.enter_scratch`; without namespaces `root`
            is None.
    """
    isolation.hide_memory()
    isolation.adopt_orphans()
    if settings["root"] is not None:
        isolation.enter_root(**settings["root"])
    while line := _line():
        os.write(1, _run(settings, json.loads(line)) + b"\n")


def _line() -> bytes:
    """Return the next line, read byte by byte because another process reads what follows."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line


def _run(settings: dict[str, Any], head: dict[str, Any]) -> bytes:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _run_tests(settings, head, writing)
    os.close(writing)
    answer, deadline = b"", time.monotonic() + head["seconds"]
    while len(answer) < _ANSWER_BYTES:
        left = max(deadline - time.monotonic(), 0.0)
        if not select.select([reading], [], [], left)[0] or not (new := os.read(reading, 1024)):
            break
        answer += new
    os.close(reading)
    _end_all(pid, settings)
    return answer


def _end_all(pid: int, settings: dict[str, Any]) -> None:
    """Kill the processes of the tests and of the program, and all their descendants.

    In namespaces this process is the first one and kills all others. Without namespaces it
    adopts processes whose parents have ended.
    """
    _kill(pid)
    while True:
        for victim in isolation.children() if settings["root"] is None else [-1]:
            _kill(victim)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _run_tests(settings: dict[str, Any], head: dict[str, Any], answer: int) -> None:
    """Run the process of the tests, which forks that of the program; does not return."""
    isolation.end_with_parent()
    if settings["root"] is not None:
        isolation.enter_scratch(**settings["scratch"])
        isolation.separate_children()
    else:
        # Before the fork, or else the kernel could not signal the program's process at the end of
        # this one.
        isolation.drop_capabilities()
        isolation.leave_other_processes()
        if head["folder"] is not None:
            os.chdir(head["folder"])
            os.environ["HOME"] = os.environ["TMPDIR"] = head["folder"]
    to_tests, from_program = os.pipe()
    to_program, from_tests = os.pipe()
    if os.fork() == 0:
        _run_program(settings, Channel(to_program, from_program))
    os.close(from_program)
    os.close(to_program)
    channel = Channel(to_tests, from_tests)
    isolation.drop_capabilities()
    with open(0, "rb", buffering=0, closefd=False) as orders:
        order = json.loads(_exactly(orders, head["length"]))
    channel.receive()
    isolation.close_standard()
    isolation.limit(settings["limits"])
    os.write(answer, STARTED)
    status = 1
    try:
        Tester(channel, order).run()
        os.write(answer, order["word"].encode())
        status = 0
    finally:
        os._exit(status)


def _exactly(file: Any, length: int) -> bytes:
    data = b""
    while len(data) < length and (more := file.read(length - len(data))):
        data += more
    return data


def _run_program(settings: dict[str, Any], channel: Channel) -> None:
    isolation.end_with_parent()
    if settings["root"] is not None:
        isolation.see_own_processes()
    isolation.drop_capabilities()
    isolation.leave_other_processes()
    isolation.limit(settings["limits"])
    isolation.close_standard()
    isolation.close_others(channel.descriptors)
    channel.send({})
    program.run(channel)
