"""Filters: tests of a run's keys, as users write them.

    estimator=fade,grpo group_size>=8

    KEY=VALUE,...     one of these values; KEY!=VALUE,... none of them
    KEY>=NUMBER       also >, <= and <

KEY is a config key (a component's value is its name), `seed`, `status` or `sweep`. Spaces separate
filters (`and` may stand between them); a run must match all of them. Values are JSON, and other
words are texts; quotes enclose values with spaces.
"""

from __future__ import annotations

import itertools
import json
import operator
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from advsweep.brackets import split_outside_brackets
from advsweep.errors import ConfigError
from advsweep.report.data.keys import HASH_KEY, MISSING

_OPERATORS = r"!=|<=|>=|=|<|>"
_CONDITION = re.compile(rf"([^=!<>]+)({_OPERATORS})(.*)", re.DOTALL)
_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True)
class Filter:
    """A test of one key; `text` is what the user wrote."""

    key: str
    operator: str
    values: tuple[Any, ...]
    text: str

    def holds(self, value: Any) -> bool:
        """Test a value; `MISSING` and NaN never match."""
        if value is MISSING or value != value:
            return False
        if self.operator in _ORDERS:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            return number and bool(_ORDERS[self.operator](value, self.values[0]))
        among = value if isinstance(value, tuple) else (value,)
        # In Python True is 1.
        is_among = any(
            one == other and isinstance(one, bool) == isinstance(other, bool)
            for one in among
            for other in self.values
        )
        return is_among is (self.operator == "=")


def parse_where(text: str, option: str = "--where") -> list[Filter]:
    """Parse filters.

    Args:
        option: the option that the text comes from, for the message.

    Raises:
        ConfigError: a part of the text is no filter; the message names it.
    """
    try:
        tokens = shlex.split(re.sub(rf"\s*({_OPERATORS})\s*", r"\1", text))
    except ValueError as error:
        raise ConfigError(f"{option}: {text!r} has a quote that does not end") from error
    _check_quotes(tokens, option)
    filters = [_parse_filter(token, option) for token in tokens if token != "and"]
    if not filters:
        raise ConfigError(f"{option}: expected a condition such as group_size=8, got nothing")
    return filters


def parse_conditions(texts: Iterable[str] | None, option: str = "--where") -> list[Filter]:
    """Parse the filters of an option that may be repeated, each as by `parse_where`.

    Args:
        texts: None if the option is not given.
    """
    return [each for text in texts or () for each in parse_where(text, option)]


def _check_quotes(tokens: Sequence[str], option: str) -> None:
    """Refuse words that belong to the value before them, with the quotes that they lack."""
    for place, token in enumerate(tokens):
        match = _CONDITION.fullmatch(token)
        rest = list(itertools.takewhile(_is_bare, tokens[place + 1 :]))
        if match is None or not rest:
            continue
        key, sign, value = match.groups()
        words = " ".join(rest)
        raise ConfigError(
            f"{option}: expected a condition such as group_size=8, got {words!r}; a value with "
            f'blanks stands in quotes: {key}{sign}"{value} {words}"'
        )


def _is_bare(token: str) -> bool:
    return token != "and" and _CONDITION.fullmatch(token) is None


def _parse_filter(text: str, option: str) -> Filter:
    match = _CONDITION.fullmatch(text)
    key, sign, listed = match.groups() if match is not None else ("", "", "")
    items = split_list(listed)
    # A hash may look like a number: 00e12345, 12345678.
    values = tuple(items) if key == HASH_KEY else tuple(map(_parse_value, items))
    # A bool is an int in Python.
    is_number = len(values) == 1 and type(values[0]) in (int, float)
    if "" in items or listed.startswith("=") or (sign in _ORDERS and not is_number):
        remedy = f"; write {text.replace('==', '=', 1)}" if "==" in text else ""
        raise ConfigError(
            f"{option}: expected KEY=VALUE,... KEY!=VALUE,... or KEY>=NUMBER, got {text!r}{remedy}"
        )
    return Filter(key, sign, values, text)


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, thousands of digits, or nested too deeply
        return text


def quote_value(text: str) -> str:
    """Return a value as a filter takes it: in quotes where it has blanks.

    >>> quote_value("rloo (placebo)")
    '"rloo (placebo)"'
    """
    return f'"{text}"' if " " in text else text


def split_list(text: str) -> list[str]:
    """Split a text at its commas, except for those in brackets.

    >>> split_list("pass@1[gsm8k,level=3],seed")
    ['pass@1[gsm8k,level=3]', 'seed']
    """
    return [item.strip() for item in split_outside_brackets(text)]


def describe_filters(filters: Sequence[Filter]) -> str:
    """Join the filters as the user wrote them."""
    return " ".join(filter.text for filter in filters)
