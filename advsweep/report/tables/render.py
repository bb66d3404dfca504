"""A report as tables of text, as records for CSV and the API, and as plain data for JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from advsweep.report.data.columns import Column
from advsweep.report.data.runs import Group, show_key
from advsweep.report.tables.comparison import find_marks, show_seeds
from advsweep.report.tables.notes import difference_notes, legend, notes, provenance
from advsweep.report.tables.types import Cell, Difference, Report, Row
from advsweep.statistics import Comparison
from advsweep.writing import (
    Document,
    Entry,
    Heading,
    Line,
    Mark,
    Table,
    show,
    show_interval,
    show_p,
    write,
)


def lay_out(report: Report) -> Document:
    """Lays out the report's tables and the texts below them."""
    marked = find_marks(report)
    table = _pivoted(report, marked.cells) if report.pivot else _plain(report, marked.cells)
    described = [d for d in report.differences if not d.is_primary]
    differences = [_differences(report, own) for own in (report.primary, described) if own]
    return Document(
        tables=(table, *differences),
        notes=(*notes(report, marked), *difference_notes(report)),
        provenance=tuple(provenance(report)),
        legend=legend({entry.mark for line in table.lines for entry in line.entries} - {None}),
    )


def _plain(report: Report, marked: Mapping[tuple[int, str], Mark]) -> Table:
    keys = report.keys
    ranked = bool(report.ranks)
    lines = [
        Line(
            names=(*_names(row.group, keys), *([_rank(report, i)] if ranked else []), str(row.n)),
            entries=tuple(
                _entry(row.cells[c.name], row.n, marked.get((i, c.name))) for c in report.columns
            ),
        )
        for i, row in enumerate(report.rows)
    ]
    return Table(
        names=(*keys, *(["rank"] if ranked else []), "n"),
        columns=tuple(Heading((c.header,), c.family) for c in report.columns),
        sections=_sections(report.rows, lines),
        numbers=2 if ranked else 1,
    )


def _rank(report: Report, row: int) -> str:
    """Shows the places that the data leave open to a row: `3` or `2-5`."""
    rank = report.ranks.get(row)
    if rank is None:
        return ""
    return str(rank.low) if rank.low == rank.high else f"{rank.low}-{rank.high}"


def _sections(rows: Sequence[Row], lines: Sequence[Line]) -> tuple[tuple[Line, ...], ...]:
    """Separates models that no run trained from the other rows."""
    pairs = groupby(zip(rows, lines, strict=True), key=lambda pair: pair[0].is_base)
    return tuple(tuple(line for _, line in members) for _, members in pairs)


def _pivoted(report: Report, marked: Mapping[tuple[int, str], Mark]) -> Table:
    """Makes one line of the rows that differ only in the pivot's keys."""
    keys = [key for key in report.keys if key not in report.pivot]
    places = _places(report)
    lines: dict[str, tuple[Row, list[tuple[int, Row]]]] = {}
    for i, row in enumerate(report.rows):
        own = {key: value for key, value in row.group.items() if key in keys}
        name = json.dumps([own, row.is_base])
        lines.setdefault(name, (row, []))[1].append((i, row))
    most = max(row.n for row in report.rows)
    return Table(
        names=tuple(keys),
        columns=tuple(
            Heading(_levels(report, place, column)) for place in places for column in report.columns
        ),
        sections=_sections(
            [first for first, _ in lines.values()],
            [
                Line(
                    names=_names(first.group, keys),
                    entries=tuple(
                        _pivot_entry(report, members, place, column, marked, most)
                        for place in places
                        for column in report.columns
                    ),
                )
                for first, members in lines.values()
            ],
        ),
        title=f"{report.columns[0].header} by {', '.join(report.pivot)}"
        if len(report.columns) == 1
        else "",
    )


def _places(report: Report) -> list[Group]:
    """Returns the values of the pivot's keys, in their order."""
    found: dict[str, Group] = {}
    for row in report.rows:
        if not row.is_base:
            place = {key: row.group[key] for key in report.pivot if key in row.group}
            found[json.dumps(place)] = place

    def order(place: Group) -> list[tuple[int, float, str]]:
        values = [place.get(key) for key in report.pivot]
        return [
            (0, float(v), "") if isinstance(v, (int, float)) else (1, 0.0, show_key(v))
            for v in values
        ]

    return sorted(found.values(), key=order)


def _levels(report: Report, place: Group, column: Column) -> tuple[str, ...]:
    values = tuple(
        f"{key}={show_key(place[key])}" if key in place else f"no {key}" for key in report.pivot
    )
    return values if len(report.columns) == 1 else (*values, column.header)


def _pivot_entry(
    report: Report,
    members: Sequence[tuple[int, Row]],
    place: Group,
    column: Column,
    marked: Mapping[tuple[int, str], Mark],
    most: int,
) -> Entry:
    for i, row in members:
        own = {key: row.group[key] for key in report.pivot if key in row.group}
        # A base model that all values share has no value of the pivot.
        if own == place or (row.is_base and not own):
            n = row.n if row.is_base else most
            return _entry(row.cells[column.name], n, marked.get((i, column.name)))
    return Entry()


def _names(group: Group, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(show_key(group[key]) if key in group else "" for key in keys)


def _entry(cell: Cell, n: int, mark: Mark | None) -> Entry:
    if cell.n == 0:
        return Entry()
    asides = [f"(n={cell.n})"] if cell.n != n else []
    if cell.is_one_sided:
        asides.insert(0, f"[{show(cell.low)}, {show(cell.high)}]")
        return Entry(show(cell.mean), "", mark, " ".join(asides), cell.mean)
    mean, half_width = show_interval(cell.mean, cell.half_width)
    if not math.isnan(cell.over_problems):
        mean, half = show_interval(cell.mean, cell.over_problems)
        asides.insert(0, f"(±{half})")
    return Entry(mean, half_width, mark, " ".join(asides), cell.mean)


def _differences(report: Report, differences: Sequence[Difference]) -> Table:
    """Lay out differences, all primary or none: a section for each column, a line for each row."""
    primary = differences[0].is_primary
    keys = [k for k in report.keys if any(k in report.rows[d.row].group for d in differences)]
    permuted = primary and any(not math.isnan(d.comparison.p_permutation) for d in differences)
    ranked = any(d.improvement is not None for d in differences)
    headings = ["difference", "95 % interval", "n", "df"]
    headings += ["p", *(["p perm"] if permuted else []), "p adj"] if primary else []
    headings += ["effect", *(["P(better)"] if ranked else [])]
    headings += ["seeds needed"] if primary else []
    sections = []
    for column, members in groupby(differences, key=lambda d: d.column):
        listed = [
            Line(
                names=(column.header, *_names(report.rows[d.row].group, keys)),
                entries=tuple(_difference(d, permuted=permuted, ranked=ranked)),
            )
            for d in members
        ]
        sections.append(tuple(listed))
    kind = "primary outcomes" if primary else "other columns (descriptive, not tested)"
    return Table(
        names=("column", *keys),
        columns=tuple(Heading((heading,), "difference") for heading in headings),
        sections=tuple(sections),
        title=f"Differences to {report.baseline}: {kind}",
    )


def show_difference(comparison: Comparison) -> tuple[str, str]:
    """Formats a difference with its sign, and its 95 % interval: `no spread` without one.

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


def _difference(difference: Difference, *, permuted: bool, ranked: bool) -> list[Entry]:
    c, chance, seeds = difference.comparison, difference.improvement, difference.seeds

    def number(value: float, form: str) -> Entry:
        return Entry("–" if math.isnan(value) else format(value, form), value=value)

    def p(value: float) -> Entry:
        return Entry(show_p(value) or "–", value=value)

    shown, interval = show_difference(c)
    entries = [
        Entry(shown, value=c.difference),
        Entry(interval),
        Entry(str(c.n) if c.paired else f"{c.n} unpaired", value=c.n),
        number(c.df, ".3g" if c.df % 1 else ".0f"),
    ]
    if difference.is_primary:
        entries.append(p(c.p_value if c.sd > 0 else math.nan))
        entries += [p(c.p_permutation)] if permuted else []
        entries.append(p(difference.p_adjusted))
    entries.append(number(c.effect_size, "+.2f"))
    entries += [number(math.nan if chance is None else chance, ".2f")] if ranked else []
    if difference.is_primary:
        entries.append(Entry("–" if seeds is None else show_seeds(seeds), value=seeds))
    return entries


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
