"""Whether the tests of a problem need an object of the program, or plain data is enough."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence

from advsweep.tasks.verifiers.framework_tests import is_test_class
from advsweep.tasks.verifiers.messages import ITERATOR
from advsweep.tasks.verifiers.tester import CLASS

_CANDIDATE = "candidate"  # the function under test, as HumanEval's tests call it

_PLAIN: tuple[type, ...] = (bool, int, float, complex, str, bytes, list, tuple, dict, set, range)
_PLAIN_ATTRIBUTES = frozenset(name for kind in (*_PLAIN, ITERATOR) for name in dir(kind))

# They execute texts, which may be the program's.
_EXECUTE = {"eval", "exec", "compile", "__import__", "globals"}
# They say of a function of the program only what is true of its stub.
_INSPECT = {
    "isinstance",
    "issubclass",
    "callable",
    "hasattr",
    "getattr",
    "dir",
    "vars",
    "id",
    "type",
    "repr",
    "str",
    "print",
    "len",
    "iter",
    "bool",
}
# Tests that use these execute texts, look into the program, or compare values that are not plain.
_MODULES = (
    "builtins.",
    "code.",
    "ctypes.",
    "gc.",
    "importlib.",
    "inspect.",
    "marshal.",
    "pickle.",
    "runpy.",
    "shelve.",
    "subprocess.",
    "timeit.",
    "asyncio.",
    "contextlib.redirect_stdout.",
    "unittest.mock.",
    "collections.deque.",
    "datetime.",
    "decimal.",
    "fractions.",
    "numpy.",
    "pandas.",
    "sympy.",
    "torch.",
)


def find_live_object_use(source: str, name: str) -> ast.AST | None:
    """Return the first expression of tests that needs an object of the program, if any does.

    Args:
        source: the tests with their setup.
        name: what they take from the program; empty for nothing.
    """
    # Each node once, outer ones first; the visitors below look at one node at a time.
    nodes = list(ast.walk(ast.parse(source)))
    variables = _Variables(name)
    for node in nodes:
        variables.visit(node)
    uses = _ObjectUses(variables)
    for node in nodes:
        if uses.visit(node):
            return node
    return None


def imported_names(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """Return the names that an import binds, each with what is imported, such as `math.sqrt`."""
    prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return {
        alias.asname or alias.name.partition(".")[0]: f"{prefix}{alias.name}"
        for alias in node.names
    }


class _Variables(ast.NodeVisitor):
    """What the variables of tests may hold.

    They are followed by their names alone, wherever they are bound. A doubtful test is refused; in
    one that is not, the program's values are plain data all the same.

    Attributes:
        program: what the tests take from the program.
        solutions: variables with the class `Solution` or an instance of it.
        results: variables that may hold results of the program.
        functions: builtins, and functions of the tests.
        modules: what imports bind to names.
    """

    def __init__(self, program: str) -> None:
        self.program = program
        self.solutions = {program} & {CLASS}
        self.results: set[str] = set()
        self.functions = set(dir(builtins))
        self.modules: dict[str, str] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.functions.add(node.name)

    def visit_Import(self, node: ast.Import) -> None:
        self.modules |= imported_names(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.modules |= imported_names(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._bind(node.targets, node.value)

    def visit_For(self, node: ast.For) -> None:
        self._bind([node.target], node.iter)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._bind([node.target], node.iter)

    def generic_visit(self, node: ast.AST) -> None:
        """Do nothing: other nodes bind no variable that is followed."""

    def _bind(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        names = {
            node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)
        }
        if isinstance(value, ast.Lambda):
            self.functions |= names
        else:
            self.functions -= names
        if self.is_solution(value):
            self.solutions |= names
        elif self.is_result(value):
            self.results |= names

    def is_solution(self, node: ast.AST) -> bool:
        """Whether an expression is the class `Solution`, or makes or is an instance of it."""
        if isinstance(node, ast.Call):
            node = node.func
        return isinstance(node, ast.Name) and node.id in self.solutions

    def is_program(self, node: ast.AST) -> bool:
        """Whether an expression is a function or a method of the program."""
        if isinstance(node, ast.Attribute):
            return self.is_solution(node.value)
        return isinstance(node, ast.Name) and node.id in {self.program, _CANDIDATE} - {CLASS}

    def is_result(self, node: ast.AST) -> bool:
        """Whether an expression may be a result of the program, or a part of one."""
        while isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Name):
            return node.id in self.results
        return isinstance(node, ast.Call) and self.is_program(node.func)


class _ObjectUses(ast.NodeVisitor):
    """Tells of each node whether it needs an object of the program."""

    def __init__(self, variables: _Variables) -> None:
        self._variables = variables

    def visit_Call(self, node: ast.Call) -> bool:
        variables = self._variables
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        names = {argument.id for argument in arguments if isinstance(argument, ast.Name)}
        if variables.is_program(node.func):
            # The program would have to call a function of the tests, which no message can carry.
            if any(isinstance(argument, ast.Lambda) for argument in arguments):
                return True
            return not names.isdisjoint({variables.program, *variables.functions})
        if isinstance(node.func, ast.Name) and node.func.id in _INSPECT:
            return variables.program in names
        if variables.is_solution(node.func) and arguments:
            return True
        return variables.is_result(node.func)

    def visit_Attribute(self, node: ast.Attribute) -> bool:
        variables = self._variables
        is_set = not isinstance(node.ctx, ast.Load)
        if isinstance(node.value, ast.Name) and node.value.id in variables.modules:
            return is_set
        if variables.is_solution(node.value):
            return is_set or node.attr.startswith("_")
        if variables.is_program(node.value):
            return True
        return variables.is_result(node.value) and node.attr not in _PLAIN_ATTRIBUTES

    def visit_ClassDef(self, node: ast.ClassDef) -> bool:
        # Its instances are given to the program, or compared.
        return not is_test_class(node)

    def visit_Name(self, node: ast.Name) -> bool:
        module = self._variables.modules.get(node.id, "")
        return node.id in _EXECUTE or f"{module}.".startswith(_MODULES)

    def generic_visit(self, node: ast.AST) -> bool:
        """Tell whether another node names the program otherwise than to call it.

        The tests may call it, or what they call may.
        """
        if isinstance(node, ast.keyword | ast.Assign | ast.Expr):
            return False
        names = {child.id for child in ast.iter_child_nodes(node) if isinstance(child, ast.Name)}
        return self._variables.program in names
