"""Heat maps: a column of the report over two swept keys, a panel for each arm.

A cell is a configuration; its number is the mean over its seeds. Frames show how far the seeds tell
which cell of a panel is the best. They are around a subset that has the truly best cell with 95 %
confidence (Gupta, 1965): a cell is left out if it is significantly worse than the best mean, in a
one-sided test at .05 divided by the number of other cells (Bonferroni).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from advsweep.errors import NotFoundError, ReportError, nearest
from advsweep.printable import printable_line
from advsweep.report.data.columns import parse_column
from advsweep.report.data.groups import Group
from advsweep.report.data.keys import MISSING, is_key, known_keys, value_of
from advsweep.report.data.labels import show_key, title_key
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.figures import chart
from advsweep.report.figures.axes import label_axis
from advsweep.report.figures.data import FigureData, Replicates
from advsweep.report.tables.comparison import LEVEL
from advsweep.statistics.comparison import compare_arms
from advsweep.store.seeds import SeedKey
from advsweep.writing import show, show_interval

MOST_PANELS = 24
MOST_VALUES = 24
_WIDTH = 6.6  # inches of a line of panels, without the colour bar
_LABELS = 0.7  # inches of the values beside a panel
_READABLE = 0.56  # inches of a cell

# An index of a value of the y key and one of the x key.
CellKey = tuple[int, int]


@dataclass(frozen=True)
class _Arm:
    """The rows that differ only in the two keys, by the values of y and x as JSON."""

    label: str
    rows: Mapping[tuple[str, str], Replicates]


@dataclass(frozen=True, kw_only=True)
class _Cell:
    """A configuration.

    Attributes:
        scores: the finite value of each seed.
        is_candidate: whether it may be the best cell of its panel.
    """

    mean: float
    low: float
    high: float
    scores: Mapping[SeedKey, float]
    is_candidate: bool = False

    @property
    def n(self) -> int:
        return len(self.scores)


def heatmap(
    data: FigureData, x: str | None = None, y: str | None = None, metric: str | None = None
) -> chart.Chart:
    """Draw pass@1 (--metric) over two swept keys (--x, --y), a panel for each arm.

    Frames are around the cells that may be the best.
    """
    metric = metric or data.on_task("pass@1")
    x, y = _choose_keys(data, x, y)
    values = data.values(metric)
    arms, lacking = _collect_arms(data, x, y)
    ys = _sorted_values({at[0] for arm in arms for at in arm.rows}, y, data)
    xs = _sorted_values({at[1] for arm in arms for at in arm.rows}, x, data)
    column = parse_column(metric)
    direction = MetricDirection.NEITHER if column is None else column.direction
    cells_of = {arm.label: _collect_cells(arm, ys, xs, values, direction) for arm in arms}
    counts = [cell.n for cells in cells_of.values() for cell in cells.values()]
    if not counts:
        raise ReportError(f"no run of {data.name} has {metric} and a value of both {x} and {y}")
    common = max(set(counts), key=counts.count)
    means = [cell.mean for cells in cells_of.values() for cell in cells.values()]
    columns = _count_columns(len(arms), len(xs))
    panels = []
    for arm in arms:
        cells = cells_of[arm.label]
        panel = chart.Panel(
            title=arm.label,
            cells=chart.Cells(
                values=_table(cells, len(ys), len(xs)),
                texts={at: _describe(cell, common) for at, cell in cells.items()},
                candidates=[at for at, cell in cells.items() if cell.is_candidate],
                limits=(min(means), max(means)),
                label=label_axis(metric),
            ),
            x_label=x,
            y_label=y,
            x_ticks={place: _show(text) for place, text in enumerate(xs)},
            y_ticks={place: _show(text) for place, text in enumerate(ys)},
            height=0.75 + 0.42 * max(len(ys), 2),
        )
        panels.append(panel)
    notes = [*chart.seeds_note(counts, "intervals"), *_describe_frames(cells_of, direction, common)]
    if lacking:
        notes.append(f"without a value of {x} or {y}: {', '.join(lacking)}")
    return chart.Chart(
        title=f"{data.name}: {metric} over {x} and {y}",
        notes=notes,
        make_records=lambda: [
            _record(arm.label, cells_of[arm.label].get((row, place)), {y: up, x: across}, metric)
            for arm in arms
            for row, up in enumerate(ys)
            for place, across in enumerate(xs)
        ],
        panels=panels,
        columns=columns,
    )


def _choose_keys(data: FigureData, x: str | None, y: str | None) -> tuple[str, str]:
    """Return the keys across and up: the chosen ones, or the two that vary.

    With several estimators, keys that vary within one count: two of them, or one and the estimator.

    Raises:
        NotFoundError: no run has a chosen key.
        ReportError: it is not clear which two.
    """
    chosen = [key for key in (x, y) if key is not None]
    for key in chosen:
        _check_key(data, key)
    if x is not None and x == y:
        raise ReportError(f"a heat map is over two keys; --x and --y both name '{x}'")
    varying = _varying_keys(data)
    title = title_key([row.group for row in data.rows])
    if len(varying) == 1 and len({str(row.group[title]) for row in data.rows}) > 1:
        varying.append(title)
    others = [key for key in varying if key not in chosen]
    if len(chosen) + len(others) != 2 and len(chosen) < 2:
        listed = f"{len(varying)} ({', '.join(varying)})" if varying else "none"
        raise ReportError(
            f"a heat map is over two keys that vary, got {listed} in {data.name}; choose two with "
            "--x KEY --y KEY, estimator among them, say"
        )
    if x is not None:
        return x, y or others[0]
    if y is not None:
        return others[0], y
    # The key with more values goes across, where there is more room.
    up, across = sorted(others, key=lambda key: len({_text_of(r, key) for r in data.rows}))
    return across, up


def _check_key(data: FigureData, key: str) -> None:
    """Refuse a key that no run has, or that differs between the seeds of a cell."""
    if not is_key(data.runs, key):
        hint = nearest(key, known_keys(data.runs))
        raise NotFoundError(f"no run of {data.name} has a key '{key}'; {hint}")
    for row in data.rows:
        if len({json.dumps(value_of(run, key), default=str) for run in row.runs}) > 1:
            raise ReportError(
                f"a cell is a configuration with all its seeds, whose runs differ in '{key}'; "
                "choose another key"
            )


def _varying_keys(data: FigureData) -> list[str]:
    """Return the keys that have several values within one estimator or method."""
    title = title_key([row.group for row in data.rows])
    values: dict[tuple[str, str], set[str]] = {}
    for row in data.rows:
        for key, value in row.group.items():
            if key not in (title, "estimator"):
                values.setdefault((str(row.group[title]), key), set()).add(json.dumps(value))
    return list(dict.fromkeys(key for (_, key), texts in values.items() if len(texts) > 1))


def _collect_arms(data: FigureData, x: str, y: str) -> tuple[list[_Arm], list[str]]:
    """Return the arms, and the labels of rows that lack a key.

    Raises:
        ReportError: there are too many arms, or none.
    """
    title = title_key([row.group for row in data.rows])
    groups: dict[str, Group] = {}
    rows: dict[str, dict[tuple[str, str], Replicates]] = {}
    lacking = []
    for row in data.rows:
        up = _text_of(row, y)
        across = _text_of(row, x)
        if up is None or across is None:
            lacking.append(row.label)
            continue
        # A component that is an axis takes the keys of its parts with it.
        group = {key: value for key, value in row.group.items() if key not in (x, y)}
        text = json.dumps(group)
        groups[text] = group
        rows.setdefault(text, {})[up, across] = row
    if not 0 < len(groups) <= MOST_PANELS:
        raise ReportError(
            f"expected 1 to {MOST_PANELS} arms with a value of both {x} and {y}, got "
            f"{len(groups)} in {data.name}; --x and --y name other keys, --where chooses arms"
        )
    labels = _label_arms(list(groups.values()), title)
    return [_Arm(label, rows[text]) for label, text in zip(labels, groups, strict=True)], lacking


def _label_arms(groups: Sequence[Group], title: str) -> list[str]:
    """Name arms by their estimator, and by the keys in which they differ."""
    labels = []
    for group in groups:
        words = [show_key(group[title])] if title in group else []
        for key, value in group.items():
            if key not in (title, "estimator") and any(
                other.get(key, MISSING) != value for other in groups
            ):
                words.append(f"{key}={show_key(value)}")
        labels.append(" ".join(words) or "all runs")
    return labels


def _text_of(row: Replicates, key: str) -> str | None:
    """Return the value of a key as JSON, since lists are among them; None without one."""
    value = value_of(row.runs[0], key)
    return None if value is MISSING else json.dumps(value)


def _sorted_values(texts: set[str], key: str, data: FigureData) -> list[str]:
    """Sort numbers by value; other values stay in the order of the sweep, after them.

    Raises:
        ReportError: there are too many.
    """
    if len(texts) > MOST_VALUES:
        raise ReportError(
            f"a heat map has at most {MOST_VALUES} values of a key, got {len(texts)} of {key}; "
            "choose some with --where"
        )
    in_order = [text for row in data.rows if (text := _text_of(row, key)) in texts]

    def place(text: str) -> tuple[bool, float]:
        value = json.loads(text)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return not is_number, float(value) if is_number else 0.0

    return sorted(dict.fromkeys(text for text in in_order if text is not None), key=place)


def _collect_cells(
    arm: _Arm,
    ys: Sequence[str],
    xs: Sequence[str],
    values: Mapping[int, float],
    direction: MetricDirection,
) -> dict[CellKey, _Cell]:
    """Return the cells of an arm that have a number."""
    scores: dict[CellKey, dict[SeedKey, float]] = {}
    for (up, across), row in arm.rows.items():
        measured = {run.seed_key: values[run.id] for run in row.runs if run.id in values}
        if measured:
            scores[ys.index(up), xs.index(across)] = measured
    candidates = find_candidates(scores, direction)
    listed = [(at, value) for at, of_seeds in scores.items() for value in of_seeds.values()]
    table = chart.means(pd.DataFrame(listed, columns=["at", "value"]), "at")
    return {
        cell.at: _Cell(
            mean=cell.mean,
            low=cell.low,
            high=cell.high,
            scores=scores[cell.at],
            is_candidate=cell.at in candidates,
        )
        for cell in table.itertuples()
    }


def find_candidates(
    scores: Mapping[CellKey, Mapping[SeedKey, float]], direction: MetricDirection
) -> set[CellKey]:
    """Return cells among which the truly best one is, with 95 % confidence.

    Differences are those of reports: paired by seed, with the spread of all cells. A cell that no
    test can compare with the best mean stays.

    Args:
        scores: the value of each cell and seed.
    """
    if direction is MetricDirection.NEITHER or not scores:
        return set()
    sign = 1 if direction is MetricDirection.HIGHER else -1
    means = {at: sign * math.fsum(s.values()) / len(s) for at, s in scores.items()}
    best = max(means, key=means.__getitem__)
    candidates = {best}
    for at in scores:
        if at == best:
            continue
        comparison = compare_arms(scores, best, at)
        is_worse = sign * comparison.difference > 0
        one_sided = comparison.p_value / 2
        if not (is_worse and one_sided * (len(scores) - 1) <= LEVEL):
            candidates.add(at)
    return candidates


def _table(cells: Mapping[CellKey, _Cell], rows: int, columns: int) -> np.ndarray:
    means = np.full((rows, columns), np.nan)
    for at, cell in cells.items():
        means[at] = cell.mean
    return means


def _describe(cell: _Cell, common: int) -> str:
    """Return what a cell says: its mean, the half width of its interval, and an unusual n."""
    mean, half = show_interval(cell.mean, (cell.high - cell.low) / 2)
    lines = [mean, f"±{half}"] if half else [show(cell.mean)]
    if cell.n != common:
        lines.append(f"n={cell.n}")
    return "\n".join(lines)


def _describe_frames(
    cells_of: Mapping[str, Mapping[CellKey, _Cell]], direction: MetricDirection, common: int
) -> list[str]:
    """Return sentences about frames and numbers of seeds."""
    notes = []
    if any(cell.n != common for cells in cells_of.values() for cell in cells.values()):
        notes.append(f"{common} seeds where a cell says no n")
    if direction is MetricDirection.NEITHER:
        return [*notes, "no cell is framed, as neither high nor low values are better"]
    framed = [cells for cells in cells_of.values() if _has_frames(cells)]
    if framed:
        notes.append(
            "a solid frame: the best cell of a panel; dashed frames: the cells among which it is, "
            "with 95 % confidence (one-sided tests of differences to the best mean, paired by "
            "seed, Bonferroni)"
        )
    if len(framed) < len(cells_of):
        where = "in a panel without frames " if framed else ""
        notes.append(f"{where}no cell can be told from the best with these seeds")
    return notes


def _has_frames(cells: Mapping[CellKey, _Cell]) -> bool:
    return any(not cell.is_candidate for cell in cells.values())


def _record(label: str, cell: _Cell | None, keys: Mapping[str, str], metric: str) -> chart.Record:
    """Return the numbers of a cell, without a mean where it has no run."""
    values = {key: json.loads(text) for key, text in keys.items()}
    record: chart.Record = {"row": label, **values, "metric": metric}
    if cell is None:
        return {**record, "mean": None, "low": None, "high": None, "n": 0, "may_be_best": None}
    numbers = {"mean": cell.mean, "low": cell.low, "high": cell.high, "n": cell.n}
    return {**record, **numbers, "may_be_best": cell.is_candidate}


def _show(text: str) -> str:
    return printable_line(show_key(json.loads(text)))


def _count_columns(panels: int, values: int) -> int:
    """Return how many panels stand next to each other so that their cells are readable."""
    for columns in (3, 2):
        if columns <= panels and (_WIDTH / columns - _LABELS) / values >= _READABLE:
            return columns
    return 1
