"""What is searched over, in Hydra's grammar.

    estimator.delta=interval(0.1,2)   'optimizer.lr=tag(log,interval(1e-5,1e-3))'
    'group_size=choice(4,8,16)'   'estimator.k=range(1,5)'   'estimator.k=int(interval(1,8))'

Seeds are replicates, and a list without `choice` is none of a search's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from advsweep.errors import ConfigError

LOG = "log"
SEED = "seed"


@dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`; whole ones where both are."""

    low: float
    high: float
    log: bool = False

    @property
    def example(self) -> float:
        return self.low

    def __str__(self) -> str:
        whole = ", whole numbers" if isinstance(self.low, int) else ""
        return f"{self.low:g} to {self.high:g}{whole}{', on a log scale' if self.log else ''}"


@dataclass(frozen=True)
class Choice:
    """Some values in no order."""

    values: tuple[Any, ...]

    @property
    def example(self) -> Any:
        return self.values[0]

    def __str__(self) -> str:
        return "one of " + ", ".join(str(value) for value in self.values)


Dimension = Interval | Choice


def split(texts: Iterable[str]) -> tuple[dict[str, Dimension], list[str]]:
    """Divides overrides into what can be searched over, by key, and the others.

    Raises:
        ConfigError: an interval that is empty, or on a log scale and not positive.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    dimensions: dict[str, Dimension] = {}
    rest: list[str] = []
    for text in texts:
        try:
            parsed = parser.parse_override(text)
        except HydraException:
            rest.append(text)  # the plan says what is wrong with it
            continue
        dimension = None if parsed.key_or_group == SEED else _dimension(text, parsed)
        if dimension is None:
            rest.append(text)
        else:
            dimensions[parsed.key_or_group] = dimension
    return dimensions, rest


def _dimension(text: str, parsed: Any) -> Dimension | None:
    from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, RangeSweep

    sweep = parsed.value() if parsed.is_sweep_override() else None
    if isinstance(sweep, IntervalSweep):
        assert sweep.start is not None and sweep.end is not None  # noqa: PT018 (for mypy)
        log = LOG in sweep.tags
        if not sweep.start < sweep.end or (log and sweep.start <= 0):
            above = " above 0" if log else ""
            raise ConfigError(f"{text}: expected interval(LOW,HIGH) with LOW < HIGH{above}")
        return Interval(sweep.start, sweep.end, log)
    explicit = isinstance(sweep, ChoiceSweep) and not sweep.simple_form
    if explicit or isinstance(sweep, RangeSweep):
        return Choice(_values(text, parsed))
    return None


def _values(text: str, parsed: Any) -> tuple[Any, ...]:
    values = tuple(parsed.sweep_iterator(transformer=type(parsed)._convert_value))
    if not values or any(isinstance(value, (list, dict)) for value in values):
        raise ConfigError(f"{text}: expected numbers, texts, true or false to choose from")
    return values


def override(key: str, value: Any) -> str:
    """A value of a dimension as an override."""
    if isinstance(value, bool):
        return f"{key}={str(value).lower()}"
    if isinstance(value, str):
        escaped = value.replace("'", "\\'")
        return f"{key}='{escaped}'"
    return f"{key}={value!r}"
