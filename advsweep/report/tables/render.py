"""A report as tables of text, as records for CSV and the API, and as plain data for JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from advsweep.report.data.groups import Group
from advsweep.report.data.labels import label_keys, show_key
from advsweep.report.tables.comparison import show_seeds
from advsweep.report.tables.margins import show_margin
from advsweep.report.tables.marks import find_marks
from advsweep.report.tables.notes import LEGEND, difference_notes, notes
from advsweep.report.tables.provenance import provenance
from advsweep.report.tables.types import Cell, Difference, NoteKind, Report
from advsweep.statistics import Comparison, RankInterval, equivalence_margin
from advsweep.store.seeds import UnknownSeed
from advsweep.writing import (
    Document,
    Entry,
    Line,
    Mark,
    Table,
    show,
    show_interval,
    show_p,
    write,
)


def lay_out(report: Report) -> Document:
    """Lay out the report's tables and the texts below them."""
    marks = find_marks(report)
    return Document(
        tables=(_lay_out_rows(report, marks), *lay_out_differences(report)),
        notes=(*notes(report), *difference_notes(report)),
        provenance=tuple(provenance(report)),
        legend={mark: LEGEND[mark] for mark in Mark if mark in marks.values()},
        head=report.head,
    )


def lay_out_differences(report: Report) -> list[Table]:
    """Lay out the differences of the primary outcomes, and those of the other columns."""
    described = [d for d in report.differences if not d.is_primary]
    parts = [report.primary, described]
    return [_lay_out_part(report, part) for part in parts if part]


def _lay_out_rows(report: Report, marks: Mapping[tuple[int, str], Mark]) -> Table:
    keys = report.keys
    labels = label_keys(keys)
    headings = [*labels, "rank", "n"] if report.ranks else [*labels, "n"]
    sections: dict[bool, list[Line]] = {}
    for i, row in enumerate(report.rows):
        names = show_values(row.group, keys)
        if report.tuned in row.group:
            names[keys.index(report.tuned)] += report.mark_edge(row)
        if report.ranks:
            names.append(_show_rank(report.ranks.get(i)))
        names.append(str(row.n))
        entries = [_entry(row.cells[c.name], row.n, marks.get((i, c.name))) for c in report.columns]
        line = Line(tuple(names), tuple(entries))
        sections.setdefault(row.is_untrained, []).append(line)
    return Table(
        names=tuple(headings),
        columns=tuple(c.header for c in report.columns),
        sections=tuple(map(tuple, sections.values())),
        numbers=len(headings) - len(keys),
    )


def _show_rank(rank: RankInterval | None) -> str:
    """Write the places that the data leave open to a row: `3` or `2-5`; empty for none."""
    if rank is None:
        return ""
    return str(rank.low) if rank.low == rank.high else f"{rank.low}-{rank.high}"


def show_values(group: Group, keys: Sequence[str]) -> list[str]:
    """Write the values that name a row; empty for a key that it does not have."""
    return [show_key(group[key]) if key in group else "" for key in keys]


def _entry(cell: Cell, n: int, mark: Mark | None) -> Entry:
    if cell.n == 0:
        return Entry()
    aside = f"(n={cell.n})" if cell.n != n else ""
    mean, half_width = show_interval(cell.mean, cell.half_width)
    if not math.isnan(cell.over_problems):
        mean, half = show_interval(cell.mean, cell.over_problems)
        aside = f"(±{half}) {aside}"
    return Entry(mean, half_width, mark, aside.strip(), cell.mean)


def _lay_out_part(report: Report, differences: Sequence[Difference]) -> Table:
    """Lay out differences, all primary or none: a section for each column, a line for each row."""
    used_keys = {key for d in differences for key in report.rows[d.row].group}
    keys = [key for key in report.keys if key in used_keys]
    cells = [_difference(d) for d in differences]
    # Columns that are empty for all differences are left out.
    empty = {
        heading
        for heading in ("p perm", "p equal", "P(better)")
        if all(entries[heading].value is None for entries in cells)
    }
    kind = "primary outcomes"
    if not differences[0].is_primary:
        kind = "other columns (descriptive, not tested)"
        empty |= {"p", "p perm", "p adj", "equal within", "p equal", "seeds needed"}
    headings = [heading for heading in cells[0] if heading not in empty]
    sections: dict[str, list[Line]] = {}
    for d, entries in zip(differences, cells, strict=True):
        names = (d.column.header, *show_values(report.rows[d.row].group, keys))
        line = Line(names, tuple(entries[heading] for heading in headings))
        sections.setdefault(d.column.name, []).append(line)
    return Table(
        names=("column", *label_keys(keys)),
        columns=tuple(headings),
        sections=tuple(map(tuple, sections.values())),
        title=f"Differences to {report.baseline}: {kind}",
    )


def show_difference(comparison: Comparison) -> tuple[str, str]:
    """Format a difference with its sign, and its 95 % interval: `no spread` without one.

    >>> from advsweep.statistics import compare_paired
    >>> show_difference(compare_paired([0.5, 0.7, 0.6], [0.4, 0.5, 0.3]))
    ('+0.20', '[-0.05, +0.45]')
    """
    shown, half = show_interval(comparison.difference, (comparison.high - comparison.low) / 2)
    digits = len(half.partition(".")[2])

    def end(value: float) -> str:
        return show(value) if "e" in half else f"{value:+.{digits}f}"

    sign = "" if shown.startswith("-") else "+"
    if comparison.sd > 0:
        return sign + shown, f"[{end(comparison.low)}, {end(comparison.high)}]"
    return sign + shown, "no spread"


def _difference(difference: Difference) -> dict[str, Entry]:
    """Return the cells of a difference by their headings."""
    c, chance, seeds = difference.comparison, difference.improvement, difference.seeds

    def number(value: float | None, text: str) -> Entry:
        if value is None or math.isnan(value):
            return Entry()
        return Entry(text, value=value)

    shown, interval = show_difference(c)
    p_value = c.p_value if c.sd > 0 else math.nan
    within = equivalence_margin(c)
    return {
        "difference": Entry(shown, value=c.difference),
        "95 % interval": Entry(interval),
        "n": Entry(str(c.n) if c.paired else f"{c.n} unpaired", value=c.n),
        "df": number(c.df, f"{c.df:.3g}" if c.df % 1 else f"{c.df:.0f}"),
        "p": number(p_value, show_p(p_value)),
        "p perm": number(c.p_permutation, show_p(c.p_permutation)),
        "p adj": number(difference.p_adjusted, show_p(difference.p_adjusted)),
        "equal within": Entry() if math.isnan(within) else Entry(show_margin(within), value=within),
        "p equal": number(difference.p_equal, show_p(difference.p_equal)),
        "effect": number(c.effect_size, f"{c.effect_size:+.2f}"),
        "P(better)": number(chance, f"{chance or 0:.2f}"),
        "seeds needed": number(seeds, show_seeds(seeds or 0)),
    }


def report_records(report: Report) -> list[dict[str, Any]]:
    """Return a record per row: what the CSV has.

    The columns are the config keys that name rows, `n`, `rank`, `rank_low` and `rank_high` if
    the rows are ranked, for each column NAME, NAME_low, NAME_high and NAME_n, and for each
    primary outcome and each other compared column the difference to the baseline, with p values
    and margins of equivalence of the primary outcomes alone. A number that a row lacks is None; a
    key that it lacks is empty.
    """
    compared = {(d.row, d.column.name): plain_difference(d) for d in report.differences}
    parts: dict[str, dict[str, None]] = {}
    for (_, name), numbers in compared.items():
        parts.setdefault(name, {}).update(dict.fromkeys(numbers))
    records = []
    for i, row in enumerate(report.rows):
        record: dict[str, Any] = {key: row.group.get(key, "") for key in report.keys}
        record["n"] = row.n
        if report.ranks:
            rank = report.ranks.get(i)
            for name, part in (("rank", "place"), ("rank_low", "low"), ("rank_high", "high")):
                record[name] = getattr(rank, part, None)
        for name in (column.name for column in report.columns):
            cell = row.cells[name]
            record |= {name: cell.mean, f"{name}_low": cell.low, f"{name}_high": cell.high}
            record[f"{name}_n"] = cell.n
        for name, listed in parts.items():
            numbers = compared.get((i, name), {})
            record |= {f"{name}_{part}": numbers.get(part) for part in listed}
        records.append(record)
    return records


def plain_difference(difference: Difference) -> dict[str, Any]:
    """Return the numbers of a difference: what the CSV and JSON have of it."""
    c = difference.comparison
    numbers: dict[str, Any] = {
        "difference": c.difference,
        "difference_low": c.low,
        "difference_high": c.high,
        "pairs": c.n if c.paired else 0,
        "df": c.df,
        "effect": c.effect_size,
    }
    if difference.improvement is not None:
        numbers["p_better"] = difference.improvement
    if not difference.is_primary:
        return numbers
    numbers |= {
        "p": c.p_value if c.sd > 0 else None,
        "p_permutation": c.p_permutation,
        "p_adjusted": difference.p_adjusted,
        "equal_within": equivalence_margin(c),
        "seeds_needed": difference.seeds,
    }
    if not math.isnan(difference.margin):
        numbers |= {"margin": difference.margin, "p_equal": difference.p_equal}
    return numbers


def report_data(report: Report) -> dict[str, Any]:
    """Return the rows with every value, the differences and the provenance."""
    return {
        "rows": [
            {
                "group": row.group,
                "n": row.n,
                "runs": row.runs,
                "seeds": [None if isinstance(s, UnknownSeed) else s for s in row.seeds],
                "pruned": row.pruned,
                "metrics": {c.name: asdict(row.cells[c.name]) for c in report.columns},
                **({"rank": report.ranks[i]} if i in report.ranks else {}),
            }
            for i, row in enumerate(report.rows)
        ],
        "baseline": report.baseline,
        "family": {
            "outcomes": list(dict.fromkeys(d.column.name for d in report.primary)),
            "arms": len({d.row for d in report.primary}),
            "size": report.family_size,
            "correction": "Benjamini-Hochberg",
        },
        "differences": [
            {
                "row": d.row,
                "baseline": d.baseline,
                "metric": d.column.name,
                "primary": d.is_primary,
                **plain_difference(d),
                "p_better": d.improvement,
                "paired": d.comparison.paired,
                "pooled": d.comparison.pooled,
                "target": d.target,
            }
            for d in report.differences
        ],
        "provenance": {
            **report.provenance,
            "remarks": (*report.remarks, *report.texts(NoteKind.REVISION)),
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
