"""Runs programs that nobody has read: here under limits, or on a server."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass

_UNSHARE = (
    *("--user", "--map-root-user", "--net", "--ipc"),
    *("--pid", "--fork", "--kill-child", "--mount-proc"),
)
_PROBE_SECONDS = 20.0
STARTING_SECONDS = 2.0
"""What a program may take beyond its own time: for its process to start, and to sleep in."""

REMOTE_SECONDS = 30.0
"""What a server may take beyond a program's time."""

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)

# The tests run after the program, among its names. A sign tells that the program was begun with,
# so that a process which cannot start is no wrong answer; a word, that the tests came to their
# end, as an exit code could be set by the program alone.
_HARNESS = """
import json, os, resource, sys
order = json.loads(sys.stdin.read())
told = os.dup(1)
nowhere = os.open(os.devnull, os.O_RDWR)
for standard in (0, 1, 2):
    os.dup2(nowhere, standard)
for limit, soft, hard in order["limits"]:
    resource.setrlimit(getattr(resource, "RLIMIT_" + limit), (soft, hard))
os.write(told, b"+")
names = {"__name__": "__main__"}
for source in (order["program"], order["tests"]):
    exec(compile(source, "<answer>", "exec"), names)
os.write(told, order["word"].encode())
os._exit(0)
"""


@dataclass(frozen=True)
class Limits:
    """What a program may use: seconds, bytes of memory, bytes of a file, and processes."""

    seconds: float
    memory: int
    file: int
    processes: int

    def to_set(self, namespaces: bool) -> list[tuple[str, int, int]]:
        """As setrlimit(2) takes them: name, soft and hard limit.

        The system counts a user's processes, and those of a user namespace apart. So without
        namespaces a program has no other process than its own.
        """
        seconds = math.ceil(self.seconds)
        processes = self.processes if namespaces else 1
        return [
            ("CPU", seconds, seconds),
            ("AS", self.memory, self.memory),
            ("FSIZE", self.file, self.file),
            ("NPROC", processes, processes),
            ("NOFILE", 64, 64),
            ("CORE", 0, 0),
        ]


@dataclass(frozen=True)
class Run:
    """How a program did.

    Attributes:
        passed: it came to the end of the tests.
        killed: it was ended from outside: for its time, or for the memory of the machine.
        failure: why it could not be run; empty if it was.
    """

    passed: bool = False
    killed: bool = False
    failure: str = ""


@functools.cache
def namespaces_missing() -> str:
    """Why programs cannot have namespaces of their own here; empty if they can."""
    if not sys.platform.startswith("linux") or not shutil.which("unshare"):
        return "there is no program unshare (Linux, util-linux)"
    probe = subprocess.run(
        ["unshare", *_UNSHARE, "true"],
        check=False,
        capture_output=True,
        text=True,
        timeout=_PROBE_SECONDS,
    )
    return "" if probe.returncode == 0 else probe.stderr.strip() or "unshare failed"


def run_locally(program: str, tests: str, limits: Limits, namespaces: bool) -> Run:
    """Runs a program and its tests in a process of their own, and ends what is left of it."""
    word = secrets.token_hex(16)
    order = {
        "program": program,
        "tests": tests,
        "word": word,
        "limits": limits.to_set(namespaces),
    }
    command = [sys.executable, "-I", "-c", _HARNESS]
    if namespaces:
        # All that the program starts is in its process namespace, and ends with it.
        command = ["unshare", *_UNSHARE, "--", *command]
    with (
        tempfile.TemporaryDirectory(prefix="advsweep-code-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as told,
    ):
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=told,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"},
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 (who judges has one thread)
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(json.dumps(order).encode(), limits.seconds + STARTING_SECONDS)
        finally:
            _kill_session(process)
        told.seek(0)
        answer = told.read(1 + len(word))
    if not answer:
        return Run(failure=f"its process did not start (exit code {process.returncode})")
    passed = answer[1:] == word.encode()
    return Run(passed=passed, killed=not passed and process.returncode == -signal.SIGKILL)


def run_remotely(url: str, program: str, tests: str, seconds: float) -> Run:
    """Has a SandboxFusion server run a program and its tests."""
    word = secrets.token_hex(16)
    order = {
        "code": f"{program}\n\n{tests}\n\nprint({word!r})\n",
        "language": "python",
        "run_timeout": seconds,
    }
    request = urllib.request.Request(
        url, json.dumps(order).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=seconds + REMOTE_SECONDS) as response:
            result = json.load(response)["run_result"]
            status, code, output = result["status"], result["return_code"], result["stdout"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Run(failure=f"the sandbox at {url} gave no result ({error!r})"[:200])
    if status == "TimeLimitExceeded":
        return Run(killed=True)
    return Run(passed=code == 0 and word in (output or ""))


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # where nothing is left of it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
