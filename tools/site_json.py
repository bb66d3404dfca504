"""The page of the JSON documents: the keys of each, from the schemas that the package has."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from site_text import escape, sentence, table

from advsweep.cli.json_documents import json_documents

_REFERENCE = "#/$defs/"


def json_page() -> str:
    """Return the page of all documents, and of the parts that several of them share."""
    parts = [
        "# JSON documents\n",
        "What commands print with `--format json`, as `advsweep schema NAME` has it as a JSON "
        "schema; docs/json.md has the rules. `[]` stands for each item of a list, `*` for any "
        "key, and a `?` behind a key says that it may be absent.\n",
    ]
    for name, document in json_documents().items():
        schema = document.schema()
        node = {key: value for key, value in schema.items() if key != "$defs"}
        parts.append(f"## {name}\n")
        command = f"`{document.command} --format json`"
        parts.append(f"{sentence(document.title)}: {command}, version {document.version}.\n")
        parts.append(_keys(node))
    parts.append("## Shared parts\n")
    for name, node in sorted(_definitions().items()):
        if not _is_simple(node):
            parts.append(f"### {name} {{ #part-{name} }}\n")
            about = node.get("title") or node.get("description", "")
            parts.append(f"{sentence(about)}\n" if about else "")
            parts.append(_keys(node))
    return "\n".join(parts)


def _is_simple(node: Mapping[str, Any]) -> bool:
    """Return whether a part is a plain value, which its type describes."""
    return "properties" not in node and "properties" not in node.get("items", {})


def _keys(node: Mapping[str, Any]) -> str:
    rows = [[f"`{path}`", kind, text] for path, kind, text in _walk(node, "")]
    return table(("key", "value", "meaning"), rows) if rows else ""


def _walk(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, type and meaning of every key below a schema."""
    required = node.get("required", ())
    for key, value in node.get("properties", {}).items():
        below = f"{path}.{key}" if path else key
        mark = "" if key in required else "?"
        yield f"{below}{mark}", _kind(value), sentence(value.get("description", ""))
        yield from _walk(value, below)
    items = node.get("items")
    if items is not None:
        below = f"{path}[]"
        if not path:
            yield below, _kind(items), sentence(items.get("description", ""))
        yield from _walk(items, below)
    others = node.get("additionalProperties")
    if isinstance(others, Mapping) and "properties" in others:
        yield from _walk(others, f"{path}.*")


def _kind(node: Mapping[str, Any]) -> str:
    """Return the type of a value in words; a part with keys of its own as a link."""
    if "$ref" in node:
        return _named(node["$ref"].removeprefix(_REFERENCE))
    if "enum" in node:
        return ", ".join(f"`{each}`" if each is not None else "null" for each in node["enum"])
    if "const" in node:
        return f"`{node['const']}`"
    if "anyOf" in node:
        return " or ".join(map(_kind, node["anyOf"]))
    types = node.get("type", "any")
    words = [types] if isinstance(types, str) else types
    text = " or ".join(words)
    items = node.get("items", {})
    if words == ["array"] and items and "properties" not in items:
        return f"array of {_kind(items)}"
    others = node.get("additionalProperties")
    if isinstance(others, Mapping) and "properties" not in others:
        return f"{text} of {_kind(others)}"
    return escape(text)


def _named(name: str) -> str:
    definition = _definitions()[name]
    return _kind(definition) if _is_simple(definition) else f"[{name}](#part-{name})"


@functools.cache
def _definitions() -> dict[str, Any]:
    """Return the parts that documents refer to, by name."""
    parts: dict[str, Any] = {}
    for document in json_documents().values():
        parts |= document.schema().get("$defs", {})
    return parts
