"""The verifier of programs: runs the last Python block of a completion against unit tests.

Programs run on this machine under limits, or on a sandbox server (SandboxFusion,
https://github.com/bytedance/SandboxFusion). Both get `isolation` and `inside` as one script, since
the Python that runs it may lack advsweep.
"""

from __future__ import annotations

import functools
import json
import math
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from advsweep.components import Plain, option
from advsweep.errors import ConfigError
from advsweep.printable import redacted
from advsweep.tasks.verifiers.base import (
    RUN_CODE,
    RUN_CODE_AS_ROOT,
    Outcome,
    ReferenceAnswer,
    Verdict,
    Verifier,
    run_code_allowed,
    run_code_as_root_allowed,
    verdict,
)
from advsweep.tasks.verifiers.inside import STARTED
from advsweep.tasks.verifiers.isolation import end_with_parent, hide_memory
from advsweep.tasks.verifiers.submission import ProgramTests

_PACKAGE = "advsweep.tasks.verifiers"
_MODULES = ("isolation", "inside")  # in order of imports

# The modules register in `sys.modules` under their full names, so their imports find each other.
_START = """
import sys, types
package = sys.modules[{package!r}] = types.ModuleType({package!r})
for name, source in {modules!r}:
    module = sys.modules[{package!r} + "." + name] = types.ModuleType({package!r} + "." + name)
    setattr(package, name, module)
    exec(compile(source, "<" + name + ">", "exec"), vars(module))
package.inside.main({settings!r})
"""

SANDBOX_TOKEN = "ADVSWEEP_SANDBOX_TOKEN"
"""The environment variable with the server's access token, if it requires one."""

REMOTE_SECONDS = 20.0
"""Seconds that a server may take in addition to a program's time."""

_UNSHARE = (
    *("unshare", "--user", "--map-root-user", "--mount", "--net", "--ipc", "--uts"),
    *("--pid", "--fork", "--kill-child", "--mount-proc", "--"),
)
STARTING_SECONDS = 2.0
"""Wall-clock seconds in addition to a program's time, for the start of its processes."""

_SUPERVISOR_SECONDS = 20.0
"""Further seconds for the supervisor, which has to start and to end all processes."""

_FILES = 1024  # largest number of files and folders of a program in namespaces
_FILES_OF_DISK = 8  # largest total size of all files, in files of the largest size


class ProgramResult(NamedTuple):
    """The result of running a program.

    Attributes:
        passed: whether it reached the end of the tests.
        failure: why it could not be run; empty if it ran.
    """

    passed: bool = False
    failure: str = ""


@functools.cache
def namespaces_missing() -> str:
    """Return why programs cannot have their own namespaces here; empty if they can."""
    if not sys.platform.startswith("linux") or not shutil.which("unshare"):
        return "there is no program unshare (Linux, util-linux)"
    return Code(seconds=20.0).run_here("", ProgramTests("")).failure


def _request(program: str, tests: ProgramTests) -> tuple[str, str]:
    """Return the answer of a supervisor if a program passes, and the request to run it."""
    # Only the process of the tests ever has it, so a program cannot print it.
    word = secrets.token_hex(16)
    return f"{STARTED}{word}\n", f"{json.dumps(tests.order(program, word))}\n"


@functools.cache
def _python_folders() -> list[str]:
    """Return the folders of this Python and its packages, without neighbouring folders."""
    inner = ("bin", "lib", "lib64", "pyvenv.cfg")
    paths = [Path(prefix, name) for prefix in (sys.prefix, sys.base_prefix) for name in inner]
    standard = sysconfig.get_paths()
    paths += [Path(standard[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [Path(path) for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    # Outer folders first: an inner one is bound into them.
    return sorted({str(path) for path in paths if path.exists()}, key=len)


@functools.cache
def _homes() -> list[str]:
    homes = {pwd.getpwuid(os.getuid()).pw_dir, os.environ.get("HOME", "")}
    return sorted(os.path.realpath(home) for home in homes if home.strip("/"))


def run_remotely(url: str, program: str, tests: ProgramTests, seconds: float) -> ProgramResult:
    """Run a program and its tests on a server, which receives them by standard input.

    So neither the tests nor the word are in a file that the program can read. The program has
    its own process there too.
    """
    settings = {"seconds": seconds, "limits": [], "root": None}
    passed, order = _request(program, tests)
    request = {
        "code": script(settings),
        "stdin": order,
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
            status, output = result["status"], str(result["stdout"] or "")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return ProgramResult(failure=f"the sandbox at {url} gave no result ({error!r})"[:200])
    if status == "Finished" and not output.startswith(STARTED):
        return ProgramResult(failure=f"the sandbox at {url} did not start the program")
    return ProgramResult(output == passed)


def script(settings: dict[str, Any]) -> str:
    """Return a script that runs `inside.main` with some settings."""
    return _START.format(package=_PACKAGE, modules=_sources(), settings=settings)


@functools.cache
def _sources() -> list[tuple[str, str]]:
    folder = files(_PACKAGE)
    return [(name, (folder / f"{name}.py").read_text("utf-8")) for name in _MODULES]


_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


class Isolation(Enum):
    """The isolation of a program from this machine."""

    NAMESPACES = "namespaces"
    LIMITS = "limits"


@dataclass(kw_only=True)
class Code(Verifier):
    """Correct if a program passes all tests: the last block of Python, or the whole text.

    It runs programs that a model wrote, so it needs the user's consent (`consent`), and a second
    consent as root. Program and tests run in separate processes, and values are compared in the
    process of the tests. Each program has limits on time, memory, file size and processes, and an
    empty environment. `isolation=namespaces` (Linux, unshare) also gives it a read-only root
    without homes and sockets, no network and no other processes. `url` names a sandbox server.

    A program that runs out of time is wrong. Only plain data passes between the two processes;
    tests that need objects of the program are refused, or run in its process (`trusted_tests`).
    """

    name: ClassVar[str] = "code"
    retired: ClassVar[frozenset[str]] = frozenset({"enabled", "slow_is_wrong"})
    memory_limit: ClassVar[int | None] = None
    revision: ClassVar[int] = 3  # in 2, tests could use objects of the program

    isolation: Isolation = option(
        Isolation.NAMESPACES,
        help="limits of resources alone, or also a root, a network and processes of their own",
    )
    seconds: float = option(3.0, gt=0, help="time that a program has; the deadline is beyond it")
    memory_mb: int = option(512, ge=64, help="address space that a program has, in MiB")
    file_mb: int = option(8, ge=1, help="largest file that a program may write, in MiB")
    processes: int = option(16, ge=1, help="processes and threads that a program may have")
    trusted_tests: bool = option(
        False,
        absent=False,
        help="run tests that need objects of the program in its process, where it can forge passes",
    )
    url: str = option("", help="run_code address of a SandboxFusion server to run programs in")

    def check(self) -> None:
        if self.url:
            if not self.url.startswith(("http://", "https://")):
                raise ConfigError(f"verifier.url: expected http:// or https://, got '{self.url}'")
            if (shown := redacted(self.url)) != self.url:
                raise ConfigError(
                    f"verifier.url: expected an address without a password or token, as it is "
                    f"stored with each run, got '{shown}'; set {SANDBOX_TOKEN} instead, which is "
                    "sent as a bearer token"
                )
            return
        if self.isolation is Isolation.NAMESPACES and (reason := namespaces_missing()):
            raise ConfigError(
                f"verifier.isolation: 'namespaces' cannot be had here: {reason}; "
                f"verifier.isolation=limits runs programs with the network that this user has, "
                f"verifier.url=ADDRESS in a sandbox elsewhere"
            )

    def check_consent(self) -> None:
        if missing := self._missing_consent():
            raise ConfigError(f"verifier: {missing}")

    def prepare(self) -> None:
        hide_memory()

    @property
    def seconds_needed(self) -> float:
        return self.seconds + (REMOTE_SECONDS if self.url else STARTING_SECONDS)

    def protocol(self, references: Callable[[], Iterable[ReferenceAnswer]]) -> Plain:
        if not self.trusted_tests:
            return super().protocol(references)
        trusted = [bool(ProgramTests.of(reference).live_object) for reference in references()]
        share = f"{sum(trusted)} of {len(trusted)} problems"
        return super().protocol(references) | {"trusted_tests": share}

    def check_references(self, references: Mapping[str, ReferenceAnswer]) -> None:
        uses = {problem: self._untrusted(reference) for problem, reference in references.items()}
        if live := {problem: use for problem, use in uses.items() if use}:
            problem, use = next(iter(live.items()))
            raise ConfigError(
                f"verifier.trusted_tests: expected true for the {len(live)} of {len(references)} "
                f"problems whose tests need objects of the program, such as '{use}' of problem "
                f"{problem}, got false; true runs them in the program's process, where it can "
                f"forge its score"
            )

    def reads(self, reference: ReferenceAnswer) -> bool:
        tests = ProgramTests.of(reference)
        return _compiles(f"{tests.setup}\n{tests.python}")

    def judge(self, reference: ReferenceAnswer, completion: str) -> Verdict:
        program = last_block(completion)
        if failure := self._missing_consent():
            return Verdict(Outcome.UNSCORABLE, program, failure)
        if use := self._untrusted(reference):
            needed = f"its tests need an object of the program ({use}): verifier.trusted_tests"
            return Verdict(Outcome.UNSCORABLE, program, needed)
        if not _compiles(program):
            return verdict(False, None)
        tests = ProgramTests.of(reference)
        if self.url:
            result = run_remotely(self.url, program, tests, self.seconds)
        else:
            result = self.run_here(program, tests)
        if result.failure:
            return Verdict(Outcome.UNSCORABLE, program, result.failure)
        return verdict(result.passed, program)

    def run_here(self, program: str, tests: ProgramTests) -> ProgramResult:
        """Run a program and its tests under a supervisor of their own, which ends all processes."""
        passed, order = _request(program, tests)
        # Soft and hard ones, so that no program can raise them. Without namespaces, a limit on
        # processes counts all those of the user.
        namespaces = self.isolation is Isolation.NAMESPACES
        file = self.file_mb * 2**20
        most = {"CPU": math.ceil(self.seconds), "AS": self.memory_mb * 2**20, "FSIZE": file}
        most |= {"NPROC": self.processes if namespaces else 1, "NOFILE": 64, "CORE": 0}
        settings = {
            "seconds": self.seconds + STARTING_SECONDS,
            "limits": [(name, n, n) for name, n in most.items()],
            "root": {"python": _python_folders(), "hidden": _homes()} if namespaces else None,
            "scratch": {"size": _FILES_OF_DISK * file, "files": _FILES},
        }
        prefix = _UNSHARE if namespaces else ()
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                # -I: no module of the working folder and no variable of the environment takes part.
                [*prefix, sys.executable, "-I", "-c", script(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd="/",
                # Nothing of this process's environment, which may hold keys.
                env={"PATH": os.defpath, "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8"},
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 (judging processes have one thread)
            ) as supervisor,
        ):
            try:
                output, _ = supervisor.communicate(
                    # By a pipe: what stands in the arguments could be read in /proc.
                    order.encode(),
                    self.seconds + STARTING_SECONDS + _SUPERVISOR_SECONDS,
                )
            except BaseException as error:
                # All that runs in its process namespace ends with it.
                os.killpg(supervisor.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                output, _ = supervisor.communicate()
            if not output.startswith(STARTED.encode()):
                errors.seek(0)
                text = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
                return ProgramResult(
                    failure=f"its process did not start ({text[:200] or 'no answer'})"
                )
        return ProgramResult(output.decode(errors="replace") == passed)

    def solution(self, reference: ReferenceAnswer) -> str:
        """Return a program that passes the tests, if the data has one."""
        return f"```python\n{reference.get('program') or ''}\n```"

    def _untrusted(self, reference: ReferenceAnswer) -> str:
        """Return what tests need of the program's objects, unless they are trusted."""
        trusted = self.trusted_tests or not self.reads(reference)
        return "" if trusted else ProgramTests.of(reference).live_object

    def _missing_consent(self) -> str:
        """Return why programs may not run; empty if they may."""
        if self.url:
            return ""
        if not run_code_allowed():
            return (
                f"'code' runs programs that a model wrote on this machine; --run-code or "
                f"{RUN_CODE}=1 allows it, verifier.url=ADDRESS runs them in a sandbox elsewhere"
            )
        if os.geteuid() == 0 and not run_code_as_root_allowed():
            return (
                f"'code' runs programs that a model wrote as root, whom no limit on processes "
                f"binds and whom the kernel lets change its settings; use another user, or "
                f"allow it with {RUN_CODE_AS_ROOT}=1"
            )
        return ""


def last_block(completion: str) -> str:
    """Return the last block between ```python and ```; without a block the whole completion."""
    blocks = _BLOCK.findall(completion)
    return str(blocks[-1] if blocks else completion).strip()


def _compiles(source: str) -> bool:
    # A text that is no Python needs no sandbox.
    try:
        compile(source, "<answer>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True
