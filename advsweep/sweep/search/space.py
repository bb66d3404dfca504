"""What is searched over, in Hydra's grammar.

    estimator.delta=interval(0.1,2)   'optimizer.lr=tag(log,interval(1e-5,1e-3))'
    'group_size=choice(4,8,16)'   'estimator.k=range(1,5)'   'estimator.k=int(interval(1,8))'

Seeds are replicates, and a list without `choice` is none of a search's business. In a sweep
file they stand as texts in `common` and in its block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from advsweep.config.overrides import is_call
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
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[float, ...]:
        """The values that a space is checked at."""
        return (self.low, self.high)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Choice:
    """Some values in no order."""

    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that a space is checked at."""
        return self.values

    def __str__(self) -> str:
        return ", ".join(str(value) for value in self.values)


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


def in_file(node: Any) -> dict[str, Dimension]:
    """What the `sweep` node of an experiment searches over; a block's values beat `common`'s.

    Raises:
        ConfigError: as `split` does.
    """
    node = node if isinstance(node, Mapping) else {}
    blocks = node.get("blocks")
    found: dict[str, Dimension] = {}
    for block in [node.get("common"), *(blocks if isinstance(blocks, list) else [])]:
        if isinstance(block, Mapping):
            texts = [f"{k}={v}" for k, v in block.items() if isinstance(v, str) and is_call(v)]
            found = {key: value for key, value in found.items() if key not in block}
            found |= split(texts)[0]
    return found


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


def fits(params: Mapping[str, Any], dimensions: Mapping[str, Dimension]) -> bool:
    """Whether a point is one of a space."""
    return params.keys() == dimensions.keys() and all(
        d.low <= value <= d.high if isinstance(d, Interval) else value in d.values
        for d, value in ((d, params[key]) for key, d in dimensions.items())
    )


def spell(params: Mapping[str, Any]) -> str:
    """A point for people, numbers in six digits."""
    return " ".join(
        f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in params.items()
    )


def override(key: str, *values: Any) -> str:
    """Values of a dimension as an override."""
    return f"{key}={','.join(map(_spelt, values))}"


def _spelt(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("'", "\\'")
        return f"'{escaped}'"
    return "null" if value is None else repr(value)
