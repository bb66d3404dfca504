"""What `--format json` prints: the JSON schema of each document, from `documents/COMMAND.yaml`.

A file has the documents of a command by name, that without options first. Two rules keep it short:
an object that lists `properties` has no others unless it says `additionalProperties`, and has all
of them unless it says `required`. `definitions.yaml` has the parts that several documents share.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advsweep.errors import UnknownNameError, nearest
from advsweep.yaml_files import read_yaml

FOLDER = Path(__file__).parent / "documents"
_DEFINITIONS = "definitions"
_REFERENCE = "#/$defs/"
# What a document has besides its schema.
_FIELDS = ("command", "title", "version")


@dataclass(frozen=True)
class JsonDocument:
    """What a command prints with `--format json`.

    Attributes:
        command: the command that prints it, as it is typed, without `--format json`.
        version: raised when a key goes, or means something else; a new key does not raise it.
        node: its schema as the file has it, before the two rules.
    """

    name: str
    command: str
    title: str
    version: int
    node: Mapping[str, Any]

    def schema(self) -> dict[str, Any]:
        """Return its JSON schema, draft 2020-12, with the definitions that it uses."""
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"urn:advsweep:{self.name}:{self.version}",
            "title": self.title,
            **_close(self.node),
        }
        definitions = _read_file(_DEFINITIONS)
        used = sorted(_used_definitions(self.node, definitions))
        if used:
            schema["$defs"] = {name: _close(definitions[name]) for name in used}
        return schema


@functools.cache
def json_documents() -> dict[str, JsonDocument]:
    """Return every document by its name, command by command."""
    documents = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.stem == _DEFINITIONS:
            continue
        for name, fields in _read_file(path.stem).items():
            node = {key: value for key, value in fields.items() if key not in _FIELDS}
            own = {key: fields[key] for key in _FIELDS}
            documents[name] = JsonDocument(name=name, node=node, **own)
    return documents


def documents_of(command: str) -> list[JsonDocument]:
    """Return the documents of a command, such as `ls`."""
    prefix = f"advsweep {command}"
    return [
        document
        for document in json_documents().values()
        if document.command == prefix or document.command.startswith(f"{prefix} ")
    ]


def find_document(name: str) -> JsonDocument:
    """Return the document of a name.

    Raises:
        UnknownNameError: there is none; the message suggests the nearest one.
    """
    documents = json_documents()
    if name not in documents:
        raise UnknownNameError(
            f"schema: there is no document '{name}'; {nearest(name, documents)}; "
            "`advsweep list documents` has them all"
        )
    return documents[name]


@functools.cache
def _read_file(stem: str) -> dict[str, Any]:
    return dict(read_yaml(FOLDER / f"{stem}.yaml"))


def _close(node: Any) -> Any:
    """Return a schema with the two rules written out."""
    if isinstance(node, list):
        return [_close(each) for each in node]
    if not isinstance(node, Mapping):
        return node
    properties = node.get("properties")
    closed = {key: _close(value) for key, value in node.items() if key != "properties"}
    if properties is None:
        return closed
    closed.setdefault("type", "object")
    closed["properties"] = {name: _close(value) for name, value in properties.items()}
    closed.setdefault("required", list(properties))
    closed.setdefault("additionalProperties", False)
    return closed


def _used_definitions(node: Any, definitions: Mapping[str, Any]) -> set[str]:
    """Return the names of the definitions that a schema refers to, directly or through others."""
    used: set[str] = set()
    open_nodes = [node]
    while open_nodes:
        for name in _references(open_nodes.pop()):
            if name not in used:
                used.add(name)
                open_nodes.append(definitions[name])
    return used


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for each in node:
            yield from _references(each)
    if not isinstance(node, Mapping):
        return
    for key, value in node.items():
        if key == "$ref":
            yield value.removeprefix(_REFERENCE)
        else:
            yield from _references(value)
