"""The kinds of claims: what is compared, and with what it must agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from advsweep.report.claims.expressions import Assertion
from advsweep.report.data.filters import Filter
from advsweep.report.figures.chart import PointUnit


class Slope(Enum):
    """The direction of a trend or a rank correlation."""

    RISES = "rises"
    FALLS = "falls"

    @property
    def sign(self) -> int:
        return 1 if self is Slope.RISES else -1


class Side(Enum):
    """Which of two rows has more."""

    HIGHER = "higher"
    LOWER = "lower"

    @property
    def sign(self) -> int:
        return 1 if self is Side.HIGHER else -1


class Extremum(Enum):
    """What a shape has between its ends."""

    MAXIMUM = "maximum inside"
    MINIMUM = "minimum inside"

    @property
    def sign(self) -> int:
        return 1 if self is Extremum.MAXIMUM else -1


@dataclass(frozen=True)
class Statements:
    """Assertions that must all hold."""

    assertions: tuple[Assertion, ...]

    @property
    def text(self) -> str:
        return " and ".join(assertion.text for assertion in self.assertions)

    @property
    def columns(self) -> list[str]:
        return _columns(self.assertions)

    @property
    def rows(self) -> list[str]:
        return _rows(self.assertions)


@dataclass(frozen=True)
class RelativeChange:
    """A row's metric is higher or lower than another's by a share of it.

    Attributes:
        assertion: of - (1 ± by) than, whose t-test is Fieller's of the ratio of the means.
    """

    metric: str
    of: str
    than: str
    by: float
    assertion: Assertion

    @property
    def text(self) -> str:
        return self.assertion.text

    @property
    def columns(self) -> list[str]:
        return self.assertion.columns

    @property
    def rows(self) -> list[str]:
        return [self.of, self.than]


@dataclass(frozen=True)
class Equivalence:
    """Two rows differ by less than a margin, in either direction.

    Attributes:
        lower, upper: the assertions that the difference is above -margin, and below +margin.
        difference: the assertion that it is above 0, which has the difference itself.
    """

    text: str
    difference: Assertion
    lower: Assertion
    upper: Assertion

    @property
    def columns(self) -> list[str]:
        return _columns([self.lower])

    @property
    def rows(self) -> list[str]:
        return _rows([self.lower])


@dataclass(frozen=True)
class Gain:
    """How much a row is above another in the same setting, in place of a row's own values."""

    of: str
    than: str


@dataclass(frozen=True)
class Trend:
    """A column rises or falls with another column or a config key.

    Attributes:
        points: whether each run is a point, or the mean of each row.
        within: config keys; the slope is that among rows with the same values of these keys.
        r2: the least share of the variance that the line must explain; None for the slope alone.
        gain: of which rows the points are differences; None for the values of all rows.
    """

    of: str
    over: str
    direction: Slope
    points: PointUnit = PointUnit.ROWS
    within: tuple[str, ...] = ()
    r2: float | None = None
    gain: Gain | None = None

    @property
    def text(self) -> str:
        text = f"{_gained(self.of, self.gain)} {self.direction.value} with {self.over}"
        text += f" within {', '.join(self.within)}" if self.within else ""
        return text if self.r2 is None else f"{text} with R² >= {self.r2:g}"

    @property
    def columns(self) -> list[str]:
        # It may be over a config key, which is no column.
        return [self.of]

    @property
    def rows(self) -> list[str]:
        return []


@dataclass(frozen=True)
class Rank:
    """A column and another one, or a config key, put the points in the same or the other order."""

    of: str
    over: str
    direction: Slope
    points: PointUnit = PointUnit.ROWS
    gain: Gain | None = None

    @property
    def text(self) -> str:
        return f"{_gained(self.of, self.gain)} {self.direction.value} with {self.over} by rank"

    @property
    def columns(self) -> list[str]:
        return [self.of]

    @property
    def rows(self) -> list[str]:
        return []


@dataclass(frozen=True)
class Shape:
    """A column has its best value between the ends of another column or a config key.

    Attributes:
        log: whether the quadratic is of the logarithm of `over`.
    """

    of: str
    over: str
    has: Extremum
    log: bool = False

    @property
    def text(self) -> str:
        over = f"log {self.over}" if self.log else self.over
        return f"{self.of} over {over} has a {self.has.value}"

    @property
    def columns(self) -> list[str]:
        return [self.of]

    @property
    def rows(self) -> list[str]:
        return []


@dataclass(frozen=True)
class Spread:
    """A row's metric has a larger or smaller standard deviation over seeds than another's."""

    metric: str
    of: str
    than: str
    direction: Side

    @property
    def text(self) -> str:
        return f"spread of {self.metric}[{self.of}] {self.direction.value} than [{self.than}]"

    @property
    def columns(self) -> list[str]:
        return [self.metric]

    @property
    def rows(self) -> list[str]:
        return [self.of, self.than]


@dataclass(frozen=True)
class Failures:
    """More or fewer runs of a row fail than of another row, or than a number.

    Attributes:
        when: filters on columns; a finished run that matches all of them counts as failed, too.
    """

    of: str
    than: str | int
    direction: Side
    when: tuple[Filter, ...] = ()

    @property
    def text(self) -> str:
        what = f"{self.than}" if isinstance(self.than, int) else f"[{self.than}]"
        text = f"failed runs of [{self.of}] {self.direction.value} than {what}"
        conditions = " ".join(filter.text for filter in self.when)
        return f"{text}, also where {conditions}" if conditions else text

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(filter.key for filter in self.when))

    @property
    def rows(self) -> list[str]:
        return [self.of, *([self.than] if isinstance(self.than, str) else [])]


Kind = Statements | RelativeChange | Equivalence | Trend | Rank | Shape | Spread | Failures


def _gained(column: str, gain: Gain | None) -> str:
    return column if gain is None else f"gain of [{gain.of}] over [{gain.than}] in {column}"


def _columns(assertions: Sequence[Assertion]) -> list[str]:
    return list(dict.fromkeys(column for own in assertions for column in own.columns))


def _rows(assertions: Sequence[Assertion]) -> list[str]:
    return list(dict.fromkeys(term.row for own in assertions for term in own.terms))
