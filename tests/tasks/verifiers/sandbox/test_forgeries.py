"""Programs that mean to pass without being right: none is correct, and none leaves the score."""

# ruff: noqa: E501  (a case of a table is a line)

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from advsweep.tasks.verifiers import VERIFIERS, Outcome
from advsweep.tasks.verifiers.base import RUN_CODE, RUN_CODE_AS_ROOT
from advsweep.tasks.verifiers.code import Code, namespaces_missing

pytestmark = pytest.mark.security

GOLD = {"tests": ["assert double(3) == 6", "assert double(0) == 0"], "setup": "import math"}
RIGHT = "def double(x):\n    return 2 * x"

# The file that the answers of a program's process go to, wherever it is.
CHANNEL = """
import json, os, sys
frame = sys._getframe()
while not hasattr(frame.f_locals.get("self"), "_channel"):
    frame = frame.f_back
channel = frame.f_locals["self"]._channel
def answer(body):
    channel._writing.write(body + b"\\n")
    channel._writing.flush()
"""

FORGERIES = {
    "the word of the main module": """
import __main__, os
os.write(__main__.told, __main__.order["word"].encode())
os._exit(0)
""",
    "the word of the frames before": """
import os, sys
frame = sys._getframe()
while frame:
    for names in (frame.f_locals, frame.f_globals):
        if "order" in names:
            for descriptor in range(64):
                try:
                    os.write(descriptor, names["order"]["word"].encode())
                except OSError:
                    pass
    frame = frame.f_back
os._exit(0)
""",
    "words that the garbage collector knows": """
import gc, os
words = [d["word"] for d in gc.get_objects() if isinstance(d, dict) and "word" in d]
for word in words:
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, str(word).encode())
        except OSError:
            pass
os._exit(0)
""",
    # Of the parent alone, and into unnamed files alone, so that it harms nothing where it works.
    "words in the memory of the parent": """
import os, re
folder = f"/proc/{os.getppid()}"
words = set()
try:
    memory = open(f"{folder}/mem", "rb")
    for area in open(f"{folder}/maps").read().splitlines():
        first, last = (int(end, 16) for end in area.split()[0].split("-"))
        if " rw" in area and last - first < 2**22:
            memory.seek(first)
            words |= set(re.findall(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])", memory.read(last - first)))
    for descriptor in os.listdir(f"{folder}/fd"):
        if os.readlink(f"{folder}/fd/{descriptor}").endswith(" (deleted)"):
            for word in words:
                with open(f"{folder}/fd/{descriptor}", "r+b", buffering=0) as file:
                    file.write(b"+" + word)
finally:
    os._exit(0)
""",
    "descriptors of the parent": """
import os
for descriptor in range(64):
    try:
        os.write(os.open(f"/proc/{os.getppid()}/fd/{descriptor}", os.O_WRONLY), b"+\\n")
    except OSError:
        pass
os._exit(0)
""",
    "a tracer of the tests": """
import ctypes, os
libc = ctypes.CDLL(None)
if libc.ptrace(16, os.getppid(), None, None) == 0:  # PTRACE_ATTACH
    double = lambda x: 2 * x
""",
    "exec without effect": "import builtins\nbuiltins.exec = lambda *_: None",
    "compile of nothing": """
import builtins
real = compile
builtins.compile = lambda source, *rest, **more: real("", *rest, **more)
""",
    "loads, dumps and print of one's own": """
import builtins, json
json.dumps = lambda *_, **__: '["value", ["any"], null]'
json.loads = lambda *_, **__: ["value", 6, None]
builtins.print = lambda *_, **__: None
""",
    "modules of one's own": """
import sys
for name in list(sys.modules):
    if "advsweep" in name or name in ("json", "builtins", "operator"):
        sys.modules[name] = type(sys)("empty")
double = lambda x: 7
""",
    "a module in the working folder": """
for name in ("math", "json", "random", "unittest", "advsweep"):
    open(name + ".py", "w").write("import os, sys; os._exit(0)")
double = lambda x: 7
""",
    "equal to everything": """
class Equal:
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = object.__hash__
double = lambda x: Equal()
""",
    "a number equal to everything": """
class Number(int):
    __eq__ = lambda self, other: True
    __hash__ = int.__hash__
double = lambda x: Number(7)
""",
    "a function equal to everything": """
class Function:
    __call__ = lambda self, x: self
    __eq__ = lambda self, other: True
double = Function()
""",
    "a class instead of a function": """
class double:
    def __init__(self, x):
        pass
    __eq__ = lambda self, other: True
    __hash__ = lambda self: 6
""",
    "the answer of an instance": f"{CHANNEL}\ndouble = lambda x: answer(b'[\"instance\", 0]') or os._exit(0)",
    "a metaclass equal to everything": """
class Meta(type):
    __eq__ = lambda self, other: True
    __hash__ = type.__hash__
class Result(metaclass=Meta):
    pass
double = lambda x: Result
""",
    "an object that reduces itself": """
class Value:
    def __reduce__(self):
        return eval, ("__import__('os')._exit(0)",)
double = lambda x: Value()
""",
    "a list equal to everything, in itself": """
class List(list):
    __eq__ = lambda self, other: True
def double(x):
    found = List()
    found.append(found)
    return found
""",
    "a type called int": """
int = type("int", (), {"__eq__": lambda self, other: True, "__hex__": lambda self: "0x6"})
double = lambda x: int()
""",
    "expected values from the caller's constants": """
import sys
def double(x):
    constants = sys._getframe(1).f_code.co_consts
    return {3: 6, 0: 0}[x] if 6 in constants else None
""",
    "a trace that ends the tests": """
import os, sys
def trace(frame, event, argument):
    if "order" in frame.f_globals:
        os.write(frame.f_globals["told"], frame.f_globals["order"]["word"].encode())
        os._exit(0)
    frame.f_trace_opcodes = True
    return trace
sys.settrace(trace)
frame = sys._getframe(1)
frame.f_trace = trace
""",
    "handlers at the exit": """
import atexit, os
atexit.register(os._exit, 0)
raise SystemExit(0)
""",
    "exit code 0": "import os\nos._exit(0)",
    "another AssertionError": """
import builtins
builtins.AssertionError = type("Nothing", (Exception,), {})
builtins.__debug__ = False if False else True
double = lambda x: None
""",
    "a child that answers": """
import os
if os.fork():
    os._exit(0)
double = lambda x: None
""",
    "a thread that answers": f"""
{CHANNEL}
import threading, time
def later():
    while True:
        answer(b'["value", ["list"], null]')
        time.sleep(0.001)
threading.Thread(target=later, daemon=True).start()
double = lambda x: time.sleep(0.05)
""",
    "a signal": """
import os, signal
signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
signal.setitimer(signal.ITIMER_REAL, 0.01)
double = lambda x: signal.pause()
""",
    "the end of the tests' process": """
import os, signal
os.kill(os.getppid(), signal.SIGTERM)
double = lambda x: 7
""",
    "StopIteration": "def double(x):\n    raise StopIteration",
    "GeneratorExit": "def double(x):\n    raise GeneratorExit",
    "KeyboardInterrupt": "def double(x):\n    raise KeyboardInterrupt",
    "an exit as an answer": "def double(x):\n    raise SystemExit(0)",
    "an exception that ends the process": """
class Error(Exception):
    def __str__(self):
        import os
        os._exit(0)
def double(x):
    raise Error
""",
    "deep recursion": """
def double(x):
    found = 6
    for _ in range(10**6):
        found = [found]
    return found
""",
    "an endless iterator": """
import itertools
double = lambda x: itertools.repeat(6)
""",
    "much": "double = lambda x: 'x' * 2**25",
    "a long number": "double = lambda x: 1 << 2**24",
    "a flood": f"{CHANNEL}\nwhile True:\n    os.write(channel._writing.fileno(), b'+' * 65536)",
    "a long message": f"{CHANNEL}\nanswer(b'\"' + b'x' * 2**25 + b'\"')\ndouble = lambda x: 6",
    "an answer that never ends": f"{CHANNEL}\nos.write(channel._writing.fileno(), b'[')\nos._exit(0)",
}  # fmt: skip

ANSWERS = {
    "no list": b"{}",
    "no JSON": b"[",
    "nothing": b"",
    "no kind": b"[]",
    "a kind that is none": b'["values", 6, null]',
    "a kind that is a list": b'[["value"], 6, null]',
    "no value": b'["value"]',
    "too many values": b'["value", 6, null, null]',
    "deep JSON": b'["value", ' + b"[" * 10**5 + b"]" * 10**5 + b", null]",
    "deep tuples": b'["value", ' + b'["tuple", ' * 90 + b"0" + b"]" * 90 + b", null]",
    "an object": b'["value", {"a": 1}, null]',
    "an object in a list": b'["value", ["list", {}], null]',
    "a number of many digits": b'["value", ' + b"9" * 10**5 + b", null]",
    "a number in hexadecimal": b'["value", ["int", "0x' + b"f" * 10**6 + b'"], null]',
    "no number": b'["value", NaN, null]',
    "no hexadecimal": b'["value", ["int", "x"], null]',
    "no bytes": b'["value", ["bytes", 6], null]',
    "an unknown type": b'["value", ["object"], null]',
    "a type of a module": b'["value", ["unittest.mock.ANY"], null]',
    "an exec": b'["value", ["exec", "0"], null]',
    "a list without a type": b'["value", [6], null]',
    "half a dictionary": b'["value", ["dict", 1], null]',
    "a list as a key": b'["value", ["dict", ["list"], 1], null]',
    "a set of lists": b'["value", ["set", ["list"]], null]',
    "a range of texts": b'["value", ["range", "a"], null]',
    "an instance": b'["instance", 0]',
    "an instance without a number": b'["instance", "x"]',
    "an error without a name": b'["error", [[]], ""]',
    "an error of another kind": b'["error", ["SystemExit", "BaseException"], ""]',
    "an error that is a function": b'["error", ["exec", "print"], ""]',
    "an error that ends iterations": b'["error", ["StopIteration", "Exception"], ""]',
    "an error without a text": b'["error", ["ValueError"]]',
    "other changes": b'["value", null, ["list"]]',
    "changes that are none": b'["value", null, 7]',
}


def _of(body: str, *, base: str = "") -> str:
    """Return a program whose `f` returns an object of a class."""
    return f"class Own{base}:\n    {body}\ndef f(*a):\n    return Own()"


# Against tests of many forms: a program, a test, a known solution.
OPERATIONS = [
    # The five of the third look.
    (_of("__sub__ = lambda s, o: 0.0"), "assert abs(f(3) - 6) < 1e-6", ""),
    (_of("equals = lambda s, o: True"), "assert f(3).equals(6)", ""),
    (_of("issubset = lambda s, o: True"), "assert f(3).issubset({1, 2})", ""),
    ("class Node:\n    def __init__(self, v):\n        self.v, self.same = v, lambda other: True\ndef f(n):\n    return Node(1)", "assert f(Node(2)).same(Node(3))", ""),
    ("class np:\n    allclose = lambda *a: True\ndef f(x):\n    return 0", "assert np.allclose(f(3), [6])", ""),
    ("class np:\n    allclose = lambda *a: True\ndef f(x):\n    return 0", "assert np.allclose(f(3), [6])", "import numpy as np\ndef f(x): return [6]"),
    # Arithmetic and comparison.
    (_of("__sub__ = __rsub__ = lambda s, o: 0", base="(float)"), "assert abs(f(3) - 6) < 1e-6", ""),
    (_of("__rsub__ = lambda s, o: 0"), "assert abs(6 - f(3)) < 1e-6", ""),
    (_of("__abs__ = lambda s: 0\n    __sub__ = lambda s, o: s"), "assert abs(f(3) - 6) < 1e-6", ""),
    (_of("__lt__ = __le__ = __gt__ = __ge__ = lambda s, o: True"), "assert 5 < f(3) <= 6", ""),
    (_of("__float__ = lambda s: 6.0"), "assert float(f(3)) == 6.0", ""),
    (_of("__round__ = lambda s, n=0: 6"), "assert round(f(3), 2) == 6", ""),
    (_of("__index__ = lambda s: 6"), "assert [0] * f(3) == [0] * 6", ""),
    (_of("__str__ = lambda s: '6'"), "assert str(f(3)) == '6'", ""),
    (_of("__str__ = __repr__ = lambda s: '6'", base="(int)"), "assert str(f(3)) == '6'", ""),
    (_of("__eq__ = lambda s, o: True\n    __hash__ = int.__hash__", base="(int)"), "import math\nassert math.isclose(f(3), 6) or f(3) == 6", ""),
    ("def f(x):\n    return float('nan')", "assert abs(f(3) - 6) < 1e-6", ""),
    ("def f(x):\n    return '\\ud83d\\ude00'", "assert f(3) == '\\U0001f600'", ""),
    # Containment, length, truth and iteration.
    (_of("__contains__ = lambda s, o: True"), "assert 6 in f(3)", ""),
    (_of("__len__ = lambda s: 3", base="(list)"), "assert len(f(3)) == 3", ""),
    (_of("__bool__ = lambda s: True", base="(list)"), "assert f(3)", ""),
    (_of("__getitem__ = lambda s, i: i + 1", base="(list)"), "assert f(3)[5] == 6", ""),
    (_of("__eq__ = lambda s, o: True\n    __hash__ = lambda s: 6"), "assert f(3) in [4, 5] or f(3) in {6: 1}", ""),
    (_of("__iter__ = lambda s: s\n    __next__ = lambda s: s\n    __eq__ = lambda s, o: True"), "assert next(iter(f(3))) == 6", ""),
    (_of("__eq__ = lambda s, o: True", base="(list)"), "assert f(3) == [1]", ""),
    (_of("__eq__ = lambda s, o: True", base="(dict)"), "assert f(3) == {1: 2}", ""),
    (_of("__eq__ = lambda s, o: True\n    __hash__ = str.__hash__", base="(str)"), "assert 'a' == f(3)", ""),
    ("class E:\n    __eq__ = lambda s, o: True\ndef f(x):\n    return [E(), (E(),)]", "assert f(3) == [1, (2,)]", ""),
    ("def f(x):\n    yield from [1, 2]", "assert f(3) == [1, 2]", ""),
    # Methods and attributes.
    (_of("strip = lower = lambda s: 'a'", base="(str)"), "assert f(3).strip().lower() == 'a'", ""),
    (_of("items = lambda s: [(1, 2)]", base="(dict)"), "assert list(f(3).items()) == [(1, 2)]", ""),
    ("class f:\n    def __init__(self, x):\n        pass\n    issubset = lambda s, o: True", "assert f(3).issubset({1, 2})", ""),
    ("class f:\n    def __init__(self, x):\n        pass\n    issubset = lambda s, o: True", "assert f(3).issubset({1, 2})", "def f(x): return {1}"),
    ("class F:\n    def __init__(self, x):\n        pass\n    issubset = lambda s, o: True", "assert F(3).issubset({1, 2})", ""),
    ("class Solution:\n    def f(self, x):\n        return self\n    def issubset(self, other):\n        return True", "assert Solution().f(3).issubset({1})", ""),
    ("class Solution:\n    def __getattr__(self, name):\n        return lambda *a: self\n    __eq__ = lambda s, o: True", "s = Solution()\nassert s.f(1) == s.g(2) == 3", ""),
    ("class f:\n    def __new__(cls, x):\n        return [6]\n    __eq__ = lambda s, o: True", "assert f(3) == 6", ""),
    ("def f(x):\n    return 1", "assert callable(f) and not isinstance(f, int)", ""),
    ("def f(x):\n    return '__import__(\"os\")._exit(0)'", "import timeit\nassert timeit.timeit(f(3), number=1) > 9", ""),
    ("def f(x):\n    return range(10**9)", "assert list(f(3)) == [1]", ""),
    ("def f(x):\n    return {float('nan')}", "assert f(3) == {6} or 6 in f(3)", ""),
    ("class Solution:\n    value = True\n    f = lambda s, x: None", "assert Solution().value", ""),
    ("class Solution:\n    f = lambda s, x: s\n    __eq__ = lambda s, o: True", "assert Solution().f(3) == 6", ""),
    ("class Solution:\n    class f:\n        def __init__(self, *a):\n            pass\n        __eq__ = lambda s, o: True", "assert Solution.f(3) == 6", ""),
    # Names of the tests.
    ("import math\nmath.isclose = lambda *a: True", "assert math.isclose(f(3), 0.3)", ""),
    ("class math:\n    isclose = lambda *a: True", "assert math.isclose(f(3), 0.3)", ""),
    ("isclose = lambda *a: True", "assert isclose(f(3), 0.3)", ""),
    ("isclose = lambda *a: True", "assert isclose(f(3), 0.3)", "from math import isclose\nf = 1"),
    ("set = lambda x: 0", "assert set(f(3)) == set((1, 2))", ""),
    ("abs = lambda x: -1", "assert abs(f(3) - 7) < 0.1", ""),
    ("sorted = lambda x: 0", "assert sorted(f(3)) == [1, 2]", "def f(x): return [1, 2]"),
    ("Counter = lambda *x: 0\ndef f(x): return 0", "assert f(3) == Counter([1])", ""),
    ("isinstance = lambda *x: True", "assert isinstance(f(3), int)", ""),
    ("equals = lambda *x: True", "assert equals(f(3), 6)", ""),
    ("equals = lambda *x: True", "assert equals(f(3), 6)", "def f(x): return 6\ndef equals(a, b): return a == b"),
    ("encode = decode = lambda x: x", "assert decode(encode('a')) == 'a'", ""),
    ("fast = slow = lambda x: x", "assert fast(3) == slow(3)", ""),
    ("import unittest\nunittest.TestCase.assertEqual = lambda *a: None", "import unittest\nunittest.TestCase().assertEqual(f(3), 3)", ""),
    ("AssertionError = Exception\n__debug__ = 0" if False else "AssertionError = Exception", "assert f(3) == 6", ""),
    # Control flow.
    ("def f(x):\n    raise StopIteration", "assert all(map(lambda x: f(x) == x, [1, 2]))", ""),
    ("class End(StopIteration):\n    pass\ndef f(x):\n    raise End", "assert list(map(f, [1, 2])) == []", ""),
    ("def f(x):\n    raise AssertionError", "assert f(3) == 3", ""),
    # Arguments and what the tests know of them.
    ("def f(x):\n    x.clear()\n    return []", "x = [3, 1]\nassert f(x) == sorted(x)", ""),
    ("def f(x):\n    x.clear()\n    return 0", "x = [3, 1]\nassert f(x) == sum(x)", ""),
    ("def f(x):\n    return eval(x)", "assert eval(f('1')) == 2", ""),
    ("def f(x):\n    return \"__import__('os')._exit(0)\"", "assert eval(f('1')) == 2", ""),
    ("import pickle\ndef f(x):\n    return pickle.dumps(1)", "import pickle\nassert pickle.loads(f(3)) == 2", ""),
    ("def f(x):\n    return EXPECTED", "assert f(3) == EXPECTED", ""),
    ("def f(x):\n    return reference(x)", "assert f(3) == reference(3)", ""),
]  # fmt: skip
SETUP = "EXPECTED = 'seven'\ndef reference(x):\n    return 'seven'"


@pytest.fixture(autouse=True)
def _consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_CODE, "1")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            "namespaces",
            marks=pytest.mark.skipif(bool(namespaces_missing()), reason=namespaces_missing()),
        ),
        "limits",
    ],
)
def verifier(request: pytest.FixtureRequest) -> Code:
    verifier = VERIFIERS.build({"name": "code", "isolation": request.param, "seconds": 2.0})
    assert isinstance(verifier, Code)
    return verifier


@pytest.mark.parametrize("program", FORGERIES.values(), ids=FORGERIES)
def test_a_forgery_is_wrong(verifier: Code, program: str) -> None:
    assert verifier.judge(GOLD, program).outcome is Outcome.WRONG
    assert verifier.judge(GOLD, RIGHT).outcome is Outcome.CORRECT


@pytest.mark.parametrize("body", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("before", [0, 2])
def test_a_malformed_answer_is_wrong(verifier: Code, body: bytes, before: int) -> None:
    """It is the answer to the order to load the program, or to the second call."""
    rights = [b'["value", null, null]', b'["value", 6, null]'][:before]
    answers = "\n".join(f"answer({right!r})" for right in rights)
    program = f"{CHANNEL}\n{answers}\nanswer({body!r})\nimport time\ntime.sleep(0.2)\nos._exit(0)"
    assert verifier.judge(GOLD, program).outcome is Outcome.WRONG


def test_right_answers_in_the_same_way_are_correct(verifier: Code) -> None:
    """So the malformed ones are refused for what they are."""
    rights = [b'["value", null, null]', b'["value", 6, null]', b'["value", 0, null]']
    program = "\n".join([CHANNEL, *(f"answer({right!r})" for right in rights)])
    assert verifier.judge(GOLD, f"{program}\nwhile True: pass").outcome is Outcome.CORRECT


def test_a_call_that_returns_something_changes_no_argument(verifier: Code) -> None:
    """It would else empty what the tests compare the result with."""
    answers = [b'["value", null, null]', b'["value", 0, ["list", ["list"]]]']
    program = "\n".join([CHANNEL, *(f"answer({each!r})" for each in answers), "while True: pass"])
    gold = {"tests": ["x = [3, 1]\nassert f(x) == sum(x)"], "setup": ""}
    assert verifier.judge(gold, program).outcome is Outcome.WRONG


@pytest.mark.parametrize(("program", "test", "solution"), OPERATIONS)
def test_a_program_cannot_operate_on_what_the_tests_compare(
    verifier: Code, program: str, test: str, solution: str
) -> None:
    """It is wrong, or its tests are refused, whatever the program."""
    program = (
        program if " f(" in program or "f =" in program else f"{program}\ndef f(x):\n    return [0]"
    )
    gold = {
        "tests": [test],
        "setup": SETUP if "EXP" in test or "ref" in test else "",
        "program": solution,
    }
    found = verifier.judge(gold, program)
    refused = found.outcome is Outcome.UNSCORABLE and "trusted_tests" in found.reason
    assert found.outcome is Outcome.WRONG or refused
    if refused:
        assert verifier.judge(gold, "f = None") == found._replace(answer="f = None")


def test_a_script_does_not_find_the_expected_output(verifier: Code) -> None:
    """In its memory, its descriptors and its files; the same holds for functions."""
    search = """
import os, re
start = b"zq" + b"-secret-"
found = set()
memory = open("/proc/self/mem", "rb")
for area in open("/proc/self/maps").read().splitlines():
    first, last = (int(end, 16) for end in area.split()[0].split("-"))
    if " r" in area and last - first < 2**26 and "[v" not in area:
        try:
            memory.seek(first)
            found |= set(re.findall(start + rb"[0-9]{4}", memory.read(last - first)))
        except OSError:
            pass
for folder, _, files in os.walk("."):
    for name in files:
        found |= set(re.findall(start + rb"[0-9]{4}", open(f"{folder}/{name}", "rb").read()))
"""
    gold = {"tests": [{"input": "1", "output": "zq-secret-4711"}], "setup": ""}
    program = f"{search}\nfor text in found:\n    print(text.decode())"
    assert verifier.judge(gold, program).outcome is Outcome.WRONG
    shown = f"{search}\nassert start + b'4711' in found, found\nprint('zq-secret-4711')"
    assert verifier.judge(gold, f"x = 'zq-secret-4711'\n{shown}").outcome is Outcome.CORRECT
    setup = "expected = 'zq-secret-4711'"
    gold = {"tests": ["assert f(1) == expected == 'zq-secret-4711'"], "setup": setup}
    program = (
        f"def f(x):\n    exec({search!r}, globals())\n    return found and min(found).decode()"
    )
    assert verifier.judge(gold, program).outcome is Outcome.WRONG


def test_an_output_for_one_input_does_not_count_for_another(verifier: Code) -> None:
    gold = {"tests": [{"input": "1", "output": "1"}, {"input": "2", "output": "2"}], "setup": ""}
    for program in (
        "print(1)",
        "print(1)\nimport os, sys\nsys.stdout.flush()\nos._exit(0)",
        "print('1\\n2')",
        "import sys\nprint(1)\nsys.exit(1)",
        "print(int(input()) + 0.5)",
        "raise SystemExit(input())",
    ):
        assert verifier.judge(gold, program).outcome is Outcome.WRONG
    assert verifier.judge(gold, "print(input())").outcome is Outcome.CORRECT


# What changes the supervisor harms the program that does it, and no other one.
HARM = {
    "files": "resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3))",
    "memory": "resource.prlimit(pid, resource.RLIMIT_AS, (2**20, 2**20))",
    "processes": "resource.prlimit(pid, resource.RLIMIT_NPROC, (0, 0))",
    "time": "resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0))",
    "the end": "os.kill(pid, signal.SIGKILL)",
    "a stop": "os.kill(pid, signal.SIGSTOP)",
}
HARMFUL = """
import os, resource, signal
pids = [os.getppid()]
try:
    status = open(f"/proc/{pids[0]}/stat").read()
    pids.append(int(status.rpartition(")")[2].split()[1]))
except OSError:
    pass
for pid in filter(None, pids):
    try:
        HARM
    except OSError:
        pass
"""


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_limits_of_the_supervisor_cannot_be_changed(verifier: Code, harm: str) -> None:
    program = HARMFUL.replace("HARM", harm)
    found = verifier.judge(GOLD, program).outcome, verifier.judge(GOLD, RIGHT).outcome
    assert found == (Outcome.WRONG, Outcome.CORRECT)
    # The calls fail on processors whose calls are known, so the program itself goes on.
    assert os.uname().machine not in ("x86_64", "aarch64") or (
        verifier.judge(GOLD, f"{program}\n{RIGHT}").outcome is Outcome.CORRECT
    )


def test_a_forgery_in_trusted_tests_is_possible(verifier: Code) -> None:
    """So they are named where they are asked for, and reports show their share."""
    gold = {"tests": ["assert V(1).value == 1"], "setup": ""}
    forged = f"{FORGERIES['equal to everything']}\nclass V:\n    __init__ = lambda s, x: None\n    value = Equal()"
    assert verifier.judge(gold, forged).outcome is Outcome.UNSCORABLE
    fields = {"isolation": verifier.isolation, "trusted_tests": True}
    trusted = VERIFIERS.build({"name": "code", **fields})
    assert isinstance(trusted, Code)
    assert trusted.judge(gold, forged).outcome is Outcome.CORRECT
    assert trusted.judge(gold, f"{forged}\n    value = None").outcome is Outcome.WRONG
    assert trusted.judge(GOLD, FORGERIES["equal to everything"]).outcome is Outcome.WRONG


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as another user than root")
def test_the_same_holds_for_another_user() -> None:
    """In a process of its own, of the user nobody."""
    tests = Path(__file__).resolve().parent
    code = f"""
import importlib.util, os, sys
def load(name):
    spec = importlib.util.spec_from_file_location(name, {str(tests)!r} + "/" + name + ".py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
forgeries, isolation = load("test_forgeries"), load("test_isolation")
isolation.become_nobody()
os.environ[{RUN_CODE!r}], os.environ[{RUN_CODE_AS_ROOT!r}] = "1", ""
os.chdir("/")
for kind in ("namespaces", "limits"):
    verifier = forgeries.VERIFIERS.build({{"name": "code", "isolation": kind, "seconds": 5.0}})
    verifier.check()
    verifier.check_consent()
    harm = {{name: forgeries.HARMFUL.replace("HARM", text) for name, text in forgeries.HARM.items()}}
    for name, program in (forgeries.FORGERIES | harm).items():
        found = verifier.judge(forgeries.GOLD, program), verifier.judge(forgeries.GOLD, forgeries.RIGHT)
        print(kind, name, *(f.outcome.value + f.reason for f in found), sep=": ")
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * (len(FORGERIES) + len(HARM))
    for line in lines:
        assert line.split(": ")[2:] == ["wrong", "correct"], line
