"""Every error that advsweep raises on purpose.

Each message says what was expected, what was got and what to do. The command line turns
them into one line and exit code 2; a bug of ours is anything that is not in this tree.

    AdvsweepError(ValueError)
    ├── ConfigError            a key, a type, a name or a range in a configuration
    │   ├── UnknownNameError   a name nobody registered, with the nearest that exist
    │   └── PluginError        a component of another package that cannot be loaded
    ├── BatchError             rewards or other inputs that an estimator cannot use
    ├── StoreError             a store that cannot be opened, is too new or too old
    │   ├── NoStoreError       a store that is not there yet
    │   ├── NotFoundError      a run, a sweep or a metric that the store does not hold
    │   ├── StoreUnavailableError  a store that does not answer, is locked or has no room
    │   └── LeaseLostError     a run that another process has taken over
    ├── ReportError            data that cannot stand in one table, or too little of it
    ├── FitError               data that cannot support a fit, with the reason
    ├── CheckpointError        a checkpoint that is missing or damaged
    ├── TrainingError          a run that cannot go on (a loss that is not finite, say)
    │   └── NoMemoryError      memory that ran out, with what helps; a MemoryError too
    └── SamplerError           weights that cannot be sampled from in the way that was tried

    AdvsweepWarning(UserWarning)
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable


class AdvsweepError(ValueError):
    """The root of the tree; catch it to catch them all."""


class ConfigError(AdvsweepError):
    """A configuration that cannot be used; the message names the key."""


class UnknownNameError(ConfigError):
    """A name that is not registered; the message offers the nearest ones."""


class PluginError(ConfigError):
    """A component of another package that cannot be loaded; the message names the package."""


class BatchError(AdvsweepError):
    """A batch of rewards that an estimator must refuse."""


class StoreError(AdvsweepError):
    """A store that cannot be opened or used."""


class NoStoreError(StoreError):
    """A store that is not there; commands that only read do not make it."""


class NotFoundError(StoreError):
    """Something asked for by name or id that the store does not hold."""


class StoreUnavailableError(StoreError):
    """A store that cannot be used at the moment; the same call may succeed later."""


class LeaseLostError(StoreError):
    """A run that another process has taken over; this one must leave it."""


class ReportError(AdvsweepError):
    """Data that cannot stand in one table, or too little of it."""


class FitError(AdvsweepError):
    """Data that cannot support a fit; the message says why."""


class CheckpointError(AdvsweepError):
    """A checkpoint that is missing, damaged or made by another configuration."""


class TrainingError(AdvsweepError):
    """A training or an evaluation that cannot go on; a training's message names the step."""


class SamplerError(AdvsweepError):
    """Weights that cannot be sampled from in the way that was tried; another may do."""


class NoMemoryError(TrainingError, MemoryError):
    """Memory, a GPU's or the machine's, that ran out; the message says what needs less."""


class AdvsweepWarning(UserWarning):
    """The root of our warnings."""


_NO_MEMORY = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, or a library by its own class or words, had no memory left."""
    classes = {kind.__name__ for kind in type(error).__mro__}
    # torch has a class for a GPU's allocator alone, and other libraries have classes of that name.
    return not classes.isdisjoint({"MemoryError", "OutOfMemoryError"}) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
    )


_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DISK_FULL = (
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    "PytorchStreamWriter failed writing file",
    "disk is full",
)


def is_disk_full(error: BaseException) -> bool:
    """Whether a file could not grow: a full disk, a quota, or a limit on the size of files.

    Libraries that write files by themselves say so in words alone, in the error or its cause.
    """
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.errno in _DISK_ERRORS:
            return True
        if any(words in str(found) for words in _DISK_FULL):
            return True
        found = found.__cause__
    return False


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known ones, or all when few, or nothing.

    >>> nearest("grop", ["grpo", "rloo"])
    "did you mean 'grpo'?"
    """
    known = sorted(set(known))
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(repr(k) for k in close) + "?"
    if not known:
        return "there are none"
    if len(known) <= 12:
        return "known: " + ", ".join(known)
    return f"there are {len(known)}: " + ", ".join(known[:12]) + ", ..."
