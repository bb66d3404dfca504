"""The source of code that is not advsweep's: which files it is made of, and their hash.

A run's identity holds what can change its results. For advsweep's own components that is a
`revision`; for a plug-in, or the program of `backend=command`, nobody raises a number, so the
files themselves are hashed:

- the file of the class, and those of the classes that it derives from;
- the modules that these import, at any depth, as far as they are local: modules of the same
  package, of packages that offer components to advsweep, and files outside of `site-packages`;
- every Python file of the package where code imports by a computed name, and every other file of
  the package where code asks for its own place (`__file__`, `importlib.resources`).

Libraries (torch, numpy, everything in `site-packages` without components) are not followed. How a
package was installed, where it lies and its line ends make no difference: the same source has the
same hash as a wheel, as an editable install and as plain files.

Only the standard library is imported here.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from advsweep.errors import ConfigError, reason_of

_OWN = "advsweep"

# Libraries that components are written with, wherever they lie: a checkout of torch or of TRL on
# the path is no more part of a plug-in than an installed one.
_LIBRARIES = frozenset(
    {
        "accelerate",
        "datasets",
        "hydra",
        "jax",
        "matplotlib",
        "numpy",
        "omegaconf",
        "pandas",
        "peft",
        "pytest",
        "ray",
        "scipy",
        "sklearn",
        "sqlalchemy",
        "sympy",
        "tensorflow",
        "tokenizers",
        "torch",
        "transformers",
        "triton",
        "trl",
        "typer",
        "verl",
        "vllm",
        "yaml",
    }
)

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_CACHES = frozenset({"__pycache__", "node_modules"})

# Calls that import a module whose name stands in the first argument.
_IMPORTERS = frozenset({"import_module", "__import__"})
# Names by which code imports, or runs, what its text does not name.
_DYNAMIC = frozenset({"pkgutil", "runpy", "exec", "spec_from_file_location", "SourceFileLoader"})
# Names by which code reads files of its package.
_READS_FILES = frozenset({"__file__", "__path__", "resources", "get_data", "joinpath"})

# A larger file enters with its size alone, so that a plan does not read a model's weights.
LARGE_BYTES = 64 * 2**20

_LISTED = 50  # files of a source that a store keeps by name
_SHORT = 12  # characters of a file's hash in a store


@dataclass(frozen=True)
class SourceCode:
    """The source of a component or a program.

    Attributes:
        files: the hash of each file by its name: a dotted module, or a path below its package.
    """

    files: Mapping[str, str]

    @classmethod
    def of(cls, files: Mapping[str, str]) -> SourceCode:
        """Return the source of some files, which `known_source` then knows."""
        source = cls(dict(files))
        _known[source.digest] = source
        return source

    @functools.cached_property
    def digest(self) -> str:
        """sha256, in hex, of the names and the contents of all files."""
        listed = "\n".join(f"{name} {self.files[name]}" for name in sorted(self.files))
        return hashlib.sha256(listed.encode()).hexdigest()

    def plain(self) -> dict[str, Any]:
        """Return what a store keeps: the digest, and the short hashes of the first files."""
        names = sorted(self.files)[:_LISTED]
        return {"digest": self.digest, "files": {n: self.files[n][:_SHORT] for n in names}}


# Sources by their digest, so that a digest in an identity can be described.
_known: dict[str, SourceCode] = {}


def known_source(digest: str) -> SourceCode:
    """Return the source with a digest that this process has computed."""
    return _known[digest]


def is_foreign(cls: type) -> bool:
    """Return whether a class, or one that it derives from, is neither advsweep's nor Python's."""
    return any(_is_local_class(each) for each in cls.__mro__)


def _is_local_class(cls: type) -> bool:
    top = cls.__module__.partition(".")[0]
    return not (top in _LIBRARIES or _is_own_or_standard(top))


def _is_own_or_standard(top: str) -> bool:
    if top == "__main__":
        return False
    return top == _OWN or top in sys.stdlib_module_names or top in sys.builtin_module_names


@dataclass(frozen=True)
class _Hashed:
    """A source with the specs that its modules had: a module that is loaded anew has another."""

    source: SourceCode
    specs: Mapping[str, ModuleSpec | None]

    @property
    def is_current(self) -> bool:
        return all(_loaded_spec(name) is spec for name, spec in self.specs.items())


_by_class: dict[type, _Hashed] = {}
_own_classes: set[type] = set()


def source_of(cls: type) -> SourceCode | None:
    """Return the source of a class; None if all of it is advsweep's or Python's.

    The files are read once per process: what a process has imported stays the same when they
    change later, unless a module is loaded anew.

    Raises:
        ConfigError: the class has no file, such as one that was typed into an interpreter.
    """
    if cls in _own_classes:
        return None
    known = _by_class.get(cls)
    if known is not None and known.is_current:
        return known.source
    if not is_foreign(cls):
        _own_classes.add(cls)
        return None
    reading = _Reading()
    for each in cls.__mro__:
        if not _is_local_class(each):
            continue
        if not reading.add_module(each.__module__):
            reading.add_text(f"{each.__module__}.{each.__qualname__}", _text_of(each))
    source = reading.finish()
    _by_class[cls] = _Hashed(source, {name: _loaded_spec(name) for name in reading.modules})
    return source


def _text_of(cls: type) -> str:
    """Return the text of a class without a file; notebooks keep that of their cells."""
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError) as error:
        raise ConfigError(
            f"{cls.__qualname__}: expected a class whose source can be read, as it is part of a "
            f"run's identity, got one of module '{cls.__module__}' without a file; write it into "
            "a file"
        ) from error


def source_of_files(files: Iterable[Path], folder: Path, roots: Sequence[Path] = ()) -> SourceCode:
    """Return the source of a program: some files, and what they import or call.

    Args:
        folder: what names are relative to; a file elsewhere has its name alone.
        roots: folders in which the program finds modules, the script's own folder aside.
    """
    reading = _Reading(roots=tuple(map(str, roots)), folder=folder)
    for file in files:
        reading.add_program(file)
    return reading.finish()


def source_of_text(name: str, text: str) -> SourceCode:
    """Return the source of the text of a Python file, and of the local modules that it imports.

    Args:
        name: what the text is called among the files of the source.
    """
    reading = _Reading()
    facts = _facts_in(text.encode())
    reading.add_facts(name, facts)
    return reading.finish()


@dataclass
class _Reading:
    """The files that are read for one source.

    Attributes:
        roots: folders that modules are searched in before this process's path.
        folder: what the files of a program are named relative to; None for a class.
        modules: names of the modules that were read.
    """

    roots: tuple[str, ...] = ()
    folder: Path | None = None
    modules: set[str] = field(default_factory=set)
    _files: dict[str, str] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _specs: dict[str, ModuleSpec | None] = field(default_factory=dict)

    def finish(self) -> SourceCode:
        """Return the source, after everything that the files lead to."""
        return SourceCode.of(self._files)

    def add_text(self, name: str, text: str) -> None:
        self._files[name] = hashlib.sha256(text.encode()).hexdigest()

    def add_facts(self, name: str, facts: _Facts) -> None:
        """Add a text that is no module, and the modules that it imports."""
        self._files[name] = facts.digest
        for module in facts.imports_of(""):
            if self._is_followed(module, ""):
                self.add_module(module)

    # Modules

    def add_module(self, name: str) -> bool:
        """Read a module, the packages above it and what it imports; return whether it has a file.

        A module that was read before is not read again.
        """
        pending = [name]
        while pending:
            module = pending.pop()
            if module in self.modules:
                continue
            spec = self._spec(module)
            path = _file_of(module, spec)
            if path is None:
                if module == name and (spec is None or not spec.submodule_search_locations):
                    return False
                # A namespace package has no code of its own.
                self.modules.add(module)
                continue
            self.modules.add(module)
            pending += _parents(module)
            pending += self._read_module(module, path, is_package=_is_package(spec))
        return True

    def _read_module(self, module: str, path: str, *, is_package: bool) -> list[str]:
        """Hash a module's file; return the modules to read next."""
        facts = _facts_of(path) if self.roots else _facts_of_module(module, path)
        self._files[module] = facts.digest
        package = module if is_package else module.rpartition(".")[0]
        names = list(facts.imports_of(package))
        if facts.is_dynamic and package:
            names += _modules_below(package, Path(path).parent)
        if facts.reads_files:
            self._add_data(package, Path(path).parent, facts)
        top = module.partition(".")[0]
        return [n for n in names if n not in self.modules and self._is_followed(n, top)]

    def _add_data(self, package: str, folder: Path, facts: _Facts) -> None:
        """Hash the files that a module can read beside its code."""
        if package:
            listed = [file for file in _files_below(folder) if file.suffix not in _CODE]
        else:
            # The folder of a single module may be all of site-packages.
            named = (folder / text for text in sorted(facts.texts))
            listed = [file for file in named if os.path.isfile(file)]
        for file in listed:
            name = file.relative_to(folder).as_posix() if package else file.name
            self._files[f"{package}/{name}"] = _hash_of(file)

    def _is_followed(self, name: str, importer: str) -> bool:
        """Return whether a module that another one imports is part of its source.

        Args:
            importer: the top-level name of the other module.
        """
        top = name.partition(".")[0]
        if _is_own_or_standard(top) or top in _LIBRARIES:
            return False
        spec = self._spec(name)
        if spec is None:
            return False
        path = _file_of(name, spec)
        if path is None:
            return True  # a namespace package; what is imported of it decides
        if top == importer or _INSTALLED.isdisjoint(Path(path).parts):
            return True
        return os.path.realpath(path) in _plugin_files()

    def _spec(self, name: str) -> ModuleSpec | None:
        """Find a module without importing anything; None without one."""
        if name not in self._specs:
            self._specs[name] = self._find_spec(name)
        return self._specs[name]

    def _find_spec(self, name: str) -> ModuleSpec | None:
        parent = name.rpartition(".")[0]
        try:
            if self.roots:
                spec = None if parent else PathFinder.find_spec(name, self.roots)
            else:
                spec = _loaded_spec(name)
            if spec is not None:
                return spec
            if not parent:
                return importlib.util.find_spec(name)
            above = self._spec(parent)
            if above is None or above.submodule_search_locations is None:
                return None
            return PathFinder.find_spec(name, list(above.submodule_search_locations))
        except (ImportError, ValueError, AttributeError):
            return None  # a name that cannot be imported is no file

    # Programs

    def add_program(self, file: Path) -> None:
        """Read a file of a program, and the files that its text leads to."""
        assert self.folder is not None
        pending = [file]
        while pending:
            path = pending.pop()
            real = os.path.realpath(path)
            if real in self._seen:
                continue
            self._seen.add(real)
            self._files[_name_below(path, self.folder)] = _hash_of(path)
            if path.suffix == ".py":
                self._add_imports(path)
            elif path.suffix in SHELL or starts_shell(path):
                text = path.read_text(encoding="utf-8", errors="replace")
                pending += named_files(text, (path.parent, self.folder))

    def _add_imports(self, script: Path) -> None:
        # Python searches the script's folder first.
        before = self.roots
        self.roots = (str(script.parent), *(r for r in before if r != str(script.parent)))
        self._specs.clear()
        for name in _facts_of(str(script)).imports_of(""):
            if self._is_followed(name, ""):
                self.add_module(name)
        self.roots = before


# Suffixes of code, which is read by its imports and not as data.
_CODE = frozenset({".py", ".pyc", ".pyi", ".so", ".pyd", ".pyx"})
SHELL = frozenset({".sh", ".bash", ".zsh", ".ksh"})

# Files that programs write while they train, and that are no part of them.
_OUTPUTS = frozenset({".log", ".out", ".err", ".lock", ".pid", ".db", ".sqlite", ".db-wal"})


def named_files(text: str, folders: Sequence[Path]) -> list[Path]:
    """Return the files that the words of a text name, relative to some folders.

    Files that look like outputs, such as logs, are left out.
    """
    files = []
    for word in dict.fromkeys(re.split(r"[\s'\"=;|&<>()`$,\[\]{}]+", text)):
        if not word or is_output(Path(word)):
            continue
        for folder in folders:
            path = Path(os.path.normpath(folder / os.path.expanduser(word)))
            if os.path.isfile(path):
                files.append(path)
                break
    return files


def is_output(path: Path) -> bool:
    """Return whether a file looks like one that a program writes while it trains."""
    return path.suffix in _OUTPUTS


def starts_shell(path: Path) -> bool:
    """Return whether a file is a shell script by its first line."""
    with open(path, "rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and b"sh" in first


def _name_below(path: Path, folder: Path) -> str:
    path = Path(os.path.abspath(path))
    folder = Path(os.path.abspath(folder))
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name


def _loaded_spec(name: str) -> ModuleSpec | None:
    spec: ModuleSpec | None = getattr(sys.modules.get(name), "__spec__", None)
    return spec


def _parents(module: str) -> Iterator[str]:
    parent = module.rpartition(".")[0]
    while parent:
        yield parent
        parent = parent.rpartition(".")[0]


def _is_package(spec: ModuleSpec | None) -> bool:
    return spec is not None and spec.submodule_search_locations is not None


def _file_of(name: str, spec: ModuleSpec | None) -> str | None:
    """Return the file of a module, or its place in an archive; None without one."""
    if spec is not None and spec.has_location and spec.origin:
        return spec.origin
    # A script has no spec; a class may name a module that was made by hand.
    file = getattr(sys.modules.get(name), "__file__", None)
    return file if isinstance(file, str) else None


def _modules_below(package: str, folder: Path) -> Iterator[str]:
    """Yield every module in the folder of a package, at any depth."""
    for file in _files_below(folder):
        name = file.relative_to(folder).as_posix()
        stem = name.partition(".")[0]
        if file.suffix in _CODE - {".pyi", ".pyx"} and stem:
            parts = [part for part in stem.split("/") if part != "__init__"]
            yield ".".join([package, *parts])


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the regular files of a folder at any depth, without caches and hidden ones."""
    for directory, folders, files in os.walk(folder):
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and f not in _CACHES and ".egg-" not in f
        )
        for name in sorted(files):
            if not name.startswith("."):
                yield Path(directory, name)


@dataclass(frozen=True)
class _Facts:
    """What the text of a Python file says.

    Attributes:
        imports: level, module and names of each import; a plain `import` has level 0.
        texts: its short texts, which may name files.
        is_dynamic: whether it imports what its text does not name.
        reads_files: whether it asks for its own place.
    """

    digest: str
    imports: tuple[tuple[int, str, tuple[str, ...]], ...] = ()
    texts: frozenset[str] = frozenset()
    is_dynamic: bool = False
    reads_files: bool = False

    def imports_of(self, package: str) -> Iterator[str]:
        """Yield the modules that the file may import, seen from its package."""
        for level, module, names in self.imports:
            base = module
            if level:
                parts = package.split(".")
                above = parts[: len(parts) - level + 1]
                if module:
                    above.append(module)
                base = ".".join(above)
            if base:
                yield base
                yield from _parents(base)
                yield from (f"{base}.{name}" for name in names)


# By path, with the state of the file: a program may change while this process lives.
_facts: dict[str, tuple[Any, _Facts]] = {}


def _facts_of(path: str) -> _Facts:
    state = _state_of(path)
    cached = _facts.get(path)
    if cached is None or cached[0] != state:
        cached = (state, _read_facts(path))
        _facts[path] = cached
    return cached[1]


# By module, with the spec that it was loaded by: its file may have changed since.
_module_facts: dict[str, tuple[ModuleSpec | None, _Facts]] = {}


def _facts_of_module(module: str, path: str) -> _Facts:
    spec = _loaded_spec(module)
    if spec is None:
        return _facts_of(path)  # its file is read when it is imported
    cached = _module_facts.get(module)
    if cached is None or cached[0] is not spec:
        cached = (spec, _facts_of(path))
        _module_facts[module] = cached
    return cached[1]


def _state_of(path: str) -> tuple[int, ...] | None:
    try:
        state = os.stat(path)
    except OSError:
        return None  # within an archive
    return state.st_mtime_ns, state.st_size, state.st_ino, state.st_ctime_ns


def _read_facts(path: str) -> _Facts:
    content = _content_of(path)
    if not path.endswith(".py"):
        # A compiled module says nothing of what it imports. The header of bytecode has times.
        body = content[16:] if path.endswith(".pyc") else content
        return _Facts(hashlib.sha256(body).hexdigest(), is_dynamic=True)
    return _facts_in(content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n"))


def _facts_in(content: bytes) -> _Facts:
    """Return what a text of Python says, with line feeds as its line ends."""
    digest = hashlib.sha256(content).hexdigest()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return _Facts(digest, is_dynamic=True)
    reader = _SourceReader()
    for node in ast.walk(tree):
        reader.visit(node)
    return _Facts(
        digest,
        imports=tuple(reader.imports),
        texts=frozenset(reader.texts),
        is_dynamic=reader.is_dynamic or not reader.names.isdisjoint(_DYNAMIC),
        reads_files=not reader.names.isdisjoint(_READS_FILES),
    )


class _SourceReader(ast.NodeVisitor):
    """Collects what the nodes of a source import and name; the caller visits one at a time.

    Attributes:
        imports: level, module and names of each import.
        texts: literal texts that may name a file.
        names: all names and attributes, and what is imported.
        is_dynamic: whether a call imports a module that its text does not name.
    """

    def __init__(self) -> None:
        self.imports: list[tuple[int, str, tuple[str, ...]]] = []
        self.texts: set[str] = set()
        self.names: set[str] = set()
        self.is_dynamic = False

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imports.append((0, alias.name, ()))
            self.names.add(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        imported = tuple(alias.name for alias in node.names if alias.name != "*")
        self.imports.append((node.level, node.module or "", imported))
        self.names |= {node.module or "", *imported}

    def visit_Call(self, node: ast.Call) -> None:
        if _name_of_call(node) not in _IMPORTERS:
            return
        dynamic = _dynamic_import(node)
        if dynamic is None:
            self.is_dynamic = True
        else:
            self.imports.append(dynamic)

    def visit_Name(self, node: ast.Name) -> None:
        self.names.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.names.add(node.attr)

    def visit_Constant(self, node: ast.Constant) -> None:
        if _may_name_file(node.value):
            self.texts.add(str(node.value))

    def generic_visit(self, node: ast.AST) -> None:
        """Do nothing: other nodes name nothing."""


def _may_name_file(value: object) -> bool:
    is_short = isinstance(value, str) and 0 < len(value) <= 200
    return is_short and not {"\n", "\0"} & set(str(value))


def _name_of_call(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _dynamic_import(node: ast.Call) -> tuple[int, str, tuple[str, ...]] | None:
    """Return the import that a call makes; None if its text does not name the module."""
    first = node.args[0] if node.args else None
    if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        return None
    name = first.value.lstrip(".")
    return len(first.value) - len(name), name, ()


def _content_of(path: str) -> bytes:
    """Return the content of a file, which may lie in an archive on the path.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except NotADirectoryError:
        pass
    except OSError as error:
        raise ConfigError(
            f"{path}: expected a file that can be read, as it is code of a run: {reason_of(error)}"
        ) from error
    import zipimport

    archive = next(p for p in Path(path).parents if p.is_file())
    return zipimport.zipimporter(str(archive)).get_data(path)


# Hashes of files by path, with their state.
_hashes: dict[str, tuple[Any, str]] = {}


def _hash_of(file: Path) -> str:
    """Return the hash of a file's content; that of a large one is of its size."""
    path = str(file)
    state = _state_of(path)
    cached = _hashes.get(path)
    if cached is not None and cached[0] == state:
        return cached[1]
    if file.suffix == ".py":
        digest = _facts_of(path).digest
    elif file.stat().st_size > LARGE_BYTES:
        digest = hashlib.sha256(f"size {file.stat().st_size}".encode()).hexdigest()
    else:
        content = _content_of(path)
        if file.suffix in SHELL:
            content = content.replace(b"\r\n", b"\n")
        digest = hashlib.sha256(content).hexdigest()
    _hashes[path] = (state, digest)
    return digest


@functools.cache
def _plugin_files() -> frozenset[str]:
    """Return the Python files of installed packages that offer components to advsweep."""
    paths = set()
    for distribution in importlib.metadata.distributions():
        try:
            points = distribution.read_text("entry_points.txt") or ""
            if f"[{_OWN}." in points:
                listed = distribution.files or []
                paths |= {os.path.realpath(str(f.locate())) for f in listed if f.suffix in _CODE}
        except OSError:
            continue  # a damaged package offers nothing
    return frozenset(paths)
