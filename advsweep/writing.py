r"""Write tables, records and documents as text: one writer for reports, claims and listings.

    write(content, "table")       for a terminal; a table that is too wide becomes several, or wraps
    write(content, "markdown")    for GitHub; write(content, "latex") a booktabs `tabular`
    write(records, "csv")         unrounded; no cell can act as a formula in a spreadsheet
    write(anything, "json")       NaN and infinity are null, enums and times are strings

The first three take a `Document` or records; texts in it come from stores and models, so that each
format escapes them. Equal data give equal bytes.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import math
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from advsweep.errors import ConfigError, nearest
from advsweep.printable import markdown_text, printable_json, printable_line, spreadsheet_cell

# Rows with the same keys.
Records = Sequence[Mapping[str, Any]]

NO_NUMBER = "–"

_DIGITS = 3  # after the point of a number without an interval
_LARGE = 6


class Mark(Enum):
    """The rank of a number in its column, where it is significant."""

    BEST = "best"
    SECOND = "second"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A cell as text.

    Attributes:
        half_width: half the interval, written after a ±; empty without one.
        mark: the rank of the number.
        aside: text after the number, such as `(n=2)`.
        value: the number before rounding, for sorting; None where it is no number.
    """

    text: str = NO_NUMBER
    half_width: str = ""
    mark: Mark | None = None
    aside: str = ""
    value: float | None = None


@dataclasses.dataclass(frozen=True)
class Line:
    """A row as text: its names, then its entries."""

    names: tuple[str, ...]
    entries: tuple[Entry, ...] = ()


@dataclasses.dataclass(frozen=True)
class Table:
    """A table as text.

    Attributes:
        names: headings of the columns that name the rows; the last `numbers` align right.
        columns: headings of the entries.
        sections: the lines, in groups that are separated.
        title: what the table shows; empty where there is one table.
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    sections: tuple[tuple[Line, ...], ...]
    title: str = ""
    numbers: int = 0

    @property
    def lines(self) -> list[Line]:
        return [line for section in self.sections for line in section]


@dataclasses.dataclass(frozen=True)
class Document:
    """Tables with the texts below them.

    Attributes:
        head: what stands above the tables, a line each.
        legend: what the marks mean that the tables have.
        notes: sentences about the numbers.
        provenance: sentences about where they come from.
    """

    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    legend: Mapping[Mark, str] = dataclasses.field(default_factory=dict)

    def map_texts(self, escape: Callable[[str], str]) -> Document:
        """Return the same document with every text in it escaped."""

        def mapped(value: Any) -> Any:
            if isinstance(value, str):
                return escape(value)
            if isinstance(value, tuple):
                return tuple(map(mapped, value))
            if isinstance(value, dict):
                return {key: mapped(item) for key, item in value.items()}
            if dataclasses.is_dataclass(value):
                return type(value)(**{key: mapped(item) for key, item in vars(value).items()})  # type: ignore[misc]
            return value

        document: Document = mapped(self)
        return document


def write(content: Any, format: str = "table") -> str:
    """Return content as text that ends with a line break.

    Args:
        content: a `Document` or records; for `csv` records, for `json` any plain values.

    Raises:
        ConfigError: there is no such format.
    """
    if format not in FORMATS:
        raise ConfigError(
            f"format: expected one of {', '.join(FORMATS)}, got {format!r}; "
            f"{nearest(format, FORMATS)}"
        )
    if format in ("table", "markdown", "latex") and not isinstance(content, Document):
        names = tuple(content[0]) if content else ()
        lines = tuple(Line(tuple(map(show_value, record.values()))) for record in content)
        content = Document((Table(names, (), (lines,)),))
    return FORMATS[format](content)


def plain_value(value: Any) -> Any:
    """Return a value as JSON has it: NaN and infinity become None, enums and times strings."""
    if type(value) in (str, int, bool, type(None)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain_value(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return plain_value(value.value)
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return plain_value(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    return value


def show_value(value: Any) -> str:
    """Return a value of a record as a cell: empty for a missing one, the items of a list."""
    plain = plain_value(value)
    if plain is None:
        return ""
    return " ".join(map(str, plain)) if isinstance(plain, list) else str(plain)


def show(value: float) -> str:
    """Format a number with three decimals, a large one with fewer, a tiny one as `1.23e-05`."""
    if value != 0 and abs(value) < 10**-_DIGITS:
        return f"{value:.{_DIGITS}g}"
    if abs(value) < 1000:
        return f"{value:.{_DIGITS}f}"
    return f"{value:.0f}" if abs(value) < 10**_LARGE else f"{value:.4g}"


def show_interval(mean: float, half_width: float) -> tuple[str, str]:
    """Format a mean and half its interval: two significant digits, the mean with as many decimals.

    The half width is empty if there is none, and `0` where nothing varies.

    >>> show_interval(0.49133, 0.0442)
    ('0.491', '0.044')
    """
    if not math.isfinite(half_width) or not math.isfinite(mean):
        return show(mean), ""
    if half_width == 0:
        return show(mean), "0"
    # Round first: 0.0996 becomes 0.10, not 0.100.
    digits = 1 - int(f"{half_width:.1e}".partition("e")[2])
    if digits > _LARGE:
        return f"{mean:.{_DIGITS}g}", f"{half_width:.2g}"
    return f"{mean:.{max(digits, 0)}f}", f"{half_width:.{max(digits, 0)}f}"


def show_p(value: float) -> str:
    """Format a p-value with three decimals, a smaller one as `<0.001`."""
    if math.isnan(value):
        return ""
    return "<0.001" if value < 10**-_DIGITS else f"{value:.{_DIGITS}f}"


def _write_json(content: Any) -> str:
    text = json.dumps(plain_value(content), indent=2, ensure_ascii=False, allow_nan=False)
    return printable_json(text) + "\n"


def _write_csv(records: Records) -> str:
    """Return CSV with a header line: numbers unrounded, missing ones and NaN empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    if records:
        writer.writerow(map(spreadsheet_cell, records[0]))
    for record in records:
        cells = (v if isinstance(v, float) else show_value(v) for v in record.values())
        writer.writerow([spreadsheet_cell("" if cell != cell else cell) for cell in cells])
    return buffer.getvalue()


_MARKDOWN = {Mark.BEST: "**{}**", Mark.SECOND: "<u>{}</u>", None: "{}"}
_MARKDOWN_LEGEND = {Mark.BEST: "**bold**", Mark.SECOND: "<u>underlined</u>"}
_COMMAND = re.compile(r"(`advsweep [\w .=:+-]*`)")
# What begins a heading, a quotation, a list or the target of a link at the start of an item.
_BLOCK = re.compile(r"^(\s*\d*)(\[|>|#|[-+.)](?=\s))")


def _write_markdown(document: Document) -> str:
    head = [f"- {_markdown_note(line)}" for line in document.head]
    blocks = ["\n".join(head)] if head else []
    for table in document.tables:
        header = [*table.names, *table.columns]
        left = len(table.names) - table.numbers if table.columns else len(table.names)
        lines = [[markdown_text(title.strip()) for title in header]]
        lines.append([*(":--" for _ in range(left)), *("--:" for _ in header[left:])])
        lines += [
            [*map(markdown_text, line.names), *map(_markdown_entry, line.entries)]
            for line in table.lines
        ]
        title = [f"**{markdown_text(table.title)}**", ""] if table.title else []
        blocks.append("\n".join([*title, *(f"| {' | '.join(line)} |" for line in lines)]))
    marks = document.legend.items()
    legend = [f"{_MARKDOWN_LEGEND[mark]}: {_markdown_note(text)}" for mark, text in marks]
    notes, provenance = (
        map(_markdown_note, texts) for texts in (document.notes, document.provenance)
    )
    below = [f"- {line}" for line in (*notes, *legend, *provenance)]
    return "\n\n".join([*blocks, *(["\n".join(below)] if below else [])]) + "\n"


def _markdown_note(text: str) -> str:
    """Return a sentence as a list item; our commands in backticks stay code."""
    parts = _COMMAND.split(text)
    escaped = "".join(part if i % 2 else markdown_text(part) for i, part in enumerate(parts))
    return _BLOCK.sub(r"\1\\\2", escaped, count=1)


def _markdown_entry(entry: Entry) -> str:
    parts = [_MARKDOWN[entry.mark].format(markdown_text(entry.text.strip()))]
    parts += [f"±{entry.half_width}"] if entry.half_width else []
    return " ".join([*parts, *([markdown_text(entry.aside)] if entry.aside else [])])


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
    "Δ": r"$\Delta$",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


_LATEX_SIGNED = re.compile(r"(?<![\w.])[-+]\d*\.?\d+(?![\w.])")


def _write_latex(document: Document) -> str:
    # A line break would end a comment, and an empty line a paragraph.
    document = document.map_texts(lambda text: printable_line(" ".join(text.splitlines())))
    legend = [f"{_LATEX_LEGEND[mark]}: {text}" for mark, text in document.legend.items()]
    lines = [*(f"% {line}" for line in document.head), r"% \usepackage{booktabs}"]
    for i, table in enumerate(document.tables):
        lines += [r"\par\bigskip"] if i else []
        lines += _latex_table(table)
    below = (*document.notes, *legend, *document.provenance)
    return "\n".join([*lines, *(f"% {line}" for line in below), ""])


def _latex_table(table: Table) -> list[str]:
    left = len(table.names) - table.numbers
    header = [*table.names, *table.columns]
    body: list[str] = []
    for i, section in enumerate(table.sections):
        body += [r"  \midrule"] if i else []
        for line in section:
            body.append(_latex_row(*map(latex_text, line.names), *map(_latex_entry, line.entries)))
    return [
        *([f"% {table.title}"] if table.title else []),
        rf"\begin{{tabular}}{{{'l' * left + 'r' * (table.numbers + len(table.columns))}}}",
        r"  \toprule",
        _latex_row(*map(_latex_heading, header)),
        r"  \midrule",
        *body,
        r"  \bottomrule",
        r"\end{tabular}",
    ]


def _latex_row(*cells: str) -> str:
    row = " & ".join(cells)
    # LaTeX takes a bracket at the start of a line for an option of the command before it.
    guard = "{}" if row.lstrip().startswith(("[", "*")) else ""
    return f"  {guard}{row} \\\\"


def latex_text(text: str) -> str:
    """Escape what LaTeX reads as commands."""
    return "".join(_LATEX_SPECIAL.get(character, character) for character in text)


def _latex_heading(text: str) -> str:
    """Escape a heading; a difference in it has a minus sign."""
    return latex_text(text.strip()).replace(" - ", " $-$ ")


def _latex_entry(entry: Entry) -> str:
    if entry.text == NO_NUMBER:
        return "--"
    # Math mode makes a minus sign of a hyphen.
    text = _LATEX_SIGNED.sub(r"$\g<0>$", latex_text(entry.text.strip()))
    parts = [_LATEX[entry.mark].format(text)]
    parts += [rf"$\pm$ {entry.half_width}"] if entry.half_width else []
    return " ".join([*parts, *([latex_text(entry.aside)] if entry.aside else [])])


_STYLES = {Mark.BEST: 1, Mark.SECOND: 4}
_WORDS = {Mark.BEST: "bold", Mark.SECOND: "underlined"}
_SIGNS = {Mark.BEST: "*", Mark.SECOND: "†"}
_GAP = "  "
_WIDTH = 120


def write_table(
    document: Document,
    *,
    width: int | None = None,
    styled: bool | None = None,
    wrapped: bool | None = None,
) -> str:
    """Write best means bold and second ones underlined, or with signs where nothing can be styled.

    Control characters of texts are escaped; the remaining ones are styles. Columns of numbers that
    do not fit go to a table of their own. Tables without numbers wrap their cells, all but the
    first, which one may want to copy.

    Args:
        width: characters per line; by default the terminal's, 120 without a terminal.
        styled: use escape codes; by default if stdout is a terminal.
        wrapped: wrap the cells of tables without numbers, and break the sentences below the tables
            at words; by default if stdout is a terminal.
    """
    on_screen = sys.stdout.isatty()
    styled = on_screen if styled is None else styled
    wrapped = on_screen if wrapped is None else wrapped
    width = shutil.get_terminal_size((_WIDTH, 24)).columns if width is None else width
    document = document.map_texts(printable_line)
    lines = [*document.head, *([""] if document.head else [])]
    for table in document.tables:
        if table.title:
            lines += [_style(table.title, 1 if styled else None), ""]
        if table.columns:
            parts = _fit(table, width, styled)
        else:
            parts = [_draw_listing(table, width if wrapped else None, styled)]
        for part in parts:
            lines += [*part, ""]
    words = _WORDS if styled else _SIGNS
    legend = [f"{words[mark]}: {text}" for mark, text in document.legend.items()]
    sentences = [*document.notes, *legend, *document.provenance]
    if not sentences:
        # No empty line after the last table.
        lines = lines[:-1]
    for sentence in sentences:
        lines += _wrap_sentence(sentence, width) if wrapped else [sentence]
    return "\n".join(lines) + "\n"


def _wrap_sentence(text: str, width: int) -> list[str]:
    """Break a sentence between words, and indent the lines after the first."""
    return textwrap.wrap(
        text,
        width,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _fit(table: Table, width: int, styled: bool) -> list[list[str]]:
    """Draw a table, or several with as many columns as fit."""
    names = [[name, *(line.names[i] for line in table.lines)] for i, name in enumerate(table.names)]
    cells = [_draw_column(table, i, styled) for i in range(len(table.columns))]
    room = width - sum(max(map(_cells, column)) + len(_GAP) for column in names)
    sizes = [max(map(_cells, column)) + len(_GAP) for column in cells]
    parts: list[list[int]] = []
    left = 0
    for i, size in enumerate(sizes):
        if size > left:
            parts.append([])
            left = room + len(_GAP)
        parts[-1].append(i)
        left -= size
    return [_draw(table, names, [cells[i] for i in part], styled) for part in parts]


def _draw_column(table: Table, place: int, styled: bool) -> list[str]:
    """Return the cells of a column below its heading."""
    entries = [line.entries[place] for line in table.lines]
    is_marked = any(entry.mark is not None for entry in entries)
    texts = []
    for entry in entries:
        text = _style(entry.text, _STYLES[entry.mark] if styled and entry.mark else None)
        text += f" ±{entry.half_width}" if entry.half_width else ""
        text += f" {entry.aside}" if entry.aside else ""
        if is_marked and not styled:
            text += " " if entry.mark is None else _SIGNS[entry.mark]
        texts.append(text)
    return [table.columns[place], *texts]


def _draw(
    table: Table, names: Sequence[Sequence[str]], cells: Sequence[Sequence[str]], styled: bool
) -> list[str]:
    """Return the lines of a table with numbers, with a rule below the headings."""
    columns = [*names, *cells]
    widths = [max(map(_cells, column)) for column in columns]
    left = len(names) - table.numbers
    rows = []
    for number, row in enumerate(zip(*columns, strict=True)):
        padded = []
        for i, (text, size) in enumerate(zip(row, widths, strict=True)):
            space = " " * (size - _cells(text))
            text = _style(text, 1 if styled and text and number == 0 else None)
            padded.append(text + space if i < left else space + text)
        rows.append(_GAP.join(padded).rstrip())
    header, *body = rows
    lines = [header, "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))]
    for number, section in enumerate(table.sections):
        if number:
            lines.append("")
        lines += body[: len(section)]
        body = body[len(section) :]
    return lines


def _draw_listing(table: Table, width: int | None, styled: bool) -> list[str]:
    """Return the lines of a table without numbers.

    Args:
        width: characters per line; None to wrap nothing.
    """
    rows = [table.names, *(line.names for line in table.lines)]
    widths = [max(map(_cells, column)) for column in zip(*rows, strict=True)]
    if width is not None:
        widths = fit_widths(widths, width - len(_GAP) * (len(widths) - 1))
    lines = []
    for number, row in enumerate(rows):
        cells = [wrap_cell(text, size) for text, size in zip(row, widths, strict=True)]
        for texts in itertools.zip_longest(*cells, fillvalue=""):
            padded = []
            for text, size in zip(texts, widths, strict=True):
                space = " " * (size - _cells(text))
                padded.append(_style(text, 1 if styled and text and number == 0 else None) + space)
            lines.append(_GAP.join(padded).rstrip())
    return lines


def fit_widths(widths: Sequence[int], room: int) -> list[int]:
    """Narrow the widest columns until all fit; the first one, and those of one cell, stay.

    >>> fit_widths([4, 9, 6], 15)
    [4, 5, 6]
    """
    fitted = list(widths)
    while sum(fitted) > room and max(fitted[1:], default=0) > 1:
        widest = max(range(1, len(fitted)), key=fitted.__getitem__)
        fitted[widest] -= 1
    return fitted


_WORD = re.compile(r"\s*\S+\s*")


def wrap_cell(text: str, width: int) -> list[str]:
    """Break a text at spaces into lines of at most some cells, and words that are wider anywhere.

    >>> wrap_cell("pass@8 of unbelievable", 8)
    ['pass@8', 'of', 'unbeliev', 'able']
    """
    if _cells(text) <= width:
        return [text.rstrip()]
    lines = []
    line = ""
    for word in _WORD.findall(text):
        if line and _cells(line) + _cells(word.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        while _cells(word.rstrip()) > width:
            fitting = _fitting_prefix(word, width)
            lines.append(fitting)
            word = word.removeprefix(fitting)
        line += word
    if line.strip():
        lines.append(line.rstrip())
    return lines


def _fitting_prefix(text: str, width: int) -> str:
    """Return as much of the start of a text as fits, at least a character."""
    end = 1
    while end < len(text) and _cells(text[: end + 1]) <= width:
        end += 1
    return text[:end]


def _style(text: str, code: int | None) -> str:
    return text if code is None else f"\x1b[{code}m{text}\x1b[0m"


_ESCAPE = re.compile(r"\x1b\[\d+m")


def _cells(text: str) -> int:
    """Return the width on a terminal; combining characters (the hat of p̂) take no cell."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "table": write_table,
    "markdown": _write_markdown,
    "latex": _write_latex,
    "csv": _write_csv,
    "json": _write_json,
}
