"""Code that a command line names: `idea.py`, `idea.py:Name` or `package.module:Name`.

A file stands alone: it imports installed packages, and no other file beside it. Its text is stored
with each run, and a worker trains from that text, on any machine and whatever became of the file.
A module is imported where it is needed, and its source is hashed like that of a plug-in.

Text of a store is run only with consent (`SECURITY.md`): the command line that names code allows
exactly that text, and an environment variable tells the processes of its runs.

Only the standard library is imported here.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import json
import linecache
import os
import re
import sys
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advsweep.brackets import split_outside_brackets
from advsweep.components import CODE
from advsweep.errors import ConfigError, nearest, reason_of
from advsweep.sources import SourceCode, source_of_text

_SUFFIX = ".py"
_FILE = re.compile(r"(?P<place>.+\.py)(:(?P<object>\w+))?")
_MODULE = re.compile(r"(?P<place>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<object>[^\W\d]\w*)")

# A file of this size is no idea, and its text is stored with each run.
_MOST_BYTES = 256 * 1024

# The part of a source that is the file itself, whatever its name is.
_THE_FILE = "file"

# Calls that read the clock or the system's random numbers, of which no seed makes another run.
_UNREPEATABLE = frozenset(
    {
        "date.today",
        "datetime.now",
        "datetime.today",
        "datetime.utcnow",
        "os.urandom",
        "time.monotonic",
        "time.perf_counter",
        "time.process_time",
        "time.time",
        "time.time_ns",
        "uuid.uuid4",
    }
)


@dataclass(frozen=True, kw_only=True)
class NamedCode:
    """The code that a component is made of.

    Attributes:
        label: what tables call the component, such as `idea` or `idea:Halved`.
        place: the name of the file without its folder, or the module.
        object: the class or the function in it.
        text: the text of the file or the module.
        line: where the object begins in the text.
        source: the hash of the text and of what it imports; None for a module, whose classes are
            hashed like those of plug-ins.
    """

    label: str
    place: str
    object: str
    text: str
    line: int
    source: SourceCode | None = None

    def plain(self) -> dict[str, str]:
        """Return what a config node holds, from which `stored_code` makes it again."""
        return {"label": self.label, "place": self.place, "object": self.object, "text": self.text}

    @property
    def where(self) -> str:
        """The file with the line of the object, such as `idea.py:3`."""
        return f"{self.place}:{self.line}"

    def line_of(self, error: BaseException) -> str:
        """Return the file with the line of an error that the code raised."""
        return _line_of(error, self.place, self.line)


@dataclass(frozen=True)
class Word:
    """A word of a command line that names code.

    Attributes:
        place: a path or a module.
        object: empty for the only one of a file.
    """

    place: str
    object: str

    @property
    def is_file(self) -> bool:
        return self.place.endswith(_SUFFIX)

    @property
    def origin(self) -> str:
        """What the word means on this machine, however it is written."""
        place = str(Path(self.place).expanduser().resolve()) if self.is_file else self.place
        return f"{place}:{self.object}"

    @property
    def label(self) -> str:
        """How tables name the component."""
        stem = self.place.removesuffix(_SUFFIX)
        stem = Path(stem).name if self.is_file else stem.rpartition(".")[2]
        return stem if self.object in ("", stem) else f"{stem}:{self.object}"


def parse_word(text: str) -> Word | None:
    """Return the code that a word names; None for a word that can only be a registered name."""
    match = _FILE.fullmatch(text) or _MODULE.fullmatch(text)
    return None if match is None else Word(match["place"], match["object"] or "")


def split_word(text: str) -> tuple[str, list[str]]:
    """Divide `idea.py:Halved:scale=2` into the name and its options; a plain name may have some."""
    name, *rest = split_outside_brackets(text, ":")
    if rest and "=" not in rest[0] and parse_word(f"{name}:{rest[0]}"):
        name = f"{name}:{rest.pop(0)}"
    return name, rest


# Text, modules and the objects in them


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a file is to hold.

    Attributes:
        kind: such as `estimator`.
        bases: a class in the file is a subclass of one of these.
        function: the name of a plain function of the kind; empty if there are classes alone.
        expected: the same in words, for messages.
    """

    kind: str
    bases: tuple[type, ...]
    function: str
    expected: str


def read_word(word: Word, wanted: Wanted) -> tuple[Any, NamedCode]:
    """Load what a word of the command line names, and allow its text in this process's children.

    Raises:
        ConfigError: the file cannot be read or run, or holds no such object or several; the message
            begins with the file, and the line where there is one.
    """
    if not word.is_file:
        module = _import(word.place)
        found = _object_of(module, word.place, word.object)
        code = NamedCode(
            label=word.label,
            place=word.place,
            object=word.object,
            text=_text_of_module(module),
            line=_line_of_object(found),
        )
        _allow(_mark(code.place, code.text))
        return found, code
    text = _read_text(Path(word.place).expanduser())
    place = Path(word.place).name
    _refuse_unrepeatable(text, place)
    module = _run_text(text, place, folder=Path(word.place).expanduser().parent)
    if word.object:
        found = _object_of(module, place, word.object)
    else:
        found = _only_object(module, place, wanted)
    _allow(_mark(place, text))
    return found, _code_of_file(found, label=word.label, place=place, text=text)


def stored_code(node: Any, where: str) -> tuple[Any, NamedCode]:
    """Load the code that the config of a run holds.

    Args:
        node: what `NamedCode.plain` returned, or anything else that a store holds.
        where: the config key, for messages.

    Raises:
        ConfigError: this process has no consent to run it, it is malformed, or it fails.
    """
    keys = ("label", "place", "object", "text")
    if not isinstance(node, Mapping) or not all(isinstance(node.get(key), str) for key in keys):
        raise ConfigError(f"{where}.{CODE}: expected the texts {', '.join(keys)}, got another node")
    place, name, text = node["place"], node["object"], node["text"]
    if not is_allowed(node):
        raise ConfigError(
            f"{where}: the store holds the code of this run, from {place!r}, and only a command "
            f"line names code; give the command that names {place} again, or pass --trust-store to "
            "`advsweep retry` or `advsweep worker`"
        )
    if not place.endswith(_SUFFIX):
        module = _import(place)
        found = _object_of(module, place, name)
        return found, NamedCode(
            label=node["label"],
            place=place,
            object=name,
            text=_text_of_module(module),
            line=_line_of_object(found),
        )
    found = _object_of(_run_text(text, place), place, name)
    return found, _code_of_file(found, label=node["label"], place=place, text=text)


def _code_of_file(found: Any, *, label: str, place: str, text: str) -> NamedCode:
    return NamedCode(
        label=label,
        place=place,
        object=found.__name__,
        text=text,
        line=_line_of_object(found),
        source=source_of_text(_THE_FILE, text),
    )


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes() if path.stat().st_size <= _MOST_BYTES else None
    except OSError as error:
        raise ConfigError(f"{path}: expected a file of Python: {reason_of(error)}") from error
    if content is None:
        raise ConfigError(
            f"{path}: expected at most {_MOST_BYTES // 1024} kB of Python, as each run keeps the "
            "text; make a package of it, and name it as package.module:Name"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected Python in UTF-8, got other bytes") from error
    return text.replace("\r\n", "\n")


def _run_text(text: str, place: str, folder: Path | None = None) -> types.ModuleType:
    """Return the module that a text makes, which is run once in a process.

    Args:
        folder: where the file is, for a hint on what lies beside it.
    """
    digest = hashlib.sha256(f"{place}\n{text}".encode()).hexdigest()
    name = f"advsweep_named_{digest[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    try:
        compiled = compile(text, place, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", None) or str(error)
        raise ConfigError(f"{place}:{line}: expected Python, got a mistake: {reason}") from error
    # Tracebacks then show the lines.
    linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
    module = types.ModuleType(name)
    # Dataclasses look their module up.
    sys.modules[name] = module
    try:
        exec(compiled, vars(module))
    except (Exception, SystemExit) as error:  # The user's code may raise anything.
        del sys.modules[name]
        raise ConfigError(
            f"{_line_of(error, place, 1)}: it raised {type(error).__name__}: {error}"
            f"{_import_hint(error, folder)}"
        ) from error
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_hint(error: BaseException, folder: Path | None) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if folder is None or missing is None or not (folder / f"{missing}.py").is_file():
        return ""
    return (
        f"; {missing}.py lies beside it, but a file stands alone: write both into one, or make a "
        "package and name it as package.module:Name"
    )


def _import(module: str) -> types.ModuleType:
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:  # The user's code may raise anything.
        raise ConfigError(
            f"{module}: expected a module that can be imported, got {type(error).__name__}: "
            f"{error}; install its package, name its folder in PYTHONPATH, or name a file as "
            "FILE.py:Name"
        ) from error


def _text_of_module(module: types.ModuleType) -> str:
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(_SUFFIX):
        return ""
    return _read_text(Path(file))


def _line_of(error: BaseException, place: str, default: int) -> str:
    """Return a file with the last of its lines in the traceback of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if f.lineno and Path(f.filename).name == Path(place).name]
    return f"{place}:{lines[-1] if lines else default}"


def _line_of_object(found: Any) -> int:
    if isinstance(found, types.FunctionType):
        return found.__code__.co_firstlineno
    return getattr(found, "__firstlineno__", None) or _line_of_class(found)


def _line_of_class(found: Any) -> int:
    """Return the line of a class by its methods; Python before 3.13 does not keep its own."""
    lines = [
        each.__code__.co_firstlineno
        for each in vars(found).values()
        if isinstance(each, types.FunctionType)
        and each.__module__ == found.__module__
        and not each.__code__.co_filename.startswith("<")
    ]
    return min(lines, default=1)


def _object_of(module: types.ModuleType, place: str, name: str) -> Any:
    found = vars(module).get(name)
    if isinstance(found, (type, types.FunctionType)):
        return found
    known = [n for n, value in vars(module).items() if _is_public(module, n, value)]
    raise ConfigError(f"{place}: expected a class or a function '{name}'; {nearest(name, known)}")


def _only_object(module: types.ModuleType, place: str, wanted: Wanted) -> Any:
    """Return the one object of a file that can be meant without a name.

    That is its only class of the kind, its function of the usual name, or else its only function.
    """
    public = {n: value for n, value in vars(module).items() if _is_public(module, n, value)}
    functions = {n: v for n, v in public.items() if isinstance(v, types.FunctionType)}
    every = {n: v for n, v in public.items() if isinstance(v, type)}
    classes = {n: v for n, v in every.items() if issubclass(v, wanted.bases)}
    usual = {n: v for n, v in functions.items() if n == wanted.function}
    found: dict[str, Any] = {**classes, **usual}
    if not found and wanted.function:
        found = dict(functions)
    if len(found) == 1:
        return next(iter(found.values()))
    if not found:
        raise ConfigError(f"{place}: expected {wanted.expected}, got neither")
    listed = ", ".join(f"{n} (line {_line_of_object(v)})" for n, v in found.items())
    raise ConfigError(
        f"{place}: expected one {wanted.kind}, got {listed}; name it, as in "
        f"{place}:{next(iter(found))}"
    )


def _is_public(module: types.ModuleType, name: str, value: Any) -> bool:
    """Return whether an object is defined in a module, and meant to be used."""
    is_object = isinstance(value, (type, types.FunctionType))
    return is_object and not name.startswith("_") and value.__module__ == module.__name__


def _refuse_unrepeatable(text: str, place: str) -> None:
    """Refuse a file that reads the clock: no other run could repeat its results."""
    try:
        nodes: Sequence[ast.AST] = [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # it is refused where it is compiled
    imported: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            imported |= {a.asname: f"{module}{a.name}" for a in node.names if a.asname}
            imported |= {a.name: f"{module}{a.name}" for a in node.names if not a.asname}
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        head, dot, rest = ast.unparse(node.func).partition(".")
        called = f"{imported.get(head, head)}{dot}{rest}"
        if ".".join(called.split(".")[-2:]) in _UNREPEATABLE:
            raise ConfigError(
                f"{place}:{node.lineno}: expected the same result at any time, got a call of "
                f"{called}; `step` and `total_steps` say how far a training is"
            )


def find_codes(
    config: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the dotted key of each component in a config that is made of named code, with its node.

    The config may come from a store: a node may hold anything.
    """
    for key, value in config.items():
        if not isinstance(value, Mapping):
            continue
        if key == CODE:
            yield prefix.removesuffix("."), value
        else:
            yield from find_codes(value, f"{prefix}{key}.")


# Consent


# The environment variable: a JSON list of marks; "*" stands for any code.
ALLOWED = "ADVSWEEP_CODE"

_ANY = "*"


def allow_stored_code() -> None:
    """Record that the user trusts the store to hold code, for this process and its children."""
    _allow(_ANY)


def is_allowed(node: Mapping[str, Any]) -> bool:
    """Return whether the command line named the code of a config node, or trusts the store."""
    allowed = _allowed()
    return _ANY in allowed or _mark(str(node.get("place")), str(node.get("text"))) in allowed


def _mark(place: str, text: str) -> str:
    """Return what stands for code in the environment: a hash of the text, or a module's name."""
    # A module's text is no consent: what is imported is what this machine has under its name.
    content = ["file", text] if place.endswith(_SUFFIX) else ["module", place]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _allowed() -> frozenset[str]:
    return _parse_allowed(os.environ.get(ALLOWED, "[]"))


@functools.lru_cache(maxsize=4)
def _parse_allowed(text: str) -> frozenset[str]:
    try:
        marks = json.loads(text)
    except ValueError:
        return frozenset()
    return frozenset(map(str, marks)) if isinstance(marks, list) else frozenset()


def _allow(mark: str) -> None:
    os.environ[ALLOWED] = json.dumps(sorted({*_allowed(), mark}))
