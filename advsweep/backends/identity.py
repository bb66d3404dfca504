"""Hashes of the material of a run: of all that can change its results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from advsweep.components import SOURCE, Plain, without_sources
from advsweep.sources import SourceCode, known_source


def hash_json(material: Plain) -> str:
    """Return the sha256, in hex, of a value in JSON types."""
    return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()


class NamedSource(NamedTuple):
    """The source of a component, with the component's name."""

    name: str
    source: SourceCode


class HashedSettings(NamedTuple):
    """What can change a training's result except its seed, with its hash and its sources.

    Attributes:
        items: the JSON text of each key of `material` with its value, by key. A plan of thousands
            of seeds writes them once.
        mark: what hashes begin with: a question mark where data is absent, as they are not final.
    """

    material: Plain
    items: Mapping[str, str]
    config_hash: str
    sources: Mapping[str, NamedSource]
    mark: str


def hash_settings(
    material: Plain, *, is_final: bool, names: Mapping[str, str] = MappingProxyType({})
) -> HashedSettings:
    """Return the settings of a run with their hash.

    Args:
        is_final: whether all of the run's data is known.
        names: the names of components by config key, where the material has other ones.
    """
    mark = "" if is_final else "?"
    sources = {
        key: NamedSource(names.get(key, node["name"]), known_source(node[SOURCE]))
        for key, node in _nodes(material)
        if SOURCE in node
    }
    items = {key: _item_text(key, value) for key, value in material.items()}
    return HashedSettings(material, items, mark + _hash_items(items), sources, mark)


class Hashes(NamedTuple):
    """The hashes of a run with its seed; see the properties of `Run`."""

    identity: str
    definition: str


def hashes_of(settings: HashedSettings, seed: int) -> Hashes:
    """Return the hashes of a run with a seed."""
    identity = settings.mark + _hash_items({**settings.items, "seed": _item_text("seed", seed)})
    if not settings.sources:
        return Hashes(identity, identity)
    bare = without_sources({**settings.material, "seed": seed})
    return Hashes(identity, settings.mark + hash_json(bare))


def _item_text(key: str, value: Any) -> str:
    return f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}"


def _hash_items(items: Mapping[str, str]) -> str:
    """Return what `hash_json` returns of a mapping, from the JSON texts of its items by key."""
    text = ", ".join(items[key] for key in sorted(items))
    return hashlib.sha256(f"{{{text}}}".encode()).hexdigest()


def revisions_of(material: Plain) -> dict[str, int]:
    """Return the revisions above 1 of the components of a run, by config key."""
    revisions = ((key, node.get("revision", 1)) for key, node in _nodes(material))
    return {key: revision for key, revision in revisions if revision != 1}


def _nodes(material: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each node, also inside others and in lists, with its dotted key."""
    for key, value in material.items():
        values = value if isinstance(value, list) else [value]
        for node in values:
            if isinstance(node, Mapping):
                yield f"{path}{key}", node
                yield from _nodes(node, f"{path}{key}.")
