"""Programs: the last block of Python in a completion, run against unit tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Self

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.tasks.verifiers.base import Gold, Outcome, Verdict, Verifier, verdict
from advsweep.tasks.verifiers.consent import RUN_CODE, run_code_allowed
from advsweep.tasks.verifiers.sandbox import (
    REMOTE_SECONDS,
    STARTING_SECONDS,
    Limits,
    Run,
    namespaces_missing,
    run_locally,
    run_remotely,
)

_RETIRED = frozenset({"enabled", "slow_is_wrong"})
"""Fields that configs of earlier versions may carry, and that have no effect any more."""

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


class Isolation(Enum):
    """What stands between a program and this machine."""

    NAMESPACES = "namespaces"
    LIMITS = "limits"


@dataclass(kw_only=True)
class Code(Verifier):
    """Correct if a program passes all tests: the last block of Python, or all of the text.

    It runs programs that a model wrote, so it needs the user's consent (`consent`). Each runs in
    a process of its own in an empty temporary folder, with limits on time, memory, file size and
    processes and without what the environment holds. `isolation=namespaces` (Linux, unshare) also
    takes the network away and hides other processes; it does not keep a program from reading, or
    from writing, what this user can. A program that means to deceive can find out how it is judged.
    Where that is not enough, `url` names a sandbox elsewhere.

    A program that runs out of time is wrong.
    """

    name: ClassVar[str] = "code"
    memory_limit: ClassVar[int | None] = None

    isolation: Isolation = option(
        Isolation.NAMESPACES, help="limits alone, or also a network and processes of their own"
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
            return
        if self.isolation is Isolation.NAMESPACES and (reason := namespaces_missing()):
            raise ConfigError(
                f"verifier.isolation: 'namespaces' cannot be had here: {reason}; "
                f"verifier.isolation=limits runs programs with the network that this user has, "
                f"verifier.url=ADDRESS in a sandbox elsewhere"
            )

    def check_consent(self) -> None:
        if not self.url and not run_code_allowed():
            raise ConfigError(
                f"verifier: 'code' runs programs that a model wrote on this machine; "
                f"--run-code or {RUN_CODE}=1 allows it, verifier.url=ADDRESS runs them in a "
                f"sandbox elsewhere"
            )

    @property
    def seconds_needed(self) -> float:
        return self.seconds + (REMOTE_SECONDS if self.url else STARTING_SECONDS)

    def reads(self, gold: Gold) -> bool:
        return all(_compiles(test) for test in [gold["setup"], *gold["tests"]])

    def reads_quickly(self, gold: Gold) -> bool:
        return self.reads(gold)

    def judge(self, gold: Gold, completion: str) -> Verdict:
        program = last_block(completion)
        if not _compiles(program):
            return verdict(False, None)
        run = self._run(program, "\n".join([gold["setup"], *gold["tests"]]))
        if run.failure:
            return Verdict(Outcome.UNSCORABLE, program, run.failure)
        return verdict(run.passed, program)

    def solution(self, gold: Gold) -> str:
        """A program that passes the tests, where the data has one."""
        return f"```python\n{gold.get('program', '')}\n```"

    def _run(self, program: str, tests: str) -> Run:
        if self.url:
            return run_remotely(self.url, program, tests, self.seconds)
        if not run_code_allowed():
            return Run(failure=f"running programs needs --run-code or {RUN_CODE}=1")
        limits = Limits(
            seconds=self.seconds,
            memory=self.memory_mb * 2**20,
            file=self.file_mb * 2**20,
            processes=self.processes,
        )
        return run_locally(program, tests, limits, self.isolation is Isolation.NAMESPACES)


def last_block(completion: str) -> str:
    """The last block between ```python and ```; without any the completion itself."""
    blocks = _BLOCK.findall(completion)
    return str(blocks[-1] if blocks else completion).strip()


def _compiles(source: str) -> bool:
    try:
        compile(source, "<answer>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True
