"""Tables of a document in HTML; the page's script sorts them by their `data-value`."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from advsweep.printable import printable
from advsweep.report.claims.evaluate import Answers
from advsweep.report.claims.render import lay_out_answers
from advsweep.report.data.filters import Filter
from advsweep.report.figures.data import Material
from advsweep.report.html.curves import collect_columns, collect_curves, collect_passk, collect_rows
from advsweep.report.html.runs import collect_runs, lay_out_runs
from advsweep.report.tables.document import Document, Entry, Line, Mark, Table
from advsweep.report.tables.layout import lay_out
from advsweep.report.tables.types import Report
from advsweep.store import Store

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


_SCRIPTS = ("chart.js", "figures.js", "page.js")


def render_page(
    report: Report,
    store: Store,
    *,
    where: Sequence[Filter] = (),
    answers: Answers | None = None,
) -> str:
    """A report as an HTML page with figures and every run; the same data give the same bytes.

    Args:
        store: that the report was made of.
        where: the filters that the report's runs fulfil. Without any, all runs of its sweep
            are listed, in whatever state.
        answers: to a list of claims, in a section of their own.
    """
    document = lay_out(report)
    provenance = report.provenance
    title = provenance.sweep or provenance.store
    sections = [("report", "Comparison", document_html(document))]
    data: dict[str, Any] = {}
    # Models that were evaluated without a run have neither curves nor configs.
    if report.over == "seeds":
        runs = store.runs.select(sweep=provenance.sweep, newest_first=False)
        material = Material(store, runs, title, where)
        listed = material.runs if where else runs
        data = {
            "rows": collect_rows(material),
            "curves": collect_curves(material),
            "passk": collect_passk(material),
            "columns": collect_columns(material, report.columns),
            **collect_runs(store, listed),
        }
        table = table_html(lay_out_runs(store, listed), [run.id for run in listed])
        sections.append(("figures", "Figures", _asset("figures.html")))
        sections.append(("runs", "Runs", _asset("runs.html") + table))
    if answers is not None:
        sections.append(("claims", "Claims", document_html(lay_out_answers(answers))))
    return _page(printable(title), document.map_texts(printable).provenance, sections, data)


def _page(
    title: str,
    provenance: Sequence[str],
    sections: Sequence[tuple[str, str, str]],
    data: dict[str, Any],
) -> str:
    style = _asset("page.css")
    script = "\n".join(map(_asset, _SCRIPTS))
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    links = "".join(f'<a href="#{name}">{escape(text)}</a>' for name, text, _ in sections)
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape(title)}: advsweep report</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
        "<header>",
        f"<h1>{escape(title)}</h1>",
        f'<nav aria-label="Sections">{links}</nav>',
        '<button type="button" id="theme" title="change the colours">dark</button>',
        "</header>",
        "<main>",
        *(
            f'<section id="{name}"><h2>{escape(text)}</h2>\n{body}\n</section>'
            for name, text, body in sections
        ),
        '<section id="provenance"><h2>Provenance</h2>',
        '<ul class="notes">',
        *(f"<li>{escape(text)}</li>" for text in provenance),
        "</ul></section>",
        "</main>",
        f'<script type="application/json" id="data">{_embedded(data)}</script>',
        f"<script>{script}</script>",
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


def _asset(name: str) -> str:
    return (files("advsweep.report.html") / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What allows an inline script or style of this text, and no other."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _embedded(data: dict[str, Any]) -> str:
    """JSON in which nothing can end the element that holds it, and no text turns its direction."""
    text = json.dumps(_shown(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")


def _shown(value: Any) -> Any:
    """The same data with control characters of texts escaped, as the page shows them."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_shown(key): _shown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(item) for item in value]
    return value
