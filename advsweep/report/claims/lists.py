"""Lists of claims: sourced statements about runs, read from YAML.

    title: What the demo is to show
    common: {sweep: demo, seeds: 3}
    claims:
      - id: trade
        says: GRPO raises pass@1 and lowers pass@64
        source: A-GRAE (arXiv:2602.05548), sec. 4.2
        statement: ['pass@1[grpo] > pass@1[base]', 'pass@64[grpo] < pass@64[base]']
      - id: fade-acr
        says: FADE collapses less than GRPO
        metric: collapse/acr@first100
        of: fade
        than: grpo
        direction: lower
      - id: early-acr
        says: Runs that collapse early end lower
        trend: {of: pass@1, over: collapse/acr@first100, direction: falls}

A statement is an assertion (`claims.expressions`); of several, all must hold. `direction` is
`higher`, `lower`, `not higher`, `not lower` or `within`, the last three with a `margin`; `than` is
a row or a number. A trend is the slope of a line through all runs, over a column or a config key;
with `points: rows` through the means of rows, and with `within: [KEY, ...]` of parallel lines, one
for each value of these keys.
Every claim may have `sweep`, `where`, `at`, `rows`, `setting` (for readers) and `seeds` (the least
number of seeds for a verdict, 3 by default); `common` has defaults for all claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from advsweep.errors import ConfigError, nearest
from advsweep.report.claims.expressions import Assertion, parse_assertion
from advsweep.report.data.cutoffs import Cutoff, parse_cutoff
from advsweep.report.data.filters import Filter, parse_where, split_list
from advsweep.report.figures.chart import PointUnit
from advsweep.report.tables.comparison import SEEDS_FOR_A_MARK
from advsweep.yaml_files import read_yaml

_TEXTS = ("id", "says", "source", "setting", "sweep", "where", "at", "rows")
_COMPARED = ("metric", "of", "than", "direction", "margin")
_KEYS = (*_TEXTS, "seeds", "statement", *_COMPARED, "trend")
_COMMON = ("source", "setting", "sweep", "where", "at", "rows", "seeds")
_DIRECTIONS = {
    "higher": (">", +1),
    "lower": ("<", -1),
    "not lower": (">=", -1),
    "not higher": ("<=", +1),
}
WITHIN = "within"
_E = TypeVar("_E", bound=Enum)


class Slope(Enum):
    """The direction of a trend."""

    RISES = "rises"
    FALLS = "falls"


@dataclass(frozen=True)
class Trend:
    """The claim that a column rises or falls with another column or a config key.

    Attributes:
        points: whether each run is a point, or the mean of each row.
        within: config keys; the slope is that among rows with the same values of these keys.
    """

    of: str
    over: str
    direction: Slope
    points: PointUnit = PointUnit.RUNS
    within: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        text = f"{self.of} {self.direction.value} with {self.over}"
        return f"{text} within {', '.join(self.within)}" if self.within else text


@dataclass(frozen=True)
class Claim:
    """One claim of a list.

    Attributes:
        says: the claim in words.
        source, setting: who claims it and in which setting; for readers.
        statements: assertions that must all hold; none where there is a trend.
        seeds: the least number of seeds (points of a trend) for a verdict.
        sweep, where, at, rows: arguments of the report of its runs.
    """

    id: str
    says: str
    source: str
    setting: str
    statements: tuple[Assertion, ...]
    trend: Trend | None
    seeds: int
    sweep: str | None
    where: tuple[Filter, ...]
    at: Cutoff | None
    rows: tuple[str, ...] | None

    @property
    def text(self) -> str:
        """The assertions or the trend, as text."""
        if self.trend is not None:
            return self.trend.text
        return " and ".join(statement.text for statement in self.statements)


@dataclass(frozen=True)
class ClaimList:
    """A list of claims, with its title."""

    title: str
    claims: tuple[Claim, ...]


def claim_lists() -> dict[str, Path]:
    """Returns the lists that the package has, by name."""
    folder = Path(__file__).with_name("claim_lists")
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_claim_list(path: Path) -> ClaimList:
    """Reads a list of claims.

    Raises:
        ConfigError: the file cannot be read, or is no list of claims; the message names the claim
            and its key.
    """
    try:
        document = read_yaml(path)
    except OSError as error:
        raise ConfigError(f"claims: {path.name} cannot be read: {error.strerror}") from error
    return parse_claim_list(document, path.stem)


def parse_claim_list(document: Any, name: str = "claims") -> ClaimList:
    """Parses a list of claims from plain types.

    Args:
        name: the title of a list without one.

    Raises:
        ConfigError: the document is no list of claims; the message names the claim and its key.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("claims"), list):
        raise ConfigError(f"{name}: expected a mapping with a list under 'claims'")
    _check_keys(document, ("title", "common", "claims"), name)
    common = document.get("common") or {}
    if not isinstance(common, Mapping):
        raise ConfigError(f"{name}: common: expected a mapping, got {common!r}")
    _check_keys(common, _COMMON, f"{name}: common")
    claims = []
    for number, entry in enumerate(document["claims"], start=1):
        if not isinstance(entry, Mapping):
            raise ConfigError(f"{name}: claim {number}: expected a mapping, got {entry!r}")
        claims.append(_claim({**common, **entry}, f"claim {entry.get('id', number)}"))
    if not claims:
        raise ConfigError(f"{name}: expected at least one claim")
    ids = [claim.id for claim in claims]
    if twice := next((i for i in ids if ids.count(i) > 1), None):
        raise ConfigError(f"{name}: expected each id once, got '{twice}' twice")
    return ClaimList(title=str(document.get("title", name)), claims=tuple(claims))


def _claim(entry: Mapping[str, Any], name: str) -> Claim:
    _check_keys(entry, _KEYS, name)
    texts = {key: _text(entry, key, name) for key in _TEXTS}
    if not texts["id"] or not texts["says"]:
        raise ConfigError(f"{name}: expected an id, and what the claim says under 'says'")
    seeds = entry.get("seeds", SEEDS_FOR_A_MARK)
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 2:
        raise ConfigError(f"{name}: seeds: expected an integer >= 2, got {seeds!r}")
    kinds = [kind for kind in ("statement", "metric", "trend") if kind in entry]
    if len(kinds) != 1:
        got = " and ".join(kinds) or "none of them"
        raise ConfigError(f"{name}: expected one of statement, metric and trend, got {got}")
    return Claim(
        id=texts["id"],
        says=texts["says"],
        source=texts["source"],
        setting=texts["setting"],
        statements=_statements(entry, kinds[0], name),
        trend=_trend(entry["trend"], name) if kinds[0] == "trend" else None,
        seeds=seeds,
        sweep=texts["sweep"] or None,
        where=tuple(parse_where(texts["where"], f"{name}: where")) if texts["where"] else (),
        at=parse_cutoff(texts["at"], f"{name}: at") if texts["at"] else None,
        rows=tuple(split_list(texts["rows"])) if texts["rows"] else None,
    )


def _statements(entry: Mapping[str, Any], kind: str, name: str) -> tuple[Assertion, ...]:
    if kind == "trend":
        return ()
    if kind == "metric":
        return tuple(parse_assertion(text, name) for text in _compared(entry, name))
    given = entry["statement"]
    texts = given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{name}: statement: expected a text or several, got {given!r}")
    return tuple(parse_assertion(text, name) for text in texts)


def _compared(entry: Mapping[str, Any], name: str) -> list[str]:
    """Writes a comparison of a metric between two rows as statements."""
    for key in ("of", "than", "direction"):
        if key not in entry:
            raise ConfigError(f"{name}: a metric needs of, than and direction; '{key}' is missing")
    metric, of, than, direction = (entry[key] for key in ("metric", "of", "than", "direction"))
    margin = entry.get("margin", 0)
    if not isinstance(margin, (int, float)) or isinstance(margin, bool) or margin < 0:
        raise ConfigError(f"{name}: margin: expected a number >= 0, got {margin!r}")
    left = f"{metric}[{of}]"
    right = f"{than:g}" if isinstance(than, (int, float)) else f"{metric}[{than}]"
    if direction == WITHIN:
        pairs = [_DIRECTIONS["not lower"], _DIRECTIONS["not higher"]]
    elif direction in _DIRECTIONS:
        pairs = [_DIRECTIONS[direction]]
    else:
        expected = ", ".join((*_DIRECTIONS, WITHIN))
        raise ConfigError(f"{name}: direction: expected one of {expected}, got {direction!r}")
    signs = {1: f" + {margin:g}", -1: f" - {margin:g}"}
    return [f"{left} {compare} {right}{signs[sign] if margin else ''}" for compare, sign in pairs]


def _trend(given: Any, name: str) -> Trend:
    keys = ("of", "over", "direction")
    if not isinstance(given, Mapping) or not set(given) >= set(keys):
        raise ConfigError(f"{name}: trend: expected a mapping of {', '.join(keys)}, got {given!r}")
    _check_keys(given, (*keys, "points", "within"), f"{name}: trend")
    within = given.get("within", [])
    if isinstance(within, str):
        within = split_list(within)
    if not isinstance(within, list) or not all(isinstance(key, str) for key in within):
        raise ConfigError(f"{name}: trend.within: expected a list of keys, got {within!r}")
    return Trend(
        str(given["of"]),
        str(given["over"]),
        _member(Slope, given["direction"], f"{name}: trend.direction"),
        _member(PointUnit, given.get("points", PointUnit.RUNS.value), f"{name}: trend.points"),
        tuple(within),
    )


def _member(choices: type[_E], given: Any, where: str) -> _E:
    values = [choice.value for choice in choices]
    if given not in values:
        raise ConfigError(f"{where}: expected {' or '.join(values)}, got {given!r}")
    return choices(given)


def _text(entry: Mapping[str, Any], key: str, name: str) -> str:
    value = entry.get(key, "")
    if isinstance(value, (Mapping, list)) or value is None:
        raise ConfigError(f"{name}: {key}: expected a text, got {value!r}")
    return str(value)


def _check_keys(given: Mapping[str, Any], known: Sequence[str], name: str) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(f"{name}: no key is called '{key}'; {nearest(str(key), known)}")
