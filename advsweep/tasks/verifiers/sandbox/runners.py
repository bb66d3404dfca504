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

# The modules register in `sys.modules` under their full names, so their imports find each other.
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
"""The environment variable with the server's access token, if it requires one."""

REMOTE_SECONDS = 20.0
"""Seconds that a server may take in addition to a program's time."""

_UNSHARE = (
    *("--user", "--map-root-user", "--mount", "--net", "--ipc", "--uts"),
    *("--pid", "--fork", "--kill-child", "--mount-proc"),
)
_PROBE_SECONDS = 20.0
STARTING_SECONDS = 2.0
"""Wall-clock seconds in addition to a program's time, for the start of its processes."""

_SUPERVISOR_SECONDS = 20.0
"""Further seconds for the supervisor, which has to start and to end all processes."""

SCRATCH_FILES = 1024
"""Largest number of files and folders that a program may create in namespaces."""

_FILES_OF_DISK = 8
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True)
class Limits:
    """Limits of a program: CPU seconds, bytes of memory and of a file, number of processes.

    The process of the tests has the same limits. Memory is limited per process.
    """

    cpu: float
    memory: int
    file: int
    processes: int

    @property
    def disk(self) -> int:
        """Largest total size of all files in bytes, in namespaces."""
        return _FILES_OF_DISK * self.file

    def to_set(self, namespaces: bool) -> list[tuple[str, int, int]]:
        """Return the arguments of setrlimit(2): name, soft and hard limit.

        The system counts all processes of a user together, but those of a user namespace
        separately. So without namespaces a program may have only its own process.
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
    """Return why programs cannot have their own namespaces here; empty if they can."""
    if not sys.platform.startswith("linux") or not shutil.which("unshare"):
        return "there is no program unshare (Linux, util-linux)"
    limits = Limits(cpu=_PROBE_SECONDS, memory=2**29, file=2**20, processes=4)
    with contextlib.closing(Sandbox(limits, namespaces=True)) as sandbox:
        return sandbox.run(Submission(program="", setup="", tests=""), _PROBE_SECONDS).failure


class Sandbox:
    """Runs programs one after the other under a supervisor process, which starts when needed.

    One thread of one process may use it. The supervisor ends with the object and the process.

    Args:
        namespaces: whether programs get their own root folder, processes and network.
    """

    def __init__(self, limits: Limits, *, namespaces: bool) -> None:
        self._limits = limits
        self._namespaces = namespaces
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def run(self, submission: Submission, seconds: float) -> ProgramResult:
        """Run a program and its tests in separate processes, then end all their processes.

        Args:
            seconds: time limit, without the time to start the processes.
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
        """End the supervisor; the next run starts a new one."""
        if self._supervisor is not None:
            _end(self._supervisor)
            self._supervisor = None

    def _answer(self, request: bytes, seconds: float) -> bytes:
        """Return the answer to a request; empty if the supervisor failed."""
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
            # Everything that programs start is in its process namespace and ends with it.
            command = ["unshare", *_UNSHARE, "--", *command]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the supervisor)
        supervisor = subprocess.Popen(
            [*command, script(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd="/",
            env={"PATH": os.defpath, "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8"},
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 (judging processes have one thread)
        )
        weakref.finalize(self, _end, supervisor)
        return supervisor

    def _failure(self) -> str:
        """End the supervisor, which may be out of step; return why a program did not start."""
        assert self._supervisor is not None
        assert self._errors is not None
        self.close()
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"its process did not start ({text[:200] or 'no answer'})"


@functools.cache
def _python_folders() -> list[str]:
    """Return the folders of this Python and its packages, without neighbouring folders."""
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
    """Run a program and its tests on a server, which receives them by standard input.

    So neither the tests nor the word are in a file that the program can read. The program has
    its own process there too.
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
        # Unredirected, so that a redirect does not receive the token.
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
    """Return a script that runs `inside.main` with some settings.

    Args:
        portable: send sources instead of byte code, for another version of Python. Such a script
            starts more slowly.
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
    """Return each module as text that is short enough for a command line."""
    return tuple(
        (name, binascii.b2a_base64(marshal.dumps(_compile(name, source)), newline=False))
        for name, source in _sources()
    )


def _compile(name: str, source: str) -> CodeType:
    # Optimisation level 2 removes docstrings, which keeps the command line short.
    return compile(source, f"<{name}>", "exec", dont_inherit=True, optimize=2)
