"""Classes of failures, and the signs by which a failure gets its class.

The only classification: workers use it for errors, the scheduler for the exits of workers, and
`backend=command` for the exit and the output of a command. What is retried follows from the class
(`advsweep.sweep.retry_policy`).
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Failure(Enum):
    """The class of a failure, which decides whether the run is retried.

    `OOM`: out of memory. `TIMEOUT`: a time limit. `KILLED`: a signal from outside, no
    heartbeat, or no store. `DISK`: a full disk, a quota or a limit on the size of files.
    `ERROR`: everything else, such as an exception or an exit.
    """

    OOM = "oom"
    TIMEOUT = "timeout"
    KILLED = "killed"
    DISK = "disk"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class Signs:
    """What shows that an error belongs to a class of failures; any one of the signs suffices.

    Attributes:
        classes: names of classes of errors, their subclasses included. Names, since several
            libraries define such classes, each with the same name.
        numbers: numbers of errors of the system (`errno`).
        texts: parts of messages.
        texts_of: the kind of error whose message is searched for the texts.
        includes_causes: whether the error's causes (`raise ... from cause`) are searched as well.
    """

    failure: Failure
    classes: frozenset[str] = frozenset()
    numbers: frozenset[int] = frozenset()
    texts: tuple[str, ...] = ()
    texts_of: type[BaseException] = BaseException
    includes_causes: bool = False

    def fit(self, error: BaseException) -> bool:
        """Return whether an error shows one of the signs."""
        examined: BaseException | None = error
        while examined is not None:
            if self._fit_one(examined):
                return True
            examined = examined.__cause__ if self.includes_causes else None
        return False

    def _fit_one(self, error: BaseException) -> bool:
        if any(kind.__name__ in self.classes for kind in type(error).__mro__):
            return True
        if isinstance(error, OSError) and error.errno in self.numbers:
            return True
        return isinstance(error, self.texts_of) and _contains(str(error), self.texts)


OUT_OF_MEMORY = Signs(
    failure=Failure.OOM,
    # torch has a class for the allocator of GPUs only, whose name other libraries use as well.
    classes=frozenset({"MemoryError", "OutOfMemoryError"}),
    texts=("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED"),
    texts_of=RuntimeError,
)
KILLED = Signs(failure=Failure.KILLED, classes=frozenset({"ProcessKilledError"}))
DISK_FULL = Signs(
    failure=Failure.DISK,
    numbers=frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG}),
    texts=(
        "No space left on device",
        "Disk quota exceeded",
        "File too large",
        # Of torch.save.
        "PytorchStreamWriter failed writing file",
        "basic_ios::clear: iostream error",
        "unexpected pos",
        "disk is full",
    ),
    # Some libraries say so only in the message of the error's cause.
    includes_causes=True,
)

# The first that fits an error gives its class.
SIGNS = (OUT_OF_MEMORY, KILLED, DISK_FULL)


def classify(error: BaseException) -> Failure:
    """Return the class of the failure that an error means."""
    for signs in SIGNS:
        if signs.fit(error):
            return signs.failure
    return Failure.ERROR


def classify_exit(code: int, *, killed_by_kernel: bool) -> Failure:
    """Return the class of the failure that a process's exit code means.

    Args:
        code: negative for the signal that ended the process.
        killed_by_kernel: whether the kernel has killed processes for lack of memory meanwhile. It
            sends SIGKILL, as a user may: the code does not tell the two apart.
    """
    if code == -signal.SIGKILL and killed_by_kernel:
        return Failure.OOM
    if code == -signal.SIGXFSZ:
        return Failure.DISK
    if code < 0:
        return Failure.KILLED
    return Failure.ERROR


def line_out_of_memory(lines: Iterable[str]) -> str | None:
    """Return the first line of a failed program's output that says that memory ran out."""
    texts = (*OUT_OF_MEMORY.texts, *OUT_OF_MEMORY.classes)
    return next((line for line in lines if _contains(line, texts)), None)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, of Python or of a library, means that memory ran out."""
    return OUT_OF_MEMORY.fit(error)


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error means that a file could not grow.

    The disk is full, or a quota or a limit on the size of files is reached.
    """
    return DISK_FULL.fit(error)


def _contains(text: str, parts: Iterable[str]) -> bool:
    return any(part in text for part in parts)
