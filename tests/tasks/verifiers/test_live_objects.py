"""Which expressions of tests need an object of the program."""

import ast

import pytest

from advsweep.tasks.verifiers.live_objects import find_live_object_use


@pytest.mark.parametrize(
    ("source", "used"),
    [
        # Calls with plain data, and what is true of plain results.
        ("assert f(1) == 2", None),
        ("assert sorted(f([2, 1])) == [1, 2]", None),
        ("x = f(1)\nassert x[0].append(2) is None", None),
        ("assert isinstance(f(1), int)", None),
        ("assert list(map(f, [1])) == [2]", None),
        # The function itself, or one of the tests as an argument.
        ("assert callable(f)", "callable(f)"),
        ("g = f\nassert g(1) == 2", None),
        ("assert f(lambda x: x) == 2", "f(lambda x: x)"),
        ("def g(x): return x\nassert f(g) == 2", "f(g)"),
        ("assert f(len) == 2", "f(len)"),
        ("assert [f, 1]", "[f, 1]"),
        # Attributes that plain data has not.
        ("assert f.name == 1", "f.name"),
        ("assert f(1).name == 1", "f(1).name"),
        ("x = f(1)\nassert x[0].name == 1", "x[0].name"),
        ("for x in f(1):\n    x.name", "x.name"),
        ("assert [x.name for x in f(1)]", "x.name"),
        ("f(1)()", "f(1)()"),
        # What executes texts, or compares values that are no plain data.
        ("assert eval('f(1)') == 2", "eval"),
        ("import numpy as np\nassert np.all(f(1))", "np"),
        ("from datetime import date\nassert f(1) == date(2000, 1, 1)", "date"),
        ("import math\nassert math.isclose(f(1), 2)", None),
        ("import math\nmath.pi = 3", "math.pi"),
        ("class Point: pass\nassert f(Point()) == 2", "class Point:\n    pass"),
    ],
)
def test_a_function(source: str, used: str | None) -> None:
    node = find_live_object_use(source, "f")
    assert (node and ast.unparse(node)) == used


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("assert Solution().f(1) == 2", None),
        ("s = Solution()\nassert s.f(1) == 2", None),
        ("assert Solution(1).f(1) == 2", "Solution(1)"),
        ("s = Solution()\ns.count = 1", "s.count"),
        ("assert Solution()._f(1) == 2", "Solution()._f"),
        ("s = Solution()\nassert s.f(1).name", "s.f(1).name"),
        ("assert [Solution]", "[Solution]"),
    ],
)
def test_a_class_solution(source: str, used: str | None) -> None:
    node = find_live_object_use(source, "Solution")
    assert (node and ast.unparse(node)) == used
