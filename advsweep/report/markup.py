"""Markdown and LaTeX: for notes and papers."""

from __future__ import annotations

from advsweep.report.table import MISSING, Document, Entry, Line, Mark, Table

_MARKDOWN = {Mark.BEST: "**{}**", Mark.SECOND: "<u>{}</u>", None: "{}"}
_MARKDOWN_LEGEND = {Mark.BEST: "**bold**", Mark.SECOND: "<u>underlined</u>"}
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
    legend = [f"{_MARKDOWN_LEGEND[mark]}: {text}" for mark, text in document.legend.items()]
    below = [f"- {line}" for line in (*document.notes, *legend, *document.provenance)]
    return "\n\n".join([*blocks, "\n".join(below)]) + "\n"


def _markdown_table(table: Table) -> str:
    # Markdown has one line of headings.
    header = [*table.names, *(" ".join(heading.levels) for heading in table.columns)]
    left = len(table.names) - table.numbers
    alignment = [*(":--" for _ in range(left)), *("--:" for _ in header[left:])]
    rows = [
        [*map(_markdown, line.names), *(_markdown_entry(entry) for entry in line.entries)]
        for line in table.lines
    ]
    title = [f"**{_markdown(table.title)}**", ""] if table.title else []
    lines = [[_markdown(title) for title in header], alignment, *rows]
    return "\n".join([*title, *(f"| {' | '.join(line)} |" for line in lines)])


def _markdown(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;")


def _markdown_entry(entry: Entry) -> str:
    parts = [_MARKDOWN[entry.mark].format(_markdown(entry.text))]
    parts += [f"±{entry.half_width}"] if entry.half_width else []
    return " ".join([*parts, *([_markdown(entry.aside)] if entry.aside else [])])


def to_latex(document: Document) -> str:
    r"""A `tabular` for each table, with the booktabs package; what stands below is in comments."""
    legend = [f"{_LATEX_LEGEND[mark]}: {text}" for mark, text in document.legend.items()]
    below = [*document.notes, *legend, *document.provenance]
    lines = [r"% \usepackage{booktabs}"]
    for i, table in enumerate(document.tables):
        lines += [r"\par\bigskip"] if i else []
        lines += _latex_table(table)
    # A line break in a name must not end the comment.
    return "\n".join([*lines, *(f"% {' '.join(line.split())}" for line in below), ""])


def _latex_table(table: Table) -> list[str]:
    left = len(table.names) - table.numbers
    aligned = "l" * left + "r" * (table.numbers + len(table.columns))
    body: list[str] = []
    for i, section in enumerate(table.sections):
        body += [r"  \midrule"] if i else []
        body += [_latex_line(line) for line in section]
    return [
        *([f"% {' '.join(table.title.split())}"] if table.title else []),
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
    if entry.text == MISSING:
        return "--"
    # A minus sign, where a number begins with a hyphen.
    text = f"${entry.text}$" if _is_signed(entry) else latex(entry.text)
    parts = [_LATEX[entry.mark].format(text)]
    parts += [rf"$\pm$ {entry.half_width}"] if entry.half_width else []
    return " ".join([*parts, *([latex(entry.aside)] if entry.aside else [])])


def _is_signed(entry: Entry) -> bool:
    return entry.value is not None and entry.text[:1] in ("-", "+") and "e" not in entry.text
