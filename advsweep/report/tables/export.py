"""Writes a report as CSV, JSON, Markdown or LaTeX; `terminal` writes it for people.

CSV and JSON are for programs and unrounded. Markdown and LaTeX escape the texts of the data.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, TypeVar

from advsweep.errors import ConfigError, nearest
from advsweep.printable import markdown_text, printable_json, printable_line, spreadsheet_cell
from advsweep.report.tables.layout import lay_out
from advsweep.report.tables.types import (
    NO_NUMBER,
    Difference,
    Document,
    Entry,
    Line,
    Mark,
    Provenance,
    Report,
    Table,
)

_DESCRIBED = (
    *("difference", "difference_low", "difference_high", "pairs", "df"),
    *("effect", "p_better"),
)
_TESTED = (*_DESCRIBED, "p", "p_permutation", "p_adjusted", "seeds_needed")


def flat_rows(report: Report) -> tuple[list[str], list[list[Any]]]:
    """The report as a header and one list of values for each row.

    The columns are the config keys that name rows, `n`, `rank`, `rank_low` and `rank_high` if
    the rows are ranked, for each column NAME, NAME_low, NAME_high and NAME_n, and for each
    primary outcome and each other compared column the difference to the baseline, with p values
    of the primary outcomes alone. A value that a row lacks is None.
    """
    names = [column.name for column in report.columns]
    differences = {(d.row, d.column.name): d for d in report.differences}
    compared = {
        d.column.name: [
            part
            for part in (_TESTED if d.is_primary else _DESCRIBED)
            if part != "p_better" or d.improvement is not None
        ]
        for d in report.differences
    }
    of_columns = [f"{name}{suffix}" for name in names for suffix in ("", "_low", "_high", "_n")]
    of_differences = [f"{name}_{part}" for name, parts in compared.items() for part in parts]
    rows = []
    for i, row in enumerate(report.rows):
        values = [row.group.get(key) for key in report.keys]
        values.append(row.n)
        if report.ranks:
            rank = report.ranks.get(i)
            values += [None] * 3 if rank is None else [rank.place, rank.low, rank.high]
        for name in names:
            cell = row.cells[name]
            values += [cell.mean, cell.low, cell.high, cell.n]
        for name, parts in compared.items():
            difference = differences.get((i, name))
            plain = {} if difference is None else _plain_difference(difference)
            values += [plain.get(part) for part in parts]
        rows.append(values)
    ranks = ["rank", "rank_low", "rank_high"] if report.ranks else []
    return [*report.keys, "n", *ranks, *of_columns, *of_differences], rows


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


def _field(value: float | None) -> float | int | str:
    return "" if value is None or math.isnan(value) else value


def _plain_key(value: Any) -> Any:
    return value if isinstance(value, (str, float, int)) else json.dumps(value)


def to_json(report: Report) -> str:
    """Writes the rows with every value, and the provenance; non-finite numbers are null."""
    document = {
        "rows": [
            {
                "group": row.group,
                "n": row.n,
                "runs": row.runs,
                "seeds": row.seeds,
                "pruned": row.pruned,
                "metrics": {c.name: asdict(row.cells[c.name]) for c in report.columns},
                **({"rank": asdict(report.ranks[i])} if i in report.ranks else {}),
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
    """Writes a report as text that ends with a line break; equal data give equal bytes.

    Raises:
        ConfigError: there is no such format.
    """
    return writer(FORMATS, format)(report)


def writer(formats: Mapping[str, Callable[[T], str]], name: str) -> Callable[[T], str]:
    """Returns the function that writes a format.

    Raises:
        ConfigError: the format does not exist.
    """
    if name not in formats:
        raise ConfigError(
            f"format: expected one of {', '.join(formats)}, got {name!r}; {nearest(name, formats)}"
        )
    return formats[name]


_MARKDOWN = {Mark.BEST: "**{}**", Mark.SECOND: "<u>{}</u>", None: "{}"}
_MARKDOWN_LEGEND = {Mark.BEST: "**bold**", Mark.SECOND: "<u>underlined</u>"}
_COMMAND = re.compile(r"(`advsweep [\w .=:+-]*`)")
# What begins a heading, a quotation, a list or the target of a link at the start of an item.
_BLOCK = re.compile(r"^(\s*\d*)(\[|>|#|[-+.)](?=\s))")
_LATEX = {Mark.BEST: r"\textbf{{{}}}", Mark.SECOND: r"\underline{{{}}}", None: "{}"}
_LATEX_LEGEND = {Mark.BEST: "bold", Mark.SECOND: "underlined"}
_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


def to_markdown(document: Document) -> str:
    """Writes tables with best means bold and second ones underlined, and the texts below them."""
    blocks = [_markdown_table(table) for table in document.tables]
    legend = [
        f"{_MARKDOWN_LEGEND[mark]}: {_markdown_note(text)}"
        for mark, text in document.legend.items()
    ]
    notes, provenance = (
        map(_markdown_note, texts) for texts in (document.notes, document.provenance)
    )
    below = [f"- {line}" for line in (*notes, *legend, *provenance)]
    return "\n\n".join([*blocks, "\n".join(below)]) + "\n"


def _markdown_table(table: Table) -> str:
    # Markdown has one line of headings.
    header = [*table.names, *(" ".join(heading.levels) for heading in table.columns)]
    left = len(table.names) - table.numbers
    alignment = [*(":--" for _ in range(left)), *("--:" for _ in header[left:])]
    rows = [
        [*map(markdown_text, line.names), *(_markdown_entry(entry) for entry in line.entries)]
        for line in table.lines
    ]
    title = [f"**{markdown_text(table.title)}**", ""] if table.title else []
    lines = [[markdown_text(title) for title in header], alignment, *rows]
    return "\n".join([*title, *(f"| {' | '.join(line)} |" for line in lines)])


def _markdown_note(text: str) -> str:
    """Writes a sentence as a list item; our commands in backticks stay code."""
    parts = _COMMAND.split(text)
    escaped = "".join(part if i % 2 else markdown_text(part) for i, part in enumerate(parts))
    return _BLOCK.sub(r"\1\\\2", escaped, count=1)


def _markdown_entry(entry: Entry) -> str:
    parts = [_MARKDOWN[entry.mark].format(markdown_text(entry.text))]
    parts += [f"±{entry.half_width}"] if entry.half_width else []
    return " ".join([*parts, *([markdown_text(entry.aside)] if entry.aside else [])])


def to_latex(document: Document) -> str:
    r"""Writes a booktabs `tabular` for each table; the texts below it are comments."""
    document = document.map_texts(_one_line)
    legend = [f"{_LATEX_LEGEND[mark]}: {text}" for mark, text in document.legend.items()]
    below = [*document.notes, *legend, *document.provenance]
    lines = [r"% \usepackage{booktabs}"]
    for i, table in enumerate(document.tables):
        lines += [r"\par\bigskip"] if i else []
        lines += _latex_table(table)
    return "\n".join([*lines, *(f"% {line}" for line in below), ""])


def _one_line(text: str) -> str:
    """Joins lines: a line break ends a comment, and an empty line a paragraph."""
    return printable_line(" ".join(text.splitlines()))


def _latex_table(table: Table) -> list[str]:
    left = len(table.names) - table.numbers
    aligned = "l" * left + "r" * (table.numbers + len(table.columns))
    body: list[str] = []
    for i, section in enumerate(table.sections):
        body += [r"  \midrule"] if i else []
        body += [_latex_line(line) for line in section]
    return [
        *([f"% {table.title}"] if table.title else []),
        rf"\begin{{tabular}}{{{aligned}}}",
        r"  \toprule",
        *_latex_header(table),
        r"  \midrule",
        *body,
        r"  \bottomrule",
        r"\end{tabular}",
    ]


def _latex_header(table: Table) -> list[str]:
    lines: list[str] = []
    for level in range(table.levels - 1):
        cells, rules, place = [""] * len(table.names), [], len(table.names) + 1
        for text, span in table.spans(level):
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{latex(text)}}}")
            rules.append(rf"\cmidrule(lr){{{place}-{place + span - 1}}}")
            place += span
        lines += [f"  {' & '.join(cells)} \\\\", f"  {' '.join(rules)}"]
    own = [*table.names, *(heading.levels[-1] for heading in table.columns)]
    return [*lines, f"  {' & '.join(map(latex, own))} \\\\"]


def _latex_line(line: Line) -> str:
    cells = [*map(latex, line.names), *map(_latex_entry, line.entries)]
    # LaTeX reads a bracket at the start of a line as an option of the \\ before it.
    first = f"{{}}{cells[0]}" if cells[0].startswith(("[", "*")) else cells[0]
    return f"  {' & '.join([first, *cells[1:]])} \\\\"


def latex(text: str) -> str:
    """Escapes what LaTeX reads as commands."""
    return "".join(_LATEX_SPECIAL.get(character, character) for character in text)


def _latex_entry(entry: Entry) -> str:
    if entry.text == NO_NUMBER:
        return "--"
    # Math mode makes a minus sign of a hyphen.
    text = f"${entry.text}$" if _is_signed(entry) else latex(entry.text)
    parts = [_LATEX[entry.mark].format(text)]
    parts += [rf"$\pm$ {entry.half_width}"] if entry.half_width else []
    return " ".join([*parts, *([latex(entry.aside)] if entry.aside else [])])


def _is_signed(entry: Entry) -> bool:
    return entry.value is not None and entry.text[:1] in ("-", "+") and "e" not in entry.text
