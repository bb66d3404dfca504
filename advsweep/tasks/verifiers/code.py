"""The verifier of programs: runs the last Python block of a completion against unit tests."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Self

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.redaction import redacted
from advsweep.tasks.verifiers.base import (
    FORGED,
    Outcome,
    ReferenceAnswer,
    Verdict,
    Verifier,
    verdict,
)
from advsweep.tasks.verifiers.consent import (
    RUN_CODE,
    RUN_CODE_AS_ROOT,
    run_code_allowed,
    run_code_as_root_allowed,
)
from advsweep.tasks.verifiers.sandbox import (
    REMOTE_SECONDS,
    SANDBOX_TOKEN,
    STARTING_SECONDS,
    Limits,
    ProgramResult,
    Sandbox,
    Submission,
    hide_memory,
    namespaces_missing,
    run_remotely,
)

_RETIRED = frozenset({"enabled", "slow_is_wrong"})
"""Fields of earlier versions that configs may still contain; they have no effect."""

_CONTROL_SECONDS = 10.0
"""Largest time of the control; it normally ends at its first assertion."""

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

    A program that runs out of time is wrong. A program that passes runs once more against tests
    that nothing can pass; if it passes them too, it is wrong and counted as forged.
    """

    name: ClassVar[str] = "code"
    memory_limit: ClassVar[int | None] = None

    isolation: Isolation = option(
        Isolation.NAMESPACES,
        help="limits of resources alone, or also a root, a network and processes of their own",
    )
    seconds: float = option(3.0, gt=0, help="time that a program has; the deadline is beyond it")
    memory_mb: int = option(512, ge=64, help="address space that a program has, in MiB")
    file_mb: int = option(8, ge=1, help="largest file that a program may write, in MiB")
    processes: int = option(16, ge=1, help="processes and threads that a program may have")
    url: str = option("", help="run_code address of a SandboxFusion server to run programs in")

    @classmethod
    def build(cls, values: Mapping[str, Any] | None = None, *, where: str = "") -> Self:
        kept = {key: value for key, value in (values or {}).items() if key not in _RETIRED}
        return super().build(kept, where=where)

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
        beyond = REMOTE_SECONDS if self.url else STARTING_SECONDS
        return self.seconds + beyond + self._control_seconds + beyond

    @property
    def has_control(self) -> bool:
        return True

    def reads(self, reference: ReferenceAnswer) -> bool:
        return all(_compiles(test) for test in [reference["setup"], *reference["tests"]])

    def reads_quickly(self, reference: ReferenceAnswer) -> bool:
        return self.reads(reference)

    def judge(self, reference: ReferenceAnswer, completion: str) -> Verdict:
        program = last_block(completion)
        if not _compiles(program):
            return verdict(False, None)
        submission = Submission(
            program=program,
            setup=reference["setup"],
            tests="\n".join(reference["tests"]),
            solution=reference.get("program") or "",
        )
        run = self._run(submission, self.seconds)
        control = (
            self._run(submission.control(), self._control_seconds)
            if run.passed
            else ProgramResult()
        )
        if failure := run.failure or control.failure:
            return Verdict(Outcome.UNSCORABLE, program, failure)
        if control.passed:
            return Verdict(Outcome.WRONG, program, FORGED)
        return verdict(run.passed, program)

    def close(self) -> None:
        """End the sandbox processes; the next program starts new ones."""
        self._sandbox.close()

    def solution(self, reference: ReferenceAnswer) -> str:
        """Return a program that passes the tests, if the data has one."""
        return f"```python\n{reference.get('program') or ''}\n```"

    @property
    def _control_seconds(self) -> float:
        return min(self.seconds, _CONTROL_SECONDS)

    def _run(self, submission: Submission, seconds: float) -> ProgramResult:
        if missing := self._missing_consent():
            return ProgramResult(failure=missing)
        if self.url:
            return run_remotely(self.url, submission, seconds)
        return self._sandbox.run(submission, seconds)

    @functools.cached_property
    def _sandbox(self) -> Sandbox:
        limits = Limits(
            cpu=self.seconds,
            memory=self.memory_mb * 2**20,
            file=self.file_mb * 2**20,
            processes=self.processes,
        )
        return Sandbox(limits, namespaces=self.isolation is Isolation.NAMESPACES)

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
        compile(source, "<answer>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True
