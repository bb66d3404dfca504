"""No tests count that accept a program which does nothing."""

# ruff: noqa: E501  (a case of a table is a line)

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.tasks.base import Split
from advsweep.tasks.dataset import Dataset
from advsweep.tasks.verifiers import VERIFIERS, Outcome
from advsweep.tasks.verifiers.base import RUN_CODE
from advsweep.tasks.verifiers.code import Code, namespaces_missing
from advsweep.tasks.verifiers.submission import ProgramTests

ISOLATION = "limits" if namespaces_missing() else "namespaces"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(RUN_CODE, "1")
    monkeypatch.setenv("ADVSWEEP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def make() -> Callable[..., Code]:
    def make(**fields: Any) -> Code:
        verifier = VERIFIERS.build({"name": "code", "isolation": ISOLATION, **fields})
        assert isinstance(verifier, Code)
        return verifier

    return make


# They accept some program that does nothing.
LOOSE = {
    "no test": "",
    "a statement": "x = 1",
    "check without a call": "def check(candidate):\n    assert candidate(1) == 2",
    "a comparison": "f(1) == 2",
    "a call": "f(1)",
    "true": "assert True",
    "a text": "assert 'f(1) == 2'",
    "a pair": "assert (f(1) == 2, 'wrong')",
    "an error that is caught": "try:\n    assert f(1) == 2\nexcept Exception:\n    pass",
    "any error": "try:\n    assert f(1) == 2\nexcept:\n    pass",
    "suppressed": "import contextlib\nwith contextlib.suppress(Exception):\n    assert f(1) == 2",
    "printed": "print(f(1) == 2)",
    "a doctest": "'''>>> f(1)\n2'''",
    "a fixture": "def test_a(x):\n    assert f(x) == 2",
    "never": "if False:\n    assert f(1) == 2",
    "another module": "if __name__ == 'tests':\n    assert f(1) == 2",
    "no item": "for x in []:\n    assert f(x) == 2",
    "a class without tests": "import unittest\nclass T(unittest.TestCase):\n    def setUp(self):\n        self.f = f",
    "tests that are skipped": "import unittest\n@unittest.skip('later')\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(1), 2)",
    "a coroutine": "async def test_a():\n    assert f(1) == 2",
    "an end": "import sys\nsys.exit(0)\nassert f(1) == 2",
    "itself": "assert f(1) == f(1)",
    "or true": "assert f(1) == 2 or True",
    "none": "assert f(1) is None",
    "unlike": "assert f(1) != 3",
    "not a number": "assert not abs(f(3) - 6) > 1e-6",
    "emptied": "x = [1]\nf(x)\nassert x == []",
    "a class of pytest without tests": "class TestF:\n    pass",
    "LeetCode's class": "assert Solution().f(1) is None",
    "of nothing": "assert all(x == 2 for x in [])",
}  # fmt: skip

# They accept `x + 1` alone.
STRICT = {
    "an assertion": "assert f(1) == 2",
    "check with its call": "def check(candidate):\n    assert candidate(1) == 2\ncheck(f)",
    "a main guard": "if __name__ == '__main__':\n    assert f(1) == 2",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def setUp(self):\n        self.x = 1\n    def test_a(self):\n        self.assertEqual(f(self.x), 2)\n    def test_b(self):\n        with self.assertRaises(TypeError):\n            f('a')",
    "unittest.main": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(1), 2)\nif __name__ == '__main__':\n    unittest.main()",
    "a suite": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(1), 2)\nsuite = unittest.defaultTestLoader.loadTestsFromTestCase(T)\nassert unittest.TextTestRunner().run(suite).wasSuccessful()",
    "a function of pytest": "def test_a():\n    assert f(1) == 2",
    "a function of pytest that is called": "def test_a():\n    assert f(1) == 2\ntest_a()",
    "a class of pytest": "class TestF:\n    def test_a(self):\n        assert f(1) == 2",
    "an error": "try:\n    f('a')\n    assert False\nexcept TypeError:\n    assert f(1) == 2",
    "a loop that a control never ends": "while f(1) != 2:\n    pass",
}  # fmt: skip

SOME_LOOSE = ["check without a call", "any error", "none", "not a number", "an end", "LeetCode's class"]  # fmt: skip
SOME_STRICT = ["an assertion", "unittest.main", "a class of pytest"]


def test_some_tests_accept_a_program_that_does_nothing(make: Callable[..., Code]) -> None:
    for name in SOME_LOOSE:
        assert make().accepts_any(ProgramTests.of({"tests": [LOOSE[name]], "setup": ""})), name


def test_not_a_number_may_be_the_right_answer(make: Callable[..., Code]) -> None:
    reference = {"tests": ["import math\nassert math.isnan(f())"], "setup": ""}
    assert make().judge(reference, "def f(): return float('nan')").outcome is Outcome.CORRECT


def test_some_tests_accept_the_right_program_alone(make: Callable[..., Code]) -> None:
    for name in SOME_STRICT:
        check_strict(make(), STRICT[name])


@pytest.mark.slow
@pytest.mark.parametrize("test", LOOSE.values(), ids=LOOSE)
def test_tests_accept_a_program_that_does_nothing(make: Callable[..., Code], test: str) -> None:
    reference = {"tests": [test], "setup": ""}
    assert make().refusal(reference) == "its tests accept any program"
    if test:
        found = make().judge(reference, "def f(x): return None\nclass Solution:\n    f = f")
        assert found.outcome is not Outcome.CORRECT


@pytest.mark.slow
@pytest.mark.parametrize("test", STRICT.values(), ids=STRICT)
def test_tests_accept_the_right_program_alone(make: Callable[..., Code], test: str) -> None:
    check_strict(make(), test)


def check_strict(verifier: Code, test: str) -> None:
    reference = {"tests": [test], "setup": ""}
    assert verifier.refusal(reference) == ""
    assert verifier.judge(reference, "def f(x): return x + 1").outcome is Outcome.CORRECT
    assert verifier.judge(reference, "def f(x): return x - 1").outcome is Outcome.WRONG


def test_scripts_that_print_nothing_are_refused_and_others_are_not(
    make: Callable[..., Code],
) -> None:
    nothing = {"input": "1", "output": "\n"}
    assert make().refusal({"tests": [nothing, nothing], "setup": ""})
    assert not make().refusal({"tests": [nothing, {"input": "", "output": "2"}], "setup": ""})


def test_tests_of_objects_are_controlled_where_they_run(make: Callable[..., Code]) -> None:
    verifier = make(trusted_tests=True)
    loose = {
        "tests": ["try:\n    assert V(1).value == 1\nexcept Exception:\n    pass"],
        "setup": "",
    }
    strict = {"tests": ["v = V(1)\nassert v.value == 1"], "setup": ""}
    assert verifier.refusal(loose)
    assert not verifier.refusal(strict)


def test_without_consent_no_tests_of_the_data_run(
    make: Callable[..., Code], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_CODE, "")
    assert make().refusal({"tests": ["f(1)"], "setup": ""}) == ""


def test_a_result_is_kept_by_the_content_of_the_tests(
    make: Callable[..., Code], monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = ProgramTests.of({"tests": ["f(1) == 2"], "setup": ""})
    other = ProgramTests.of({"tests": ["f(1) == 3"], "setup": ""})
    assert make().accepts_any(tests)
    monkeypatch.setattr(Code, "run", lambda *_: pytest.fail("it ran again"))
    assert make().accepts_any(tests)
    with pytest.raises(pytest.fail.Exception, match="it ran again"):
        make().accepts_any(other)


@pytest.fixture
def task(tmp_path: Path) -> Callable[..., Dataset]:
    def task(*tests: str, **fields: Any) -> Dataset:
        file = tmp_path / "programs.jsonl"
        rows = [{"question": f"Write f, {n}.", "tests": [t]} for n, t in enumerate(tests)]
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        verifier = {"name": "code", "isolation": ISOLATION, **fields}
        return Dataset(
            data=str(file), tests_column="tests", held_out=1, verifier=verifier, deadline=30.0
        )

    return task


def test_a_set_with_such_a_problem_is_refused(task: Callable[..., Dataset]) -> None:
    task("assert f(1) == 2", "assert f(1) == 3").check()
    expected = r"its tests accept any program in 2 of 4 problems \(rows 2, 4\).*loose_tests=uns"
    with pytest.raises(ConfigError, match=expected):
        task("assert f(1) == 2", "f(1) == 2", "assert f(1) == 3", "assert True").check()


def test_no_answer_to_such_a_problem_counts(task: Callable[..., Dataset]) -> None:
    mixed = task("assert f(1) == 2", "f(1) == 2", loose_tests="unscorable")
    with pytest.warns(AdvsweepWarning, match=r"accept any program in 1 of 2 problems \(rows 2\)"):
        mixed.check()
    problems = [p for split in Split for p in mixed.problems(split)]
    with pytest.warns(AdvsweepWarning, match="1 of 2 answers could not be scored: its tests acc"):
        scores = mixed.score(problems, ["def f(x): return 2"] * 2)
    assert sorted(map(str, scores.tolist())) == ["1.0", "nan"]
