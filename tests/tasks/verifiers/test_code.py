"""Programs against unit tests: what passes, what they are kept from, what has to be asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from advsweep.errors import ConfigError
from advsweep.tasks.verifiers import VERIFIERS, Outcome, Verdict
from advsweep.tasks.verifiers.base import RUN_CODE
from advsweep.tasks.verifiers.code import namespaces_missing
from advsweep.tasks.verifiers.fences import find_program

GOLD = {"tests": ["assert double(3) == 6", "assert double(0) == 0"], "setup": "import math"}
RIGHT = "def double(x):\n    return 2 * x"

ISOLATIONS = [
    pytest.param(
        "namespaces",
        marks=pytest.mark.skipif(bool(namespaces_missing()), reason=namespaces_missing()),
    ),
    "limits",
]


@pytest.fixture(autouse=True)
def _consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_CODE, "1")


@pytest.fixture(params=ISOLATIONS)
def judge(request: pytest.FixtureRequest) -> Callable[..., Verdict]:
    def judge(program: str, **fields: Any) -> Verdict:
        spec = {"name": "code", "isolation": request.param, "seconds": 30.0}
        verifier = VERIFIERS.build({**spec, **fields})
        verifier.check()
        return verifier.judge(GOLD, f"Here:\n```python\n{program}\n```\n")

    return judge


@pytest.mark.parametrize("gold", [GOLD, {**GOLD, "program": None}])
def test_without_a_known_program_the_solution_has_none(gold: dict[str, Any]) -> None:
    verifier = VERIFIERS.build("code")
    assert find_program(verifier.solution(gold), []) == ""
    assert find_program(verifier.solution({**GOLD, "program": RIGHT}), []) == RIGHT


def test_a_program_that_passes_all_tests_is_correct(judge: Callable[..., Verdict]) -> None:
    assert judge(RIGHT) == Verdict(Outcome.CORRECT, RIGHT)


@pytest.mark.parametrize(
    "program",
    [
        "def double(x):\n    return x * x",
        "def double(x) return",
        "",
        "import os\nos._exit(0)",
        f"{RIGHT}\nfull = bytearray(600 * 2**20)",
        f"{RIGHT}\nopen('big', 'wb').write(bytes(9 * 2**20))",
        f"{RIGHT}\nfiles = [open('/dev/null') for _ in range(1000)]",
        f"{RIGHT}\nimport os\nassert 'ADVSWEEP_SECRET' in os.environ",
        f"{RIGHT}\nimport os\nassert os.listdir('.')",
    ],
)
def test_any_other_is_wrong(
    judge: Callable[..., Verdict], program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADVSWEEP_SECRET", "1")
    assert judge(program).outcome is Outcome.WRONG


def test_what_a_program_prints_and_leaves_running_does_not_matter(
    judge: Callable[..., Verdict],
) -> None:
    busy = "import atexit, time\natexit.register(time.sleep, 600)"
    assert judge(f"{busy}\n{RIGHT}\nprint('x' * 10**6)").outcome is Outcome.CORRECT


@pytest.mark.security
@pytest.mark.parametrize("program", ["import time\ntime.sleep(600)", "while True: pass"])
def test_a_program_that_takes_too_long_is_wrong(
    judge: Callable[..., Verdict], program: str
) -> None:
    assert judge(program, seconds=0.1) == Verdict(Outcome.WRONG, program)


def test_a_process_that_does_not_start_is_unscorable(
    judge: Callable[..., Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    found = judge(RIGHT)
    assert found == Verdict(Outcome.UNSCORABLE, RIGHT, "its process did not start (no answer)")


@pytest.mark.security
@pytest.mark.parametrize("config", [{}, {"enabled": True}, {"slow_is_wrong": True}, {"url": ""}])
def test_programs_run_with_the_consent_of_the_environment_alone(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = VERIFIERS.build({"name": "code", "isolation": "limits", "seconds": 30.0, **config})
    assert not config.keys() & verifier.plain().keys()
    assert verifier.identity()["url"] == ""  # as in older versions, which had that option
    assert verifier.describe() == "code revision=4 isolation=limits seconds=30.0"
    monkeypatch.setenv(RUN_CODE, "")
    with pytest.raises(ConfigError, match=r"--run-code or ADVSWEEP_RUN_CODE=1 allows it"):
        verifier.check_consent()
    found = verifier.judge(GOLD, RIGHT)
    assert found.outcome is Outcome.UNSCORABLE
    assert "--run-code" in found.reason
    monkeypatch.setenv(RUN_CODE, "1")
    verifier.check_consent()
    assert verifier.judge(GOLD, RIGHT).outcome is Outcome.CORRECT


def test_namespaces_are_refused_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advsweep.tasks.verifiers.code.namespaces_missing", lambda: "not here")
    with pytest.raises(
        ConfigError, match=r"not here; task\.verifier\.isolation=limits runs programs"
    ):
        VERIFIERS.build({"name": "code"}).check()
    VERIFIERS.build({"name": "code", "isolation": "limits"}).check()
