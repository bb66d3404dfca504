"""CSV and JSON: for programs, every digit, nothing rounded."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict
from datetime import datetime
from typing import Any

from advsweep.report.provenance import Provenance
from advsweep.report.report import Cell, Report


def to_csv(report: Report) -> str:
    """One line for each row: its group, n, and for each column NAME, _low, _high and _n.

    What a row does not have is empty.
    """
    keys = report.keys
    names = [column.name for column in report.columns]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    of_columns = [f"{name}{suffix}" for name in names for suffix in ("", "_low", "_high", "_n")]
    writer.writerow([*keys, "n", *of_columns])
    for row in report.rows:
        group = [_plain_key(row.group.get(key, "")) for key in keys]
        writer.writerow([*group, row.n, *(f for name in names for f in _fields(row.cells[name]))])
    return buffer.getvalue()


def _plain_key(value: Any) -> Any:
    return value if isinstance(value, (str, float, int)) else json.dumps(value)


def _fields(cell: Cell) -> list[float | int | str]:
    numbers = (cell.mean, cell.low, cell.high)
    return [*("" if math.isnan(number) else number for number in numbers), cell.n]


def to_json(report: Report) -> str:
    """The rows with every value, and where they come from; what is not finite is null."""
    document = {
        "rows": [
            {
                "group": row.group,
                "n": row.n,
                "seeds": row.seeds,
                "pruned": row.pruned,
                "metrics": {c.name: asdict(row.cells[c.name]) for c in report.columns},
            }
            for row in report.rows
        ],
        "provenance": {
            **_provenance(report.provenance),
            "left_out": {status.value: n for status, n in report.left_out.items()},
            "pruned": dict(report.pruned),
            "better": {column.name: column.better.value for column in report.columns},
        },
    }
    return json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


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
