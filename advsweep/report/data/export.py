"""Runs as tidy tables for other programs, in a folder of Parquet or CSV files.

    runs          a row per run: what it is, its config by dotted keys, its summaries
    metrics       a row per metric point
    evaluations   a row per evaluation of a run: its protocol and its scores
    problems      a row per evaluation and problem: n samples, c of them correct
    tables.json   the format's version; the rows and the columns of each table

The tables are joined by `run` and `evaluation`; docs/tracking.md describes their columns. Rows are
sorted by their keys, and nothing depends on the time or the place of the export, so that exports of
the same runs of a store are equal. Texts have no control characters.

Tables are written to a new folder, a part that fits in memory at a time, and are then moved into
place: an export that was interrupted leaves the folder as it was.
"""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from advsweep.components import leaves
from advsweep.errors import AdvsweepError, ConfigError, ReportError
from advsweep.packages import extra_command
from advsweep.printable import printable, printable_json, printable_line, spreadsheet_cell
from advsweep.report.data.frames import describe_run
from advsweep.store import RunRecord, Store

FORMATS = ("csv", "parquet")
MANIFEST = "tables.json"
FORMAT = 1
_GROUP_ROWS = 200_000

# The cells of a CSV: NaN is `nan`, a missing value is empty.
_CELLS: Mapping[str, Callable[[Any], Any]] = {
    "text": spreadsheet_cell,
    "integer": lambda value: value,
    "number": lambda value: None if value is None else float(value),
    "boolean": lambda value: None if value is None else str(value).lower(),
    "time": lambda value: None if value is None else value.isoformat(),
}

_COLUMNS: Mapping[str, Sequence[str]] = {
    "runs": [
        *("run", "identity", "attempt", "config_hash", "sweeps", "estimator", "backend", "seed"),
        *("status", "failure", "error", "step", "steps", "created", "started", "finished"),
        "config",
    ],
    "metrics": ["run", "metric", "step", "value"],
    "evaluations": [
        *("run", "step", "evaluation", "task", "split", "problems", "samples", "created"),
        "settings",
    ],
    "problems": [
        *("run", "step", "evaluation", "task", "problem", "level", "n", "c", "distinct"),
        *("unscorable", "answer_entropy", "token_entropy", "right_entropy", "kl_base"),
        "right_rarefied",
    ],
}
_ENTROPIES = ("answer_entropy", "token_entropy", "right_entropy", "kl_base", "right_rarefied")
_INTEGERS = ("run", "attempt", "seed", "step", "steps", "problems", "samples", "level")
# The types of these columns that are no texts.
_TYPES: Mapping[str, str] = {
    **dict.fromkeys((*_INTEGERS, "n", "c", "distinct", "unscorable"), "integer"),
    **dict.fromkeys(("value", *_ENTROPIES), "number"),
    **dict.fromkeys(("created", "started", "finished"), "time"),
}


def export_tables(
    store: Store,
    runs: Sequence[RunRecord],
    folder: Path,
    form: str,
    on_run: Callable[[int], None] = lambda done: None,
) -> dict[str, int]:
    """Write the tables of some runs to a folder, and replace those of an earlier export.

    Args:
        folder: new, empty, or the folder of an earlier export.
        form: one of `FORMATS`.
        on_run: receives the number of runs whose metrics were read.

    Returns:
        The number of rows of each table.

    Raises:
        ReportError: the folder holds something else.
        OSError: it cannot be written to.
        ConfigError: pyarrow is needed and not installed.
    """
    _refuse_other_folder(folder)
    runs = sorted(runs, key=lambda run: run.id)
    evaluations: list[dict[str, Any]] = []
    # The rows of the evaluations are made while their problems are read.
    parts_of: Mapping[str, Callable[[], Iterator[Any]]] = {
        "runs": lambda: iter([_describe_runs(store, runs)]),
        "metrics": lambda: _read_points(store, runs, on_run),
        "problems": lambda: _read_problems(store, runs, evaluations),
        "evaluations": lambda: iter([evaluations]),
    }
    manifest: dict[str, Any] = {"format": FORMAT, "tables": {}}
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name[:50]}-", dir=folder.absolute().parent))
    try:
        for name, parts in parts_of.items():
            file = f"{name}.{form}"
            rows, columns = _write_table(new / file, name, parts())
            listed = [{"name": column, "type": kind} for column, kind in columns.items()]
            manifest["tables"][name] = {"file": file, "rows": rows, "columns": listed}
        (new / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        # The manifest first: it says whose files the others are.
        for path in sorted(new.iterdir(), key=lambda path: path.name != MANIFEST):
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return {name: table["rows"] for name, table in manifest["tables"].items()}


def _refuse_other_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than an earlier export."""
    if folder.exists() and not folder.is_dir():
        raise ReportError(f"{folder}: expected a folder, got a file")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise ReportError(
            f"{folder}: expected a new or empty folder, or one of an earlier export; it holds "
            "other files"
        )


def _describe_runs(store: Store, runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return the rows of the runs: what each is, its config, and its summaries."""
    summaries = store.metrics.summaries([run.id for run in runs])
    rows = []
    for run in runs:
        row = {f"config.{key}": value for key, value in leaves(run.config, named=True)}
        row |= {f"summary.{key}": value for key, value in summaries.get(run.id, {}).items()}
        rows.append(row | {**describe_run(run), "config": run.config})
    return rows


def _read_points(
    store: Store, runs: Sequence[RunRecord], on_run: Callable[[int], None]
) -> Iterator[Mapping[str, Any]]:
    for done, run in enumerate(runs, 1):
        part: dict[str, list[Any]] = {name: [] for name in _COLUMNS["metrics"]}
        for name in store.metrics.names(run.id):
            steps, values = store.metrics.series([run.id], name)[run.id]
            part["run"] += [run.id] * len(steps)
            part["metric"] += [printable_line(name)] * len(steps)
            part["step"] += steps.tolist()
            part["value"] += values.tolist()
        yield part
        on_run(done)


def _read_problems(
    store: Store, runs: Sequence[RunRecord], evaluations: list[dict[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Yield the counts of each evaluation, and append its row to `evaluations`."""
    for run in runs:
        records = store.evaluations.select([run.id], split=None)
        for record in sorted(records, key=lambda record: (record.step, record.identity)):
            count = len(record.problem_ids)
            keys = {"run": run.id, "step": record.step, "evaluation": record.identity}
            scores: Mapping[str, float] = {}
            # The counts of a store from elsewhere stay, in the table of problems.
            with suppress(KeyError, TypeError, ValueError, AdvsweepError):
                scores = record.scores()
            evaluations.append(
                {f"score.{name}": value for name, value in scores.items()}
                | keys
                | {
                    "task": record.task,
                    "split": record.settings.get("split", "held_out"),
                    "problems": count,
                    "samples": int(record.n.sum()),
                    "created": record.created,
                    "settings": record.settings,
                }
            )
            yield {
                **{name: [value] * count for name, value in keys.items()},
                "task": [printable_line(record.task)] * count,
                "problem": [printable_line(problem) for problem in record.problem_ids],
                **record.columns,
            }


def _write_table(path: Path, name: str, parts: Iterator[Any]) -> tuple[int, Mapping[str, str]]:
    """Write a table part by part; return the number of its rows and the types of its columns.

    A part is a mapping of columns, or the list of all rows, which may have more columns.
    """
    columns = {column: _TYPES.get(column, "text") for column in _COLUMNS[name]}
    count = 0
    with ExitStack() as stack:
        write = None
        for part in parts:
            if isinstance(part, list):
                part, columns = _as_columns(part, columns)
            write = write or _open_file(path, columns, stack)
            write(part)
            count += len(part["run"])
        if write is None:
            _open_file(path, columns, stack)
    return count, columns


def _as_columns(
    rows: Sequence[Mapping[str, Any]], fixed: Mapping[str, str]
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Return rows as columns; those besides the fixed ones are sorted."""
    more = sorted({key for row in rows for key in row} - fixed.keys())
    # Two keys may differ in control characters alone; the first stays.
    sources = {printable_line(key): key for key in reversed(more)}
    columns: dict[str, list[Any]] = {}
    types: dict[str, str] = {}
    for name in [*fixed, *sorted(sources)]:
        values = [row.get(sources.get(name, name)) for row in rows]
        types[name] = fixed.get(name) or _type_of(values)
        columns[name] = [_plain(value, types[name]) for value in values]
    return columns, types


def _type_of(values: Sequence[Any]) -> str:
    """Return the type that holds all values of a column; texts hold any."""
    present = [value for value in values if value is not None]
    kinds = set(map(type, present))
    if kinds == {bool}:
        return "boolean"
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in present):
        return "integer"
    with suppress(OverflowError):
        if kinds and kinds <= {int, float} and list(map(float, present)):
            return "number"
    return "text"


def _plain(value: Any, kind: str) -> Any:
    """Return a value as its column's type has it."""
    if value is None:
        return None
    if kind == "number":
        return float(value)
    if kind != "text":
        return value
    if isinstance(value, str):
        return printable(value)
    return printable_json(json.dumps(value, sort_keys=True))


def _open_file(
    path: Path, columns: Mapping[str, str], stack: ExitStack
) -> Callable[[Mapping[str, Any]], Any]:
    """Return what appends rows to a new file; the stack closes it."""
    if path.suffix == ".csv":
        file = stack.enter_context(path.open("x", encoding="utf-8", newline=""))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(spreadsheet_cell, columns))

        def append(part: Mapping[str, Any]) -> None:
            cells = [map(_CELLS[kind], part[name]) for name, kind in columns.items()]
            writer.writerows(zip(*cells, strict=True))

        return append
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            f"--to parquet: expected pyarrow; install it with `{extra_command('data')}`"
        ) from error
    types = {
        "text": pyarrow.string(),
        "integer": pyarrow.int64(),
        "number": pyarrow.float64(),
        "boolean": pyarrow.bool_(),
        "time": pyarrow.timestamp("us", tz="UTC"),
    }
    fields = [pyarrow.field(name, types[kind]) for name, kind in columns.items()]
    schema = pyarrow.schema(fields, metadata={"advsweep.tables": str(FORMAT)})
    parquet = pyarrow.parquet.ParquetWriter(path, schema, compression="zstd")
    # Each write makes a row group, of which readers want few and large ones.
    waiting: list[Any] = []

    def write_group() -> None:
        if waiting:
            parquet.write_table(pyarrow.concat_tables(waiting))
            waiting.clear()

    def append_table(part: Mapping[str, Any]) -> None:
        arrays = [pyarrow.array(part[field.name], field.type) for field in fields]
        waiting.append(pyarrow.Table.from_arrays(arrays, schema=schema))
        if sum(map(len, waiting)) >= _GROUP_ROWS:
            write_group()

    stack.callback(parquet.close)
    stack.callback(write_group)
    return append_table
