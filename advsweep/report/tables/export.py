"""CSV and JSON: for programs, every digit, nothing rounded."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, TypeVar

from advsweep.errors import ConfigError, nearest
from advsweep.printable import printable_json, spreadsheet_cell
from advsweep.report.data.provenance import Provenance
from advsweep.report.tables.layout import lay_out
from advsweep.report.tables.markup import to_latex, to_markdown
from advsweep.report.tables.types import Difference, Report

_COMPARED = (
    *("difference", "difference_low", "difference_high", "pairs", "p", "p_permutation"),
    *("p_adjusted", "effect", "p_better", "seeds_needed"),
)


def flat_rows(report: Report) -> tuple[list[str], list[list[Any]]]:
    """The report as a header and one list of values for each row.

    The columns are the config keys that name rows, `n`, for each column NAME, NAME_low,
    NAME_high and NAME_n, and for each compared column the difference to the baseline. A value
    that a row lacks is None.
    """
    names = [column.name for column in report.columns]
    differences = {(d.row, d.column): d for d in report.differences}
    compared = [name for name in names if any(name == column for _, column in differences)]
    of_columns = [f"{name}{suffix}" for name in names for suffix in ("", "_low", "_high", "_n")]
    of_differences = [f"{name}_{part}" for name in compared for part in _COMPARED]
    rows = []
    for i, row in enumerate(report.rows):
        values = [row.group.get(key) for key in report.keys]
        values.append(row.n)
        for name in names:
            cell = row.cells[name]
            values += [cell.mean, cell.low, cell.high, cell.n]
        for name in compared:
            difference = differences.get((i, name))
            parts = {} if difference is None else _plain_difference(difference)
            values += [parts.get(part) for part in _COMPARED]
        rows.append(values)
    return [*report.keys, "n", *of_columns, *of_differences], rows


def to_csv(report: Report) -> str:
    """The report as CSV: the columns of `flat_rows`, unrounded.

    Missing values are empty. A text that a spreadsheet would read as a formula begins with `'`.
    """
    header, rows = flat_rows(report)
    keys = len(report.keys)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(spreadsheet_cell, header))
    for i, values in enumerate(rows):
        group = report.rows[i].group
        own = [_plain_key(group.get(key, "")) for key in header[:keys]]
        writer.writerow(map(spreadsheet_cell, [*own, *map(_field, values[keys:])]))
    return buffer.getvalue()


def _plain_difference(difference: Difference) -> dict[str, Any]:
    c, improvement = difference.comparison, difference.improvement
    return {
        "difference": c.difference,
        "difference_low": c.low,
        "difference_high": c.high,
        "p": c.p_value if c.sd > 0 else None,
        "p_permutation": c.p_permutation,
        "p_adjusted": difference.p_adjusted,
        "effect": c.effect_size,
        "p_better": None if improvement is None else improvement.mean,
        "seeds_needed": difference.seeds,
        "pairs": c.n,
    }


def _field(value: float | None) -> float | int | str:
    return "" if value is None or math.isnan(value) else value


def _plain_key(value: Any) -> Any:
    return value if isinstance(value, (str, float, int)) else json.dumps(value)


def to_json(report: Report) -> str:
    """The rows with every value, and where they come from; what is not finite is null."""
    document = {
        "rows": [
            {
                "group": row.group,
                "n": row.n,
                "runs": row.runs,
                "seeds": row.seeds,
                "pruned": row.pruned,
                "metrics": {c.name: asdict(row.cells[c.name]) for c in report.columns},
            }
            for row in report.rows
        ],
        "baseline": report.baseline,
        "differences": [
            {
                "row": d.row,
                "baseline": d.baseline,
                "metric": d.column,
                **_plain_difference(d),
                "paired": d.comparison.paired,
                "target": d.target,
            }
            for d in report.differences
        ],
        "provenance": {
            **_provenance(report.provenance),
            "remarks": list(report.remarks),
            "left_out": {status.value: n for status, n in report.left_out.items()},
            "pruned": dict(report.pruned),
            "better": {column.name: column.direction.value for column in report.columns},
        },
    }
    text = json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False)
    return printable_json(text) + "\n"


def _provenance(provenance: Provenance) -> dict[str, Any]:
    return {
        key: value.isoformat() if isinstance(value, datetime) else value
        for key, value in vars(provenance).items()
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


T = TypeVar("T")


def _to_table(report: Report) -> str:
    from advsweep.report.tables.terminal import to_table  # rich is for people alone

    return to_table(lay_out(report))


FORMATS: dict[str, Callable[[Report], str]] = {
    "table": _to_table,
    "markdown": lambda report: to_markdown(lay_out(report)),
    "latex": lambda report: to_latex(lay_out(report)),
    "csv": to_csv,
    "json": to_json,
}


def render(report: Report, format: str = "table") -> str:
    """A report as text that ends with a line break; the same data give the same bytes.

    Raises:
        ConfigError: there is no such format.
    """
    return writer(FORMATS, format)(report)


def writer(formats: Mapping[str, Callable[[T], str]], name: str) -> Callable[[T], str]:
    """What writes a format.

    Raises:
        ConfigError: there is no such format.
    """
    if name not in formats:
        raise ConfigError(
            f"format: expected one of {', '.join(formats)}, got {name!r}; {nearest(name, formats)}"
        )
    return formats[name]
