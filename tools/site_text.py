"""Markdown of the generated pages: escaped text, tables, docstrings."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from site_math import formulas

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Units|Example|Examples):$")
_INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
_ENTRY = re.compile(r"^    ([\w, .*]+?)(?: \(([^)]*)\))?:(?: (.*))?$")


def escape(text: str) -> str:
    """Return text as Markdown that shows it unchanged; `code` in backticks stays code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return _escape_prose(text).replace("`", "\\`")
    return "".join(f"`{part}`" if i % 2 else _escape_prose(part) for i, part in enumerate(parts))


def _escape_prose(text: str) -> str:
    escaped = re.sub(r"([\\*_\[\]])", r"\\\1", text).replace("<", "&lt;").replace(">", "&gt;")
    return link_papers(escaped)


def link_papers(text: str) -> str:
    """Return Markdown in which the numbers of papers, arXiv's or a DOI, are links."""
    text = re.sub(r"arXiv:(\d{4}\.\d{5})", r"[\g<0>](https://arxiv.org/abs/\1)", text)
    return re.sub(r"doi:(10\.\d+/[\w.-]+\w)", r"[\g<0>](https://doi.org/\1)", text)


def code(text: str) -> str:
    """Return text as inline code; of a text with backticks, or none, its escape."""
    return f"`{text}`" if text and "`" not in text else escape(text)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown already."""
    lines = [header, ["--"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def value(given: Any) -> str:
    """Return a value as it is written in YAML, as inline code."""
    if isinstance(given, str):
        return code(given) if given else "`''`"
    return code(json.dumps(given, ensure_ascii=False))


def sentence(text: str) -> str:
    """Return text as Markdown that begins with a capital, unless a symbol or code is first."""
    word = re.match(r"[a-z]+\b(?![_=(])", text)
    return escape(text[0].upper() + text[1:] if word else text)


def keys_table(prefix: str, found: Iterable[Mapping[str, Any]]) -> str:
    """Return what `components.parameters` returns as a table of keys, or that there are none."""
    header = ("key", "type and range", "default", "meaning")
    rows = [
        [
            code(prefix + each["name"]),
            escape(", ".join(filter(None, (each["type"], each["range"])))),
            value(each["default"]),
            escape(each["help"]),
        ]
        for each in found
    ]
    return stacked("keys", table(header, rows)) if rows else "It has no keys.\n"


def stacked(kind: str, table: str) -> str:
    """Return a table whose rows are paragraphs on small screens (`site.css`)."""
    return f'<div class="{kind}" markdown>\n\n{table}\n</div>\n'


def docstring(thing: Any) -> str:
    """Return the docstring of a class or function as Markdown."""
    return prose(inspect.cleandoc(thing.__doc__ or "").splitlines())


def prose(lines: Iterable[str]) -> str:
    """Return the lines of a docstring as Markdown: sections become lists, equations are typeset."""
    out: list[str] = []
    in_section = False
    for line in lines:
        if found := _SECTION.match(line):
            out += ["", f"**{found[1]}**", ""]
            in_section = True
        elif in_section and (entry := _ENTRY.match(line)):
            kind = f" ({escape(entry[2])})" if entry[2] else ""
            out.append(f"- `{entry[1]}`{kind}: {escape(entry[3] or '')}")
        elif in_section and line.startswith("    "):
            out.append(("  " if out[-1] else "") + escape(line.strip()))
        elif line.startswith("    "):
            out.append(line)
        else:
            in_section = in_section and not line
            out.append(escape(line))
    return _INDENTED.sub(lambda found: formulas(found[0]), "\n".join(out).strip() + "\n")
