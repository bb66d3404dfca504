"""Right programs with tests in the forms of MBPP, HumanEval and LiveCodeBench.

`reference_solutions` makes them of a table of functions, each with arguments and results: every
function is tested in all forms that its results allow. Scripts have standard input and output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# A function in Python, and cases: arguments and result.
FUNCTIONS: list[tuple[str, list[tuple[tuple[Any, ...], Any]]]] = [
    ("def double(x):\n    return 2 * x", [((3,), 6), ((-2**70,), -2**71), ((0,), 0)]),
    ("def mean(xs):\n    return sum(xs) / len(xs)", [(([1, 2, 4],), 7 / 3), (([-0.5, 0.5],), 0.0)]),
    ("def reciprocal(x):\n    return 1 / x if x else float('inf')", [((4,), 0.25), ((0,), math.inf)]),
    ("def reverse(s):\n    return s[::-1]", [(("abc",), "cba"), (("",), ""), (("é😀",), "😀é")]),
    ("def is_palindrome(s):\n    s = [c.lower() for c in s if c.isalnum()]\n    return s == s[::-1]", [(("A man, a plan, a canal: Panama",), True), (("ab",), False)]),
    ("import re\ndef vowels(s):\n    return re.findall('[aeiou]', s)", [(("education",), ["e", "u", "a", "i", "o"]), (("xyz",), [])]),
    ("def flatten(x):\n    return [z for y in x for z in (flatten(y) if isinstance(y, list) else [y])]", [(([1, [2, [3, []]]],), [1, 2, 3])]),
    ("def pairs(xs):\n    return list(zip(xs, xs[1:]))", [(([1, 2, 3],), [(1, 2), (2, 3)])]),
    ("def common(a, b):\n    return set(a) & set(b)", [(([1, 2, 3], [2, 3, 4]), {2, 3}), (([], [1]), set())]),
    ("def subsets(xs):\n    return {frozenset(x for i, x in enumerate(xs) if n >> i & 1) for n in range(2 ** len(xs))}", [(([1, 2],), {frozenset(), frozenset({1}), frozenset({2}), frozenset({1, 2})})]),
    ("from collections import Counter\ndef frequencies(xs):\n    return Counter(xs)", [(("aab",), {"a": 2, "b": 1})]),
    ("from collections import defaultdict\ndef by_length(xs):\n    found = defaultdict(list)\n    for x in xs:\n        found[len(x)].append(x)\n    return found", [((["a", "bb", "c"],), {1: ["a", "c"], 2: ["bb"]})]),
    ("from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\ndef midpoint(a, b):\n    return Point((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)", [(((0, 0), (2, 4)), (1.0, 2.0))]),
    ("def invert(d):\n    return {v: k for k, v in d.items()}", [(({1: "a", (2, 3): None},), {"a": 1, None: (2, 3)})]),
    ("from typing import List, Optional\ndef second(xs: List[int]) -> Optional[int]:\n    xs = sorted(set(xs))\n    return xs[-2] if len(xs) > 1 else None", [(([1, 5, 5, 3],), 3), (([1],), None)]),
    ("def nothing(x):\n    return None if x > 0 else x", [((1,), None), ((-1,), -1)]),
    ("def encode(s):\n    return s.encode()", [(("é",), b"\xc3\xa9")]),
    ("from functools import lru_cache\n@lru_cache(None)\ndef fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)", [((90,), 2880067194370816120)]),
    ("from heapq import *\nfrom math import *\ndef ceiling(x):\n    return ceil(x)", [((1.2,), 2), ((-1.2,), -1)]),
    ("def to_tuple(xs):\n    return tuple(map(tuple, xs))", [(([[1], [2, 3], []],), ((1,), (2, 3), ()))]),
    ("def matrix(n):\n    return [[0] * n] * n", [((2,), [[0, 0], [0, 0]])]),
    ("def sum_of(*numbers, start=0):\n    return sum(numbers, start)", [((1, 2, 3), 6), ((), 0)]),
    ("class Stack:\n    def __init__(self):\n        self.items = []\ndef balanced(s):\n    stack = Stack()\n    for c in s:\n        if c == '(':\n            stack.items.append(c)\n        elif not stack.items or not stack.items.pop():\n            return False\n    return not stack.items", [(("(())",), True), (("())",), False)]),
    ("def collatz(n):\n    yield n\n    while n > 1:\n        n = 3 * n + 1 if n % 2 else n // 2\n        yield n", [((6,), iter([6, 3, 10, 5, 16, 8, 4, 2, 1]))]),
    ("def doubled(xs):\n    return map(lambda x: 2 * x, xs)", [(([1, 2],), iter([2, 4]))]),
    ("def names(d):\n    return d.keys()", [(({"b": 1, "a": 2},), iter(["b", "a"]))]),
    ("import enum\nclass Color(enum.IntEnum):\n    RED = 1\ndef red():\n    return [Color.RED, True]", [((), [1, True])]),
]  # fmt: skip
# ruff: noqa: E501  (a function of the table is a line)

# Programs, setups and tests of other forms.
OTHERS = {
    "in place": ("def order(x):\n    x.sort()", "", "x = [3, 1]\norder(x)\nassert x == [1, 3]"),
    "in place, nested": ("def turn(m):\n    m[:] = [list(r) for r in zip(*m[::-1])]", "", "m = [[1, 2], [3, 4]]\nassert turn(m) is None\nassert m == [[3, 1], [4, 2]]"),
    "in place, others": ("def change(d, s, *, more):\n    d['a'] = 1\n    s.add(2)\n    more.clear()", "", "d, s, m = {}, {1}, [1]\nchange(d, s, more=m)\nassert (d, s, m) == ({'a': 1}, {1, 2}, [])"),
    "an error": ("def root(x):\n    if x < 0:\n        raise ValueError('negative')\n    return x ** 0.5", "", "try:\n    root(-1)\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'negative'"),
    "an error of its own": ("class Bad(KeyError):\n    pass\ndef find(x):\n    raise Bad(x)", "", "try:\n    find(1)\nexcept KeyError:\n    pass\nelse:\n    assert False"),
    "an expected error": ("def root(x):\n    if x < 0:\n        raise ValueError\n    return x ** 0.5", "", "import unittest\nwith unittest.TestCase().assertRaises(ValueError):\n    root(-1)\nunittest.TestCase().assertRaises(ValueError, root, -1)"),
    "an expected end": ("def first(n):\n    yield from range(n)", "", "r = first(1)\nassert next(r) == 0\ntry:\n    next(r)\n    assert False\nexcept StopIteration:\n    pass"),
    "the setup's imports": ("def floor(x):\n    return math.floor(x)", "import math", "assert floor(1.5) == 1"),
    "the solution's imports": ("import math\ndef root(x):\n    return math.sqrt(x)", "", "assert math.isclose(root(2), 1.41421356, rel_tol=1e-6)"),
    "the setup's helper": ("def root(c):\n    return -c[0] / c[1]", "def poly(c, x):\n    return sum(a * x**i for i, a in enumerate(c))", "import random\ndef check(candidate):\n    rng = random.Random(0)\n    for _ in range(20):\n        c = [rng.randint(1, 9), rng.randint(1, 9)]\n        assert abs(poly(c, candidate(list(c)))) < 1e-4\ncheck(root)"),
    "a name of a builtin": ("def sum(a, b):\n    return a + b", "", "assert sum(10, 15) == 25\nassert sum(2, 4) == 6"),
    "a name of a module": ("def heapq(xs):\n    return min(xs)", "", "assert heapq([2, 1]) == 1"),
    "a loop over cases": ("def add(a, b):\n    return a + b", "", "cases = [((1, 2), 3), ((2, 2), 4)]\nfor given, expected in cases:\n    assert add(*given) == expected\nassert all(add(*g) == e for g, e in cases)\nassert list(map(add, [1], [2])) == [3]"),
    "named arguments": ("def f(*a, **k):\n    return a, k", "", "assert f(1, *[2], b=3) == ((1, 2), {'b': 3})"),
    "sorted by a key": ("def f(x):\n    return list(x)", "", "assert sorted(f('ba'), key=lambda c: -ord(c)) == ['b', 'a']\nr = f('ba')\nr.sort()\nassert r[0].upper() == 'A'"),
    "comparisons": ("def f(x):\n    return x", "", "assert f(3) in (3, 4) and f(3) != 4 and 2 < f(3) <= 3 and f(3) is not None\nassert isinstance(f('a'), str) and type(f([])) is list\nassert f(float('nan')) != f(float('nan'))"),
    "iterators as arguments": ("def f(x):\n    return sum(x)", "", "assert f(iter([1, 2])) == f(i for i in (1, 2)) == f(range(3)) == f({1: 0, 2: 0}.keys() | set()) == 3"),
    "in place, subclasses": ("def f(d, c):\n    d['b'] = c.pop('a')", "from collections import OrderedDict, Counter", "d, c = OrderedDict(a=1), Counter('aab')\nassert f(d, c) is None\nassert (d, c) == (OrderedDict(a=1, b=2), Counter('b'))"),
    "an iterator, and no result": ("def f(x):\n    return None if sum(x) > 2 else 0", "", "assert f(i for i in (1, 2)) is None and f(map(int, '11')) == 0"),
    "subclasses as arguments": ("def f(d):\n    return d['a']", "from collections import OrderedDict, Counter", "assert f(OrderedDict(a=1)) == 1\nassert f(Counter('aab')) == 2"),
    "a file": ("def read(path):\n    return open(path).read()", "", "open('a.txt', 'w').write('b')\nassert read('a.txt') == 'b'"),
    "a static method": ("class Solution:\n    @staticmethod\n    def f(x):\n        return x + 1", "", "assert Solution.f(1) == 2 and Solution().f(1) == 2"),
    "a method that calls another": ("class Solution:\n    def f(self, n):\n        return 1 if n < 2 else n * self.f(n - 1)", "", "def check(candidate):\n    assert candidate(n=5) == 120\ncheck(Solution().f)"),
}  # fmt: skip

# Programs, and pairs of standard input and output.
SCRIPTS = {
    "readline": ("import sys\ninput = sys.stdin.readline\nn = int(input())\nfor _ in range(n):\n    print(*map(lambda x: 2 * int(x), input().split()))", [("2\n1 2\n3\n", "2 4\n6\n")]),
    "bytes": ("import sys\ndata = sys.stdin.buffer.read().split()\nsys.stdout.write(str(len(data)))", [("a b c", "3\n")]),
    "descriptors": ("import os\nos.write(1, os.read(0, 100)[::-1])", [("abc", "cba")]),
    "open(0)": ("print(open(0).read().count('a'))", [("banana\n", "3")]),
    "a main function": ("def main():\n    print(input().title())\n\nif __name__ == '__main__':\n    main()", [("ab cd", "Ab Cd\n")]),
    "an early exit": ("import sys\nif input() == 'no':\n    print('NO')\n    sys.exit()\nprint('YES')\nexit(0)", [("no", "NO"), ("yes", "YES")]),
    "spaces": ("for word in input().split():\n    print(word, end=' ')\nprint()", [("a b", "a b")]),
    "a deep recursion": ("import sys\nsys.setrecursionlimit(10**5)\ndef f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\nprint(f(int(input())))", [("5000", "5000")]),
    "long output": ("for i in range(int(input())):\n    print(i)", [("20000", "\n".join(map(str, range(20000))))]),
    "other letters": ("print(input() + 'é')", [("ü", "üé")]),
}  # fmt: skip


@dataclass(frozen=True)
class ReferenceSolution:
    """A right program, the same program with wrong results, and a reference answer with tests."""

    name: str
    program: str
    wrong: str
    reference: dict[str, Any]


def reference_solutions() -> Iterator[ReferenceSolution]:
    """Yield all programs in all forms; the first of a function's forms is that of MBPP."""
    for source, cases in FUNCTIONS:
        name = (
            source.partition("def ")[2]
            if source.startswith("def ")
            else source.rpartition("\ndef ")[2]
        )
        name = name.partition("(")[0]
        for form, program, tests, setup in _forms(name, source, cases):
            yield ReferenceSolution(
                f"{name}, {form}",
                program,
                f"{program}\n{_WRONG.format(name=name)}",
                {"tests": tests, "setup": setup, "program": program},
            )
    for name, (program, setup, tests) in OTHERS.items():
        reference = {"tests": [tests], "setup": setup, "program": program}
        yield ReferenceSolution(name, program, "pass", reference)
    for name, (program, pairs) in SCRIPTS.items():
        tests = [{"input": given, "output": printed} for given, printed in pairs]
        reference = {"tests": tests, "setup": ""}
        yield ReferenceSolution(f"script, {name}", program, f"print('x')\n{program}", reference)


# Appended to a program: its function returns something else of the same type.
_WRONG = """
def _change(right):
    def changed(*arguments, **named):
        result = right(*arguments, **named)
        if result is None or isinstance(result, (bool, int, float, complex)):
            return not result if type(result) in (bool, type(None)) else result + 1
        more = {{str: "?", bytes: b"?", list: [7], tuple: (7,)}}
        for kind in more:
            if isinstance(result, kind):
                return kind(result) + more[kind]
        if isinstance(result, (set, frozenset)):
            return result | {{7}}
        return {{**result, 7: 7}} if isinstance(result, dict) else [*result, 7]
    return changed
{name} = _change({name})
"""

_CLASS = "class Solution:\n    def {name}(self, *arguments):\n        return {name}(*arguments)\n"


def _forms(
    name: str, source: str, cases: list[tuple[tuple[Any, ...], Any]]
) -> Iterator[tuple[str, str, list[str], str]]:
    """Yield forms: a name, a program, its tests and their setup."""
    calls = [(f"({', '.join(map(repr, arguments))})", result) for arguments, result in cases]
    if type(cases[0][1]) is type(iter([])):
        calls = [(call, list(result)) for call, result in calls]
        for around in ("list", "sorted", "set"):
            tests = [f"assert {around}({name}{call}) == {around}({r!r})" for call, r in calls]
            yield around, source, tests, ""
        return
    expected = [(call, repr(r).replace("inf", "float('inf')")) for call, r in calls]
    yield "asserts", source, [f"assert {name}{call} == {r}" for call, r in expected], ""
    lines = "\n".join(f"    assert candidate{call} == {r}, 'no'" for call, r in expected)
    yield "check", source, [f"def check(candidate):\n{lines}\n\ncheck({name})"], ""
    program = f"{source}\n{_CLASS.format(name=name)}"
    yield "class", program, [f"assert Solution().{name}{call} == {r}" for call, r in expected], ""
    tests = [f"assert solution.{name}{call} == {r}" for call, r in expected]
    yield "instance", program, ["solution = Solution()", *tests], ""
    lines = "\n".join(f"        self.assertEqual({name}{call}, {r})" for call, r in expected)
    case = f"class T(unittest.TestCase):\n    def test(self):\n{lines}"
    run = "assert unittest.TextTestRunner().run(T('test')).wasSuccessful()"
    yield "unittest", source, [case, run], "import unittest"
    lines = "\n".join(f"result = {name}{call}\nassert result == {r}" for call, r in expected)
    yield "variables", source, [lines], ""
