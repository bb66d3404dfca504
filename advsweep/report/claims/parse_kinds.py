"""Parses what a claim claims: one of the kinds, from plain types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from advsweep.errors import ConfigError, nearest
from advsweep.report.claims.expressions import Assertion, parse_assertion
from advsweep.report.claims.kinds import (
    Equivalence,
    Extremum,
    Failures,
    Gain,
    Kind,
    Rank,
    RelativeChange,
    Shape,
    Side,
    Slope,
    Spread,
    Statements,
    Trend,
)
from advsweep.report.data.filters import parse_where, split_list
from advsweep.report.figures.chart import PointUnit

COMPARED = ("metric", "of", "than", "direction", "margin", "by")
KINDS = ("statement", "metric", "trend", "rank", "shape", "spread", "failures")
WITHIN = "within"

_DIRECTIONS = {
    "higher": (">", +1),
    "lower": ("<", -1),
    "not lower": (">=", -1),
    "not higher": ("<=", +1),
}
_PERCENT = re.compile(r"(?P<number>\d+\.?\d*|\.\d+)\s*%")
_E = TypeVar("_E", bound=Enum)


def parse_kind(entry: Mapping[str, Any], name: str) -> Kind:
    """Parses what an entry of a list claims.

    Args:
        name: the claim, for messages.

    Raises:
        ConfigError: it has none of the kinds, several, or one that is not complete.
    """
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        got = " and ".join(kinds) or "none of them"
        raise ConfigError(f"{name}: expected one of {', '.join(KINDS)}, got {got}")
    given = entry[kinds[0]]
    match kinds[0]:
        case "statement":
            return _statements(given, name)
        case "metric":
            return _compared(entry, name)
        case "trend":
            return _trend(given, name)
        case "rank":
            return _rank(given, name)
        case "shape":
            return _shape(given, name)
        case "spread":
            return _spread(given, name)
        case _:
            return _failures(given, name)


def check_keys(given: Mapping[str, Any], known: Sequence[str], name: str) -> None:
    """Refuses keys that are not known.

    Raises:
        ConfigError: a key is not known; the message suggests the nearest.
    """
    for key in given:
        if key not in known:
            raise ConfigError(f"{name}: no key is called '{key}'; {nearest(str(key), known)}")


def _statements(given: Any, name: str) -> Statements:
    texts = given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{name}: statement: expected a text or several, got {given!r}")
    return Statements(tuple(parse_assertion(text, name) for text in texts))


def _compared(entry: Mapping[str, Any], name: str) -> Kind:
    """Parses a comparison of a metric between two rows, in words."""
    for key in ("of", "than", "direction"):
        if key not in entry:
            raise ConfigError(f"{name}: a metric needs of, than and direction; '{key}' is missing")
    metric, of, than, direction = (entry[key] for key in ("metric", "of", "than", "direction"))
    if direction != WITHIN and direction not in _DIRECTIONS:
        expected = ", ".join((*_DIRECTIONS, WITHIN))
        raise ConfigError(f"{name}: direction: expected one of {expected}, got {direction!r}")
    margin = entry.get("margin", 0)
    if not isinstance(margin, (int, float)) or isinstance(margin, bool) or margin < 0:
        raise ConfigError(f"{name}: margin: expected a number >= 0, got {margin!r}")
    left = f"{metric}[{of}]"
    right = f"{than:g}" if isinstance(than, (int, float)) else f"{metric}[{than}]"
    by = _share(entry["by"], f"{name}: by") if "by" in entry else None
    if by is not None and (margin or isinstance(than, (int, float))):
        raise ConfigError(f"{name}: by: expected a row under 'than', and no margin")

    def side(sign: int, compare: str) -> Assertion:
        if by is not None:
            return parse_assertion(f"{left} {compare} {1 + sign * by:.12g}*{right}", name)
        shift = f" {'+' if sign > 0 else '-'} {margin:g}" if margin else ""
        return parse_assertion(f"{left} {compare} {right}{shift}", name)

    if direction == WITHIN:
        if not margin and by is None:
            raise ConfigError(f"{name}: {WITHIN}: expected a margin above 0, or by: a share")
        text = f"{left} within {f'{margin:g}' if by is None else f'{by:.4g} of it'} of {right}"
        difference = parse_assertion(f"{left} >= {right}", name)
        return Equivalence(text, difference, side(-1, ">="), side(+1, "<="))
    compare, sign = _DIRECTIONS[direction]
    assertion = side(sign, compare)
    if by is None:
        return Statements((assertion,))
    return RelativeChange(str(metric), str(of), str(than), sign * by, assertion)


def _share(given: Any, where: str) -> float:
    """Parses a share: `30%` or 0.3."""
    match = _PERCENT.fullmatch(given.strip()) if isinstance(given, str) else None
    if match is not None:
        given = float(match["number"]) / 100
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < 10:
        raise ConfigError(f"{where}: expected a share such as 30%, got {given!r}")
    return float(given)


def _trend(given: Any, name: str) -> Trend:
    name = f"{name}: trend"
    _check(given, ("of", "over", "direction"), ("points", "within", "r2", "gain"), name)
    within = given.get("within", [])
    if isinstance(within, str):
        within = split_list(within)
    if not isinstance(within, list) or not all(isinstance(key, str) for key in within):
        raise ConfigError(f"{name}.within: expected a list of keys, got {within!r}")
    r2 = given.get("r2")
    if r2 is not None and (not isinstance(r2, (int, float)) or not 0 < r2 < 1):
        raise ConfigError(f"{name}.r2: expected a number in (0, 1), got {r2!r}")
    return Trend(
        str(given["of"]),
        str(given["over"]),
        _member(Slope, given["direction"], f"{name}.direction"),
        _member(PointUnit, given.get("points", PointUnit.ROWS.value), f"{name}.points"),
        tuple(within),
        None if r2 is None else float(r2),
        _gain(given, name),
    )


def _rank(given: Any, name: str) -> Rank:
    name = f"{name}: rank"
    _check(given, ("of", "over", "direction"), ("points", "gain"), name)
    return Rank(
        str(given["of"]),
        str(given["over"]),
        _member(Slope, given["direction"], f"{name}.direction"),
        _member(PointUnit, given.get("points", PointUnit.ROWS.value), f"{name}.points"),
        _gain(given, name),
    )


def _gain(given: Mapping[str, Any], name: str) -> Gain | None:
    if "gain" not in given:
        return None
    rows = given["gain"]
    _check(rows, ("of", "than"), (), f"{name}.gain")
    return Gain(str(rows["of"]), str(rows["than"]))


def _shape(given: Any, name: str) -> Shape:
    name = f"{name}: shape"
    _check(given, ("of", "over", "has"), ("log",), name)
    if not isinstance(given.get("log", False), bool):
        raise ConfigError(f"{name}.log: expected true or false, got {given['log']!r}")
    has = _member(Extremum, given["has"], f"{name}.has")
    return Shape(str(given["of"]), str(given["over"]), has, given.get("log", False))


def _spread(given: Any, name: str) -> Spread:
    name = f"{name}: spread"
    _check(given, ("metric", "of", "than", "direction"), (), name)
    side = _member(Side, given["direction"], f"{name}.direction")
    return Spread(str(given["metric"]), str(given["of"]), str(given["than"]), side)


def _failures(given: Any, name: str) -> Failures:
    name = f"{name}: failures"
    _check(given, ("of", "than", "direction"), ("when",), name)
    than = given["than"]
    if isinstance(than, bool) or not isinstance(than, (str, int)):
        raise ConfigError(f"{name}.than: expected a row or a number of runs, got {than!r}")
    when = given.get("when", "")
    if not isinstance(when, str):
        raise ConfigError(f"{name}.when: expected conditions such as pass@1<0.1, got {when!r}")
    return Failures(
        str(given["of"]),
        than,
        _member(Side, given["direction"], f"{name}.direction"),
        tuple(parse_where(when, f"{name}.when")) if when else (),
    )


def _check(given: Any, needed: Sequence[str], optional: Sequence[str], name: str) -> None:
    if not isinstance(given, Mapping) or not set(given) >= set(needed):
        raise ConfigError(f"{name}: expected a mapping of {', '.join(needed)}, got {given!r}")
    check_keys(given, (*needed, *optional), name)


def _member(choices: type[_E], given: Any, where: str) -> _E:
    values = [choice.value for choice in choices]
    if given not in values:
        raise ConfigError(f"{where}: expected {' or '.join(values)}, got {given!r}")
    return choices(given)
