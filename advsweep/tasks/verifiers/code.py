"""The verifier of programs: runs the program in a completion against unit tests.

Programs run on this machine, under `inside.main` in processes of their own.
"""

from __future__ import annotations

import functools
import json
import math
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from advsweep.components import Plain, Retired, option
from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.tasks.verifiers.base import (
    RUN_CODE,
    RUN_CODE_AS_ROOT,
    Outcome,
    ReferenceAnswer,
    Verdict,
    Verifier,
    run_code_allowed,
    verdict,
)
from advsweep.tasks.verifiers.control_cache import VerdictCache
from advsweep.tasks.verifiers.controls import control_programs
from advsweep.tasks.verifiers.fences import find_program
from advsweep.tasks.verifiers.inside import INCONSISTENT, SETTINGS_DIGITS, STARTED
from advsweep.tasks.verifiers.isolation import (
    end_with_parent,
    hide_memory,
    landlock_version,
    scratch_folder,
)
from advsweep.tasks.verifiers.outputs import same_output
from advsweep.tasks.verifiers.packages import PROBE, installed_packages, package_folders
from advsweep.tasks.verifiers.submission import ProgramTests

# The folder of the module that Python runs before anything else.
_START = str(Path(__file__).with_name("start"))

_UNSHARE = (
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "--net",
    "--ipc",
    "--uts",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--",
)
# Wall-clock seconds in addition to a program's time, for the start of its processes.
STARTING_SECONDS = 2.0

# Further seconds for the supervisor, which has to start and to end all processes.
_SUPERVISOR_SECONDS = 20.0

_ACCEPT_ANY = "its tests accept any program"

_FILES = 1024  # largest number of files and folders of a program in namespaces
_FILES_OF_DISK = 8  # largest total size of all files, in files of the largest size


@functools.cache
def namespaces_missing() -> str:
    """Return why programs cannot have their own namespaces here; empty if they can."""
    if not sys.platform.startswith("linux") or not shutil.which("unshare"):
        return "there is no program unshare (Linux, util-linux)"
    return Code(seconds=20.0).run("", ProgramTests("")).reason


@functools.cache
def _folders() -> dict[str, list[str]]:
    """Return the folders of this Python and its packages, and homes, as `enter_root` takes them."""
    inner = ("bin", "lib", "lib64", "pyvenv.cfg")
    paths = [Path(prefix, name) for prefix in (sys.prefix, sys.base_prefix) for name in inner]
    standard = sysconfig.get_paths()
    paths += [Path(standard[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += map(Path, package_folders())
    homes = {pwd.getpwuid(os.getuid()).pw_dir, os.environ.get("HOME", "")}
    return {
        # Outer folders first: an inner one is bound into them.
        "python": sorted({str(path) for path in paths if path.exists()}, key=len),
        "hidden": sorted(os.path.realpath(home) for home in homes if home.strip("/")),
    }


@functools.cache
def _unseen_packages(isolation: Isolation) -> list[str]:
    """Return the installed packages that programs do not find."""
    verifier = Code(isolation=isolation, seconds=20.0)

    def unseen(names: list[str]) -> list[str]:
        found = verifier.run(PROBE, ProgramTests("", scripts=((" ".join(names), ""),)))
        if found.outcome is not Outcome.WRONG or not names:
            return []
        if len(names) == 1:
            return names
        middle = len(names) // 2
        return unseen(names[:middle]) + unseen(names[middle:])

    return unseen(installed_packages())


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


# The isolation of a program from this machine.
Isolation = Literal["namespaces", "limits"]


@dataclass(kw_only=True)
class Code(Verifier):
    """Correct if a program passes all tests: the last block of Python that solves the problem.

    It runs programs that a model wrote, so it needs the user's consent (`consent`), and a second
    consent as root. Program and tests run in separate processes, and values are compared in the
    process of the tests. Each program has limits on time, memory, file size and processes, and an
    empty environment. `isolation=namespaces` (Linux, unshare) also gives it a read-only root
    without homes and sockets, no network and no other processes.

    A program that runs out of time is wrong. Only plain data passes between the two processes;
    tests that need objects of the program are refused, or run in its process (`trusted_tests`).
    """

    name: ClassVar[str] = "code"
    retired: ClassVar[Retired] = {"enabled": (), "slow_is_wrong": (), "url": ("",)}
    memory_limit: ClassVar[int | None] = None
    refusals: ClassVar[frozenset[str]] = frozenset({_ACCEPT_ANY})
    # In 2, tests could use objects of the program; in 3, scripts shared a process.
    revision: ClassVar[int] = 4

    isolation: Isolation = option(
        "namespaces",
        help="limits of resources alone, or also a root, a network and processes of their own",
    )
    seconds: float = option(3.0, gt=0, help="time that a program has; the deadline is beyond it")
    memory_mb: int = option(512, ge=64, help="address space that a program has, in MiB")
    file_mb: int = option(8, ge=1, help="largest file that a program may write, in MiB")
    processes: int = option(16, ge=1, help="processes and threads that a program may have")
    tolerance: float = option(
        1e-6,
        ge=0,
        help="difference, absolute or relative, of a fraction that a script prints",
    )
    loose_tests: Literal["refuse", "unscorable"] = option(
        "refuse",
        identity=False,
        help="what becomes of problems whose tests accept a program that does nothing",
    )
    trusted_tests: bool = option(
        False,
        absent=False,
        help="run tests that need objects of the program in its process, where it can forge passes",
    )

    def identity(self) -> Plain:
        # Of an option that is gone; runs keep their identity.
        return super().identity() | {"url": ""}

    def check(self) -> None:
        if self.isolation == "limits" and not landlock_version():
            warnings.warn(
                "task.verifier.isolation: there is no Landlock in this kernel, so programs in "
                "'limits' read all that this user can read, the file of the problems included",
                AdvsweepWarning,
                stacklevel=2,
            )
        if self.isolation == "namespaces" and (reason := namespaces_missing()):
            raise ConfigError(
                f"task.verifier.isolation: 'namespaces' cannot be had here: {reason}; "
                f"task.verifier.isolation=limits runs programs with the network that this user has"
            )

        unseen = _unseen_packages(self.isolation)
        if unseen:
            warnings.warn(
                f"task.verifier.isolation: programs do not find {len(unseen)} of the packages that "
                f"are installed here ({_some(unseen)}), and answers that import them are wrong; "
                f"install them into {sysconfig.get_paths()['purelib']}",
                AdvsweepWarning,
                stacklevel=2,
            )

    def check_consent(self) -> None:
        if not run_code_allowed():
            raise ConfigError(
                f"task.verifier: 'code' runs programs that a model wrote on this machine; "
                f"--run-code or {RUN_CODE}=1 allows it"
            )
        if os.geteuid() == 0 and os.environ.get(RUN_CODE_AS_ROOT) != "1":
            raise ConfigError(
                f"task.verifier: 'code' runs programs that a model wrote as root, whom no limit on "
                f"processes binds and whom the kernel lets change its settings; use another user, "
                f"or allow it with {RUN_CODE_AS_ROOT}=1"
            )

    def prepare(self) -> None:
        hide_memory()

    @property
    def must_refuse(self) -> bool:
        return self.loose_tests == "refuse"

    @property
    def seconds_needed(self) -> float:
        return self.seconds + STARTING_SECONDS

    def protocol(self, references: Callable[[], Iterable[ReferenceAnswer]]) -> Plain:
        if not self.trusted_tests:
            return super().protocol(references)
        trusted = [bool(ProgramTests.of(reference).live_object) for reference in references()]
        share = f"{sum(trusted)} of {len(trusted)} problems"
        return super().protocol(references) | {"trusted_tests": share}

    def check_references(self, references: Mapping[str, ReferenceAnswer]) -> None:
        uses = {problem: self._untrusted(reference) for problem, reference in references.items()}
        live = {problem: use for problem, use in uses.items() if use}
        if live:
            problem, use = next(iter(live.items()))
            raise ConfigError(
                f"task.verifier.trusted_tests: expected true for the {len(live)} of "
                f"{len(references)} problems whose tests need objects of the program, such as "
                f"'{use}' of problem {problem}, got false; true runs them in the program's "
                f"process, where it can forge its score"
            )

    def reads(self, reference: ReferenceAnswer) -> bool:
        tests = ProgramTests.of(reference)
        return _compiles(f"{tests.setup}\n{tests.python}")

    def refusal(self, reference: ReferenceAnswer) -> str:
        if not run_code_allowed():
            return ""  # the tests are a program, too, that comes with the data
        return _ACCEPT_ANY if self.accepts_any(ProgramTests.of(reference)) else ""

    def accepts_any(self, tests: ProgramTests) -> bool:
        """Return whether tests accept a program that does nothing; known ones are kept on disk."""
        if not all(same_output("", printed, self.tolerance) for _, printed in tests.scripts):
            return False
        if not tests.python.strip():
            return True
        names, _ = tests.names
        controls = control_programs(names, tests.python)
        key = [self.revision, tests.python, tests.setup, names, tests.live_object, controls]
        cache = VerdictCache("controls", json.dumps(key))
        is_accepted = cache.read()
        if is_accepted is None:
            control = self.run(
                "", replace(tests, scripts=()), control_programs(names, tests.python)
            )
            if control.outcome is Outcome.UNSCORABLE:
                return False  # no process starts, which every answer will say
            is_accepted = control.outcome is Outcome.CORRECT
            cache.write(is_accepted)
        return is_accepted

    def judge(self, reference: ReferenceAnswer, completion: str) -> Verdict:
        names = ProgramTests.of(reference).names[0] if self.reads(reference) else []
        program = find_program(completion, names)
        try:
            self.check_consent()
        except ConfigError as error:
            return Verdict(Outcome.UNSCORABLE, program, str(error))
        use = self._untrusted(reference)
        if use:
            needed = f"its tests need an object of the program ({use}): verifier.trusted_tests"
            return Verdict(Outcome.UNSCORABLE, program, needed)
        if not _compiles(program):
            return verdict(False, None)
        tests = ProgramTests.of(reference)
        judged = self.run(program, tests)
        is_correct = judged.outcome is Outcome.CORRECT
        if is_correct and tests.python.strip() and self.accepts_any(tests):
            return Verdict(Outcome.UNSCORABLE, program, _ACCEPT_ANY)
        return judged

    def run(self, program: str, tests: ProgramTests, controls: Sequence[str] = ()) -> Verdict:
        """Run a program and its tests under a supervisor of their own, which ends all processes.

        Args:
            controls: programs that are tried in its place, until one passes.
        """
        # Only the process of the tests ever has it, so a program cannot print it.
        word = secrets.token_hex(16)
        # Soft and hard ones, so that no program can raise them. Without namespaces, a limit on
        # processes counts all those of the user.
        namespaces = self.isolation == "namespaces"
        file = self.file_mb * 2**20
        most = {"CPU": math.ceil(self.seconds), "AS": self.memory_mb * 2**20, "FSIZE": file}
        most |= {"NPROC": self.processes if namespaces else 1, "NOFILE": 64, "CORE": 0}
        folder = scratch_folder(_folders()["python"]) if namespaces else _new_folder()
        scratch = {"scratch": folder, "size": _FILES_OF_DISK * file, "files": _FILES}
        settings = json.dumps(
            {
                "seconds": self.seconds + STARTING_SECONDS,
                "limits": [(name, n, n) for name, n in most.items()],
                "root": _folders() | scratch if namespaces else None,
                "readable": _folders()["python"],
                "packages": package_folders(),
                "controls": controls,
            }
        ).encode()
        order = json.dumps(tests.order(program, word, tolerance=self.tolerance)).encode()
        # By a pipe: what stands in the arguments could be read in /proc.
        message = f"{len(settings):0{SETTINGS_DIGITS}}".encode() + settings + order + b"\n"
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                # `start` runs before Python looks at the file, which is that of a script.
                [*(_UNSHARE if namespaces else ()), sys.executable, f"{folder}/main.py"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd="/",
                # Nothing of this process's environment, which may hold keys, and no folder that
                # others could write modules to.
                env={"PATH": os.defpath, "HOME": "/", "LANG": "C.UTF-8", "PYTHONPATH": _START},
                start_new_session=True,
                # Judging processes have one thread.
                preexec_fn=functools.partial(end_with_parent, os.getpid()),  # noqa: PLW1509
            ) as supervisor,
        ):
            try:
                output, _ = supervisor.communicate(
                    message, self.seconds + STARTING_SECONDS + _SUPERVISOR_SECONDS
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
                reason = f"its process did not start ({text[:200] or 'no answer'})"
                return Verdict(Outcome.UNSCORABLE, program, reason)
        if controls:
            return verdict(word.encode() in output, None)
        passed = f"{STARTED}{word}\n".encode()
        if output == passed[:-1] + f"{INCONSISTENT}\n".encode():
            return Verdict(Outcome.CORRECT, program, "it answered equal calls differently")
        return verdict(output == passed, program)

    def solution(self, reference: ReferenceAnswer) -> str:
        """Return a program that passes the tests, if the data has one."""
        return f"```python\n{reference.get('program') or ''}\n```"

    def _untrusted(self, reference: ReferenceAnswer) -> str:
        """Return what tests need of the program's objects, unless they are trusted."""
        trusted = self.trusted_tests or not self.reads(reference)
        return "" if trusted else ProgramTests.of(reference).live_object


def _new_folder() -> str:
    """Return the path of a folder that does not exist; the supervisor makes and removes it."""
    return f"{tempfile.gettempdir()}/advsweep-code-{secrets.token_hex(8)}"


def _compiles(source: str) -> bool:
    # A text that is no Python needs no sandbox.
    try:
        compile(source, "<answer>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True
