"""Runs programs against tests: on this machine under limits, or on a sandbox server.

Both send the modules of `inside` as one script, since the Python that runs it may lack advsweep.
The server is SandboxFusion (https://github.com/bytedance/SandboxFusion).
"""

from __future__ import annotations

import binascii
import contextlib
import ctypes
import functools
import json
import marshal
import math
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
import weakref
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import CodeType
from typing import IO, Any

from advsweep.tasks.verifiers.sandbox.inside.main import STARTED
from advsweep.tasks.verifiers.sandbox.submission import ProgramResult, Submission

_PACKAGE = "advsweep.tasks.verifiers.sandbox.inside"
_MODULES = ("wire", "isolation", "program", "tester", "main")  # in order of imports

# Modules that stand in `sys.modules` under their full names are imported from there.
_START = """
import binascii, marshal, sys, types
package = sys.modules[{package!r}] = types.ModuleType({package!r})
for name, code in {modules!r}:
    module = types.ModuleType({package!r} + "." + name)
    sys.modules[module.__name__] = module
    setattr(package, name, module)
    exec({load}, module.__dict__)
package.main.main({settings!r})
"""

SANDBOX_TOKEN = "ADVSWEEP_SANDBOX_TOKEN"
"""The environment variable with the server's access token, if it wants one."""

REMOTE_SECONDS = 20.0
"""What a server may take beyond a program's time."""

_UNSHARE = (
    *("--user", "--map-root-user", "--mount", "--net", "--ipc", "--uts"),
    *("--pid", "--fork", "--kill-child", "--mount-proc"),
)
_PROBE_SECONDS = 20.0
STARTING_SECONDS = 2.0
"""What a program may take beyond its own time: for its processes to start, and to sleep in."""

_SUPERVISOR_SECONDS = 20.0
"""What the supervisor may take beyond that: it has to start, and to end all processes."""

SCRATCH_FILES = 1024
"""How many files and folders a program may make in namespaces."""

_FILES_OF_DISK = 8
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True)
class Limits:
    """What a program may use: seconds of CPU, bytes of memory and of a file, and processes.

    They hold for the process of the tests as well. Memory is limited per process.
    """

    cpu: float
    memory: int
    file: int
    processes: int

    @property
    def disk(self) -> int:
        """Bytes of all files together, in namespaces."""
        return _FILES_OF_DISK * self.file

    def to_set(self, namespaces: bool) -> list[tuple[str, int, int]]:
        """As setrlimit(2) takes them: name, soft and hard limit.

        The system counts a user's processes, and those of a user namespace apart. So without
        namespaces a program has no other process than its own.
        """
        seconds = math.ceil(self.cpu)
        processes = self.processes if namespaces else 1
        return [
            ("CPU", seconds, seconds),
            ("AS", self.memory, self.memory),
            ("FSIZE", self.file, self.file),
            ("NPROC", processes, processes),
            ("NOFILE", 64, 64),
            ("CORE", 0, 0),
        ]


@functools.cache
def namespaces_missing() -> str:
    """Why programs cannot have namespaces of their own here; empty if they can."""
    if not sys.platform.startswith("linux") or not shutil.which("unshare"):
        return "there is no program unshare (Linux, util-linux)"
    limits = Limits(cpu=_PROBE_SECONDS, memory=2**29, file=2**20, processes=4)
    with contextlib.closing(Sandbox(limits, namespaces=True)) as sandbox:
        return sandbox.run(Submission(program="", setup="", tests=""), _PROBE_SECONDS).failure


class Sandbox:
    """Runs programs one after the other under a supervisor, which is started when needed.

    It is for one thread of one process. The supervisor ends with it and with that process.

    Args:
        namespaces: whether programs get a root folder, processes and a network of their own.
    """

    def __init__(self, limits: Limits, *, namespaces: bool) -> None:
        self._limits = limits
        self._namespaces = namespaces
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def run(self, submission: Submission, seconds: float) -> ProgramResult:
        """Runs a program and its tests in processes of their own, and ends what is left.

        Args:
            seconds: time that they may take, beside what starting them takes.
        """
        seconds += STARTING_SECONDS
        message = json.dumps(submission.message()).encode()
        with tempfile.TemporaryDirectory(
            prefix="advsweep-code-", ignore_cleanup_errors=True
        ) as folder:
            head = {
                "folder": None if self._namespaces else folder,
                "length": len(message),
                "seconds": seconds,
            }
            request = json.dumps(head).encode() + b"\n" + message
            answer = self._answer(request, seconds + _SUPERVISOR_SECONDS)
        if answer.startswith(STARTED):
            return ProgramResult(passed=answer == STARTED + submission.word.encode() + b"\n")
        return ProgramResult(failure=self._failure())

    def close(self) -> None:
        """Ends the supervisor; the next run starts another."""
        if self._supervisor is not None:
            _end(self._supervisor)
            self._supervisor = None

    def _answer(self, request: bytes, seconds: float) -> bytes:
        """The answer to a request; empty where the supervisor failed."""
        if self._supervisor is None or self._supervisor.poll() is not None:
            self._supervisor = self._start()
        stdin, stdout = self._supervisor.stdin, self._supervisor.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(request)
            stdin.flush()
        except BrokenPipeError:
            return b""
        return stdout.readline() if select.select([stdout], [], [], seconds)[0] else b""

    def _start(self) -> subprocess.Popen[bytes]:
        limits = self._limits
        settings: dict[str, Any] = {
            "limits": limits.to_set(self._namespaces),
            "root": None,
        }
        command = [sys.executable, "-I", "-c"]
        if self._namespaces:
            settings["root"] = {"python": _python_folders(), "hidden": _homes()}
            settings["scratch"] = {"size": limits.disk, "files": SCRATCH_FILES}
            # All that programs start is in its process namespace, and ends with it.
            command = ["unshare", *_UNSHARE, "--", *command]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the supervisor)
        supervisor = subprocess.Popen(
            [*command, script(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd="/",
            env={"PATH": os.defpath, "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8"},
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 (who judges has one thread)
        )
        weakref.finalize(self, _end, supervisor)
        return supervisor

    def _failure(self) -> str:
        """Why a program could not be started; ends the supervisor, which may be out of step."""
        assert self._supervisor is not None
        assert self._errors is not None
        self.close()
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"its process did not start ({text[:200] or 'no answer'})"


@functools.cache
def _python_folders() -> list[str]:
    """The folders of this Python and of its packages, without what may lie beside them."""
    inner = ("bin", "lib", "lib64", "pyvenv.cfg")
    paths = [Path(prefix, name) for prefix in (sys.prefix, sys.base_prefix) for name in inner]
    standard = sysconfig.get_paths()
    paths += [Path(standard[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [Path(path) for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    return sorted({str(path) for path in paths if path.exists()}, key=len)


@functools.cache
def _homes() -> list[str]:
    homes = {pwd.getpwuid(os.getuid()).pw_dir, os.environ.get("HOME", "")}
    return sorted(os.path.realpath(home) for home in homes if home.strip("/"))


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    if supervisor.poll() is None:
        os.killpg(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    for pipe in (supervisor.stdin, supervisor.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.close()


def run_remotely(url: str, submission: Submission, seconds: float) -> ProgramResult:
    """Has a server run a program and its tests, which it gets by the standard input.

    So neither the tests nor the word stand in a file that the program can read, and the program
    has a process of its own there as well.
    """
    message = json.dumps(submission.message())
    head = {"folder": None, "length": len(message), "seconds": seconds}
    settings: dict[str, Any] = {"limits": [], "root": None}
    request = {
        "code": script(settings, portable=True),
        "stdin": json.dumps(head) + "\n" + message,
        "language": "python",
        "run_timeout": seconds,
    }
    call = urllib.request.Request(
        url, json.dumps(request).encode(), {"Content-Type": "application/json"}
    )
    if token := os.environ.get(SANDBOX_TOKEN):
        # Not where the server redirects to.
        call.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(call, timeout=seconds + REMOTE_SECONDS) as response:
            result = json.load(response)["run_result"]
            status, output = result["status"], result["stdout"] or ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return ProgramResult(failure=f"the sandbox at {url} gave no result ({error!r})"[:200])
    if status == "Finished" and not output.startswith(STARTED.decode()):
        return ProgramResult(failure=f"the sandbox at {url} did not start the program")
    return ProgramResult(passed=output == f"{STARTED.decode()}{submission.word}\n")


def script(settings: dict[str, Any], *, portable: bool = False) -> str:
    """A script that runs `inside.main` with some settings.

    Args:
        portable: for another Python than this one, which starts more slowly.
    """
    modules = _sources() if portable else _compiled()
    load = "code" if portable else "marshal.loads(binascii.a2b_base64(code))"
    return _START.format(package=_PACKAGE, modules=modules, load=load, settings=settings)


@functools.cache
def _sources() -> tuple[tuple[str, str], ...]:
    folder = files(_PACKAGE)
    return tuple((name, (folder / f"{name}.py").read_text("utf-8")) for name in _MODULES)


@functools.cache
def _compiled() -> tuple[tuple[str, bytes], ...]:
    """Each module as text that is short enough for a command line."""
    return tuple(
        (name, binascii.b2a_base64(marshal.dumps(_compile(name, source)), newline=False))
        for name, source in _sources()
    )


def _compile(name: str, source: str) -> CodeType:
    # Documentation strings are left out.
    return compile(source, f"<{name}>", "exec", dont_inherit=True, optimize=2)
