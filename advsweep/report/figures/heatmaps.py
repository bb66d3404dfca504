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
from advsweep.report.data.columns import label_column, parse_column
from advsweep.report.data.groups import Group
from advsweep.report.data.keys import MISSING, is_key, known_keys, value_of
from advsweep.report.data.labels import label_keys, short_keys, show_key, title_key
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.figures import chart
from advsweep.report.figures.axes import label_axis
from advsweep.report.figures.data import FigureData, Replicates
from advsweep.report.tables.comparison import LEVEL
from advsweep.statistics.comparison import compare_arms
from advsweep.store.seeds import SeedKey
from advsweep.synonyms import KEYS
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


@dataclass(frozen=True, kw_only=True)
class _ArmCells:
    """The cells of an arm that have a number, by the places of their values of y and x."""

    label: str
    cells: Mapping[CellKey, _Cell]


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """The cells of all arms over the values of two keys.

    Attributes:
        x, y: the keys across and up.
        xs, ys: their values as JSON, in the order of the axes.
        lacking: the labels of rows that have no value of one of the keys.
    """

    metric: str
    direction: MetricDirection
    x: str
    y: str
    xs: Sequence[str]
    ys: Sequence[str]
    arms: Sequence[_ArmCells]
    lacking: Sequence[str]

    @property
    def cells(self) -> list[_Cell]:
        return [cell for arm in self.arms for cell in arm.cells.values()]

    @property
    def seed_counts(self) -> list[int]:
        return [cell.n for cell in self.cells]

    @property
    def usual_n(self) -> int:
        """The number of seeds that most cells have."""
        counts = self.seed_counts
        return max(set(counts), key=counts.count)


def heatmap(
    data: FigureData, x: str | None = None, y: str | None = None, metric: str | None = None
) -> chart.Chart:
    """Draw pass@1 (--metric) over two swept keys (--x, --y), a panel for each arm.

    Frames are around the cells that may be the best.
    """
    metric = metric or data.on_task("pass@1")
    x, y = _choose_keys(data, x, y)
    grid = _measure_grid(data, x, y, metric)
    return chart.Chart(
        title=f"{data.name}: {label_column(metric)} over {' and '.join(label_keys([x, y]))}",
        notes=_describe_grid(grid),
        make_records=lambda: _make_records(grid),
        panels=_make_panels(grid),
        columns=_count_columns(len(grid.arms), len(grid.xs)),
    )


def _choose_keys(data: FigureData, x: str | None, y: str | None) -> tuple[str, str]:
    """Return the keys across and up: the chosen ones, or the two that vary.

    Raises:
        NotFoundError: no run has a chosen key.
        ReportError: it is not clear which two.
    """
    chosen = [key for key in (x, y) if key is not None]
    for key in chosen:
        _check_key(data, key)
    if x is not None and x == y:
        raise ReportError(f"a heat map is over two keys; --x and --y both name '{x}'")
    if x is not None and y is not None:
        return x, y
    varying = _varying_keys(data)
    others = [key for key in varying if key not in chosen]
    if len(chosen) + len(others) != 2:
        listed = f"{len(varying)} ({', '.join(varying)})" if varying else "none"
        raise ReportError(
            f"a heat map is over two keys that vary, got {listed} in {data.name}; choose two with "
            "--x KEY --y KEY, estimator among them, say"
        )
    if x is not None:
        return x, others[0]
    if y is not None:
        return others[0], y
    # The key with more values goes across, where there is more room.
    up, across = sorted(others, key=lambda key: len({_text_of(row, key) for row in data.rows}))
    return across, up


def _check_key(data: FigureData, key: str) -> None:
    """Refuse a key that no run has, or that differs between the seeds of a cell."""
    if not is_key(data.runs, key):
        hint = nearest(key, known_keys(data.runs), KEYS)
        raise NotFoundError(f"no run of {data.name} has a key '{key}'; {hint}")
    for row in data.rows:
        if len({json.dumps(value_of(run, key), default=str) for run in row.runs}) > 1:
            raise ReportError(
                f"a cell is a configuration with all its seeds, whose runs differ in '{key}'; "
                "choose another key"
            )


def _varying_keys(data: FigureData) -> list[str]:
    """Return the keys that have several values within one estimator or method.

    If there is a single such key, several estimators or methods count as the second.
    """
    title = title_key([row.group for row in data.rows])
    values: dict[tuple[str, str], set[str]] = {}
    for row in data.rows:
        for key, value in row.group.items():
            if key not in (title, "estimator"):
                values.setdefault((str(row.group[title]), key), set()).add(json.dumps(value))
    varying = list(dict.fromkeys(key for (_, key), texts in values.items() if len(texts) > 1))
    if len(varying) == 1 and len({str(row.group[title]) for row in data.rows}) > 1:
        varying.append(title)
    return varying


def _measure_grid(data: FigureData, x: str, y: str, metric: str) -> _Grid:
    """Return the cells of all arms.

    Raises:
        ReportError: no cell has a number, or there are too many values or arms.
    """
    values = data.values(metric)
    arms, lacking = _collect_arms(data, x, y)
    ys = _sorted_values({up for arm in arms for up, _ in arm.rows}, y, data)
    xs = _sorted_values({across for arm in arms for _, across in arm.rows}, x, data)
    column = parse_column(metric)
    direction = MetricDirection.NEITHER if column is None else column.direction
    measured = [
        _ArmCells(label=arm.label, cells=_collect_cells(arm, ys, xs, values, direction))
        for arm in arms
    ]
    if not any(arm.cells for arm in measured):
        raise ReportError(f"no run of {data.name} has {metric} and a value of both {x} and {y}")
    return _Grid(
        metric=metric,
        direction=direction,
        x=x,
        y=y,
        xs=xs,
        ys=ys,
        arms=measured,
        lacking=lacking,
    )


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
    short = short_keys(dict.fromkeys(key for group in groups for key in group))
    for group in groups:
        words = [show_key(group[title])] if title in group else []
        for key, value in group.items():
            if key not in (title, "estimator") and any(
                other.get(key, MISSING) != value for other in groups
            ):
                words.append(f"{short[key]}={show_key(value)}")
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


def _make_panels(grid: _Grid) -> list[chart.Panel]:
    """Return a panel for each arm, all with the same axes and colours."""
    means = [cell.mean for cell in grid.cells]
    usual_n = grid.usual_n
    panels = []
    x_label, y_label = label_keys([grid.x, grid.y])
    for arm in grid.arms:
        table = np.full((len(grid.ys), len(grid.xs)), np.nan)
        for at, cell in arm.cells.items():
            table[at] = cell.mean
        cells = chart.Cells(
            values=table,
            texts={at: _describe(cell, usual_n) for at, cell in arm.cells.items()},
            candidates=[at for at, cell in arm.cells.items() if cell.is_candidate],
            limits=(min(means), max(means)),
            label=label_axis(grid.metric),
        )
        panel = chart.Panel(
            title=arm.label,
            cells=cells,
            x_label=x_label,
            y_label=y_label,
            x_ticks={place: _show(text) for place, text in enumerate(grid.xs)},
            y_ticks={place: _show(text) for place, text in enumerate(grid.ys)},
            height=0.75 + 0.42 * max(len(grid.ys), 2),
        )
        panels.append(panel)
    return panels


def _describe(cell: _Cell, usual_n: int) -> str:
    """Return what a cell says: its mean, the half width of its interval, and an unusual n."""
    mean, half = show_interval(cell.mean, (cell.high - cell.low) / 2)
    lines = [mean, f"±{half}"] if half else [show(cell.mean)]
    if cell.n != usual_n:
        lines.append(f"n={cell.n}")
    return "\n".join(lines)


def _describe_grid(grid: _Grid) -> list[str]:
    """Return sentences about numbers of seeds, frames and rows that are left out."""
    counts = grid.seed_counts
    notes = chart.seeds_note(counts, "intervals")
    if len(set(counts)) > 1:
        notes.append(f"{grid.usual_n} seeds where a cell says no n")
    notes += _describe_frames(grid)
    if grid.lacking:
        notes.append(f"without a value of {grid.x} or {grid.y}: {', '.join(grid.lacking)}")
    return notes


def _describe_frames(grid: _Grid) -> list[str]:
    """Return sentences about what the frames tell."""
    if grid.direction is MetricDirection.NEITHER:
        return ["no cell is framed, as neither high nor low values are better"]
    notes = []
    framed = [arm for arm in grid.arms if _has_frames(arm)]
    if framed:
        notes.append(
            "a solid frame: the best cell of a panel; dashed frames: the cells among which it is, "
            "with 95 % confidence (one-sided tests of differences to the best mean, paired by "
            "seed, Bonferroni)"
        )
    if len(framed) < len(grid.arms):
        where = "in a panel without frames " if framed else ""
        notes.append(f"{where}no cell can be told from the best with these seeds")
    return notes


def _has_frames(arm: _ArmCells) -> bool:
    return any(not cell.is_candidate for cell in arm.cells.values())


def _make_records(grid: _Grid) -> list[chart.Record]:
    """Return the numbers of all cells of all arms, also of those without a run."""
    records = []
    for arm in grid.arms:
        for row, up in enumerate(grid.ys):
            for place, across in enumerate(grid.xs):
                values = {grid.y: json.loads(up), grid.x: json.loads(across)}
                numbers = _numbers(arm.cells.get((row, place)))
                records.append({"row": arm.label, **values, "metric": grid.metric, **numbers})
    return records


def _numbers(cell: _Cell | None) -> chart.Record:
    """Return the numbers of a cell; none where it has no run."""
    if cell is None:
        return {"mean": None, "low": None, "high": None, "n": 0, "may_be_best": None}
    return {
        "mean": cell.mean,
        "low": cell.low,
        "high": cell.high,
        "n": cell.n,
        "may_be_best": cell.is_candidate,
    }


def _show(text: str) -> str:
    return printable_line(show_key(json.loads(text)))


def _count_columns(panels: int, values: int) -> int:
    """Return how many panels stand next to each other so that their cells are readable."""
    for columns in (3, 2):
        if columns <= panels and (_WIDTH / columns - _LABELS) / values >= _READABLE:
            return columns
    return 1
