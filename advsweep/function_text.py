"""The text of a file for a function or class of a program, with what it uses.

A worker trains from text (`named_code`), in a process of its own: it has no access to what a
program or a notebook has in memory. So a function that `advsweep.sweep` is given becomes the text
of a file: its source, with the imports, the plain values and the other functions that it reads.
"""

from __future__ import annotations
import __future__

import ast
import atexit
import builtins
import contextlib
import dis
import functools
import importlib.machinery
import inspect
import linecache
import shutil
import sys
import tempfile
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from advsweep.errors import ConfigError

_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})

# The folder of this process with the files; empty before the first one.
_folders: list[Path] = []


def write_text_of(found: Any, key: str) -> str:
    """Write a function or class into a file of this process; return the word that names it.

    An importable one of an installed module is named by its module.

    Args:
        key: the config key that it is for, for messages.

    Raises:
        ConfigError: Python cannot find its source, or it uses what no file can hold.
    """
    if _is_importable(found):
        return f"{found.__module__}:{found.__name__}"
    name = found.__name__
    if not name.isidentifier():
        raise ConfigError(
            f"{key}: expected a function with a name, got a lambda; write `def` in its place"
        )
    path = _folder() / f"{name}.py"
    path.write_text(text_of(found, key), encoding="utf-8")
    return f"{path}:{name}"


def text_of(found: Any, key: str) -> str:
    """Return the text of a file that defines a function or class alone.

    Raises:
        ConfigError: as `write_text_of`.
    """
    file = _File(key)
    file.add(found)
    head = ["from __future__ import annotations"] if file.defers_annotations else []
    return "\n".join([*head, *dict.fromkeys(file.imports), *file.values, "", "", *file.definitions])


class _File:
    """The parts of a file, collected from a function and what it uses."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._seen: set[int] = set()
        self._of_name: dict[str, Any] = {}
        self.imports: list[str] = []
        self.values: list[str] = []
        self.definitions: list[str] = []
        self.defers_annotations = False

    def add(self, found: Any) -> None:
        """Add the source of a function or class, after what it uses."""
        if id(found) in self._seen:
            return
        self._seen.add(id(found))
        title = found.__name__
        closed = inspect.unwrap(found).__code__.co_freevars if inspect.isfunction(found) else ()
        if closed:
            raise ConfigError(
                f"{self._key}: expected a function that stands alone, got '{title}', which uses "
                f"'{closed[0]}' of a function around it; make that a parameter with a default"
            )
        source = _source_of(found, self._key)
        space = _namespace_of(found)
        future = __future__.annotations.compiler_flag
        flags = future if _defers_annotations(found) else 0
        self.defers_annotations = self.defers_annotations or bool(flags)
        compiled = compile(source, title, "exec", flags=flags, dont_inherit=True)
        for name in dict.fromkeys(_global_names(compiled)):
            if name in space and space[name] is not found:
                self._add_name(name, space[name], title)
        self.definitions.append(f"{source.rstrip()}\n\n")

    def _add_name(self, name: str, value: Any, title: str) -> None:
        """Add what a name means in the program."""
        if name in self._of_name and self._of_name[name] is not value:
            raise ConfigError(
                f"{self._key}: expected one meaning of '{name}' in all that '{title}' uses, got "
                "two; write a file, as in estimator=FILE.py"
            )
        if name in self._of_name:
            return
        self._of_name[name] = value
        if isinstance(value, types.ModuleType):
            self.imports.append(f"import {value.__name__} as {name}")
        elif _is_importable(value):
            self.imports.append(f"from {value.__module__} import {value.__name__} as {name}")
        elif isinstance(value, (type, types.FunctionType)) and value.__name__ == name:
            self.add(value)
        elif _is_plain(value):
            self.values.append(f"{name} = {value!r}")
        else:
            raise ConfigError(
                f"{self._key}: expected '{title}' to use modules, functions and plain values "
                f"alone, got '{name}', a {type(value).__name__}; write a file, as in "
                "estimator=FILE.py"
            )


def _is_importable(value: Any) -> bool:
    """Return whether other processes can import an object by its module and name."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(value, "__name__", None)
    if module is None or name is None or module.__name__ == "__main__":
        return False
    return vars(module).get(name) is value and _is_installed(module.__name__.partition(".")[0])


@functools.cache
def _is_installed(package: str) -> bool:
    """Return whether workers find a package, whose path lacks the folder of the program."""
    if package in sys.stdlib_module_names:
        return True
    paths = [entry for entry in sys.path[1:] if entry]
    return importlib.machinery.PathFinder.find_spec(package, paths) is not None


def _is_plain(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError):
        return False


def _namespace_of(found: Any) -> dict[str, Any]:
    """Return the names that a function or class sees, without those of Python itself."""
    if inspect.isfunction(found):
        space = inspect.unwrap(found).__globals__
    else:
        space = vars(sys.modules[found.__module__])
    return {name: value for name, value in space.items() if not hasattr(builtins, name)}


def _defers_annotations(found: Any) -> bool:
    codes = [each.__code__ for each in _functions_of(found)]
    return any(code.co_flags & __future__.annotations.compiler_flag for code in codes)


def _functions_of(found: Any) -> list[types.FunctionType]:
    if inspect.isfunction(found):
        return [inspect.unwrap(found)]
    members = [each for each in vars(found).values() if inspect.isfunction(each)]
    # Those that `dataclass` has made have no file.
    return [each for each in members if not each.__code__.co_filename.startswith("<string")]


def _global_names(code: types.CodeType) -> Iterator[str]:
    """Yield the global names that code reads, also in the functions within."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _LOADS:
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _source_of(found: Any, key: str) -> str:
    """Return the source of a function or class, with its decorators.

    Raises:
        ConfigError: there is no file or cell with it.
    """
    kinds = (ast.FunctionDef, ast.ClassDef)
    if not _functions_of(found):
        with contextlib.suppress(OSError, TypeError):
            return textwrap.dedent(inspect.getsource(found))
    for function in _functions_of(found):
        lines = linecache.getlines(function.__code__.co_filename)
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError:
            continue
        # `inspect.getsource` finds no class of a notebook before Python 3.13.
        for node in ast.walk(tree):
            if not isinstance(node, kinds) or node.name != found.__name__:
                continue
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            last = node.end_lineno or first
            if first <= function.__code__.co_firstlineno <= last:
                return textwrap.dedent("".join(lines[first - 1 : last]))
    raise ConfigError(
        f"{key}: expected a function or class whose source Python finds, got '{found.__name__}'; "
        "write it into a file, as in estimator=FILE.py"
    )


def _folder() -> Path:
    if not _folders:
        _folders.append(Path(tempfile.mkdtemp(prefix="advsweep-")))
        atexit.register(shutil.rmtree, _folders[0], ignore_errors=True)
    return _folders[0]
