"""Hold what commands print with `--format json` against the documented schemas.

Every test that calls such a command through the fixtures of `conftest.py` checks it in passing.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import yaml
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.exceptions import best_match

from advsweep.cli.commands import BY_NAME
from advsweep.cli.json_documents import documents_of, find_document


def check_output(arguments: Sequence[str], printed: str) -> None:
    """Fail where a command of advsweep printed a JSON document that no schema describes."""
    if not arguments or arguments[0] not in BY_NAME or not printed:
        return
    words = [*arguments, ""]
    asked = {f"{a}={b}" for a, b in itertools.pairwise(words)} | set(words)
    if "--format=json" in asked:
        check_document(arguments[0], json.loads(printed))


def check_document(command: str, document: Any) -> None:
    """Fail unless one of the documents of a command describes what it printed."""
    names = [each.name for each in documents_of(command)]
    file = f"advsweep/cli/documents/{command}.yaml"
    assert names, f"{command}: write {file}; a draft:\n{draft_file(command, document)}"
    errors = [first_error(name, document) for name in names]
    if None in errors:
        return
    said = "\n".join(f"  {name}: {error}" for name, error in zip(names, errors, strict=True))
    raise AssertionError(
        f"`advsweep {command} --format json` printed what {file} does not describe:\n{said}\n"
        "Describe each new key there; raise `version` where a key goes or means something else."
    )


def first_error(name: str, document: Any) -> str | None:
    """The error that says most about why a document does not fit a schema; None if it fits."""
    error: ValidationError | None = best_match(validator(name).iter_errors(document))
    return None if error is None else f"{error.json_path}: {error.message[:400]}"


@functools.cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(find_document(name).schema())


def draft_file(command: str, document: Any) -> str:
    """A first file for a command, from what it printed."""
    node = {"command": f"advsweep {command}", "title": "WHAT IT IS", "version": 1}
    return yaml.safe_dump({command: node | draft([document])}, sort_keys=False)


def draft(values: Iterable[Any]) -> dict[str, Any]:
    """A schema, as the files have them, of what has been seen at one place of a document."""
    seen = list(values)
    types = list(dict.fromkeys(_type_of(value) for value in seen))
    if "number" in types and "integer" in types:
        types.remove("integer")
    node: dict[str, Any] = {"type": types[0] if len(types) == 1 else types} if types else {}
    objects = [value for value in seen if isinstance(value, dict)]
    keys = dict.fromkeys(key for each in objects for key in each)
    if keys:
        node["properties"] = {key: draft(o[key] for o in objects if key in o) for key in keys}
        required = [key for key in keys if all(key in each for each in objects)]
        if len(required) < len(keys):
            node["required"] = required
    items = [item for value in seen if isinstance(value, list) for item in value]
    if items:
        node["items"] = draft(items)
    return node


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object"}
    return names.get(type(value), "null" if value is None else "array")
