"""The dimensions that a search chooses values from, in Hydra's grammar.

    estimator.delta=interval(0.1,2)   'optimizer.lr=tag(log,interval(1e-5,1e-3))'
    'group_size=choice(4,8,16)'   'estimator.k=range(1,5)'   'estimator.k=int(interval(1,8))'

Seeds are replicates and never a dimension, and neither is a list without `choice`. In a sweep file
the same texts stand in `common` and in its block.
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
class RangeDimension:
    """Numbers from `low` to `high`, both included; integers if both are integers."""

    low: float
    high: float
    log: bool = False

    @property
    def is_integer(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[float, ...]:
        """The values at which a space is checked before it is searched."""
        return (self.low, self.high)

    def __contains__(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class ChoiceDimension:
    """Values without an order."""

    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values at which a space is checked before it is searched."""
        return self.values

    def __contains__(self, value: Any) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return ", ".join(str(value) for value in self.values)


Dimension = RangeDimension | ChoiceDimension


def split_overrides(texts: Iterable[str]) -> tuple[dict[str, Dimension], list[str]]:
    """Split overrides into dimensions by key, and all others.

    Raises:
        ConfigError: an interval is empty, or has a log scale and is not positive.
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
            rest.append(text)  # Planning parses it again and reports the error.
            continue
        dimension = None if parsed.key_or_group == SEED else _dimension(text, parsed)
        if dimension is None:
            rest.append(text)
        else:
            dimensions[parsed.key_or_group] = dimension
    return dimensions, rest


def node_dimensions(node: Any) -> dict[str, Dimension]:
    """Return the dimensions in an experiment's `sweep` node; a block's replace `common`'s.

    Raises:
        ConfigError: as `split_overrides`.
    """
    node = node if isinstance(node, Mapping) else {}
    blocks = node.get("blocks")
    found: dict[str, Dimension] = {}
    for block in [node.get("common"), *(blocks if isinstance(blocks, list) else [])]:
        if isinstance(block, Mapping):
            texts = [f"{k}={v}" for k, v in block.items() if isinstance(v, str) and is_call(v)]
            found = {key: value for key, value in found.items() if key not in block}
            found |= split_overrides(texts)[0]
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
        return RangeDimension(sweep.start, sweep.end, log)
    # `a=1,2` is a sweep over two values, `a=choice(1,2)` a dimension of the search.
    is_choice = isinstance(sweep, ChoiceSweep) and not sweep.simple_form
    if not is_choice and not isinstance(sweep, RangeSweep):
        return None
    values = tuple(parsed.sweep_iterator(transformer=type(parsed)._convert_value))
    if not values or any(isinstance(value, (list, dict)) for value in values):
        raise ConfigError(f"{text}: expected numbers, texts, true or false to choose from")
    return ChoiceDimension(values)


def fits(params: Mapping[str, Any], dimensions: Mapping[str, Dimension]) -> bool:
    """Whether a point has a value of each dimension and no others."""
    return params.keys() == dimensions.keys() and all(params[k] in dimensions[k] for k in params)


def format_params(params: Mapping[str, Any]) -> str:
    """Format a point for people, with six digits for each number."""
    return " ".join(
        f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in params.items()
    )


def format_override(key: str, *values: Any) -> str:
    """Write values of a key as an override."""
    return f"{key}={','.join(map(_format_value, values))}"


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("'", "\\'")
        return f"'{escaped}'"
    return "null" if value is None else repr(value)
