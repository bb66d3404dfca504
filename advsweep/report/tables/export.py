"""A report as records for CSV and the API, as plain data for JSON, and as text in any format."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from advsweep.report.tables.layout import lay_out
from advsweep.report.tables.types import Difference, Report
from advsweep.writing import write

_DESCRIBED = (
    *("difference", "difference_low", "difference_high", "pairs", "df"),
    *("effect", "p_better"),
)
_TESTED = (*_DESCRIBED, "p", "p_permutation", "p_adjusted", "seeds_needed")


def report_records(report: Report) -> list[dict[str, Any]]:
    """Return a record per row: what the CSV has.

    The columns are the config keys that name rows, `n`, `rank`, `rank_low` and `rank_high` if
    the rows are ranked, for each column NAME, NAME_low, NAME_high and NAME_n, and for each
    primary outcome and each other compared column the difference to the baseline, with p values
    of the primary outcomes alone. A number that a row lacks is None; a key that it lacks is empty.
    """
    differences = {(d.row, d.column.name): d for d in report.differences}
    compared = {
        d.column.name: [
            part
            for part in (_TESTED if d.is_primary else _DESCRIBED)
            if part != "p_better" or d.improvement is not None
        ]
        for d in report.differences
    }
    records = []
    for i, row in enumerate(report.rows):
        record: dict[str, Any] = {key: row.group.get(key, "") for key in report.keys}
        record["n"] = row.n
        if report.ranks:
            rank = report.ranks.get(i)
            places = (None,) * 3 if rank is None else (rank.place, rank.low, rank.high)
            record |= dict(zip(("rank", "rank_low", "rank_high"), places, strict=True))
        for name in (column.name for column in report.columns):
            cell = row.cells[name]
            record |= {name: cell.mean, f"{name}_low": cell.low, f"{name}_high": cell.high}
            record[f"{name}_n"] = cell.n
        for name, parts in compared.items():
            found = differences.get((i, name))
            plain = {} if found is None else _plain_difference(found)
            record |= {f"{name}_{part}": plain.get(part) for part in parts}
        records.append(record)
    return records


def _plain_difference(difference: Difference) -> dict[str, Any]:
    c = difference.comparison
    described = {
        "difference": c.difference,
        "difference_low": c.low,
        "difference_high": c.high,
        "effect": c.effect_size,
        "p_better": difference.improvement,
        "pairs": c.n,
        "df": c.df,
    }
    if not difference.is_primary:
        return described
    return {
        **described,
        "p": c.p_value if c.sd > 0 else None,
        "p_permutation": c.p_permutation,
        "p_adjusted": difference.p_adjusted,
        "seeds_needed": difference.seeds,
    }


def report_data(report: Report) -> dict[str, Any]:
    """Return the rows with every value, the differences and the provenance."""
    return {
        "rows": [
            {
                "group": row.group,
                "n": row.n,
                "runs": row.runs,
                "seeds": row.seeds,
                "pruned": row.pruned,
                "metrics": {c.name: asdict(row.cells[c.name]) for c in report.columns},
                **({"rank": report.ranks[i]} if i in report.ranks else {}),
            }
            for i, row in enumerate(report.rows)
        ],
        "baseline": report.baseline,
        "family": {
            "outcomes": [column.name for column in report.family.outcomes],
            "arms": report.family.arms,
            "size": report.family.size,
            "correction": "Benjamini-Hochberg",
        },
        "differences": [
            {
                "row": d.row,
                "baseline": d.baseline,
                "metric": d.column.name,
                "primary": d.is_primary,
                **_plain_difference(d),
                "paired": d.comparison.paired,
                "pooled": d.comparison.pooled,
                "target": d.target,
            }
            for d in report.differences
        ],
        "provenance": {
            **vars(report.provenance),
            "remarks": report.remarks,
            "left_out": {status.value: n for status, n in report.left_out.items()},
            "pruned": report.pruned,
            "better": {column.name: column.direction.value for column in report.columns},
        },
    }


def render(report: Report, format: str = "table") -> str:
    """Write a report as text that ends with a line break; equal data give equal bytes.

    Raises:
        ConfigError: there is no such format.
    """
    if format == "json":
        return write(report_data(report), format)
    if format != "csv":
        return write(lay_out(report), format)
    records = report_records(report)
    for record in records:
        for key in report.keys:
            if not isinstance(record[key], (str, float, int)):
                record[key] = json.dumps(record[key])
    return write(records, format)
