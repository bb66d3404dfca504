"""The index of the site's search: prose before tables, tutorials before the reference.

The generator indexes every word of every page, and has no weights. Here tables of the studies are
left out, of the tables of the reference only the names are kept, and pages come in the order in
which a reader wants them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

# Where a reader looks first; other pages follow in the order of the navigation.
FIRST = ("tutorials/", "start.", "questions.", "concepts/", "index.")
LAST = ("reference/", "studies/", "project/", "benchmarks.", "changelog.")
# The generator writes cells of tables and equations bare, and prose with its tag.
_WITH_TAG = re.compile(r"<(p|ul|ol|blockquote)>.*?</\1>", re.DOTALL)
_NAME = re.compile(r"<code>[^<\s]*</code>")


def improve_index(site: Path) -> None:
    """Write the index of a built site anew."""
    path = site / "search.json"
    index = json.loads(path.read_text("utf-8"))
    items = [shorten(item) for item in index["items"]]
    index["items"] = sorted(filter(None, items), key=_place)
    path.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), "utf-8")


def shorten(item: dict[str, Any]) -> dict[str, Any] | None:
    """Return an entry of the index without its tables; None for a table of a study."""
    location = item["location"]
    if location.startswith("studies/") and not re.match(r"studies/(\w+/)?index\.", location):
        return None
    if not location.startswith(LAST):
        return item
    if not location.startswith("reference/"):
        return {**item, "text": _prose(item["text"])}
    names = dict.fromkeys(_NAME.findall(re.sub("<p>.*?</p>", "", item["text"])))
    # Words of the path count like those of a title, and outrank every tutorial on them.
    path = item["path"][:1]
    return {**item, "path": path, "text": " ".join([_prose(item["text"]), *names])}


def _prose(text: str) -> str:
    """Return the text without tables and blocks."""
    return " ".join(part[0] for part in _WITH_TAG.finditer(text))


def _place(item: dict[str, Any]) -> int:
    location = item["location"]
    if location.startswith(FIRST):
        return 0
    return 2 if location.startswith(LAST) else 1
