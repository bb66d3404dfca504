"""What runs in a sandbox, apart from `isolation`: the tests and the program, in two processes.

Standard library alone, so that it starts quickly. One process runs the tests (`tester`), the other
hosts the program (`program`); between them pass messages (`messages`). A supervisor forks both. It
never reads the order (the program with its tests), so the memory that the forked processes inherit
holds nothing of it.

All of this happens while Python starts, in `start/sitecustomize.py`: the process of a script
returns from there, and Python runs the script as it runs any file.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

from advsweep.tasks.verifiers import isolation
from advsweep.tasks.verifiers.messages import Channel
from advsweep.tasks.verifiers.program import Host
from advsweep.tasks.verifiers.tester import Tester

# Sent just before the program starts; an end before that is not the program's fault.
STARTED = "+"

# Sent after the word if the program answered equal calls differently.
INCONSISTENT = "~"

# Digits of the number that says how long the settings are.
SETTINGS_DIGITS = 8

_ANSWER_BYTES = 256

# Exit status of a process of tests that have passed.
_PASSED = 42

# Seconds that the tests of a problem may take with one control program.
_CONTROL_SECONDS = 2


def main(modules: set[str]) -> None:
    """Supervise a program and its tests: the only process that lives as long as they may.

    The standard input has the length of the settings, the settings, and a line with an order for
    `Tester` with a `word`. The answer is a line: `STARTED` when the program starts, then the word
    if it passes. The settings are:

    - `seconds`: that a program may take;
    - `limits`: as `isolation.limit` takes them;
    - `root`: the arguments of `isolation.enter_root`; None without namespaces;
    - `readable`: what else a program may read without namespaces;
    - `packages`: folders in which the judging process finds packages;
    - `controls`: programs to try in place of that of the order, each by itself.

    Only the process of a script returns.

    Args:
        modules: names of the modules of a Python that begins with a program.
    """
    settings = _read_settings()
    settings["modules"] = modules
    _add_package_folders(settings["packages"])
    # Before anything of the program runs: the order is in this process's standard input.
    isolation.hide_memory()
    isolation.adopt_orphans()  # a daemon would else escape to the system's first process
    folder = os.path.dirname(sys.argv[0])
    if settings["root"]:
        isolation.enter_root(**settings["root"])
        is_script = _supervise(settings, folder)
    else:
        os.mkdir(folder, 0o700)
        is_script = _supervise(settings, folder)
        if not is_script:
            import shutil  # in namespaces the folder ends with them

            with contextlib.suppress(RecursionError):
                shutil.rmtree(folder, ignore_errors=True)
    if not is_script:
        os.write(1, b"\n")
        os._exit(0)


def _read_settings() -> dict[str, Any]:
    """Read the settings from the standard input, and nothing behind them."""
    left = int(os.read(0, SETTINGS_DIGITS))
    text = b""
    while left > len(text):
        text += os.read(0, left - len(text))
    settings: dict[str, Any] = json.loads(text)
    return settings


def _add_package_folders(folders: list[str]) -> None:
    """Let programs find packages in folders that the environment or the home folder says.

    They come first, as they do where the environment is read.
    """
    missing = [folder for folder in folders if folder not in sys.path]
    places = [index for index, path in enumerate(sys.path) if path in folders]
    index = min(places, default=len(sys.path))
    sys.path[index:index] = missing


def _supervise(settings: dict[str, Any], folder: str) -> bool:
    """Forward what the process of the tests writes, as it comes; then end all processes.

    In namespaces this process is the first one and kills all others. Without namespaces it
    adopts processes whose parents have ended.

    Returns:
        Whether this is the process of a script.
    """
    reading, writing = os.pipe()
    pid = isolation.fork()
    if pid == 0:
        os.close(reading)
        if settings["controls"]:
            _run_controls(settings, folder, writing)
        _run_tests(settings, folder, writing)
        return True
    os.close(writing)
    # The deadline is the supervisor's own: a limit on CPU time does not end a program that sleeps.
    # At most a few bytes, so that a flood cannot fill the memory of the judging process.
    written = 0
    deadline = time.monotonic() + settings["seconds"]
    while written < _ANSWER_BYTES:
        left = max(deadline - time.monotonic(), 0.0)
        if not select.select([reading], [], [], left)[0]:
            break
        new = os.read(reading, 64)
        if not new:
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
            return False
        victims = [-1] if settings["root"] else isolation.children()


def _read_order() -> dict[str, Any]:
    order: dict[str, Any] = json.loads(open(0, "rb", closefd=False).readline())  # noqa: SIM115
    return order


def _run_controls(settings: dict[str, Any], folder: str, answer: int) -> NoReturn:
    """Run the tests with each control program, until one passes."""
    order = _read_order()
    for program in settings["controls"]:
        pid = isolation.fork()
        if pid == 0:
            signal.alarm(_CONTROL_SECONDS)  # tests may wait for what a control never does
            _run_tests(settings, folder, answer, order | {"program": program})
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) == _PASSED:
            break
    os._exit(0)


def _run_tests(
    settings: dict[str, Any], folder: str, answer: int, order: dict[str, Any] | None = None
) -> None:
    """Run the process of the tests, which forks that of the program; return in a script's alone.

    Args:
        order: None: that of the standard input.
    """
    has_own_processes = bool(settings["root"])
    if has_own_processes:
        isolation.separate_children()
    os.chdir(folder)
    os.environ["HOME"] = os.environ["TMPDIR"] = folder
    if not has_own_processes:
        # Before the fork, or else the kernel could not signal the program's process at the end of
        # this one.
        isolation.drop_capabilities()
        isolation.stay_in(folder, settings["readable"])
    # A pipe for each direction, so that neither side reads what it wrote itself.
    to_tests, from_program = os.pipe()
    to_program, from_tests = os.pipe()
    if isolation.fork() == 0:
        _run_program(settings, folder, to_program, from_program)
        return
    os.close(from_program)
    os.close(to_program)
    channel = Channel(to_tests, from_tests)
    # Read after the fork, so that the program's memory never held the tests, nor the word that
    # stands for a pass.
    order = order or _read_order()
    # The program's process has confined itself before it says that it is ready.
    channel.receive()
    isolation.drop_capabilities()
    isolation.forbid_calls(own_processes=has_own_processes)
    isolation.limit(settings["limits"])
    isolation.close_standard()
    os.write(answer, STARTED.encode())
    status = 0
    try:
        tester = Tester(channel, order)
        tester.run()
        mark = INCONSISTENT if tester.is_inconsistent else ""
        os.write(answer, (order["word"] + mark).encode())
        status = _PASSED
    finally:
        os._exit(status)


def _run_program(settings: dict[str, Any], folder: str, reading: int, writing: int) -> None:
    """Run the process that hosts the program; return in the process of a script alone."""
    if settings["root"]:
        isolation.see_own_processes()
        os.setsid()  # its process group would else be that of the supervisor
    else:
        isolation.adopt_orphans()
    isolation.drop_capabilities()
    isolation.close_standard()
    # Of the pipes to the supervisor none stays open, by which the program could send the word.
    isolation.close_others(reading, writing)
    channel = Channel(reading, writing)
    host = Host(
        channel,
        folder=folder,
        modules=settings["modules"],
        limits=settings["limits"],
        has_own_processes=bool(settings["root"]),
    )
    channel.send("ready")
    host.serve()
