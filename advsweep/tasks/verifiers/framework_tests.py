"""Tests that a framework would run: unittest's classes, and functions and classes of pytest."""

from __future__ import annotations

import ast

_RUN_CASES = """
import unittest as _unittest
for _case in ({names},):
    _result = _unittest.TestResult()
    _unittest.defaultTestLoader.loadTestsFromTestCase(_case).run(_result)
    assert _result.wasSuccessful()
"""

# Words of texts that run their own cases.
_RUNNERS = ("unittest.main", "TestRunner", "TestSuite", "TestLoader", "pytest.main")


def runnable(source: str) -> str:
    """Return tests with calls of those that only a framework would call.

    Tests that nothing calls would accept any program.
    """
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source  # tests that cannot be read are named elsewhere
    calls: list[str] = []
    cases = [node.name for node in body if isinstance(node, ast.ClassDef) and _is_case(node)]
    if cases and not any(word in source for word in _RUNNERS):
        calls.append(_RUN_CASES.format(names=", ".join(cases)))
    called = _called_names(body)
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name in called:
            continue
        if isinstance(node, ast.FunctionDef):
            if _is_test(node, arguments=0):
                calls.append(f"{node.name}()")
        elif is_test_class(node) and not _is_case(node):
            calls += [f"{node.name}().{name}()" for name in _test_methods(node)]
    return "\n".join([source, *calls]) if calls else source


def is_test_class(node: ast.ClassDef) -> bool:
    """Return whether a class is one of unittest's, or one that pytest would run."""
    return _is_case(node) or (node.name.startswith("Test") and not node.bases)


def _is_case(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).endswith("TestCase") for base in node.bases)


def _is_test(node: ast.FunctionDef, *, arguments: int) -> bool:
    required = len(node.args.args) - len(node.args.defaults)
    return node.name.startswith("test") and required == arguments and not node.decorator_list


def _test_methods(node: ast.ClassDef) -> list[str]:
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    return [method.name for method in methods if _is_test(method, arguments=1)]


def _called_names(body: list[ast.stmt]) -> set[str]:
    calls = [node for part in body for node in ast.walk(part) if isinstance(node, ast.Call)]
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}
