"""Tables of a document in HTML; the page's script sorts them by their `data-value`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from advsweep.printable import printable
from advsweep.report.table import Document, Entry, Line, Mark, Table

_TAGS = {Mark.BEST: "strong", Mark.SECOND: "u"}
_LEGEND = {Mark.BEST: "bold", Mark.SECOND: "underlined"}


def document_html(document: Document) -> str:
    """The tables, and what stands below them."""
    legend = [f"{_LEGEND[mark]}: {text}" for mark, text in document.legend.items()]
    notes = [f"<li>{escape(printable(text))}</li>" for text in (*document.notes, *legend)]
    below = ['<ul class="notes">', *notes, "</ul>"] if notes else []
    return "\n".join([*map(table_html, document.tables), *below])


def table_html(table: Table, ids: Sequence[int] = ()) -> str:
    """A table whose columns can be sorted.

    Args:
        ids: of each line what a button in its first place opens; none for no buttons.
    """
    table = table.map_texts(printable)
    opened = iter(ids)
    bodies = [
        [_line_html(table, line, next(opened, None)) for line in section]
        for section in table.sections
    ]
    return "\n".join(
        [
            '<div class="scroll"><table>',
            *([f"<caption>{escape(table.title)}</caption>"] if table.title else []),
            "<thead>",
            *_head_html(table),
            "</thead>",
            *(line for body in bodies for line in ("<tbody>", *body, "</tbody>")),
            "</table></div>",
        ]
    )


def _head_html(table: Table) -> list[str]:
    lines = []
    for level in range(table.levels - 1):
        spans = [
            f'<th colspan="{span}" scope="colgroup">{escape(text)}</th>'
            for text, span in table.spans(level)
        ]
        lines.append(f'<tr><td colspan="{len(table.names)}"></td>{"".join(spans)}</tr>')
    left = len(table.names) - table.numbers
    texts = [*table.names, *(heading.levels[-1] for heading in table.columns)]
    cells = [
        f'<th scope="col" aria-sort="none"{_class(i >= left)}>'
        f'<button type="button">{escape(text)}</button></th>'
        for i, text in enumerate(texts)
    ]
    return [*lines, f"<tr>{''.join(cells)}</tr>"]


def _line_html(table: Table, line: Line, opens: int | None) -> str:
    left = len(table.names) - table.numbers
    cells = []
    for i, name in enumerate(line.names):
        text = escape(name)
        if i == 0 and opens is not None:
            text = (
                f'<button type="button" class="open" aria-expanded="false" data-run="{opens}">'
                f"{text}</button>"
            )
        tag = "th" if i == 0 else "td"
        scope = ' scope="row"' if i == 0 else ""
        cells.append(f"<{tag}{scope}{_class(i >= left)}>{text}</{tag}>")
    return f"<tr>{''.join(cells)}{''.join(map(_entry_html, line.entries))}</tr>"


def _class(right: bool) -> str:
    return ' class="number"' if right else ""


def _entry_html(entry: Entry) -> str:
    text = escape(entry.text)
    if entry.mark is not None:
        tag = _TAGS[entry.mark]
        text = f"<{tag}>{text}</{tag}>"
    if entry.half_width:
        text += f' <span class="half">±{escape(entry.half_width)}</span>'
    if entry.aside:
        text += f' <span class="half">{escape(entry.aside)}</span>'
    known = entry.value is not None and not math.isnan(entry.value)
    value = f' data-value="{entry.value:.6g}"' if known else ""
    return f'<td class="number"{value}>{text}</td>'
