"""The verifier of programs: runs the last Python block of a completion against unit tests."""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from advsweep.components import Plain, option
from advsweep.errors import ConfigError
from advsweep.redaction import redacted
from advsweep.tasks.verifiers.base import Outcome, ReferenceAnswer, Verdict, Verifier, verdict
from advsweep.tasks.verifiers.consent import (
    RUN_CODE,
    RUN_CODE_AS_ROOT,
    run_code_allowed,
    run_code_as_root_allowed,
)
from advsweep.tasks.verifiers.sandbox.inside.isolation import hide_memory
from advsweep.tasks.verifiers.sandbox.runners import (
    REMOTE_SECONDS,
    SANDBOX_TOKEN,
    STARTING_SECONDS,
    Sandbox,
    namespaces_missing,
    run_remotely,
)
from advsweep.tasks.verifiers.sandbox.submission import ProgramTests

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

    def protocol(self, references: Iterator[ReferenceAnswer]) -> Plain:
        if not self.trusted_tests:
            return super().protocol(references)
        trusted = [bool(ProgramTests.of(reference).live_object) for reference in references]
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

    def reads_quickly(self, reference: ReferenceAnswer) -> bool:
        return self.reads(reference)

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
            result = self._sandbox.run(program, tests)
        if result.failure:
            return Verdict(Outcome.UNSCORABLE, program, result.failure)
        return verdict(result.passed, program)

    def close(self) -> None:
        """End the sandbox processes; the next program starts new ones."""
        self._sandbox.close()

    def solution(self, reference: ReferenceAnswer) -> str:
        """Return a program that passes the tests, if the data has one."""
        return f"```python\n{reference.get('program') or ''}\n```"

    @functools.cached_property
    def _sandbox(self) -> Sandbox:
        return Sandbox(
            seconds=self.seconds,
            memory=self.memory_mb * 2**20,
            file=self.file_mb * 2**20,
            processes=self.processes,
            namespaces=self.isolation is Isolation.NAMESPACES,
        )

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
                f"allow it by --run-code-as-root or {RUN_CODE_AS_ROOT}=1"
            )
        return ""


def last_block(completion: str) -> str:
    """Return the last block between ```python and ```; without a block the whole completion."""
    blocks = _BLOCK.findall(completion)
    return str(blocks[-1] if blocks else completion).strip()


def _compiles(source: str) -> bool:
    try:
        ast.parse(source)
        compile(source, "<answer>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True
