"""Markdown and LaTeX: for notes and papers."""

from __future__ import annotations

import math

from advsweep.report.marks import Mark, marks
from advsweep.report.notes import notes, provenance
from advsweep.report.numbers import show, show_key
from advsweep.report.report import Cell, Report

MISSING = "–"

_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


def to_markdown(report: Report) -> str:
    """A table with best means bold and second ones underlined, and what stands below it."""
    header = [*report.keys, "n", *(column.header for column in report.columns)]
    marked = marks(report)
    rows = []
    for i, row in enumerate(report.rows):
        group = [_markdown(show_key(row.group[k])) if k in row.group else "" for k in report.keys]
        cells = [
            _markdown_cell(row.cells[c.name], row.n, marked.get((i, c.name)))
            for c in report.columns
        ]
        rows.append([*group, str(row.n), *cells])
    alignment = [*(":--" for _ in report.keys), "--:", *("--:" for _ in report.columns)]
    table = [[_markdown(title) for title in header], alignment, *rows]
    lines = [f"| {' | '.join(line)} |" for line in table]
    below = [*notes(report, "**bold**", "<u>underlined</u>"), *provenance(report)]
    return "\n".join([*lines, "", *(f"- {line}" for line in below), ""])


def _markdown(text: str) -> str:
    return text.replace("|", r"\|")


def _markdown_cell(cell: Cell, n: int, mark: Mark | None) -> str:
    if cell.n == 0:
        return MISSING
    mean = show(cell.mean)
    wrapped = {Mark.BEST: f"**{mean}**", Mark.SECOND: f"<u>{mean}</u>", None: mean}[mark]
    return wrapped + half_width(cell, " ±{}") + own_n(cell, n)


def to_latex(report: Report) -> str:
    r"""A `tabular` for the booktabs package; what stands below it is in comments."""
    marked = marks(report)
    header = [*report.keys, "n", *(column.header for column in report.columns)]
    rows = []
    for i, row in enumerate(report.rows):
        group = [latex(show_key(row.group[k])) if k in row.group else "" for k in report.keys]
        cells = [
            _latex_cell(row.cells[c.name], row.n, marked.get((i, c.name))) for c in report.columns
        ]
        rows.append([*group, str(row.n), *cells])
    bases = sum(row.is_base for row in report.rows)
    body = [f"  {' & '.join(row)} \\\\" for row in rows]
    if 0 < bases < len(body):
        body.insert(bases, r"  \midrule")
    below = [*notes(report, "bold", "underlined"), *provenance(report)]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            rf"\begin{{tabular}}{{{'l' * len(report.keys)}{'r' * (1 + len(report.columns))}}}",
            r"  \toprule",
            f"  {' & '.join(latex(title) for title in header)} \\\\",
            r"  \midrule",
            *body,
            r"  \bottomrule",
            r"\end{tabular}",
            *(f"% {line}" for line in below),
            "",
        ]
    )


def latex(text: str) -> str:
    """A text with what LaTeX would take for commands escaped."""
    return "".join(_LATEX_SPECIAL.get(character, character) for character in text)


def _latex_cell(cell: Cell, n: int, mark: Mark | None) -> str:
    if cell.n == 0:
        return "--"
    mean = show(cell.mean)
    wrapped = {
        Mark.BEST: rf"\textbf{{{mean}}}",
        Mark.SECOND: rf"\underline{{{mean}}}",
        None: mean,
    }[mark]
    return wrapped + half_width(cell, r" $\pm$ {}") + own_n(cell, n)


def half_width(cell: Cell, template: str) -> str:
    """The interval, if there is one."""
    return "" if math.isnan(cell.half_width) else template.format(show(cell.half_width))


def own_n(cell: Cell, n: int) -> str:
    """How many runs have this number, where that is not all of the row's."""
    return f" (n={cell.n})" if cell.n != n else ""
