"""Whole answers, as models write them, judged in both isolations."""

# ruff: noqa: E501  (a case of a table is a line)

from __future__ import annotations

from typing import Any

import pytest

from advsweep.tasks.verifiers import VERIFIERS, Outcome
from advsweep.tasks.verifiers.base import RUN_CODE
from advsweep.tasks.verifiers.code import Code, namespaces_missing

ISOLATIONS = [
    pytest.param(
        "namespaces",
        marks=pytest.mark.skipif(bool(namespaces_missing()), reason=namespaces_missing()),
    ),
    "limits",
]

# Programs, tests of them, and whether they are right.
FUNCTIONS = [
    ("import functools\ndef log(f):\n    @functools.wraps(f)\n    def g(*a):\n        return f(*a)\n    return g\n@log\ndef area(a, b):\n    return a * b", "assert area(2, 3) == 6", True),
    ("import sys\nsys.setrecursionlimit(10**5)\ndef depth(n): return 0 if n == 0 else 1 + depth(n - 1)", "assert depth(4000) == 4000", True),
    ("def digits(n): return str(10**n)", "assert len(digits(6000)) == 6001", True),
    ("def put(x): x.sort()", "x = [3, 1]\nput(x)\nassert x == [1, 3]", True),
    ("def put(x): x = sorted(x)", "x = [3, 1]\nput(x)\nassert x == [1, 3]", False),
    ("def pair(x): return x", "assert pair([1, 2]) == (1, 2)", False),
    ("import numpy as np\ndef total(x): return np.sum(x)", "assert total([1, 2]) == 3", True),
    ("def half(x):\n    print('halving')\n    return x / 2", "assert half(3) == 1.5", True),
    ("from __future__ import annotations\ndef inc(x: Nope) -> int | Nope: return x + 1", "assert inc(1) == 2", True),
    ("def name(x):\n    match x:\n        case 1: return 'one'\n        case _: return 'more'", "assert (name(1), name(2)) == ('one', 'more')", True),
]  # fmt: skip

# Programs, their inputs and outputs, and whether they are right.
SCRIPTS = [
    ("print(1 / 3)", "", "0.3333333333\n", True),
    ("print(3.1426)", "", "3.1416\n", False),
    ("print(6 / 2)", "", "3\n", True),
    ("print(1, 2, end=' \\n\\n')", "", "1 2\n", True),
    ("print('Yes')", "", "YES\n", False),
    ("print(10**5000 + 1)", "", "1" + "0" * 5000, False),
    ("print(int(input('x: ')) ** 2)", "4\n", "16\n", False),
    ("import sys\nprint(sum(int(line) for line in sys.stdin))", "1\n2\n", "3\n", True),
    ("def g():\n    yield from map(int, input().split())\nr = g()\nprint(next(r) + next(r))", "1 2 9", "3", True),
    ("print(input().upper())", "é\n", "É\n", True),
    ("def main():\n    print(int(input()) * 2)", "2", "4", False),
    ("print('%.2f' % -0.0)", "", "0.00", True),
    ("print(1)\nraise SystemExit(2)", "", "1", False),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_answers_are_judged_as_people_would(
    isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_CODE, "1")
    verifier = VERIFIERS.build({"name": "code", "isolation": isolation, "seconds": 10.0})
    assert isinstance(verifier, Code)
    cases: list[tuple[str, Any, bool]] = [*FUNCTIONS]
    cases += [(p, {"input": given, "output": out}, right) for p, given, out, right in SCRIPTS]
    for program, test, is_right in cases:
        answer = f"Here it is.\n```python\n{program}\n```\nIt works."
        outcome = verifier.judge({"tests": [test], "setup": ""}, answer).outcome
        assert outcome is (Outcome.CORRECT if is_right else Outcome.WRONG), program
