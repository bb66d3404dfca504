"""`llms.txt` of the site (https://llmstxt.org): its pages for language models, from the navigation.

Every page is also there as Markdown, at its address with `.md` in place of `.html`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from site_math import plain


def write_llms(config: Mapping[str, Any], source: Path, site: Path) -> None:
    """Write `llms.txt` and the Markdown of every page of the navigation into a built site."""
    parts = [f"# {config['site_name']}\n", f"> {config['site_description']}\n"]
    for entry in config["nav"]:
        [(section, below)] = entry.items()
        parts.append(f"## {section}\n")
        for path in _paths(below):
            text = plain((source / path).read_text("utf-8"))
            (site / path).write_text(text, "utf-8")
            title = next(line for line in text.splitlines() if line.startswith("# "))[2:]
            parts.append(f"- [{_words(title)}]({path}){_summary(text)}")
        parts.append("")
    (site / "llms.txt").write_text("\n".join(parts), "utf-8")


def _paths(below: Any) -> Iterator[str]:
    """Yield the pages of an entry of the navigation, which may have sections."""
    if isinstance(below, str):
        yield below
    for entry in below if isinstance(below, list) else ():
        yield from _paths(entry if isinstance(entry, str) else next(iter(entry.values())))


def _summary(text: str) -> str:
    """Return the first sentence after the title and a colon; none if a table or code is first."""
    first = re.search(r"^# .*\n\s*\n((?:[^\W\d_]|[`*\[]).*(?:\n.+)*)", text, re.MULTILINE)
    words = _words(first[1]) if first else ""
    sentence = re.match(r".{20,}?\S(?=:(?: |$)|[.?](?: [^a-z]|$))", words)
    return f": {sentence[0] if sentence else words}" if words else ""


def _words(markdown: str) -> str:
    """Return Markdown as one line of plain text."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    return " ".join(html.unescape(re.sub(r"\\(.)|[*`]|<[^>]+>", r"\1", text)).split())
