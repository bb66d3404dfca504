"""The tests of a problem: what they take from the program, and whether plain data is enough.

A test such as `assert set(f(x)) == {1}` uses names that the program defines, `f`, and names that
it must not be able to replace, `set`. Both are inferred from the tests, and from a known solution
if the data has one.
"""

from __future__ import annotations

import ast
import builtins
import functools
import symtable
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from advsweep.tasks.verifiers.framework_tests import runnable
from advsweep.tasks.verifiers.live_objects import find_live_object_use, imported_names
from advsweep.tasks.verifiers.tester import CLASS, STATEMENT

# Names of the standard library that tests without a known solution may use without an import.
_WELL_KNOWN = {
    "Counter": "collections",
    "OrderedDict": "collections",
    "defaultdict": "collections",
    "isclose": "math",
}

_SHOWN = 60  # characters of an expression
# LeetCode's own signatures use these names, and it supplies them.
_TYPING = "from typing import *"


@dataclass(frozen=True)
class ProgramTests:
    """The tests of a problem.

    Attributes:
        python: the source of the tests in Python; empty if there are none.
        scripts: pairs of standard input and output.
        setup: what runs before the tests in Python; a program can use its imports.
        solution: a program that is known to pass; empty if there is none.
    """

    python: str
    scripts: tuple[tuple[str, str], ...] = ()
    setup: str = ""
    solution: str = ""

    @classmethod
    def of(cls, reference: Mapping[str, Any]) -> ProgramTests:
        """Return the tests of a reference answer."""
        tests: Sequence[str | Mapping[str, str]] = reference["tests"]
        return cls(
            python=runnable("\n".join(test for test in tests if isinstance(test, str))),
            scripts=tuple((t["input"], t["output"]) for t in tests if not isinstance(t, str)),
            setup=reference["setup"],
            solution=reference.get("program") or "",
        )

    @functools.cached_property
    def names(self) -> tuple[list[str], str]:
        """The names that the tests take from the program, and the imports that they need.

        Names that the tests or their setup define are never taken from the program. Names of the
        standard library are only if the tests use no other names, because then the tests must be
        about them.
        """
        read = _free(f"{self.setup}\n{self.python}")
        replaced = read & set(dir(builtins))
        imports: dict[str, str] = {}
        defined: set[str] = set()
        for node in _parse(self.solution):
            if _is_import(node):
                imports |= dict.fromkeys(_bound(node) & read, ast.unparse(node))
            else:
                defined |= _bound(node)
        if not imports and not defined:
            imports = {name: f"import {name}" for name in read & sys.stdlib_module_names}
            for name in read & _WELL_KNOWN.keys():
                imports[name] = f"from {_WELL_KNOWN[name]} import {name}"
            defined = read - imports.keys() - replaced
        names = defined & read or set(imports) or (replaced if len(replaced) == 1 else set())
        needed = {text for name, text in imports.items() if name not in names}
        return sorted(names), "\n".join(sorted(needed))

    @functools.cached_property
    def live_object(self) -> str:
        """An expression of the tests that needs an object of the program; empty if none does.

        Tests may call one function of the program, or methods of one class `Solution`. All else
        needs the objects themselves: attributes of results, functions as arguments, a class with
        state, several names of the program, of which one may judge another.
        """
        names, imports = self.names
        if len(names) > 1:
            return ", ".join(names)
        name = names[0] if names else ""
        if name != CLASS and any(
            isinstance(node, ast.ClassDef) and node.name == name for node in _parse(self.solution)
        ):
            return f"class {name}"
        source = f"{imports}\n{self.setup}\n{self.python}"
        node = find_live_object_use(source, name)
        if node is None:
            return ""
        text = " ".join((ast.get_source_segment(source, node) or "").split())
        return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"

    def order(self, program: str, word: str, *, tolerance: float = 0.0) -> dict[str, Any]:
        """Return the order for `tester.Tester`.

        Args:
            word: a secret that is written at the end of the tests; an exit code would be easier
                to forge.
            tolerance: that of fractions that a script prints.
        """
        names, imports = self.names
        # The rest of the setup may tell the program what it has to return.
        imported = [ast.unparse(node) for node in _parse(self.setup) if _is_import(node)]
        if CLASS in names:
            imported.insert(0, _TYPING)
        is_trusted = bool(self.live_object)
        return {
            "program": program,
            "scripts": self.scripts,
            "tests": self.python if is_trusted else _mark_statements(self.python),
            "tolerance": tolerance,
            "names": names,
            "setup": f"{imports}\n{self.setup}",
            "given": "\n".join(imported),
            "trusted": is_trusted,
            "word": word,
        }


class _StatementMarker(ast.NodeTransformer):
    """Marks the calls whose results nothing uses, except perhaps that they are None."""

    def __init__(self) -> None:
        self.has_marked = False

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        self._mark(node.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        if ast.unparse(node.comparators[0]) == "None" and len(node.comparators) == 1:
            self._mark(node.left)
        return node

    def _mark(self, node: ast.expr) -> None:
        if isinstance(node, ast.Call):
            name = ast.Name(id=STATEMENT, ctx=ast.Load())
            node.func = ast.Call(func=name, args=[node.func], keywords=[])
            self.has_marked = True


def _mark_statements(source: str) -> str:
    """Let calls that are statements, or compared with None alone, change their arguments."""
    marker = _StatementMarker()
    tree = marker.visit(ast.Module(body=_parse(source), type_ignores=[]))
    return ast.unparse(ast.fix_missing_locations(tree)) if marker.has_marked else source


def _free(source: str) -> set[str]:
    """Return the names that a source reads without having defined them."""
    tables = [symtable.symtable(source, "<tests>", "exec")]
    bound = {s.get_name() for s in tables[0].get_symbols() if s.is_assigned() or s.is_imported()}
    read: set[str] = set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        read |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module")
        }
    return read - bound


def _parse(source: str) -> list[ast.stmt]:
    """Return the statements of a source; empty if it cannot be parsed."""
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _is_import(node: ast.AST) -> TypeGuard[ast.Import | ast.ImportFrom]:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if _is_import(node):
        return set(imported_names(node))
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}
