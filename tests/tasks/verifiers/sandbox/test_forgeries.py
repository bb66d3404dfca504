"""Programs that mean to pass without being right: none is correct, and none leaves the score."""

# ruff: noqa: E501  (a case of a table is a line)

from __future__ import annotations

from collections.abc import Iterator

import pytest

from advsweep.tasks.verifiers import VERIFIERS, Outcome, Verdict
from advsweep.tasks.verifiers.base import FORGED
from advsweep.tasks.verifiers.code import Code
from advsweep.tasks.verifiers.consent import RUN_CODE
from advsweep.tasks.verifiers.sandbox import namespaces_missing, runners

pytestmark = pytest.mark.security

GOLD = {"tests": ["assert double(3) == 6", "assert double(0) == 0"], "setup": "import math"}
RIGHT = "def double(x):\n    return 2 * x"

# The descriptor that the answers of a program's process go to, wherever it is.
CHANNEL = """
import json, os, sys
frame = sys._getframe()
while not hasattr(frame.f_locals.get("self"), "_channel"):
    frame = frame.f_back
writing = frame.f_locals["self"]._channel._writing
def answer(body):
    os.write(writing, len(body).to_bytes(8, "big") + body)
"""

FORGERIES = {
    "the word of the main module": """
import __main__, os
os.write(__main__.told, __main__.order["word"].encode())
os._exit(0)
""",
    "the word of the frame before": """
import os, sys
names = sys._getframe(1).f_globals
os.write(names["told"], names["order"]["word"].encode())
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
    "exec without effect": "import builtins\nbuiltins.exec = lambda *_: None",
    "compile of nothing": """
import builtins
real = compile
builtins.compile = lambda source, *rest, **more: real("", *rest, **more)
""",
    "loads, dumps and print of one's own": """
import builtins, json
json.dumps = lambda *_, **__: '{"value": 6, "table": []}'
json.loads = lambda *_, **__: {"value": 6, "table": []}
builtins.print = lambda *_, **__: None
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
    "StopIteration": "def double(x):\n    raise StopIteration",
    "an exit as an answer": "def double(x):\n    raise SystemExit(0)",
    "a flood": f"{CHANNEL}\nwhile True:\n    os.write(writing, b'+' * 65536)",
    "a long message": f"{CHANNEL}\nos.write(writing, b'\\xff' * 8)\ndouble = lambda x: 6",
    "an answer that never ends": f"{CHANNEL}\nos.write(writing, (99).to_bytes(8, 'big'))\nos._exit(0)",
}

ANSWERS = {
    "no object": b"[]",
    "no JSON": b"{",
    "nothing": b"",
    "deep JSON": b'{"value": ' + b"[" * 10**5 + b"]" * 10**5 + b', "table": []}',
    "deep tuples": b'{"value": ' + b'["t", ' * 900 + b"0" + b"]" * 900 + b', "table": []}',
    "a number of many digits": b'{"value": ' + b"9" * 10**5 + b', "table": []}',
    "a number in hexadecimal": b'{"value": ["i", "0x' + b"f" * 10**6 + b'"], "table": []}',
    "no number": b'{"value": ["f", "nan"], "table": []}',
    "a stand-in without a number": b'{"value": ["h", "x"], "table": []}',
    "a function of the tests": b'{"value": ["k", 0], "table": []}',
    "a row that is not there": b'{"value": ["r", 5], "table": []}',
    "a row before the first": b'{"value": ["r", -1], "table": [["l"]]}',
    "a list in itself": b'{"value": ["r", 0], "table": [["l", ["r", 0]]]}',
    "a module's function": b'{"value": ["v", "os", "getpid"], "table": []}',
    "something equal to everything": b'{"value": ["v", "unittest.mock", "ANY"], "table": []}',
    "an instance": b'{"value": ["r", 0], "table": [["o", "object"]]}',
    "an exception class": b'{"exception": ["AssertionError"]}',
    "no name": b'{"missing": true}',
    "an error without a name": b'{"error": [[]], "text": ""}',
    "an error of another kind": b'{"error": ["SystemExit", "BaseException"], "text": ""}',
    "a call of a function": b'{"do": "callback", "number": 0, "arguments": [], "table": []}',
    "no value": b"{}",
}


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
def verifier(request: pytest.FixtureRequest) -> Iterator[Code]:
    verifier = VERIFIERS.build({"name": "code", "isolation": request.param, "seconds": 5.0})
    assert isinstance(verifier, Code)
    yield verifier
    verifier.close()


@pytest.mark.parametrize("program", FORGERIES.values(), ids=FORGERIES)
def test_a_forgery_is_wrong(verifier: Code, program: str) -> None:
    assert verifier.judge(GOLD, program).outcome is Outcome.WRONG


@pytest.mark.parametrize("body", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_malformed_answer_is_wrong(verifier: Code, body: bytes, before: int) -> None:
    """It is the answer to the order to load the program, to a name, or to a call."""
    rights = [b"{}", b'{"value": ["h", 1], "table": []}'][:before]
    answers = "\n".join(f"answer({right!r})" for right in rights)
    # Short, as a long one would be refused for its length on the command line of no process.
    program = f"{CHANNEL}\n{answers}\nanswer({body!r})\nimport time\ntime.sleep(0.2)\nos._exit(0)"
    assert verifier.judge(GOLD, program).outcome is Outcome.WRONG


def test_right_answers_in_the_same_way_are_correct(verifier: Code) -> None:
    """So the malformed ones are refused for what they are."""
    found = verifier.judge(GOLD, f"{CHANNEL}\nassert callable(answer)\n{RIGHT}")
    assert found.outcome is Outcome.CORRECT


@pytest.mark.parametrize(
    ("program", "test", "solution"),
    [
        ("import math\nmath.isclose = lambda *a: True", "assert math.isclose(f(3), 0.3)", ""),
        ("class math:\n    isclose = lambda *a: True", "assert math.isclose(f(3), 0.3)", ""),
        ("isclose = lambda *a: True", "assert isclose(f(3), 0.3)", ""),
        ("isclose = lambda *a: True", "assert isclose(f(3), 0.3)", "from math import isclose\nf = 1"),
        ("set = lambda x: 0", "assert set(f(3)) == set((1, 2))", ""),
        ("abs = lambda x: -1", "assert abs(f(3) - 7) < 0.1", ""),
        ("sorted = lambda x: 0", "assert sorted(f(3)) == [1, 2]", "def f(x): return [1, 2]"),
        ("Counter = lambda *x: 0\ndef f(x): return 0", "assert f(3) == Counter([1])", ""),
        ("isinstance = lambda *x: True", "assert isinstance(f(3), int)", ""),
        ("import unittest\nunittest.TestCase.assertEqual = lambda *a: None", "import unittest\nunittest.TestCase().assertEqual(f(3), 3)", ""),
        ("class L(list):\n    __len__ = lambda s: 3\n    __eq__ = lambda s, o: True\ndef f(x): return L()", "assert len(f(3)) == 3", ""),
        ("class L(list):\n    __eq__ = lambda s, o: True\ndef f(x): return L()", "assert f(3) == [1]", ""),
        ("class D(dict):\n    __eq__ = lambda s, o: True\ndef f(x): return D()", "assert f(3) == {1: 2}", ""),
        ("class S(str):\n    __eq__ = lambda s, o: True\n    __hash__ = str.__hash__\ndef f(x): return S()", "assert 'a' == f(3)", ""),
        ("class I:\n    __contains__ = lambda s, o: True\n    __eq__ = lambda s, o: True\ndef f(x): return I()", "assert f(3) in [4, 5]", ""),
        ("def f(x):\n    raise StopIteration", "assert all(map(lambda x: f(x) == x, [1, 2]))", ""),
        ("def f(x):\n    raise AssertionError", "assert f(3) == 3", ""),
        ("import sys\nclass E:\n    __eq__ = lambda s, o: True\ndef f(x): return [E(), (E(),)]", "assert f(3) == [1, (2,)]", ""),
    ],
)  # fmt: skip
def test_a_program_cannot_replace_what_the_tests_compare_with(
    verifier: Code, program: str, test: str, solution: str
) -> None:
    program = program if " f(" in program else f"{program}\ndef f(x):\n    return [0]"
    gold = {"tests": [test], "setup": "", "program": solution}
    assert verifier.judge(gold, program).outcome is Outcome.WRONG


FAULTS = {
    "values equal to everything": (
        "tester",
        "return self._proxies.setdefault(number, Proxy(self._operate, number))",
        "return self if number == 0 else type('Lie', (), {'__call__': lambda s, x: s, "
        "'__eq__': lambda s, o: True})()",
    ),
    "tests without effect": ("main", "Tester(channel, order).run()", "pass"),
}


@pytest.mark.parametrize(("module", "text", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_program_that_passes_the_control_is_forged(
    module: str, text: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control by itself: the process of the tests is faulty, and accepts a wrong program."""
    sources = dict(runners._sources())
    assert text in sources[module]
    sources[module] = sources[module].replace(text, fault)
    runners._compiled.cache_clear()
    monkeypatch.setattr(runners, "_sources", lambda: tuple(sources.items()))
    verifier = VERIFIERS.build({"name": "code", "isolation": "limits", "seconds": 30.0})
    assert isinstance(verifier, Code)
    try:
        found = verifier.judge(GOLD, FORGERIES["equal to everything"])
    finally:
        verifier.close()
        runners._compiled.cache_clear()
    assert found == Verdict(Outcome.WRONG, FORGERIES["equal to everything"].strip(), FORGED)
    assert found.forged
