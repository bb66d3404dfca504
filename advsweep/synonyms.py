"""What users of other tools type, and what to type here: the entries of `synonyms.toml`.

The file is read when something was mistyped, so that a correct command does not wait for it.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("synonyms.toml")

# Sections of the file. Those of the values of a key, and of the options of a command, are
# VALUES and OPTIONS with a dot and its name.
KEYS = "keys"
VALUES = "values"
COMMANDS = "commands"
OPTIONS = "options"
COLUMNS = "columns"
WHERE = "where"
SWEEPS = f"{VALUES}.sweep"
CUTOFFS = f"{VALUES}.at"

# Where all names of a section are listed.
LISTINGS = "listings"

# The least likeness of a typed word to one that is listed, as `difflib` has it.
_ALIKE = 0.85

# What an entry leaves for the words that were typed: `{PATH}` stands as PATH where there are none.
_PLACE = re.compile(r"\{([^{}]+)\}")


def find(section: str, typed: str, given: str = "") -> str | None:
    """Return what to type in the place of a word that does not exist here; None without an entry.

    Args:
        section: where the word stood: `keys`, `values.estimator`, `commands`, `options.report`, ...
        typed: the word. Case, leading dashes, and whether words within it are parted by `-`, `_`
            or a space make no difference.
        given: the text that takes the places of the entry, such as the words behind a command.
            In the place of a value it is the value itself.
    """
    if section.startswith(VALUES):
        given = typed
    say = _look_up(section, fold(typed))
    return None if say is None else _PLACE.sub(lambda match: given or match[1], say)


def hint(section: str, typed: str, given: str = "") -> str | None:
    """Return the same as the end of a message: a question, or the sentence of the entry."""
    say = find(section, typed, given)
    if say is None:
        return None
    return say if is_sentence(say) else f"did you mean {say}?"


def most_alike(section: str, typed: str) -> str | None:
    """Return the listed word of a section that a mistyped one is most like; None without one."""
    words = [word for word in _read().get(section, {}) if "*" not in word]
    return next(iter(difflib.get_close_matches(fold(typed), words, n=1, cutoff=_ALIKE)), None)


def listing(section: str) -> str | None:
    """Return the command that lists the names of a section; None if none does."""
    return find(LISTINGS, section)


def is_sentence(say: str) -> bool:
    """Whether an entry is a sentence, with what to type in backticks, and not that alone."""
    return "`" in say


def fold(text: str) -> str:
    """Return a text without what differs between spellings of a name: case, and what parts words.

    >>> fold("--Learning-Rate"), fold("learning rate")
    ('learning_rate', 'learning_rate')
    """
    return re.sub(r"[\s-]", "_", text.strip().lstrip("-").lower())


def sections() -> dict[str, dict[str, str]]:
    """Return all entries, by section and folded word."""
    return {name: dict(entries) for name, entries in _read().items()}


def _look_up(section: str, folded: str) -> str | None:
    """Return the entry of a word: that of the whole word or its longest end, then a pattern."""
    entries = _read().get(section, {})
    candidates = [folded]
    if section == KEYS or (section == COLUMNS and not _is_of_ours(folded, entries)):
        candidates += _ends(folded)
    for candidate in candidates:
        if candidate in entries:
            return entries[candidate]
    patterns = {pattern: say for pattern, say in entries.items() if "*" in pattern}
    for candidate in candidates:
        for pattern, say in patterns.items():
            if fnmatchcase(candidate, pattern):
                return say
    return None


def _is_of_ours(metric: str, entries: Mapping[str, str]) -> bool:
    """Return whether a metric may be one of ours that the runs at hand lack, as `optim/lr`."""
    head, slash, _ = metric.partition("/")
    return bool(slash) and any(say.startswith(f"{head}/") for say in entries.values())


def _ends(name: str) -> list[str]:
    """Return a name without its first parts, the longest first.

    `actor.optim.lr` is listed as `optim.lr`, and `val/gsm8k/acc` as `acc`; a group with a slash
    (`hydra/launcher`) is listed with a dot.
    """
    ends = [name[sign.end() :] for sign in re.finditer(r"[./]", name)]
    dotted = [each.replace("/", ".") for each in (name, *ends)]
    return [*ends, *dotted]


@functools.cache
def _read() -> dict[str, dict[str, str]]:
    import tomllib

    tables = tomllib.loads(PATH.read_text(encoding="utf-8"))
    return dict(_flattened(tables))


def _flattened(tables: dict[str, Any], prefix: str = "") -> list[tuple[str, dict[str, str]]]:
    """Return the entries of each table by its dotted name, with folded words."""
    found = []
    for name, table in tables.items():
        entries = {fold(typed): say for typed, say in table.items() if isinstance(say, str)}
        found.append((f"{prefix}{name}", entries))
        inner = {key: value for key, value in table.items() if isinstance(value, dict)}
        found += _flattened(inner, f"{prefix}{name}.")
    return found
