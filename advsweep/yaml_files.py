"""YAML files that may be somebody else's: bounded, whatever their aliases stand for."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from advsweep.errors import ConfigError

_MOST_BYTES = 10 * 2**20
_MOST_NODES = 100_000
"""Values of a file with every alias written out."""


def check_yaml(path: Path) -> str:
    """The text of a YAML file, if it is small with every alias written out.

    Some hundred characters of aliases of aliases can stand for more values than memory holds.

    Raises:
        ConfigError: it is no file, too large, nested too deeply, or no UTF-8.
        yaml.YAMLError: it is no YAML.
        OSError: it cannot be read.
    """
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise ConfigError(f"{path}: expected a file of YAML, got something else")
    if state.st_size > _MOST_BYTES:
        raise ConfigError(f"{path}: expected at most {_MOST_BYTES:,} bytes of YAML, got more")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected a text in UTF-8: {error}") from error
    if "*" in text and "&" in text:
        _check_aliases(text, path)
    return text


def read_yaml(path: Path) -> Any:
    """The document of a YAML file, in plain types.

    Raises:
        ConfigError, yaml.YAMLError, OSError: as `check_yaml`.
    """
    from yaml import safe_load  # type: ignore[import-untyped]

    text = check_yaml(path)
    try:
        return safe_load(text)
    except RecursionError as error:
        raise _too_deep(path) from error


def _check_aliases(text: str, path: Path) -> None:
    from yaml import CollectionNode, MappingNode, SafeLoader, compose

    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = _MOST_NODES + 1  # what holds itself has no end
            items = node.value if isinstance(node, CollectionNode) else ()
            if isinstance(node, MappingNode):
                items = [part for pair in items for part in pair]
            sizes[id(node)] = 1 + sum(map(size, items))
        return sizes[id(node)]

    try:
        found = size(compose(text, SafeLoader))
    except RecursionError as error:
        raise _too_deep(path) from error
    if found > _MOST_NODES:
        raise ConfigError(
            f"{path}: expected at most {_MOST_NODES:,} values of YAML, got more with its aliases "
            "written out"
        )


def _too_deep(path: Path) -> ConfigError:
    return ConfigError(f"{path}: expected fewer lists and mappings of YAML within each other")
