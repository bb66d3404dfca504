"""The points of claims about trends and ranks: runs or rows, or gains of one row over another."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from advsweep.errors import NotFoundError, ReportError
from advsweep.report.claims.kinds import Gain
from advsweep.report.figures.chart import PointUnit
from advsweep.report.tables.comparison import BaselineRows, parse_baseline
from advsweep.report.tables.types import Report, Row


class Point(NamedTuple):
    """A point of a trend: a run, or the mean of a row's runs.

    Attributes:
        x: the value that the trend is over.
        y: the value of the trend's column.
        group: the values of the keys that the trend is within, as JSON.
    """

    x: float
    y: float
    group: str


def points_of(
    report: Report,
    of: str,
    over: str,
    unit: PointUnit,
    *,
    within: Sequence[str] = (),
    gain: Gain | None = None,
) -> list[Point]:
    """Returns the points of a trend.

    Args:
        gain: points are differences of one row from another in the same setting, paired by seed,
            over the place of the other; None for the values themselves.

    Raises:
        NotFoundError: no row has a name of the gain.
        ReportError: no row has a key that the trend is within.
    """
    for key in within:
        if not any(key in row.group for row in report.rows):
            raise ReportError(
                f"'{key}', which the trend is within, tells no rows apart; expected some of "
                f"{', '.join(report.keys)}"
            )
    trained = [row for row in report.rows if not row.is_base]
    pairs = [(row, row) for row in trained] if gain is None else _pairs(report, trained, gain)
    points: list[Point] = []
    for row, other in pairs:
        places = _places(other, over)
        ys = row.by_seed(of)
        if gain is not None:
            others = other.by_seed(of)
            ys = {seed: y - others[seed] for seed, y in ys.items() if seed in others}
        found = [
            (places[seed], y)
            for seed, y in ys.items()
            if seed in places and math.isfinite(places[seed] + y)
        ]
        if unit is PointUnit.ROWS and found:
            x, y = (math.fsum(values) / len(found) for values in zip(*found, strict=True))
            found = [(x, y)]
        group = json.dumps([row.group.get(key) for key in within])
        points += [Point(x, y, group) for x, y in found]
    return points


def place_of(row: Row, over: str) -> float:
    """Returns where a row lies: its value of a key, or its mean of a column; NaN for neither."""
    value = row.group.get(over)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return row.cells[over].mean if over in row.cells else math.nan


def _places(row: Row, over: str) -> Mapping[int, float]:
    """Returns where each seed of a row lies; nothing for a row without a place."""
    value = row.group.get(over)
    if isinstance(value, (int, float)):
        return dict.fromkeys(row.seeds, float(value))
    return row.by_seed(over) if over in row.cells else {}


def _pairs(report: Report, rows: Sequence[Row], gain: Gain) -> list[tuple[Row, Row]]:
    """Returns each row of the first name with that of the second in the same setting."""
    key = report.keys[0]
    own = _chosen(gain.of, rows, key)
    baseline = _chosen(gain.than, rows, key)
    pairs = []
    for row in rows:
        if all(row.group.get(key, own) == value for key, value in own.values.items()):
            index = baseline.of(row, rows)
            if index is not None:
                pairs.append((row, rows[index]))
    return pairs


def _chosen(name: str, rows: Sequence[Row], key: str) -> BaselineRows:
    try:
        return parse_baseline(name, rows, key)
    except NotFoundError as error:
        raise NotFoundError(str(error).replace("--baseline", "gain")) from None
