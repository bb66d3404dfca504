"""Words of a command line, and of `advsweep.sweep` in Python: checked before they are parsed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from advsweep import synonyms
from advsweep.config.groups import ConfigGroups
from advsweep.errors import MISTYPED, ConfigError, close_names
from advsweep.named_code import parse_word
from advsweep.names import YAML_SUFFIXES
from advsweep.sweep.registry import config_groups


def check_words(
    words: Sequence[str] | None, stored: Callable[[], Iterable[str]] = tuple
) -> list[str]:
    """Return the words, overrides and sweep files, of which the last one of a key counts.

    Args:
        stored: returns the names of stored sweeps; asked only for a word that is neither.

    Raises:
        ConfigError: a word is neither, or a key is given twice in a row, as a shell does that
            expands `seed={0,1}`.
    """
    texts = list(words or ())
    _refuse_loose_words(texts, stored)
    for (key, equals, before), (other, _, value) in itertools.pairwise(map(_split_word, texts)):
        if equals and key == other and before != value:
            sign = "+" if key == "experiment" else ""
            raise ConfigError(
                f"{key}: expected each key once, got {before} and {value}; sweep over both with "
                f"{sign}{key}={before},{value} (a shell takes braces apart)"
            )
    return texts


def _split_word(text: str) -> tuple[str, str, str]:
    """Return key, sign and value; a sweep file is the value of `experiment`."""
    if text.endswith(YAML_SUFFIXES):
        return "experiment", "=", text
    return text.lstrip("+").partition("=")


def _refuse_loose_words(texts: Sequence[str], stored: Callable[[], Iterable[str]]) -> None:
    """Refuse words that are neither an override nor a sweep file.

    Raises:
        ConfigError: there is one; the message says how it is written: `steps 10` as `steps=10`.
    """
    for place, text in enumerate(texts):
        is_override = "=" in text.strip("=") or text.startswith("~")
        if is_override or text.endswith((*YAML_SUFFIXES, "=")):
            continue
        before, after = texts[:place], texts[place + 1 :]
        with config_groups() as groups:
            remedy = _remedy(groups, text, before, after) or _near(groups, text, stored())
        raise ConfigError(f"{text}: expected KEY=VALUE; {remedy}")


def _remedy(
    groups: ConfigGroups, text: str, before: Sequence[str], after: Sequence[str]
) -> str | None:
    """Say how a word is written that is a key, or a name of ours or of another tool."""
    key, colon, value = text.partition(":")
    if colon and not value.startswith("/"):
        return _written(key, value or "".join(after[:1]) or "VALUE")
    if before and before[-1].endswith("="):
        return f"write {before[-1]}{text}, without spaces"
    if after and after[0].startswith("="):
        value = after[0].removeprefix("=") or "".join(after[1:2])
        return _written(text, value or "VALUE")
    if _is_key(groups, text):
        return _written(text, after[0] if after and "=" not in after[0] else "VALUE")
    return _remedy_for_name(groups, text)


def _is_key(groups: ConfigGroups, text: str) -> bool:
    if synonyms.find(synonyms.KEYS, text) is not None:
        return True
    try:
        groups.check_key(text)
    except ConfigError:
        return False
    return True


def _written(key: str, value: str) -> str:
    """Say how a key is set to a value, also one by the name that another tool has for it."""
    ours = synonyms.find(synonyms.KEYS, key) or key
    if synonyms.is_sentence(ours):
        return ours
    return f"write {ours}" if "=" in ours else f"write {ours}={value}"


def _remedy_for_name(groups: ConfigGroups, text: str) -> str | None:
    """Say what a name is of: `grpo` of an estimator, and so `estimator=grpo`."""
    if parse_word(text) is not None:
        return f"did you mean estimator={text}?"
    for group in ("experiment", "estimator", "method", *sorted(groups.names)):
        names = groups.members(group)
        registry = groups.registries.get(group)
        aliases = () if registry is None else registry.aliases
        if text.lower() in names or text.lower() in aliases:
            if group == "experiment":
                return f"did you mean `advsweep sweep +experiment={text.lower()}`?"
            return f"did you mean {group}={text.lower()}?"
    for group in groups.registries:
        said = synonyms.hint(f"{synonyms.VALUES}.{group}", text)
        if said is not None:
            return said
    return None


def _near(groups: ConfigGroups, text: str, stored: Iterable[str]) -> str:
    """Say which stored sweep, sweep file or name of a component is spelt like a word."""
    # The later one of several with a name is meant.
    in_order = (*sorted(groups.names), "method", "estimator")
    near = {name: f"{group}={name}" for group in in_order for name in groups.members(group)}
    near |= {name: f"`advsweep sweep +experiment={name}`" for name in groups.members("experiment")}
    for suffix in YAML_SUFFIXES:
        near |= {each.stem: f"`advsweep sweep {each.name}`" for each in Path().glob(f"*{suffix}")}
    near |= {name: f"`advsweep sweep {name}`, which is stored" for name in stored}
    close = close_names(text, near, likeness=MISTYPED)
    if close:
        return f"did you mean {near[close[0]]}?"
    return (
        "got no '=', as in estimator=fade or seed=0,1,2, without spaces; `advsweep keys` lists "
        "the keys, `advsweep list` the names"
    )
