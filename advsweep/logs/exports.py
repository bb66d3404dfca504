"""Tables that the web pages of trackers export: a chart of wandb's, a scalar of TensorBoard's.

wandb has three columns for each run and metric of a chart; the x axis names the first column:

    "Step","grpo-s0 - train/reward","grpo-s0 - train/reward__MIN","grpo-s0 - train/reward__MAX"

Of several points that the page draws as one, `__MIN` and `__MAX` are the extremes; they are left
out. With grouping on, a column is the mean over the runs of a group. TensorBoard has a file for
each run and tag, and names both in the file's name alone:

    run-grpo-s0-tag-train_reward.csv:    Wall time,Step,Value
"""

from __future__ import annotations

import gzip
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from advsweep.bounds import BEYOND, is_bounded
from advsweep.delimited import DelimitedTable, find_delimiter, read_table, split_line
from advsweep.errors import ConfigError
from advsweep.local_files import open_regular
from advsweep.logs.base import ImportedRun, ImportOptions, whole_step
from advsweep.logs.keys import usual_name
from advsweep.logs.names import LoggedStep, NameMap, assign, is_setting, parse_value
from advsweep.printable import printable_line
from advsweep.text_files import GZIP, encoding_of, unpacked

_MOST_BYTES = 2**30

_SERIES = re.compile(r"(?P<run>.+?) - (?P<metric>.+)", re.DOTALL)
_BOUNDS = ("__MIN", "__MAX")

# A group of runs, as `estimator: grpo` or `Group: baseline`.
_GROUP = re.compile(r"(?P<key>[\w./-]+): (?P<value>.+)")

_SCALAR = ["wall_time", "step", "value"]
_TAGGED = re.compile(r"(?:run-)?(?P<run>.+?)-tag-(?P<tag>.+)")

# The x axis with wandb's own count, and what it is called as a metric.
_OWN = ("step", "_step")


class _Series(NamedTuple):
    """A metric of a run: the column of its values."""

    run: str
    metric: str
    column: int


def is_export(file: Path) -> bool:
    """Return whether a file is a table that a tracker's web page has exported."""
    try:
        with open_regular(file.resolve()) as stream:
            is_packed = stream.peek(2)[:2] == GZIP
            packed: Any = unpacked(stream) if is_packed else stream
            start = packed.read(2**20)
    except (OSError, EOFError, gzip.BadGzipFile):
        return False
    text = start.decode(encoding_of(start), "replace").lstrip("\ufeff")
    line = text.partition("\n")[0].rstrip("\r")
    header = split_line(line, find_delimiter(line))
    return _is_chart(header) or _is_scalar(header)


def _is_chart(header: Sequence[str]) -> bool:
    """Return whether the columns are an axis and `RUN - METRIC`s, with or without their bounds."""
    if not header:  # of an empty file
        return False
    axis, *series = header
    if any(_SERIES.fullmatch(name) for name in series if name.endswith(_BOUNDS)):
        return True
    is_every = all(_SERIES.fullmatch(name) for name in series)
    return bool(series) and is_every and not _SERIES.fullmatch(axis)


def _is_scalar(header: Sequence[str]) -> bool:
    return [usual_name(name) for name in header] == _SCALAR


def runs_of_exports(
    files: Sequence[Path], root: Path, options: ImportOptions
) -> Iterator[ImportedRun]:
    """Yield the runs of tables for which `is_export` holds; a run may be in several of them.

    Args:
        root: the file or folder that the user named.

    Raises:
        ConfigError: the x axis of a chart is no step, a table is damaged, or a file does not say
            which metric it is.
    """
    runs: dict[str, ImportedRun] = {}
    steps: dict[str, list[LoggedStep]] = {}
    for file in files:
        folder = file.parent.relative_to(root).as_posix() if file != root else "."
        table = read_table(file, most_bytes=_MOST_BYTES)
        is_chart = _is_chart(table.columns)
        read = _chart(table, options) if is_chart else _scalar(table, options)
        for run, logged, notes, left_out in read:
            place = run if folder == "." else f"{folder}/{run}"
            if is_chart and len(files) == 1:
                place = f"{file.name}/{run}"
            known = runs.get(place)
            if known is None:
                known = runs[place] = ImportedRun(
                    source=place, config=_group_settings(run), steps=[], left_out=Counter()
                )
            assert isinstance(known.left_out, Counter)
            known.left_out.update(left_out)
            known.notes += notes
            steps.setdefault(place, []).extend(logged)
    for place, found in runs.items():
        found.steps = steps[place]
        yield found


_Read = tuple[str, list[LoggedStep], list[str], Counter[str]]


def _chart(table: DelimitedTable, options: ImportOptions) -> Iterator[_Read]:
    """Yield the runs of a chart of wandb."""
    series = []
    for column, name in enumerate(table.columns):
        match = _SERIES.fullmatch(name)
        if match and not name.endswith(_BOUNDS):
            series.append(_Series(match["run"], match["metric"], column))
    by_run: dict[str, list[_Series]] = {}
    for each in series:
        by_run.setdefault(each.run, []).append(each)
    axis = table.columns[0]
    notes = []
    for run, of_run in by_run.items():
        column, note = _step_column(table, of_run, options.names)
        notes = [note] if note else []
        if group := _GROUP.fullmatch(run):
            notes.append(
                f"{printable_line(group[0])} is a mean over the runs of a group, as wandb draws "
                "it: turn grouping off and export again for a run each"
            )
        left_out: Counter[str] = Counter()
        logged = []
        for line, cells in table.records:
            step = _step_at(cells[column], place=f"{table.path}: line {line}", axis=axis)
            values = _numbers(
                [(each.metric, cells[each.column]) for each in of_run if each.column != column],
                left_out,
            )
            if step is None or not values:
                continue
            logged.append(LoggedStep(step, options.names.apply(values)))
        yield run, logged, notes, left_out


def _step_column(
    table: DelimitedTable, of_run: Sequence[_Series], names: NameMap
) -> tuple[int, str]:
    """Return the column with the steps of a run, and what to say about it.

    Raises:
        ConfigError: the x axis is a time, or something else that is no step.
    """
    axis = table.columns[0]
    of_steps = [each for each in of_run if each.metric in names.steps]
    named = [each for each in of_steps if each.metric not in _OWN]
    if usual_name(axis) not in _OWN and (
        axis in names.steps or usual_name(axis) in map(usual_name, names.steps)
    ):
        return 0, ""
    if named:
        return named[0].column, ""
    if usual_name(axis) in _OWN:
        note = (
            "Step is wandb's own count, which rises with each call of log(); a chart with the x "
            "axis train/global_step exports the trainer's step"
        )
        return 0, note
    if of_steps:
        return of_steps[0].column, ""
    raise ConfigError(
        f"{table.path}: expected a chart over steps, got one over {printable_line(axis)!r}; choose "
        "the x axis Step or train/global_step on the page and export again, or name the column "
        "with --map COLUMN=step"
    )


def _step_at(cell: str, *, place: str, axis: str) -> int | None:
    """Return the step in a cell; None for an empty one.

    Raises:
        ConfigError: it is no whole number.
    """
    if not cell.strip():
        return None
    step = whole_step(cell)
    if step is None:
        raise ConfigError(
            f"{place}: expected a whole number in {printable_line(axis)!r}, the step, got "
            f"{printable_line(cell)[:40]!r}"
        )
    return step


def _scalar(table: DelimitedTable, options: ImportOptions) -> Iterator[_Read]:
    """Yield the run of a scalar of TensorBoard."""
    stem = table.path.name.removesuffix(".gz").removesuffix(".csv")
    match = _TAGGED.fullmatch(stem)
    tag = match["tag"] if match else ""
    run = match["run"] if match else stem
    wanted = [theirs for theirs in options.names.wanted if usual_name(theirs) == "value"]
    if wanted:
        tag = wanted[0]
    if not tag:
        raise ConfigError(
            f"{table.path}: expected a table that says which metric it is, got TensorBoard's "
            "columns Wall time, Step, Value in a file not called run-RUN-tag-TAG.csv; name it "
            "with --map Value=reward/mean"
        )
    left_out: Counter[str] = Counter()
    logged = []
    for line, cells in table.records:
        step = _step_at(cells[1], place=f"{table.path}: line {line}", axis=table.columns[1])
        values = _numbers([(options.names.with_slashes(tag), cells[2])], left_out)
        if step is not None and values:
            logged.append(LoggedStep(step, options.names.apply(values)))
    yield run, logged, [], left_out


def _numbers(cells: Sequence[tuple[str, str]], left_out: Counter[str]) -> dict[str, float]:
    """Return the numbers of a line by their metrics; count what is none."""
    values = {}
    for metric, cell in cells:
        if not cell.strip() or metric.startswith("_"):
            continue
        try:
            number = float(cell[:64])
        except ValueError:
            left_out[f"values of {printable_line(metric)[:200]} that are not numbers"] += 1
            continue
        if is_bounded(number):
            values[printable_line(metric)[:200]] = number
        else:
            why = BEYOND if math.isfinite(number) else "that are NaN or infinite"
            left_out[f"values of {printable_line(metric)[:200]} {why}"] += 1
    return values


def _group_settings(run: str) -> dict[str, Any]:
    """Return the settings in the name of a group, such as `estimator: grpo`."""
    settings: dict[str, Any] = {}
    match = _GROUP.fullmatch(run)
    if match and is_setting(match["key"]):
        assign(settings, match["key"], parse_value(match["value"]))
    return settings
