"""Filters that select runs: `estimator=fade,grpo group_size>=8 pass@1>0.3`.

    KEY=VALUE,...     one of these values; KEY!=VALUE,... none of them
    KEY>=NUMBER       also >, <= and <

KEY is a config key (a component's value is its name), `seed`, `status`, `sweep`, or any column
of a table. Spaces separate filters (`and` may stand between them); a run must match all of them.
Values are JSON, and other words are texts; quotes enclose values with spaces.
"""

from __future__ import annotations

import json
import operator
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from advsweep.errors import ConfigError
from advsweep.report.data.windows import NUMBER

HASH_KEY = "config_hash"

MISSING = object()
"""The value of a key that a run's config lacks."""

_OPERATORS = r"!=|<=|>=|=|<|>"
# A column may have a value in its name: collapse/acr@share>0.5, pass@32@pass@1=0.45.
_VALUED = rf"[^=!<>]+@(?:share[<>]|[^=!<>]+=){NUMBER}(?=[=!<>])"
_CONDITION = re.compile(rf"({_VALUED}|[^=!<>]+)({_OPERATORS})(.*)", re.DOTALL)
_ORDERS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Filter:
    """A test of one key; `text` is what the user wrote."""

    key: str
    operator: str
    values: tuple[Any, ...]
    text: str

    def holds(self, value: Any) -> bool:
        """Tests a value; `MISSING` and NaN never match."""
        if value is MISSING or value != value:
            return False
        if self.operator in _ORDERS:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            return number and bool(_ORDERS[self.operator](value, self.values[0]))
        among = value if isinstance(value, tuple) else (value,)
        found = any(_equal(own, other) for own in among for other in self.values)
        return found is (self.operator == "=")


def parse_where(text: str, option: str = "--where") -> list[Filter]:
    """Parses filters.

    Args:
        option: the option that the text comes from, for the message.

    Raises:
        ConfigError: a part of the text is no filter; the message names it.
    """
    try:
        tokens = shlex.split(re.sub(rf"\s*({_OPERATORS})\s*", r"\1", text))
    except ValueError as error:
        raise ConfigError(f"{option}: {text!r} has a quote that does not end") from error
    filters = [_filter(token, option) for token in tokens if token != "and"]
    if not filters:
        raise ConfigError(f"{option}: expected a condition such as group_size=8, got nothing")
    return filters


def _filter(text: str, option: str) -> Filter:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{option}: expected KEY=VALUE,... KEY!=VALUE,... or KEY>=NUMBER, got {text!r}"
        )
    key, sign, listed = match.groups()
    if listed.startswith("="):
        raise ConfigError(f"{option}: expected {key}={listed.lstrip('=')}, got {text!r}")
    items = split_list(listed)
    if items == [""]:
        raise ConfigError(f"{option}: expected a value after {sign}, got {text!r}")
    if "" in items:
        raise ConfigError(f"{option}: expected a value beside each comma, got {text!r}")
    # A hash may look like a number: 00e12345, 12345678.
    values = tuple(items) if key == HASH_KEY else tuple(_value(item) for item in items)
    number = len(values) == 1 and isinstance(values[0], (int, float))
    if sign in _ORDERS and (not number or isinstance(values[0], bool)):
        raise ConfigError(f"{option}: expected one number after {sign}, got {text!r}")
    return Filter(key, sign, values, text)


def split_list(text: str) -> list[str]:
    """Splits a text at its commas, except for those in brackets.

    >>> split_list("pass@1[gsm8k,level=3],seed")
    ['pass@1[gsm8k,level=3]', 'seed']
    """
    items, depth = [""], 0
    for character in text:
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, thousands of digits, or nested too deeply
        return text


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """Returns the value of a dotted key, for a component its name; or `MISSING`."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value.get("name", MISSING) if isinstance(value, Mapping) else value


def describe_filters(filters: Sequence[Filter]) -> str:
    """Joins the filters as the user wrote them."""
    return " ".join(filter.text for filter in filters)


def _equal(one: Any, other: Any) -> bool:
    # In Python True is 1.
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def show_key(value: Any) -> str:
    """Formats a config value: the items of a list, short numbers, `null`."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(show_key(item) for item in value) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
