"""What tests may do with a program that runs in another process."""

# ruff: noqa: E501  (a case of a table is a line)

from __future__ import annotations

import math
import os
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.tasks.verifiers import VERIFIERS, Outcome
from advsweep.tasks.verifiers.base import RUN_CODE
from advsweep.tasks.verifiers.code import Code, namespaces_missing
from advsweep.tasks.verifiers.messages import (
    DEPTH,
    Channel,
    NotPlainError,
    decode,
    encode,
)
from advsweep.tasks.verifiers.submission import ProgramTests
from tests.tasks.verifiers.sandbox.reference_solutions import (
    ReferenceSolution,
    reference_solutions,
)

SOLUTIONS = list(reference_solutions())
ISOLATIONS = [
    pytest.param(
        "namespaces",
        marks=pytest.mark.skipif(bool(namespaces_missing()), reason=namespaces_missing()),
    ),
    "limits",
]
ISOLATION = "limits" if namespaces_missing() else "namespaces"


@pytest.fixture(autouse=True)
def _consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_CODE, "1")


@pytest.fixture
def make() -> Callable[..., Code]:
    def make(isolation: str = "limits", **fields: Any) -> Code:
        spec = {"name": "code", "isolation": isolation, "seconds": 30.0, **fields}
        verifier = VERIFIERS.build(spec)
        assert isinstance(verifier, Code)
        return verifier

    return make


def test_there_are_many_solutions() -> None:
    assert len(SOLUTIONS) > 150
    assert len({solution.name for solution in SOLUTIONS}) == len(SOLUTIONS)


def judged(verifier: Code, solutions: list[ReferenceSolution]) -> list[tuple[Any, ...]]:
    return [
        (s.name, *(verifier.judge(s.reference, text).outcome for text in (s.program, s.wrong)))
        for s in solutions
    ]


def test_what_tests_are_about_shows_without_a_solution_in_the_data() -> None:
    for solution in SOLUTIONS:
        known = ProgramTests.of(solution.reference)
        unknown = ProgramTests.of({**solution.reference, "program": None})
        assert unknown.order("", "") == known.order("", "")
        assert unknown.live_object == known.live_object


@pytest.mark.slow
def test_right_programs_are_correct_and_changed_ones_wrong(make: Callable[..., Code]) -> None:
    """All of them, in the isolation that is the default where there is one."""
    found = judged(make(ISOLATION), SOLUTIONS)
    assert found == [(name, Outcome.CORRECT, Outcome.WRONG) for name, *_ in found]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_some_right_programs_are_correct_in_every_isolation(
    make: Callable[..., Code], isolation: str
) -> None:
    found = judged(make(isolation), SOLUTIONS[::23])
    assert found == [(name, Outcome.CORRECT, Outcome.WRONG) for name, *_ in found]


# Right programs that are not correct: their tests look at objects that plain data has not.
LOST = [
    # The function changes its argument and returns something, too.
    ("def f(x):\n    x.sort()\n    return len(x)", "x = [2, 1]\nassert f(x) == 2\nassert x == [1, 2]"),
    # It keeps or returns an argument.
    ("def f(x):\n    return x", "x = [1]\nassert f(x) is x"),
    ("def f(x):\n    x.append(x)", "x = []\nf(x)\nassert x[0] is x"),
    # The rows of the argument are the same row.
    ("def f(x):\n    x[0][0] = 1", "x = [[0]] * 2\nf(x)\nassert x == [[1], [1]]"),
    # A generator that does not end.
    ("def f():\n    while True:\n        yield 1", "assert next(f()) == 1"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "test"), LOST)
def test_these_right_programs_are_not_correct(
    make: Callable[..., Code], program: str, test: str
) -> None:
    found = make(seconds=1.0, memory_mb=128).judge({"tests": [test], "setup": ""}, program)
    assert found.outcome is Outcome.WRONG


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(x): return [x]", "assert f(1) == [2]"),
        ("def f(x): return 1", "assert f(1) == '1'"),
        ("def f(x): return [1]", "assert f(1) == (1,)"),
        ("def f(x): x.append(1)", "x = []\nf(x)\nassert x == []"),
        ("def f(x): x.append(1)\n", "x = (1,)\nf(x)"),
        ("def f(x): yield 1", "assert f(1) == [1]"),
        ("def f(x): raise ValueError", "try:\n    f(1)\nexcept KeyError:\n    pass"),
        ("def g(x): return x", "assert f(1) == 1"),
        ("def f(x): return object()", "try:\n    f(1)\nexcept Exception:\n    pass"),
        ("def f(x): return f", "assert f(1) is not None"),
        ("class Solution:\n    def f(self): return self", "assert Solution().f() is not None"),
    ],
)
def test_a_wrong_program_is_wrong(make: Callable[..., Code], program: str, test: str) -> None:
    assert make().judge({"tests": [test], "setup": ""}, program).outcome is Outcome.WRONG


def test_a_program_does_not_see_another(make: Callable[..., Code]) -> None:
    gold = {"tests": ["assert f() == (['a'], False)"], "setup": ""}
    program = """
import builtins, os
open("a", "w").close()
seen = hasattr(builtins, "seen")
builtins.seen = True
def f():
    return os.listdir("."), seen
"""
    verifier = make()
    for _ in range(2):
        assert verifier.judge(gold, program).outcome is Outcome.CORRECT


NODE = "class Node:\n    def __init__(self, v):\n        self.v, self.left = v, None\n"

# A right program, a setup, tests, and the expression that needs an object of the program.
LIVE = [
    ("def f(g, x): return g(g(x))", "", "assert f(lambda x: x + 1, 1) == 3", "f(lambda x: x + 1, 1)"),
    ("def f(g, x): return g(x)", "", "assert f(abs, -1) == 1", "f(abs, -1)"),
    ("def f(n): return lambda x: x + n", "", "assert f(1)(2) == 3", "f(1)(2)"),
    (f"{NODE}def f(v): return Node(v)", "", "assert f(1).v == 1", "f(1).v"),
    ("class Bad(ValueError): pass\ndef f(x): raise Bad", "", "try:\n    f(1)\n    assert False\nexcept Bad:\n    pass", "Bad, f"),
    (f"{NODE}def f(n): return 1 + f(n.left) if n else 0", "root = Node(1)\nroot.left = Node(2)", "assert f(root) == 2", "Node, f"),
    ("def f(n): return n.v", NODE, "assert f(Node(1)) == 1", "class Node: def __init__(self, v): self.v, self.left = v, N…"),
    (NODE, "", "n = Node(1)\nn.left = 2\nassert n.left == 2", "class Node"),
    ("class Stack(list):\n    def push(self, x): self.append(x)", "", "s = Stack()\ns.push(1)\nassert len(s) == 1", "class Stack"),
    ("class Solution:\n    def __init__(self, x): self.x = x\n    def f(self): return self.x", "", "assert Solution(1).f() == 1", "Solution(1)"),
    ("def f(x): return x", "", "assert callable(f) and f(1) == 1", "callable(f)"),
    ("def f(x): return x", "", "assert [f][0](1) == 1", "[f]"),
    ("K = 3\ndef f(x): return [x] * K", "", "assert len(f(1)) == K", "K, f"),
    ("def encode(x): return x\ndef decode(x): return x", "", "assert decode(encode(1)) == 1", "decode, encode"),
    ("from decimal import Decimal\ndef f(): return Decimal(1)", "", "from decimal import Decimal\nassert f() == Decimal(1)", "Decimal"),
    ("def f(x): return x", "import numpy as np", "assert (f(np.ones(1)) == np.ones(1)).all()", "np"),
    ("def f(x): return '1 + 1'", "", "assert eval(f(1)) == 2", "eval"),
    ("def f(x): print(x)", "", "import io, sys\nsys.stdout = io.StringIO()\nf(1)\nassert sys.stdout.getvalue() == '1\\n'", "sys.stdout"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "setup", "test", "use"), LIVE)
def test_tests_of_objects_are_refused_unless_they_are_trusted(
    make: Callable[..., Code], program: str, setup: str, test: str, use: str
) -> None:
    gold = {"tests": [test], "setup": setup, "program": program}
    assert ProgramTests.of(gold).live_object == use
    if "numpy" in setup:
        pytest.importorskip("numpy")
    found = make().judge(gold, program)
    reason = f"its tests need an object of the program ({use}): verifier.trusted_tests"
    assert (found.outcome, found.reason) == (Outcome.UNSCORABLE, reason)
    trusted = make(trusted_tests=True, memory_mb=2048)
    assert trusted.judge(gold, program).outcome is Outcome.CORRECT
    assert trusted.judge(gold, "").outcome is Outcome.WRONG


@pytest.mark.parametrize(
    ("test", "use"),
    [
        ("s = Stack()\ns.push(1)\nassert s.pop() == 1", "s.push"),
        ("a, b = f(1)\nassert a.v == 1", "a.v"),
        ("for node in f(1):\n    assert node.v == 1", "node.v"),
        ("assert [n.v for n in f(1)] == [1]", "n.v"),
        ("assert f(1)[0].v == 1", "f(1)[0].v"),
        ("def check(candidate):\n    assert candidate(1).v == 1\ncheck(f)", "candidate(1).v"),
        ("g = lambda x: x\nassert f(g, 1) == 1", "f(g, 1)"),
        ("s = Solution()\ns.x = 1\nassert s.f() == 1", "s.x"),
        (f"x = f({'+'.join(['1'] * 2000)})\nassert x.v == 1", "x.v"),
    ],
)
def test_uses_of_objects_are_found_without_a_known_solution(test: str, use: str) -> None:
    assert ProgramTests(test).live_object == use


@pytest.mark.parametrize(
    "test",
    [
        "s = Solution()\nassert s.f(1) == [1] and Solution().f(1).count(1) == 1",
        "try:\n    f(1)\nexcept ValueError as error:\n    assert error.args == (1,)",
        "import random\nrng = random.Random(0)\nx = rng.randint(1, 9)\nassert f(x) == x",
        "from collections import Counter\nassert Counter(f(1)).most_common(1) == [(1, 1)]",
        "from collections import Counter\nc = Counter(f(1))\nassert c.most_common(1) == [(1, 1)]",
        "r = f(1)\nr.sort()\nassert r[0].upper() == 'A' and sorted([1], key=f) == [1]",
        "import re\nassert re.compile('a').match(f(1)).group(0) == 'a'",
        "list = [1]\nassert f(list) == f(x=list) == sum(list)",
    ],
)
def test_plain_data_is_enough_for(test: str) -> None:
    assert ProgramTests(test).live_object == ""


def test_a_program_that_nests_too_deeply_is_wrong(make: Callable[..., Code]) -> None:
    """It would else choose not to be counted, where the tests send the value back to it."""
    nested = "[" * (DEPTH - 2) + "]" * (DEPTH - 2)
    gold = {"tests": ["assert f([f([])]) == 1"], "setup": ""}
    program = f"def f(x): return {nested} if x == [] else 1"
    assert make().judge(gold, program).outcome is Outcome.WRONG


@pytest.mark.parametrize(
    ("tests", "setup", "solution", "names", "imports"),
    [
        ("assert Counter(f(x) for x in [1]) == Counter() and isclose(1, 1)", "", "", ["f"], ["from collections import Counter", "from math import isclose"]),
        ("assert Counter(f(x) for x in [1]) == Counter([g(1)])", "", "from collections import Counter\ndef f(x): pass\ndef g(x): pass", ["f", "g"], ["from collections import Counter"]),
        ("assert math.floor(f(1)) == 1", "", "", ["f"], ["import math"]),
        ("assert m.floor(f(1)) == 1", "", "import math as m, re\nf = round", ["f"], ["import math as m, re"]),
        ("def check(candidate):\n    for i in range(3):\n        assert candidate(i) == i\ncheck(f)", "", "", ["f"], []),
        ("assert [x for x in f(1)] == [(lambda y: y)(1)]", "", "", ["f"], []),
        ("assert poly(f(1)) == 0", "def poly(x): return x - 1", "def poly(x): return 0\ndef f(x): return 1", ["f"], []),
        ("assert sum(1, 2) == 3", "", "", ["sum"], []),
        ("assert sum(1, 2) == len([1, 2, 3])", "", "", [], []),
        ("assert heapq([1]) == 1", "", "", ["heapq"], []),
        ("assert gcd(4, 6) == 2", "", "from math import gcd", ["gcd"], []),
    ],
)  # fmt: skip
def test_names_of_the_program(
    tests: str, setup: str, solution: str, names: list[str], imports: list[str]
) -> None:
    found = ProgramTests(tests, setup=setup, solution=solution).names
    assert found == (names, "\n".join(imports))


def test_the_program_is_given_no_more_than_the_imports_of_the_setup() -> None:
    setup = "import math\nfrom re import *\nexpected = 3\ndef right(x): return expected"
    message = ProgramTests("assert f(1) == expected", setup=setup).order("", "word")
    assert message["given"] == "import math\nfrom re import *"


@pytest.mark.slow
def test_outputs_are_compared_by_lines_and_numbers(make: Callable[..., Code]) -> None:
    cases = [
        ("1 2", "1.0 2.00\n", True),
        (" a  \nb\n\n", "a\nb", True),
        ("a b", "a  b", False),
        ("a\n\nb", "a\nb", False),
        ("1 2", "1 2 3", False),
        ("nan", "nan", True),
        ("nan", "NaN", False),
        ("1 x", "1.0 x", False),
        ("50000000000000000", "50000000000000001", False),
        ("", "", True),
        ("1e400", "1e400", True),
        ("True", "true", False),
        ("\n1", "1", False),
        ("1_000", "1000", False),
        ("\u0661", "1", False),
        ("1e3", "1000", False),
        ("007", "7", False),
        ("101", "0101", False),
        ("1e-06", "0.000001", True),
        ("0.3333333333333333", "0.333333", True),
        ("0.3334", "0.333333", False),
        ("1000000.5", "1000000.0", True),
        ("6.9999999", "7", False),
        ("7.0", "7", True),
        ("1\r\n2\r\n", "1\n2\n", True),
        ("1\n2\n", "1\r\n2\r\n", True),
        ("1" * 5000, "1" * 5000 + ".0", True),
        ("inf", "0.5", False),
        ("nan", "0.5", False),
        ("1e999", "0.5", False),
    ]
    verifier = make()
    for printed, expected, same in cases:
        gold = {"tests": [{"input": "", "output": expected}], "setup": ""}
        found = verifier.judge(gold, f"print({printed!r})").outcome
        assert (found is Outcome.CORRECT) is same, (printed, expected)


@pytest.mark.parametrize(
    ("program", "test"),
    [
        # A call whose result is not used may change its arguments, whatever it returns.
        ("def f(x):\n    x.sort()\n    return len(x)", "x = [2, 1]\nf(x)\nassert x == [1, 2]"),
        ("def f(x): x.sort()", "x = [2, 1]\nassert f(x) is None\nassert x == [1, 2]"),
        (
            "def f(x): x.sort()",
            "def check(candidate):\n    x = [2, 1]\n    candidate(x)\n    assert x == [1, 2]\ncheck(f)",
        ),
        (
            "class Solution:\n    def g(self, x): x[0] = 5",
            "x = [2, 1]\nSolution().g(x)\nassert x == [5, 1]",
        ),
        (
            "from collections import OrderedDict\ndef f(): return OrderedDict(a=1, b=2)",
            "from collections import OrderedDict\nassert f() == OrderedDict(a=1, b=2) and f() == {'b': 2, 'a': 1}",
        ),
        ("def f(x): return str(x)[:3]", "assert f(10 ** 5000) == '100'"),
        (
            "class Solution:\n    def f(self, x: Optional[List[int]]) -> Dict[str, int]: return {}",
            "assert Solution().f([1]) == {}",
        ),
        ("def f(x: int): return f.__annotations__['x'] is int", "assert f(1) is True"),
    ],
)
def test_a_right_program_is_correct(make: Callable[..., Code], program: str, test: str) -> None:
    assert make().judge({"tests": [test], "setup": ""}, program).outcome is Outcome.CORRECT


@pytest.mark.parametrize(
    ("program", "test"),
    [
        # It empties what its result is compared with.
        ("def f(x):\n    x.clear()", "x = {1: 2}\nassert f(x) == x.get(1)"),
        ("def f(x):\n    x.clear()", "x = [1]\nr = f(x)\nassert r is None and x == []"),
        (
            "from collections import OrderedDict\ndef f(): return OrderedDict(b=2, a=1)",
            "from collections import OrderedDict\nassert f() == OrderedDict(a=1, b=2)",
        ),
        ("def f(x: Nope): return x", "assert f(1) == 1"),
        ("def f(x: List[int]): return x", "assert f(1) == 1"),
    ],
)
def test_a_program_that_plain_python_would_not_pass_is_wrong(
    make: Callable[..., Code], program: str, test: str
) -> None:
    assert make().judge({"tests": [test], "setup": ""}, program).outcome is Outcome.WRONG


def test_a_program_that_answers_equal_calls_differently_is_named(make: Callable[..., Code]) -> None:
    gold = {"tests": ["assert f(1) in (0, 1)", "assert f(1) in (0, 1)"], "setup": ""}
    changing = "n = 1\ndef f(x):\n    global n\n    n = 1 - n\n    return n"
    found = make().judge(gold, changing)
    assert (found.outcome, found.reason) == (
        Outcome.CORRECT,
        "it answered equal calls differently",
    )
    assert make().judge(gold, "def f(x): return 1").reason == ""


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**300), 2**300)
    | st.floats()
    | st.complex_numbers()
    | st.binary()
    | st.text(st.characters(codec=None))
    | st.builds(range, st.integers(), st.integers(), st.integers(1)),
    lambda values: (
        st.lists(values)
        | st.lists(values).map(tuple)
        | st.sets(st.text() | st.integers())
        | st.frozensets(st.floats())
        | st.dictionaries(st.text() | st.tuples(st.integers(), st.floats()), values)
    ),
    max_leaves=20,
)


def _typed(value: Any) -> Any:
    """A value with the types of all that it contains; numbers as exact texts."""
    if type(value) in (dict, OrderedDict):
        return type(value).__name__, [(_typed(key), _typed(item)) for key, item in value.items()]
    if type(value) in (list, tuple):
        return type(value).__name__, [_typed(item) for item in value]
    if type(value) in (set, frozenset):
        return type(value).__name__, sorted(map(repr, value))
    return type(value).__name__, repr(value)


@given(PLAIN)
def test_plain_data_arrives_as_it_is(value: Any) -> None:
    assert _typed(decode(encode(value))) == _typed(value)


@pytest.mark.parametrize(
    "value", [-0.0, 2**63, -(2**63), "\ud83d\ude00", "\ud800", math.nan, 1e308]
)
def test_messages_keep_every_bit(value: Any) -> None:
    channel = Channel(*os.pipe())
    channel.send(
        "value",
        encode([value]),
        "\n",
    )
    kind, node, end = channel.receive()
    assert (kind, end) == ("value", "\n")
    assert _typed(decode(node)) == _typed([value])


@pytest.mark.parametrize("value", [object(), int, len, lambda: 1, [object()], {1: (int,)}])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(NotPlainError):
        encode(value)


def test_values_of_subclasses_arrive_as_those_of_their_base() -> None:
    class Number(int):
        def __int__(self) -> int:
            return 7

        __index__ = __hex__ = __abs__ = __int__

    values = [Counter("aab"), Number(6), Number(2**70), {Number(2): OrderedDict(a=bytearray(b"b"))}]
    expected = [{"a": 2, "b": 1}, 6, 2**70, {2: OrderedDict(a=b"b")}]
    assert _typed(decode(encode(values))) == _typed(expected)
    assert list(decode(encode(zip("ab", "cd", strict=True)))) == [("a", "c"), ("b", "d")]


def test_depth_is_limited() -> None:
    value: list[Any] = []
    for _ in range(DEPTH - 1):
        value = [value]
    assert decode(encode(value)) == value
    with pytest.raises(RecursionError, match="more than 64 deep"):
        encode([value])
    with pytest.raises(ValueError, match="too deeply"):
        decode(
            [
                "list",
                encode(value),
            ]
        )
