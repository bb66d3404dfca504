"""Reads YAML files of others safely, and as their writers mean them.

Safely: with limits on their size, depth and expanded aliases. YAML takes the last of two equal
keys, and reads 010 as 8, 12:30 as 750 and `no` as false. What people write is refused there, with
its line; files that programs write are read with `strict=False`.
"""

from __future__ import annotations

import functools
import json
import math
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from yaml import SafeLoader, YAMLError  # type: ignore[import-untyped]

_MOST_BYTES = 10 * 2**20
_EXPONENT = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")
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
    from yaml.reader import Reader  # type: ignore[import-untyped]

    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise ConfigError(f"{path}: expected a file of YAML, got something else")
    if state.st_size > _MOST_BYTES:
        raise ConfigError(f"{path}: expected at most {_MOST_BYTES:,} bytes of YAML, got more")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}, line {line}: expected a text in UTF-8, got the byte "
            f"0x{error.object[error.start]:02x}; save the file as UTF-8"
        ) from error
    # A text with control characters is refused by every parser before any alias is expanded.
    if "*" in text and "&" in text and not Reader.NON_PRINTABLE.search(text):
        _check_aliases(text, path)
    return text


def _check_characters(text: str, path: Path) -> None:
    """Refuse control characters, which YAML's parser refuses without a line.

    Raises:
        ConfigError: with file and line.
    """
    from yaml.reader import Reader

    unreadable = Reader.NON_PRINTABLE.search(text)
    if unreadable is not None:
        line = text.count("\n", 0, unreadable.start()) + 1
        raise ConfigError(
            f"{path}, line {line}: expected a text without control characters, got "
            f"U+{ord(unreadable[0]):04X}; remove it, or write it as an escape in double quotes"
        )


@dataclass(frozen=True)
class Document:
    """The document of a YAML file.

    Attributes:
        value: in plain types.
        lines: the line, from 1, of each key and entry by the keys and places that lead to it.
    """

    value: Any
    lines: Mapping[tuple[str, ...], int]


def read_yaml(path: Path, *, strict: bool = True) -> Any:
    """Read the document of a YAML file, in plain types.

    Args:
        strict: refuse what YAML reads otherwise than people do: a key twice, numbers that begin
            with 0, dates, 12:30, yes, no, on and off without quotes, and numbers too large.

    Raises:
        ConfigError: as `check_yaml`, or it is not YAML; the message has the file and the line.
        OSError: it cannot be read.
    """
    return read_document(path, strict=strict).value


def read_document(path: Path, *, strict: bool = True) -> Document:
    """Read the document of a YAML file with the lines of its keys; as `read_yaml`."""
    from yaml import YAMLError

    try:
        text = check_yaml(path)
        _check_characters(text, path)
        loader = _loader()(text)
        try:
            node = loader.get_single_node()
            lines: dict[tuple[str, ...], int] = {}
            for place, part, is_key in _nodes(node):
                if not is_key:
                    lines.setdefault(place, part.start_mark.line + 1)
                if strict:
                    _check_node(part, path)
                if is_key:
                    lines[place] = part.start_mark.line + 1
            value = None if node is None else loader.construct_document(node)
            return Document(value, lines)
        finally:
            loader.dispose()
    except YAMLError as error:
        raise yaml_error(error, path) from error
    except RecursionError as error:
        raise _too_deep(path) from error


def _nodes(root: Any) -> Iterator[tuple[tuple[str, ...], Any, bool]]:
    """Yield each node once, in the order of the file, with the keys that lead to it.

    A key comes before its value, at the same place; the last item is whether it is a key.
    """
    from yaml import MappingNode, SequenceNode

    seen: set[int] = set()
    pending: list[tuple[tuple[str, ...], Any, bool]] = [] if root is None else [((), root, False)]
    while pending:
        place, node, is_key = pending.pop()
        yield place, node, is_key
        if id(node) in seen:
            continue  # an alias
        seen.add(id(node))
        inner: list[tuple[tuple[str, ...], Any, bool]] = []
        if isinstance(node, MappingNode):
            for key, value in node.value:
                below = (*place, str(key.value))
                inner += [(below, key, True), (below, value, False)]
        elif isinstance(node, SequenceNode):
            inner = [((*place, str(i)), entry, False) for i, entry in enumerate(node.value)]
        pending += reversed(inner)


# What YAML reads otherwise than people do, by the plain text, with what to write.
_MISREAD = (
    (
        re.compile(r"[-+]?0(_?\d[\d_]*|o[0-7]+)(\.\d*)?([eE][-+]?\d+)?"),
        "a number without leading zeros, which YAML takes for base 8, or a text in quotes",
    ),
    (
        re.compile(r"[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?"),
        "a number, or a text in quotes: YAML takes numbers with colons for base 60",
    ),
    (
        re.compile(r"\d{4}-\d\d?-\d\d?([Tt ].*)?"),
        "a number, or a text in quotes: YAML takes this for a date",
    ),
    (
        re.compile(r"yes|no|on|off", re.IGNORECASE),
        "true or false, or a text in quotes: YAML takes this word for one of them",
    ),
)


def _check_node(node: Any, path: Path) -> None:
    """Refuse a key that comes twice, and a plain text that is read otherwise than it looks.

    Raises:
        ConfigError: with file and line.
    """
    from yaml import MappingNode, ScalarNode

    if isinstance(node, MappingNode):
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            # `<<` takes the keys of other mappings in, and may do so several times.
            if not isinstance(key, ScalarNode) or key.tag.endswith(":merge"):
                continue
            if key.value in lines:
                raise ConfigError(
                    f"{path}, line {line}: expected each key once, got '{key.value}' again, which "
                    f"is in line {lines[key.value]}; remove one of them"
                )
            lines[key.value] = line
    if not isinstance(node, ScalarNode) or node.style is not None:
        return
    where = f"{path}, line {node.start_mark.line + 1}"
    for pattern, expected in _MISREAD:
        if pattern.fullmatch(node.value):
            raise ConfigError(f"{where}: expected {expected}, got {node.value}")
    if node.tag.endswith(":float") and _is_overflow(node.value):
        raise ConfigError(f"{where}: expected a number that a float can hold, got {node.value}")


def _is_overflow(text: str) -> bool:
    digits = text.replace("_", "")
    return any(map(str.isdigit, digits)) and math.isinf(float(digits))


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
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
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
        count = size(compose(text, SafeLoader))
    except RecursionError as error:
        raise _too_deep(path) from error
    if count > _MOST_NODES:
        raise ConfigError(
            f"{path}: expected at most {_MOST_NODES:,} values of YAML, got more with its aliases "
            "written out"
        )


def _too_deep(path: Path) -> ConfigError:
    return ConfigError(f"{path}: expected fewer lists and mappings of YAML within each other")
