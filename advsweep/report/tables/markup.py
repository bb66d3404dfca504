"""Markdown and LaTeX: for notes and papers; texts of the data are escaped, in one line each."""

from __future__ import annotations

import re

from advsweep.printable import markdown_text, printable_line
from advsweep.report.tables.types import NO_NUMBER, Document, Entry, Line, Mark, Table

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
    """Tables with best means bold and second ones underlined, and what stands below them."""
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
    """A sentence as an item of a list; commands of ours in backticks stay code."""
    parts = _COMMAND.split(text)
    escaped = "".join(part if i % 2 else markdown_text(part) for i, part in enumerate(parts))
    return _BLOCK.sub(r"\1\\\2", escaped, count=1)


def _markdown_entry(entry: Entry) -> str:
    parts = [_MARKDOWN[entry.mark].format(markdown_text(entry.text))]
    parts += [f"±{entry.half_width}"] if entry.half_width else []
    return " ".join([*parts, *([markdown_text(entry.aside)] if entry.aside else [])])


def to_latex(document: Document) -> str:
    r"""A `tabular` for each table, with the booktabs package; what stands below is in comments."""
    document = document.map_texts(_one_line)
    legend = [f"{_LATEX_LEGEND[mark]}: {text}" for mark, text in document.legend.items()]
    below = [*document.notes, *legend, *document.provenance]
    lines = [r"% \usepackage{booktabs}"]
    for i, table in enumerate(document.tables):
        lines += [r"\par\bigskip"] if i else []
        lines += _latex_table(table)
    return "\n".join([*lines, *(f"% {line}" for line in below), ""])


def _one_line(text: str) -> str:
    """A line break ends a comment, and an empty line a paragraph."""
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
    # A bracket at the start of a line would be taken for an option of the \\ before it.
    first = f"{{}}{cells[0]}" if cells[0].startswith(("[", "*")) else cells[0]
    return f"  {' & '.join([first, *cells[1:]])} \\\\"


def latex(text: str) -> str:
    """A text with what LaTeX would take for commands escaped."""
    return "".join(_LATEX_SPECIAL.get(character, character) for character in text)


def _latex_entry(entry: Entry) -> str:
    if entry.text == NO_NUMBER:
        return "--"
    # A minus sign, where a number begins with a hyphen.
    text = f"${entry.text}$" if _is_signed(entry) else latex(entry.text)
    parts = [_LATEX[entry.mark].format(text)]
    parts += [rf"$\pm$ {entry.half_width}"] if entry.half_width else []
    return " ".join([*parts, *([latex(entry.aside)] if entry.aside else [])])


def _is_signed(entry: Entry) -> bool:
    return entry.value is not None and entry.text[:1] in ("-", "+") and "e" not in entry.text
