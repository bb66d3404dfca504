"""What tests may do with a program that runs in another process."""

# ruff: noqa: E501  (a case of a table is a line)

from __future__ import annotations

from collections.abc import Iterator

import pytest

from advsweep.tasks.verifiers import VERIFIERS, Outcome
from advsweep.tasks.verifiers.code import Code
from advsweep.tasks.verifiers.consent import RUN_CODE
from advsweep.tasks.verifiers.sandbox.submission import Submission, impossible_tests

NODE = "class Node:\n    def __init__(self, v):\n        self.v, self.left = v, None\n"

# Program, setup, tests.
CASES = [
    ("def f(x): return [2 * v for v in x]", "", "assert f([1, 2]) == [2, 4]"),
    ("def f(x): return (1, (2, [3]))", "", "assert f(0) == (1, (2, [3]))"),
    ("def f(x): return {1: 'a', (2, 3): {4}}", "", "assert f(0) == {1: 'a', (2, 3): {4}}"),
    ("def f(*a): return {*a}", "", "assert set(f(4, 5)) == set((5, 4))"),
    ("def f(x): return frozenset(x)", "", "assert f('ab') == frozenset('ab')"),
    ("def f(x): return 2 ** x", "", "assert f(9000) == 2 ** 9000\nassert f(-1) == 0.5"),
    ("def f(x): return float(x)", "", "assert f('nan') != f('nan')\nassert f('inf') > 10**9"),
    ("def f(x): return x * 1j", "", "assert f(2) == 2j"),
    ("def f(x): return x[::-1]", "", "assert f(b'ab') == b'ba'\nassert f(bytearray(b'ab')) == b'ba'"),
    ("def f(x): return '\\ud800' + x", "", "assert f('é') == '\\ud800é'"),
    ("def f(x): return x / 3", "", "import math\nassert math.isclose(f(1), 0.3333, rel_tol=0.001)"),
    ("def f(x): return x / 3", "", "assert abs(f(1) - 0.3333) < 1e-3"),
    ("def f(x): return x > 3", "", "assert f(4)\nassert not f(2)\nassert f(4) is True"),
    ("def f(x): return None", "", "assert f(1) is None\nassert f(1) == None"),
    ("def f(x): return x", "", "assert f(3) in (3, 4)\nassert f(3) != 4\nassert 2 < f(3) <= 3"),
    ("def f(x): x.sort()", "", "x = [[3, 1], 2][0]\nf(x)\nassert x == [1, 3]"),
    ("def f(x): x['a'].append(x)", "", "x = {'a': []}\nf(x)\nassert x['a'][0] is x"),
    ("def f(n):\n    yield from range(n)", "", "assert list(f(3)) == [0, 1, 2]\nassert next(f(1)) == 0"),
    ("def f(x): return range(x)", "", "assert f(3) == range(3)\nassert [*map(str, f(2))] == ['0', '1']"),
    ("def f(x): return map(str, x)", "", "assert list(f([1])) == ['1']"),
    ("def f(g, x): return g(g(x))", "", "assert f(lambda x: x + 1, 1) == 3\nassert f(abs, -1) == 1"),
    ("def f(n): return lambda x: x + n", "", "assert f(1)(2) == 3"),
    ("def f(x): raise ValueError('no')", "", "try:\n    f(1)\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'no'"),
    ("class Bad(ValueError): pass\ndef f(x): raise Bad", "", "try:\n    f(1)\nexcept Bad:\n    pass\nelse:\n    assert False"),
    (f"{NODE}def f(n): return 0 if n is None else 1 + f(n.left)", "root = Node(1)\nroot.left = Node(2)", "assert f(root) == 2\nassert f(root.left) == 1\nassert root.v == 1"),
    ("def f(n):\n    n.v += 1\n    return Node(n.v)", NODE, "n = Node(1)\nassert f(n).v == 2\nassert n.v == 2\nassert type(f(n)) is Node"),
    ("class S:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n    def __len__(self): return len(self.items)\n    def __getitem__(self, i): return self.items[i]", "", "s = S()\ns.push(3)\nassert len(s) == 1 and s[0] == 3 and s.items == [3]\nassert isinstance(s, S)"),
    ("class V:\n    def __init__(self, x): self.x = x\n    def __add__(self, o): return V(self.x + o.x)\n    def __eq__(self, o): return self.x == o.x", "", "assert V(1) + V(2) == V(3)\nassert (V(1) + V(2)).x == 3\nassert V(1) != V(2)"),
    ("from collections import Counter\ndef f(x): return Counter(x)", "", "assert f('aab') == {'a': 2, 'b': 1}\nassert f('a') == Counter('a')"),
    ("from decimal import Decimal\nfrom fractions import Fraction\nfrom collections import deque\nimport datetime\ndef f(): return [Decimal('0.1'), Fraction(1, 3), deque([1]), datetime.date(2020, 1, 2)]", "", "import datetime\nfrom decimal import Decimal\nfrom fractions import Fraction\nfrom collections import deque\nassert f() == [Decimal('0.1'), Fraction(1, 3), deque([1]), datetime.date(2020, 1, 2)]"),
    ("def sum(a, b): return a + b", "", "assert sum(10, 15) == 25"),
    ("def f(x): return math.floor(x)", "import math", "assert f(1.5) == 1"),
    ("def add(a, b): return a + b", "", "def check(candidate):\n    assert candidate(1, 2) == 3\n    for i in range(3):\n        assert candidate(i, i) == 2 * i\ncheck(add)"),
    ("def f(x): return x", "", "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), 1)\nassert unittest.TextTestRunner().run(T('test')).wasSuccessful()"),
    ("def f(x): return x", "", "import unittest\nunittest.TestCase().assertEqual(f(1), 1)"),
    ("K = 3\ndef f(x): return [x] * K", "", "assert len(f(1)) == K"),
    ("def f(*a, **k): return (a, k)", "", "assert f(1, *[2], b=3) == ((1, 2), {'b': 3})"),
    ("def f(x): return sorted(x, key=lambda p: p[1])", "", "assert f([('a', 2), ('b', 1)]) == [('b', 1), ('a', 2)]"),
    ("import re\ndef f(x): return re.findall('a+', x)", "", "assert f('aab') == ['aa']\nassert re.match('a', f('a')[0])"),
    ("def f(p): return open(p).read()", "", "open('a.txt', 'w').write('b')\nassert f('a.txt') == 'b'"),
]  # fmt: skip


@pytest.fixture(scope="module")
def verifier() -> Iterator[Code]:
    verifier = VERIFIERS.build({"name": "code", "isolation": "limits", "seconds": 30.0})
    assert isinstance(verifier, Code)
    yield verifier
    verifier.close()


@pytest.fixture(autouse=True)
def _consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_CODE, "1")


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
@pytest.mark.parametrize(("program", "setup", "tests"), CASES)
def test_a_right_program_is_correct(
    verifier: Code, program: str, setup: str, tests: str, known: bool
) -> None:
    """Whether or not the data has a solution, which says what the tests are about."""
    gold = {"tests": [tests], "setup": setup, "program": program if known else ""}
    assert verifier.judge(gold, program).outcome is Outcome.CORRECT


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(x): return [x]", "assert f(1) == [2]"),
        ("def f(x): return 1", "assert f(1) == '1'"),
        ("def f(x): return [1]", "assert f(1) == (1,)"),
        ("def f(x): x.append(1)", "x = []\nf(x)\nassert x == []"),
        ("def f(x): yield 1", "assert f(1) == [1]"),
        ("def f(x): raise ValueError", "try:\n    f(1)\nexcept KeyError:\n    pass"),
        ("def f(g): return g(2)", "assert f(lambda x: x + 1) == 2"),
        ("def f(x): return x", "assert f(object()) == 1"),
        ("def g(x): return x", "assert f(1) == 1"),
    ],
)
def test_a_wrong_program_is_wrong(verifier: Code, program: str, test: str) -> None:
    assert verifier.judge({"tests": [test], "setup": ""}, program).outcome is Outcome.WRONG


def test_a_program_does_not_see_another(verifier: Code) -> None:
    gold = {"tests": ["assert f() == (['a'], False)"], "setup": ""}
    program = """
import builtins, os
open("a", "w").close()
seen = hasattr(builtins, "seen")
builtins.seen = True
def f():
    return os.listdir("."), seen
"""
    for _ in range(2):
        assert verifier.judge(gold, program).outcome is Outcome.CORRECT


def test_the_control_evaluates_the_same_operands() -> None:
    assert impossible_tests("assert f(1) == 2, 'no'\nx = 1\nassert not f(x)").splitlines() == [
        "assert __control__(f(1), 2)",
        "x = 1",
        "assert __control__(not f(x))",
        "assert __control__.passes",
    ]


def test_a_solution_tells_what_tests_take_from_the_program() -> None:
    tests = "assert Counter(f(x) for x in [1]) == Counter([helper(1)]) and isclose(1, 1)"
    solution = "from collections import Counter\ndef f(x): pass\ndef helper(x): pass"
    message = Submission("", "", tests, solution).message()
    assert message["names"] == ["f", "helper"]
    assert message["imports"] == "from collections import Counter"
    message = Submission("", "", tests).message()
    assert message["names"] == ["f", "helper"]
    assert message["imports"].splitlines() == [
        "from collections import Counter",
        "from math import isclose",
    ]
