"""The contract of a verifier: a reference answer and a completion in, a verdict out."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar, NamedTuple, final

from advsweep.components import Component, parameters
from advsweep.redaction import redacted

ReferenceAnswer = Mapping[str, Any]
"""What answers to a problem are compared with, in JSON types; most verifiers read `answer`."""


class Outcome(Enum):
    """The three answers of a verifier."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNSCORABLE = "unscorable"


FORGED = "it passes tests that nothing can pass"
"""The reason of an answer that is wrong for it."""


class Verdict(NamedTuple):
    """What a verifier makes of one completion.

    Attributes:
        answer: the answer in it, in one spelling as far as that is cheap; None where there is
            none to be read.
        reason: why it could not be scored, or what of it the verifier could not finish, as it
            took too long, ended the process or raised an error, or `FORGED`; empty otherwise.
    """

    outcome: Outcome
    answer: str | None = None
    reason: str = ""

    @property
    def forged(self) -> bool:
        """Whether it is wrong for passing what nothing can pass."""
        return self.reason == FORGED


_LINE = 60


class Verifier(Component):
    """Compares completions with reference answers.

    `judge` may take for ever and take the memory of the machine: it runs in processes that
    can be killed (see `pool`). `judge_quickly` runs in the process that trains, on text that a
    model wrote: it takes time linear in that text, and no more memory.

    Attributes:
        memory_limit: bytes of address space that a process which judges may have; None: any.
        distribution: the package that does the reading of answers, if not this one.
    """

    revision: ClassVar[int] = 2  # in 1, answers that hang or crash were unscorable
    memory_limit: ClassVar[int | None] = 4 * 2**30
    distribution: ClassVar[str | None] = None

    def check(self) -> None:
        """Refuses settings and installations that it cannot work with.

        Raises:
            ConfigError: the message says what to install or to set.
        """

    def check_consent(self) -> None:
        """Refuses to run what a model wrote without the user's consent, see `consent`.

        Raises:
            ConfigError: the message names the option that gives it.
        """

    @property
    def has_control(self) -> bool:
        """Whether verdicts say which answers are `forged`."""
        return False

    def prepare(self) -> None:
        """Imports what judging needs, in the process that others are forked from."""

    @property
    def seconds_needed(self) -> float:
        """What it may rightly take for one answer; deadlines have to be beyond it."""
        return 0.0

    def describe(self) -> str:
        """Its name, and what of its identity is not the default: `numeric tolerance=0.1`.

        Options that take more than a line are given by a digest.
        """
        defaults = {p["name"]: p["default"] for p in parameters(type(self))}
        defaults |= {"name": self.name, "revision": 1}
        changed = [
            f"{key}={redacted(str(value))}"
            for key, value in self.identity().items()
            if key not in defaults or value != defaults[key]
        ]
        options = " ".join(changed)
        if len(options) > _LINE:
            options = "#" + hashlib.sha256(options.encode()).hexdigest()[:8]
        return f"{self.name} {options}".rstrip()

    @abstractmethod
    def reads(self, reference: ReferenceAnswer) -> bool:
        """Whether a reference answer can be compared with; runs where `judge` does."""

    def reads_quickly(self, reference: ReferenceAnswer) -> bool | None:
        """`reads` where that is plain at once; None where it is not."""
        return None

    @abstractmethod
    def judge(self, reference: ReferenceAnswer, completion: str) -> Verdict:
        """The verdict.

        A deadline, an exception or the death of the process makes the completion wrong, provided
        the reference answer can be read. `OSError` and `AdvsweepError` are faults of the machine
        or of the installation, and make the completion unscorable.
        """

    def judge_quickly(self, reference: ReferenceAnswer, completion: str) -> Verdict | None:
        """The verdict where it is plain at once; None where `judge` has to be asked."""
        return None

    @abstractmethod
    def solution(self, reference: ReferenceAnswer) -> str:
        """A completion that is correct, if the reference answer can be read."""


class QuickVerifier(Verifier):
    """A verifier that needs no process of its own: linear time, whatever the completion."""

    revision: ClassVar[int] = 1

    @final
    def reads_quickly(self, reference: ReferenceAnswer) -> bool:
        return self.reads(reference)

    @final
    def judge_quickly(self, reference: ReferenceAnswer, completion: str) -> Verdict:
        return self.judge(reference, completion)


UNREADABLE_REFERENCE = "its reference answer cannot be read"


def verdict(right: bool, answer: str | None) -> Verdict:
    """Correct or wrong."""
    return Verdict(Outcome.CORRECT if right else Outcome.WRONG, answer)
