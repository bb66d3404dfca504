"""The base class of verifiers: a reference answer and a completion in, a verdict out."""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar, NamedTuple, final

from advsweep.components import Component, Plain, parameters
from advsweep.printable import redacted

# The reference answer to a problem, in JSON types; most verifiers read its key `answer`.
ReferenceAnswer = Mapping[str, Any]


class Outcome(Enum):
    """The three possible outcomes of a verification."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNSCORABLE = "unscorable"


class Verdict(NamedTuple):
    """The judgement of one completion, or of a reference answer alone: correct if it can be read.

    Attributes:
        answer: the answer in the completion, in a canonical spelling where that is cheap; None if
            there is no readable answer.
        reason: why the completion could not be scored; or why it is wrong without having been
            judged (it took too long, ended the process or raised an error); or what is odd about a
            correct one; else empty.
    """

    outcome: Outcome
    answer: str | None = None
    reason: str = ""


UNREADABLE = Verdict(Outcome.UNSCORABLE, reason="its reference answer cannot be read")
_LINE = 60


class Verifier(Component):
    """Compares completions with reference answers.

    A subclass implements `reads`, `judge` and `solution`. References are those of the data's
    rows, mostly `{"answer": TEXT}`. A verifier whose time is linear in the completion is a
    `QuickVerifier`, with the same three methods.

    `judge` may hang or use all memory of the machine, so it runs in processes that can be killed
    (see `pool`). `judge_quickly` runs in the training process on text that a model wrote, so it
    takes time and memory linear in that text.

    Attributes:
        memory_limit: largest address space in bytes of a judging process; None: no limit.
        distribution: the package that reads answers, if not this one.
    """

    revision: ClassVar[int] = 2  # in 1, answers that hang or crash were unscorable
    memory_limit: ClassVar[int | None] = 4 * 2**30
    distribution: ClassVar[str | None] = None

    def check(self) -> None:
        """Refuse unsuitable settings and missing packages.

        Raises:
            ConfigError: the message begins with the key, such as `task.verifier`, and says what to
                install or to set.
        """

    def check_consent(self) -> None:
        """Refuse to run programs of a model without the user's consent; see `consent`.

        Raises:
            ConfigError: the message begins with the key and names the option that gives consent.
        """

    def check_references(self, references: Mapping[str, ReferenceAnswer]) -> None:
        """Refuse reference answers, by problem, that these settings do not allow.

        Raises:
            ConfigError: the message begins with the key and names a problem and the option.
        """

    def prepare(self) -> None:
        """Import everything that judging needs, in the process from which workers are forked."""

    @property
    def seconds_needed(self) -> float:
        """Seconds that judging one answer may legitimately take; the deadline must be longer."""
        return 0.0

    def describe(self) -> str:
        """Return the name with the options that are not defaults: `numeric tolerance=0.1`.

        Options longer than a line are replaced by a digest.
        """
        defaults = {p["name"]: p["default"] for p in parameters(type(self))}
        defaults |= {"name": self.name, "revision": 1}
        changed = [
            f"{key}={redacted(str(value))}"
            for key, value in self.identity().items()
            if value != defaults.get(key, "")  # empty: an option that is gone
        ]
        options = " ".join(changed)
        if len(options) > _LINE:
            options = "#" + hashlib.sha256(options.encode()).hexdigest()[:8]
        code = self.named_code
        name = self.name
        if code is not None:
            # Two texts under one name are two verifiers.
            name = f"{code.label}#{hashlib.sha256(code.text.encode()).hexdigest()[:8]}"
        return f"{name} {options}".rstrip()

    def protocol(self, references: Callable[[], Iterable[ReferenceAnswer]]) -> Plain:
        """Return what evaluations store of the verifier, which reports show.

        Args:
            references: returns those of the problems, for which it reads the data.
        """
        return {"verifier": self.describe()}

    @abstractmethod
    def reads(self, reference: ReferenceAnswer) -> bool:
        """Return whether a reference answer is readable; runs in the processes of `judge`."""

    # What `refusal` may return. With any, all problems are asked before anything starts.
    refusals: ClassVar[frozenset[str]] = frozenset()

    @property
    def must_refuse(self) -> bool:
        """Whether a refused problem is an error; else answers to it are unscorable."""
        return True

    def refusal(self, reference: ReferenceAnswer) -> str:
        """Return why no answer to a problem may count although its reference can be read.

        It is asked before anything starts, in the processes of `judge`; empty: all may count.
        """
        return ""

    @abstractmethod
    def judge(self, reference: ReferenceAnswer, completion: str) -> Verdict:
        """Return the verdict on a completion.

        A deadline, an exception or the death of the process makes the completion wrong, provided
        the reference answer can be read. `OSError` and `AdvsweepError` are faults of the machine
        or of the installation, and make the completion unscorable.
        """

    def judge_quickly(self, reference: ReferenceAnswer, completion: str | None) -> Verdict | None:
        """Return the verdict if it can be decided quickly, else None.

        Args:
            completion: None: only whether the reference answer can be read.
        """
        return None

    def solution(self, reference: ReferenceAnswer) -> str:
        """Return a correct completion, provided the reference answer can be read."""
        return f"\\boxed{{{reference['answer']}}}"


class QuickVerifier(Verifier):
    """A verifier that takes linear time for any completion, and so needs no process."""

    revision: ClassVar[int] = 1

    @final
    def judge_quickly(self, reference: ReferenceAnswer, completion: str | None) -> Verdict:
        if not self.reads(reference):
            return UNREADABLE
        return verdict(True, None) if completion is None else self.judge(reference, completion)


def verdict(right: bool, answer: str | None) -> Verdict:
    """Return the verdict correct or wrong."""
    return Verdict(Outcome.CORRECT if right else Outcome.WRONG, answer)


# Consent to run programs that a model wrote is part of a process's environment and nothing else: no
# config, sweep file or store can give it. The command line sets the variables for its own process,
# and its children inherit them. Executors pass them to the jobs that the present command submits.
RUN_CODE = "ADVSWEEP_RUN_CODE"
RUN_CODE_AS_ROOT = "ADVSWEEP_RUN_CODE_AS_ROOT"


def run_code_allowed() -> bool:
    """Return whether this process may run programs that a model wrote."""
    return os.environ.get(RUN_CODE) == "1"


def give_consent() -> None:
    """Allow this process and its future children to run programs that a model wrote."""
    os.environ[RUN_CODE] = "1"
