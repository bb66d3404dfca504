"""Reads YAML files of others safely: with limits on their size, depth and expanded aliases."""

from __future__ import annotations

import functools
import json
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from yaml import SafeLoader, YAMLError  # type: ignore[import-untyped]

# Endings of the names of YAML files.
YAML_SUFFIXES = (".yaml", ".yml")

_MOST_BYTES = 10 * 2**20
_EXPONENT = re.compile(r"[-+]?\d[\d_]*\.?[\d_]*[eE][-+]?\d+$")
# Limit on the values of a file after every alias is expanded.
_MOST_NODES = 100_000


def check_yaml(path: Path) -> str:
    """Return the text of a YAML file that is small even after every alias is expanded.

    A few hundred characters of nested aliases can expand to more values than memory holds.

    Raises:
        ConfigError: it is not a regular file, too large, nested too deeply, or not UTF-8.
        yaml.YAMLError: it is not YAML.
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
    """Read the document of a YAML file, in plain types.

    Raises:
        ConfigError: as `check_yaml`, or it is not YAML; the message has the file and the line.
        OSError: it cannot be read.
    """
    from yaml import YAMLError, load

    try:
        return load(check_yaml(path), _loader())
    except YAMLError as error:
        raise yaml_error(error, path) from error
    except RecursionError as error:
        raise _too_deep(path) from error


def yaml_literal(value: Any) -> str:
    """Return a value as one line of YAML that is composed to the same value.

    Whatever is written into a generated file goes through this function: names of columns and
    files, and texts of data sets. A text with `${...}` stays a text.

    Args:
        value: a text, a number, a boolean, None, or lists and mappings of these.

    Raises:
        ConfigError: the text `???`, which stands for a missing value and cannot be escaped.

    >>> print(yaml_literal(["a: 'b'", "${oc.env:HOME}", 1e-6]))
    ["a: 'b'", "\\\\${oc.env:HOME}", 1e-06]
    """
    if isinstance(value, dict):
        entries = (f"{yaml_literal(key)}: {yaml_literal(entry)}" for key, entry in value.items())
        return "{" + ", ".join(entries) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(yaml_literal, value)) + "]"
    if not isinstance(value, str):
        return json.dumps(value)
    if value == "???":
        raise ConfigError("expected a name other than '???', which stands for a missing value")
    # OmegaConf reads the backslashes before an interpolation in pairs, and no others.
    escaped = _INTERPOLATION.sub(lambda match: match[1] * 2 + "\\${", value)
    # JSON's escapes are YAML's, but for pairs of \u, which YAML reads as two characters.
    return "".join(map(_printable, json.dumps(escaped, ensure_ascii=False)))


_INTERPOLATION = re.compile(r"(\\*)\$\{")


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def yaml_error(error: YAMLError, path: Path | str | None = None) -> ConfigError:
    """Convert an error of the YAML parser to one line with file, line and column.

    Args:
        path: the file; by default the one that the parser names.
    """
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    path = path or (mark.name if mark else "a file of YAML")
    where = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else f"{path}"
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    plain = (words for pattern, words in _PROBLEMS.items() if pattern in problem)
    return ConfigError(f"{where}: cannot be read as YAML: {next(plain, problem)}")


# Parts of the parser's messages, and what to tell users who do not know its grammar.
_PROBLEMS = {
    "'\\t' that cannot start": "expected spaces, got a tab",
    "mapping values are not allowed": "expected no second ':' here; check the indentation, and "
    "quote texts that have ': ' in them",
    "expected <block end>": "expected the indentation of the lines above, or a new key",
    "could not find expected ':'": "expected KEY: VALUE, got no ':'",
}


@functools.cache
def _loader() -> type[SafeLoader]:
    from yaml import SafeLoader
    from yaml.constructor import ConstructorError  # type: ignore[import-untyped]

    class Loader(SafeLoader):  # type: ignore[misc]
        """Reports values that Python cannot make (`!!int x`, 5,000 digits) with their line."""

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except (ValueError, OverflowError) as error:
                problem = f"expected a value of type {node.tag.rpartition(':')[2]}, got another"
                raise ConstructorError(None, None, problem, node.start_mark) from error

    # As in YAML 1.2 and in OmegaConf, which reads the files of config groups: 1e-4 is a number,
    # and 2026-01-31 is a text.
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
        for first, found in SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
    return Loader


def _check_aliases(text: str, path: Path) -> None:
    from yaml import CollectionNode, MappingNode, SafeLoader, compose

    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        if id(node) not in sizes:
            # An alias to a node that contains it expands without end.
            sizes[id(node)] = _MOST_NODES + 1
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
