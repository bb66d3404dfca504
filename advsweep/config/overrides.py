"""Overrides of the command line, in Hydra's grammar and by Hydra's own parser.

    steps=20   estimator=fade,grpo   'seed=range(3)'   'optimizer.lr=choice(1e-4,3e-4)'
    +experiment=demo   ++steps=20   ~evaluation.k   'evaluation.k=[1,8]'
    mine.yaml          # short for +experiment=mine.yaml, a sweep file of the user's

Hydra is imported when the first override is parsed.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from advsweep.brackets import split_outside_brackets
from advsweep.config.groups import conf_directory
from advsweep.config.hydra_private import override_parser
from advsweep.errors import ConfigError
from advsweep.named_code import parse_word
from advsweep.names import YAML_SUFFIXES

if TYPE_CHECKING:
    from hydra.core.override_parser.overrides_parser import OverridesParser

_ALLOWED = ("int", "str", "bool", "float", "choice", "range", "tag", "sort")
_REFUSED = {
    "glob": "a sweep should not change when a file is added to a group; list the names",
    "interval": "an interval has no finite set of values; list them, or search over it with a "
    "library such as Optuna (examples/search_with_optuna.py)",
    "shuffle": "a sweep must be the same each time it is started; list the values in order",
}

_SHOWN = 100  # characters of an override in a message
_MOST_VALUES = 100_000  # of one key, since `range(0,inf)` never ends

# How a text of a sweep file begins that is a call of the grammar, such as `choice(4,8)`.
CALL = re.compile(rf"^({'|'.join([*_ALLOWED, *_REFUSED])})\(")


@dataclass(frozen=True)
class Override:
    """One override.

    Attributes:
        text: the override as it was typed.
        key: a config group or a dotted path.
        values: its values; several for a sweep, none for `~key`.
        swept: whether the grammar makes it a sweep, even one over a single value.
        deleted: whether it is `~key`.
    """

    text: str
    key: str
    values: tuple[Any, ...]
    swept: bool = False
    deleted: bool = False


def parse_overrides(texts: Iterable[str]) -> list[Override]:
    """Parse overrides. The prefixes `+` and `++` change nothing.

    Hydra uses them to tell new keys from existing ones. Here every key exists from the start,
    with its default, and no key can be added.

    Raises:
        ConfigError: an override does not follow Hydra's grammar, or uses a function whose values
            could change when the sweep is resumed (`glob`, `interval`, `shuffle`).
    """
    return [_parse(text) for text in texts]


def written_values(override: Override) -> tuple[str, ...]:
    """Return the values of a list such as `a,b` as they were typed; empty for other overrides."""
    _, _, written = override.text.partition("=")
    parts = split_outside_brackets(written)
    # A comma in quotes is not told apart.
    return tuple(parts) if override.swept and len(parts) == len(override.values) else ()


def parse_assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Return the value of each key of `KEY=VALUE` texts.

    Raises:
        ConfigError: a text has no value or several.
    """
    for text in texts:
        if "=" not in text:
            raise ConfigError(f"'{text}': expected KEY=VALUE, such as delta=0.5")
    overrides = parse_overrides(texts)
    for override in overrides:
        if override.swept or override.deleted:
            raise ConfigError(f"{override.text}: expected KEY=VALUE with one value")
    return {override.key: override.values[0] for override in overrides}


def expand_call(key: str, value: Any) -> list[Any]:
    """List the values that a value of a sweep file stands for, such as `choice(4,8)`.

    Raises:
        ConfigError: the function cannot be parsed, or must not be used in a sweep.
    """
    if not isinstance(value, str) or not CALL.match(value):
        return [value]
    if not value.endswith(")"):
        raise ConfigError(
            f"{key}: expected a closing bracket, got {value!r}; in a YAML mapping in braces "
            f"quote the call: '{value},...)'"
        )
    return list(_parse(f"{key}={value}").values)


def _parse(text: str) -> Override:
    from hydra.core.override_parser.types import Override as Parsed
    from hydra.errors import HydraException

    if "=" not in text and text.endswith(YAML_SUFFIXES):
        return Override(text, "experiment", (text,))
    try:
        parsed = _parser().parse_override(text)
        values = _values(parsed)
    except (HydraException, ValueError, ArithmeticError, RecursionError) as error:
        if isinstance(error.__cause__, ConfigError):
            raise ConfigError(f"{text}: {error.__cause__}") from error
        shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
        reason = _reason(text, error)
        raise ConfigError(f"{shown or repr(shown)}: expected KEY=VALUE; {reason}") from error
    assert isinstance(parsed, Parsed)
    if parsed.package is not None:
        raise ConfigError(
            f"{text}: expected KEY=VALUE without a package; every group has one place, "
            f"write {parsed.key_or_group}=VALUE"
        )
    if not parsed.key_or_group or (parsed.is_delete() and "=" in text):
        raise ConfigError(f"'{text}': expected KEY=VALUE, or ~KEY for its default")
    if parsed.key_or_group.removeprefix("task.") == "verifier.enabled":
        raise ConfigError(
            f"{text}: a config cannot give consent to run programs; expected the option "
            "--run-code, or ADVSWEEP_RUN_CODE=1 in the environment"
        )
    swept = parsed.is_sweep_override()
    if swept and not values:
        raise ConfigError(f"{text}: expected at least one value to sweep over, got none")
    return Override(text, parsed.key_or_group, values, swept, parsed.is_delete())


def _reason(text: str, error: Exception) -> str:
    """Say why an override cannot be parsed, without the terms of Hydra's grammar."""
    if "=" not in text:
        folder = conf_directory() / "experiment"
        if re.fullmatch(r"[\w/-]{1,99}", text) and (folder / f"{text}.yaml").is_file():
            return f"did you mean +experiment={text}?"
        if parse_word(text) is not None:
            return f"did you mean estimator={text}?"
        return "got no '=', as in estimator=fade or seed=0,1,2, without spaces"
    if re.match(r"\s|[^=]*\s=", text):
        return "got spaces before '='"
    message = next(iter(str(error).splitlines()), "")
    if isinstance(error, ValueError) and len(message) <= _SHOWN:
        return message
    return "cannot read its value; quote a text with brackets, braces or colons: KEY='\"...\"'"


def _values(parsed: Any) -> tuple[Any, ...]:
    if parsed.is_sweep_override():
        each = parsed.sweep_iterator(transformer=_unquoted)
        values = tuple(itertools.islice(each, _MOST_VALUES + 1))
        if len(values) > _MOST_VALUES:
            raise ValueError(f"it has more than {_MOST_VALUES:,} values")
        return values
    if parsed.value_type is None:
        return ()
    return (parsed.value(),)


def _unquoted(value: Any) -> Any:
    """Return a parsed value with plain texts in the place of quoted ones."""
    from hydra.core.override_parser.types import QuotedString

    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [_unquoted(entry) for entry in value]
    if isinstance(value, dict):
        return {_unquoted(key): _unquoted(entry) for key, entry in value.items()}
    return value


@functools.cache
def _parser() -> OverridesParser:
    return override_parser(
        _ALLOWED, {name: _refuse(name, reason) for name, reason in _REFUSED.items()}
    )


def _refuse(name: str, reason: str) -> Callable[..., Any]:
    def refuse(*values: Any, **options: Any) -> Any:
        raise ConfigError(f"{name}() cannot be used here: {reason}")

    # Hydra checks arguments against the annotations; in this module these are strings.
    refuse.__annotations__ = {"values": Any, "options": Any}
    return refuse
