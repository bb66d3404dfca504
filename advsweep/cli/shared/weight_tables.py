"""Tables of weight changes: totals, one row per matrix, and alignment of directions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.cli.shared.output import (
    echo,
    echo_line,
    print_columns,
    print_csv,
    print_json,
    to_markdown,
)
from advsweep.diagnostics.weight_changes import HEAD
from advsweep.evaluation.analyses import align_steps
from advsweep.printable import markdown_text

if TYPE_CHECKING:
    from advsweep.diagnostics.weight_changes import Alignment, PartChange, WeightChange
    from advsweep.evaluation.analyses import StepChange
    from advsweep.store import RunRecord

Row = dict[str, Any]
Tables = Mapping[str, Sequence[Row]]

_LISTED = 3
"""Number of skipped matrices that the note names."""


@dataclass(frozen=True)
class AnalysedRun:
    """A run and its weight changes by step; at least one step."""

    run: RunRecord
    steps: Sequence[StepChange]

    @property
    def last(self) -> StepChange:
        return self.steps[-1]


@dataclass(frozen=True)
class TableChoice:
    """The format (`table`, `markdown`, `csv` or `json`) and the only table to print, if any."""

    format: str
    table: str | None


def print_pair(change: WeightChange, base: Path, tuned: Path, shown: TableChoice) -> None:
    """Prints the change between two folders."""
    tables = {"total": _totals(change), "matrices": _matrices(change)}
    _print(tables, {"base": base, "tuned": tuned, **_metadata(change)}, shown, "matrices")
    _print_notes(change)


def print_run(analysed: AnalysedRun, shown: TableChoice) -> None:
    """Prints one run at each checkpoint; table formats show the last checkpoint alone."""
    listed = shown.format in ("table", "markdown")
    at = analysed.steps[-1:] if listed else analysed.steps
    tables = {
        "total": [{"step": s.step, **row} for s in at for row in _totals(s.change)],
        "matrices": [{"step": s.step, **row} for s in at for row in _matrices(s.change)],
    }
    if len(analysed.steps) > 1:
        tables["alignment"] = list(_over_steps(analysed.steps))
    run = analysed.run
    about = {"run": run.id, "identity": run.identity, "estimator": run.estimator, "seed": run.seed}
    _print(tables, {**about, **_metadata(analysed.last.change)}, shown, "matrices")
    _print_notes(analysed.last.change)


def print_runs(analysed: Sequence[AnalysedRun], shown: TableChoice) -> None:
    """Prints several runs after their last steps, and the alignment between them."""
    pairs = list(_between(analysed))
    tables: dict[str, Sequence[Row]] = {
        "total": [_run_row(each) for each in analysed],
        "matrices": [
            {"run": each.run.id, "step": each.last.step, **row}
            for each in analysed
            for row in _matrices(each.last.change)
        ],
        "alignment": pairs,
    }
    if shown.format in ("table", "markdown"):
        tables["alignment"] = list(_by_estimator(pairs))
        if shown.table is None:
            del tables["matrices"]
    _print(tables, {}, shown, "total")
    bases = {each.last.base for each in analysed}
    if len(bases) > 1:
        echo_line(
            f"{len(bases)} base models: only runs of the same base model are compared", err=True
        )


def _totals(change: WeightChange) -> list[Row]:
    return [dataclasses.asdict(part) for part in change.parts]


def _matrices(change: WeightChange) -> list[Row]:
    return [dataclasses.asdict(matrix) for matrix in change.matrices]


def _run_row(analysed: AnalysedRun) -> Row:
    parts = {part.part: part for part in analysed.last.change.parts}
    head, layers = (parts.get(part) for part in (HEAD, "layers"))

    def of(part: PartChange | None, field: str) -> float:
        return math.nan if part is None else getattr(part, field)

    return {
        "run": analysed.run.id,
        "estimator": analysed.run.estimator,
        "seed": analysed.run.seed,
        "step": analysed.last.step,
        "norm": parts["all"].norm,
        "head_share": of(head, "share"),
        "head_s1_over_s2": of(head, "s1_over_s2"),
        "head_r1": of(head, "r1"),
        "head_srank": of(head, "srank"),
        "layers_s1_over_s2": of(layers, "s1_over_s2"),
        "layers_r1": of(layers, "r1"),
        "layers_srank": of(layers, "srank"),
        "layers_srank_most": of(layers, "srank_most"),
    }


def _over_steps(steps: Sequence[StepChange]) -> Iterable[Row]:
    """Compares each checkpoint with the previous one and with the last one."""
    for before, after in pairwise(steps):
        yield {
            "step": after.step,
            "other": before.step,
            "to": "previous",
            **_cosines(before, after),
        }
    for step in steps[:-1]:
        yield {
            "step": step.step,
            "other": steps[-1].step,
            "to": "last",
            **_cosines(step, steps[-1]),
        }


def _between(analysed: Sequence[AnalysedRun]) -> Iterable[Row]:
    for a, b in combinations(analysed, 2):
        if a.last.base == b.last.base:
            yield {
                "run": a.run.id,
                "estimator": a.run.estimator,
                "other": b.run.id,
                "other_estimator": b.run.estimator,
                **_cosines(a.last, b.last),
            }


def _cosines(a: StepChange, b: StepChange) -> Row:
    found: Alignment = align_steps(a, b)
    return dataclasses.asdict(found)


def _by_estimator(pairs: Sequence[Row]) -> Iterable[Row]:
    """Averages over the pairs of runs of each pair of estimators."""
    cosines = ("head", "layers", "early", "middle", "late")
    grouped: dict[tuple[str, str], list[Row]] = {}
    for pair in pairs:
        a, b = sorted((pair["estimator"], pair["other_estimator"]))
        grouped.setdefault((a, b), []).append(pair)
    for (a, b), members in grouped.items():
        means = {}
        for name in cosines:
            known = [m[name] for m in members if not math.isnan(m[name])]
            means[name] = sum(known) / len(known) if known else math.nan
        yield {"estimator": a, "other_estimator": b, "pairs": len(members), **means}


def _metadata(change: WeightChange) -> Row:
    return {
        "identical": all(matrix.norm == 0 for matrix in change.matrices),
        "tied": change.tied,
        "delta": change.delta,
        "vectors": change.vectors,
        "left_out": dict(change.left_out),
    }


def _print(tables: Tables, about: Row, shown: TableChoice, csv_table: str) -> None:
    if shown.table is not None:
        tables = {shown.table: tables[shown.table]}
    if shown.format == "json":
        print_json({**about, **tables})
    elif shown.format == "csv":
        rows = tables[shown.table or csv_table]
        columns = list(rows[0]) if rows else []
        print_csv(columns, [["" if _is_nan(v) else v for v in row.values()] for row in rows])
    else:
        for number, (title, rows) in enumerate(tables.items()):
            _print_table(title, rows, shown.format, first=number == 0)


def _print_table(title: str, rows: Sequence[Row], how: str, *, first: bool) -> None:
    if not rows:
        return
    cells = [_readable(row) for row in rows]
    columns = list(cells[0])
    lines = [[row[c] for c in columns] for row in cells]
    if not first:
        echo("")
    if how == "markdown":
        cells_in_markdown = [[markdown_text(cell) for cell in line] for line in lines]
        echo(to_markdown(columns, cells_in_markdown), nl=False)
        return
    echo(_TITLES[title])
    print_columns(columns, lines)


_TITLES = {
    "total": "what changed",
    "matrices": "matrix by matrix",
    "alignment": "|cos| of leading left singular vectors",
}


def _readable(row: Row) -> dict[str, str]:
    """Formats a row; shapes, errors and bounds join the column of their value."""
    cells = dict(row)
    shown: dict[str, str] = {}
    for name, value in cells.items():
        if name in ("columns", "s1", "s1_error", "s2", "s2_error", "r1_error", "srank_most"):
            continue
        if name.endswith("_srank_most"):
            continue
        if name == "rows":
            shown["shape"] = f"{value} x {cells['columns']}"
        elif name.endswith("srank"):
            shown[name] = _range(value, cells.get(f"{name}_most", value))
        elif name == "s1_over_s2":
            shown["s1/s2"] = _number(value) + _error(_gap_error(cells))
        elif name == "r1":
            shown["r1"] = _share(value) + _error(cells.get("r1_error", 0.0), ".1%")
        elif name == "share" or name.endswith(("_share", "_r1")):
            shown[name] = _share(value)
        elif isinstance(value, float):
            shown[name.replace("_s1_over_s2", "_s1/s2")] = _number(value)
        else:
            shown[name] = str(value)
    return shown


def _gap_error(cells: Row) -> float:
    """Returns the error bound of s₁/s₂ from those of s₁ and s₂."""
    if not cells.get("s2_error") or not cells["s2"]:
        return 0.0
    relative = cells["s1_error"] / cells["s1"] + cells["s2_error"] / cells["s2"]
    return float(cells["s1_over_s2"] * relative)


def _error(value: float, how: str = ".2g") -> str:
    return f" ±{value:{how}}" if value else ""


def _range(low: float, high: float) -> str:
    return _number(low) if _is_nan(low) or low == high else f"{_number(low)}-{_number(high)}"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _print_notes(change: WeightChange) -> None:
    """Prints notes beside the tables on stderr."""
    if all(matrix.norm == 0 for matrix in change.matrices):
        echo("The weights are equal: no matrix differs.", err=True)
    if change.left_out:
        some = [f"{name} ({why})" for name, why in list(change.left_out.items())[:_LISTED]]
        more = (
            f" and {len(change.left_out) - _LISTED} more" if len(change.left_out) > _LISTED else ""
        )
        echo_line(f"Skipped matrices: {', '.join(some)}{more}", err=True)
