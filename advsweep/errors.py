"""Every error that advsweep raises on purpose.

Each message says what was expected, what was got and what to do. The command line prints it as
one line and exits with code 2. Any other exception is a bug.

    AdvsweepError(ValueError)
    ├── ConfigError            a key, a type, a name or a range in a configuration
    │   ├── UnknownNameError   a name that is not registered, with the nearest that exist
    │   └── PluginError        a component of another package that cannot be loaded
    ├── BatchError             rewards or other inputs that an estimator cannot use
    ├── StoreError             a store that cannot be opened, is too new or too old
    │   ├── NoStoreError       a store that does not exist yet
    │   ├── NotFoundError      a run, a sweep or a metric that the store does not hold
    │   ├── StoreUnavailableError  a store that does not answer, is locked or is full
    │   └── LeaseLostError     a run that another process has taken over
    ├── ReportError            data that does not fit in one table, or too little data
    ├── FitError               data that cannot support a fit, with the reason
    ├── CheckpointError        a checkpoint that is missing or damaged
    ├── TrainingError          a run that cannot continue, such as a loss that is not finite
    │   ├── NoMemoryError      too little memory, with what helps; also a MemoryError
    │   └── ProcessKilledError  a process of the training that a signal ended
    └── SamplerError           weights that a sampler cannot sample from

    AdvsweepWarning(UserWarning)
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Sequence

from advsweep import synonyms

# The most names that a message lists.
_LISTED = 12

# The likeness of two names, as `difflib` has it, of which one is probably the other mistyped.
MISTYPED = 0.75


class AdvsweepError(ValueError):
    """Base class of all errors of advsweep."""


class ConfigError(AdvsweepError):
    """A configuration that cannot be used; the message names the key."""


class UnknownNameError(ConfigError):
    """A name that is not registered; the message offers the nearest ones."""


class PluginError(ConfigError):
    """A component of another package that cannot be loaded; the message names the package."""


class BatchError(AdvsweepError):
    """A batch of rewards that an estimator cannot use."""


class StoreError(AdvsweepError):
    """A store that cannot be opened or used."""


class NoStoreError(StoreError):
    """A store that does not exist. Commands that only read do not create it."""


class NotFoundError(StoreError):
    """A name or an id that the store does not hold."""


class StoreUnavailableError(StoreError):
    """A store that cannot be used now; the same call may succeed later."""


class LeaseLostError(StoreError):
    """A run that another process has taken over; this process must stop writing to it."""


class ReportError(AdvsweepError):
    """Data that does not fit in one table, or too little data."""


class FitError(AdvsweepError):
    """Data that cannot support a fit; the message says why."""


class CheckpointError(AdvsweepError):
    """A checkpoint that is missing, damaged or made by another configuration."""


class TrainingError(AdvsweepError):
    """A training or an evaluation that cannot continue; for a training it names the step."""


class SamplerError(AdvsweepError):
    """Weights that a sampler cannot sample from; another sampler may."""


class NoMemoryError(TrainingError, MemoryError):
    """Too little memory, of a GPU or of the machine; the message says what needs less."""


class AdvsweepWarning(UserWarning):
    """Base class of the warnings of advsweep."""


class ProcessKilledError(TrainingError):
    """A process of a training that a signal ended; the same run may succeed later."""


# What a person calls the errors of the system that users meet, and what helps.
_OS_ERRORS = {
    errno.EACCES: ("no permission", "change its permissions or name another path"),
    errno.EPERM: ("no permission", "change its permissions or name another path"),
    errno.EDQUOT: ("the disk quota is used up", "free some room or name another disk"),
    errno.EEXIST: ("it exists already", "name another path"),
    errno.EFBIG: (
        "the file would be too large",
        "raise the limit (ulimit -f) or name another disk",
    ),
    errno.EISDIR: ("it is a folder", "name a file"),
    errno.ELOOP: ("its links lead in a circle", "name another path"),
    errno.EMFILE: ("too many files are open", "raise the limit (ulimit -n)"),
    errno.ENAMETOOLONG: ("the name is too long", "name a shorter path"),
    errno.ENOENT: ("there is no such file or folder", "check the path"),
    errno.ENOSPC: ("no space is left on the disk", "free some room or name another disk"),
    errno.ENOTDIR: ("a part of its path is a file, not a folder", "check the path"),
    errno.EROFS: ("the disk can only be read", "name another disk"),
}


def reason_of(error: OSError) -> str:
    """Return why the system refused something, in plain words.

    The only place, with `explain_os_error`, that words an `OSError`.
    """
    explanation = _OS_ERRORS.get(error.errno or 0)
    if explanation is not None:
        return explanation[0]
    return error.strerror or str(error) or type(error).__name__


def explain_os_error(error: OSError) -> str:
    """Return one line on an error of the system: which file, why, and what helps."""
    path = error.filename if isinstance(error.filename, str) else ""
    # Python names no file where one that is open cannot be written, mostly standard output.
    subject = path or "standard output, or another open file"
    explanation = _OS_ERRORS.get(error.errno or 0)
    if explanation is None:
        return f"{subject}: {reason_of(error)}" if path else reason_of(error)
    reason, remedy = explanation
    return f"{subject}: {reason}; {remedy}"


def counted(number: int | str, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: 1 run, 2 runs; a text, such as 1,024, stays as it is.

    >>> counted(1, "process", "processes"), counted(0, "run")
    ('1 process', '0 runs')
    """
    return f"{number} {noun if str(number) == '1' else plural or noun + 's'}"


def rough_duration(seconds: float) -> str:
    """Format a time span roughly: 40 s, 12 min or 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def first_of(names: Iterable[str], most: int, separator: str = ", ") -> str:
    """Return the first names of many, and the number of the others.

    >>> first_of("abcd", 3), first_of("abc", 3)
    ('a, b, c and 1 more', 'a, b, c')
    """
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return separator.join(listed[:most]) + more


def nearest(name: str, known: Iterable[str], section: str = "") -> str:
    """Return a hint for a mistyped name: what `synonyms.toml` says, or the nearest known names.

    Args:
        section: the section of `synonyms.toml` for such names; empty for none.

    >>> nearest("grop", ["grpo", "rloo"])
    "did you mean 'grpo'?"
    """
    said = synonyms.hint(section, name) if section else None
    if said is not None:
        return said
    # A name may be known in general, and missing in the runs at hand.
    known = sorted({*known} - {name})
    close = close_names(name, known)
    said = _hint_for_alike(section, name, close) if section else None
    if said is not None:
        return said
    near = close or _longer_names(name, known)
    if near:
        return "did you mean " + " or ".join(map(repr, near)) + "?"
    return _list_known(known, section)


def _hint_for_alike(section: str, name: str, close: Sequence[str]) -> str | None:
    """Return what is said of a listed word that a name is more like than any of close names."""
    listed = synonyms.most_alike(section, name)
    if listed is None or _likeness(name, listed) <= _likeness(name, *close):
        return None
    said = synonyms.hint(section, listed)
    # Both may mean the same, as `group` does that stands for `grpo`.
    if said is not None and close and close[0] in said:
        return None
    return said


def _longer_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the at most three shortest names that contain one, as `collapse/acr` does `acr`."""
    if len(name) < 2:
        return []
    longer = [each for each in known if name.lower() in each.lower()]
    return sorted(longer, key=lambda each: (len(each), each))[:3]


def close_names(name: str, known: Iterable[str], *, likeness: float = 0.6) -> list[str]:
    """Return the at most three known names that are spelt most like a mistyped one.

    Args:
        likeness: the least, from 0 to 1 for the same, as `difflib` has it.
    """
    by_spelling: dict[str, list[str]] = {}
    for each in known:
        by_spelling.setdefault(_spelling(each), []).append(each)
    spelling = _spelling(name)
    same = by_spelling.get(spelling)
    if same is not None:
        return same
    found = difflib.get_close_matches(spelling, by_spelling, n=3, cutoff=likeness)
    return [each for key in found for each in by_spelling[key]][:3]


def _likeness(name: str, *others: str) -> float:
    """Return how much a name is spelt like the most similar of others: 1 for the same."""
    spelling = _spelling(name)
    ratios = [difflib.SequenceMatcher(None, _spelling(each), spelling).ratio() for each in others]
    return max(ratios, default=0.0)


def _list_known(known: Sequence[str], section: str) -> str:
    """Say which names there are; of many, where they are listed."""
    if not known:
        return "there are none"
    if len(known) <= _LISTED:
        return "known: " + ", ".join(known)
    listing = synonyms.listing(section) if section else None
    if listing is not None:
        return f"there are {len(known)}: {listing}"
    return f"there are {len(known)}: " + ", ".join(known[:_LISTED]) + ", ..."


def _spelling(name: str) -> str:
    """Return a name without what spellings differ in: `Dr-GRPO`, `drgrpo` and `dr_grpo`."""
    return name.lower().replace("_", "").replace("-", "")
