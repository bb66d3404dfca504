"""Equations of the site: those of docstrings, in Unicode as everywhere else.

A page has the notation that `advsweep describe` prints and that its sentences use, so that an
equation can be read beside the text, searched for and copied.
"""

from __future__ import annotations

import html
import re

_ENTITIES = {ord(mark): f"&#{ord(mark)};" for mark in "\\`*_{}[]<>()#+-.!|&\"'"}
_NAME = re.compile(r"`([^`]+)`")


def formula(text: str) -> str:
    """Return an equation as HTML without a character that has a meaning in Markdown."""
    parts = _NAME.split(text)
    made = [
        f"<code>{part.translate(_ENTITIES)}</code>" if place % 2 else part.translate(_ENTITIES)
        for place, part in enumerate(parts)
    ]
    return f'<span class="formula">{"".join(made)}</span>'


def formulas(block: str) -> str:
    """Return the lines of a docstring's block of equations as HTML; columns stay columns."""
    rows = [re.split(r"(?<![,\s]) {2,}", line.strip()) for line in block.splitlines()]
    columns = max(map(len, rows))
    parts = [f'<div class="formulas" style="--columns: {columns}">']
    for row in rows:
        cells = [
            f"<code>{cell}</code>" if re.fullmatch(r"[a-z]\w+(=\w+)?", cell) else formula(cell)
            for cell in [*row, *[""] * (columns - len(row))]
        ]
        parts.append("<div>" + "".join(f"<span>{cell}</span>" for cell in cells) + "</div>")
    return "\n".join([*parts, "</div>\n"])


def plain(page: str) -> str:
    """Return a page in which the equations are plain text."""
    columns = page.replace("</span><span>", "    ")
    names = re.sub(r"<code>([^<]*)</code>", r"`\1`", columns)
    text = re.sub(r"</?(?:span|div)[^>]*>", "", names)
    return re.sub(r"&#\d+;", lambda entity: html.unescape(entity[0]), text)
