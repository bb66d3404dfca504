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

from advsweep.tasks.verifiers.framework_tests import is_test_class, runnable
from advsweep.tasks.verifiers.messages import ITERATOR
from advsweep.tasks.verifiers.tester import CLASS, STATEMENT

# Names of the standard library that tests without a known solution may use without an import.
_WELL_KNOWN = {
    "Counter": "collections",
    "OrderedDict": "collections",
    "defaultdict": "collections",
    "isclose": "math",
}

_PLAIN: tuple[type, ...] = (bool, int, float, complex, str, bytes, list, tuple, dict, set, range)
_OF_PLAIN = frozenset(name for kind in (*_PLAIN, ITERATOR) for name in dir(kind))

# They execute texts, which may be the program's.
_EXECUTE = {"eval", "exec", "compile", "__import__", "globals"}
# They say of a function of the program only what is true of its stub.
_INSPECT = {
    *("isinstance", "issubclass", "callable", "hasattr", "getattr", "dir", "vars", "id", "type"),
    *("repr", "str", "print", "len", "iter", "bool"),
}
# Tests that use these execute texts, look into the program, or compare values that are not plain.
_MODULES = (
    *("builtins", "code", "ctypes", "gc", "importlib", "inspect", "marshal", "pickle", "runpy"),
    *("shelve", "subprocess", "timeit", "asyncio", "contextlib.redirect_stdout", "unittest.mock"),
    *("collections.deque", "datetime", "decimal", "fractions", "numpy", "pandas", "sympy", "torch"),
)
_CANDIDATE = "candidate"  # the function under test, as HumanEval's tests call it
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
        if (node := _live(source, name)) is None:
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
        given = [ast.unparse(node) for node in _parse(self.setup) if _is_import(node)]
        if CLASS in names:
            given.insert(0, _TYPING)
        is_trusted = bool(self.live_object)
        return {
            "program": program,
            "scripts": self.scripts,
            "tests": self.python if is_trusted else _mark_statements(self.python),
            "tolerance": tolerance,
            "names": names,
            "setup": f"{imports}\n{self.setup}",
            "given": "\n".join(given),
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


def _live(source: str, name: str) -> ast.AST | None:
    """Return the first expression of tests that needs an object of the program, if any does.

    Args:
        name: what they take from the program.
    """
    nodes = [*ast.walk(ast.parse(source))]
    # Variables are followed by their names alone, wherever they are bound. A doubtful test is
    # refused; in one that is not, the program's values are plain data all the same.
    solutions = {name} & {CLASS}  # variables with the class `Solution` or an instance of it
    results: set[str] = set()  # variables that may hold results of the program
    functions = set(dir(builtins))  # and those of the tests
    modules: dict[str, str] = {}  # what imports bind to names

    def is_solution(node: ast.AST) -> bool:
        node = node.func if isinstance(node, ast.Call) else node
        return isinstance(node, ast.Name) and node.id in solutions

    def is_program(node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            return is_solution(node.value)
        return isinstance(node, ast.Name) and node.id in {name, _CANDIDATE} - {CLASS}

    def is_result(node: ast.AST) -> bool:
        while isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Name):
            return node.id in results
        return isinstance(node, ast.Call) and is_program(node.func)

    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            functions.add(node.name)
        elif _is_import(node):
            of = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                modules[_bound_by(alias)] = f"{of}{alias.name}."
        elif isinstance(node, ast.Assign | ast.For | ast.comprehension):
            given = node.value if isinstance(node, ast.Assign) else node.iter
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            functions = functions | bound if isinstance(given, ast.Lambda) else functions - bound
            if is_solution(given):
                solutions |= bound
            elif is_result(given):
                results |= bound

    def needs_object(node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            # The program would have to call a function of the tests, which no message can carry.
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            names = {argument.id for argument in given if isinstance(argument, ast.Name)}
            if is_program(node.func):
                lambdas = any(isinstance(argument, ast.Lambda) for argument in given)
                return lambdas or bool(names & {name, *functions})
            if isinstance(node.func, ast.Name) and node.func.id in _INSPECT:
                return name in names
            return is_result(node.func) or (is_solution(node.func) and bool(given))
        if isinstance(node, ast.Attribute):
            base, is_set = node.value, not isinstance(node.ctx, ast.Load)
            if isinstance(base, ast.Name) and base.id in modules:
                return is_set
            if is_solution(base):
                return is_set or node.attr.startswith("_")
            return is_program(base) or (is_result(base) and node.attr not in _OF_PLAIN)
        if isinstance(node, ast.ClassDef):  # its instances are given to the program, or compared
            return not is_test_class(node)
        if isinstance(node, ast.Name):
            module = modules.get(node.id, "")
            return node.id in _EXECUTE or module.startswith(tuple(f"{m}." for m in _MODULES))
        # A name of the program is there to be called, by the tests or by what they call.
        names = {n.id for n in ast.iter_child_nodes(node) if isinstance(n, ast.Name)}
        return name in names and not isinstance(node, ast.keyword | ast.Assign | ast.Expr)

    return next(filter(needs_object, nodes), None)


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


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if _is_import(node):
        return set(map(_bound_by, node.names))
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}
