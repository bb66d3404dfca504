"""What users of other tools type, and what to type here: the entries of `synonyms.toml`.

The file is read when something was mistyped, so that a correct command does not wait for it.
"""

from __future__ import annotations

import functools
import re
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

# What an entry leaves for the words that were typed: `{PATH}` stands as PATH where there are none.
_PLACE = re.compile(r"\{([^{}]+)\}")


def find(section: str, typed: str, given: str = "") -> str | None:
    """Return what to type in the place of a word that does not exist here; None without an entry.

    Args:
        section: where the word stood: `keys`, `values.estimator`, `commands`, `options.report`, ...
        typed: the word. Case, leading dashes, and the signs `-` and `_` make no difference.
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


def is_sentence(say: str) -> bool:
    """Whether an entry is a sentence, with what to type in backticks, and not that alone."""
    return "`" in say


def fold(text: str) -> str:
    """Return a text without what differs between spellings of a name: case, dashes, `-` for `_`.

    >>> fold("--Learning-Rate")
    'learning_rate'
    """
    return text.strip().lstrip("-").lower().replace("-", "_")


def sections() -> dict[str, dict[str, str]]:
    """Return all entries, by section and folded word."""
    return {name: dict(entries) for name, entries in _read().items()}


def _look_up(section: str, folded: str) -> str | None:
    """Return the entry of a word: that of the whole word or its longest end, then a pattern."""
    entries = _read().get(section, {})
    candidates = _candidates(folded, is_key=section == KEYS)
    for candidate in candidates:
        if candidate in entries:
            return entries[candidate]
    patterns = {pattern: say for pattern, say in entries.items() if "*" in pattern}
    for candidate in candidates:
        for pattern, say in patterns.items():
            if fnmatchcase(candidate, pattern):
                return say
    return None


def _candidates(folded: str, *, is_key: bool) -> list[str]:
    """Return the names under which a word is looked up.

    The parts of a dotted key are left out from the left, as `actor.optim.lr` is listed as
    `optim.lr`; a group with a slash (`hydra/launcher`) is a key as well.
    """
    if not is_key:
        return [folded]
    parts = re.split(r"[./]", folded)
    return [folded, *(".".join(parts[start:]) for start in range(len(parts)))]


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
