"""Programs against unit tests: what passes, what they are kept from, what has to be asked for."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from advsweep.errors import ConfigError
from advsweep.tasks.verifiers import VERIFIERS, Outcome, Verdict
from advsweep.tasks.verifiers.base import RUN_CODE
from advsweep.tasks.verifiers.code import last_block, namespaces_missing, run_remotely
from advsweep.tasks.verifiers.submission import ProgramTests

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
    assert last_block(verifier.solution(gold)) == ""
    assert last_block(verifier.solution({**GOLD, "program": RIGHT})) == RIGHT


def test_a_program_that_passes_all_tests_is_correct(judge: Callable[..., Verdict]) -> None:
    assert judge(RIGHT) == Verdict(Outcome.CORRECT, RIGHT)


@pytest.mark.parametrize(
    "program",
    [
        "def double(x):\n    return x * x",
        "def triple(x):\n    return 3 * x",
        "def double(x) return",
        "",
        "raise SystemExit(0)",
        "import os\nos._exit(0)",
        "print('assert passed')",
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


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("x = 1", "x = 1"),
        ("```python\nx = 1\n```", "x = 1"),
        ("```\nx = 1\n```\nor\n```py\nx = 2\n```\ndone", "x = 2"),
        ("```python\nx = 1", "x = 1"),
        ("", ""),
    ],
)
def test_the_last_block_is_the_program(completion: str, program: str) -> None:
    assert last_block(completion) == program


@pytest.mark.security
@pytest.mark.parametrize("config", [{}, {"enabled": True}, {"slow_is_wrong": True}])
def test_programs_run_with_the_consent_of_the_environment_alone(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = VERIFIERS.build({"name": "code", "isolation": "limits", "seconds": 30.0, **config})
    assert not {"enabled", "slow_is_wrong"} & set(verifier.plain())
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
    with pytest.raises(ConfigError, match=r"not here; verifier\.isolation=limits runs programs"):
        VERIFIERS.build({"name": "code"}).check()
    VERIFIERS.build({"name": "code", "isolation": "limits"}).check()
    monkeypatch.setenv(RUN_CODE, "")
    elsewhere = VERIFIERS.build({"name": "code", "url": "http://localhost/run_code"})
    elsewhere.check()
    elsewhere.check_consent()


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, Any]], list[Any]]]:
    """A server that runs what it is given as SandboxFusion does, or gives prepared results."""
    requests: list[dict[str, Any]] = []
    results: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            requests[-1]["authorization"] = self.headers["Authorization"]
            body = json.dumps(results.pop(0) if results else run(requests[-1])).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    def run(request: dict[str, Any]) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", request["code"]],
            check=False,
            input=request["stdin"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        return result("Finished", done.returncode, done.stdout)

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/run_code", requests, results
    server.shutdown()
    thread.join()
    server.server_close()


def result(status: str, code: int, output: str) -> dict[str, Any]:
    return {"run_result": {"status": status, "return_code": code, "stdout": output}}


@pytest.mark.security
@pytest.mark.parametrize(
    "url",
    [
        "https://ann:s3cret@sandbox.test/run_code",
        "https://s3cret@sandbox.test/run_code",
        "https://sandbox.test/run_code?token=s3cret",
    ],
)
def test_addresses_with_secrets_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="ADVSWEEP_SANDBOX_TOKEN") as caught:
        VERIFIERS.build({"name": "code", "url": url}).check()
    assert "s3cret" not in str(caught.value)


@pytest.mark.security
def test_the_token_of_a_sandbox_elsewhere_comes_from_the_environment(
    server: tuple[str, list[dict[str, Any]], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, requests, results = server
    results += 2 * [result("Finished", 1, "+\n")]
    run_remotely(url, "", ProgramTests(""), 1.0)
    monkeypatch.setenv("ADVSWEEP_SANDBOX_TOKEN", "s3cret")
    run_remotely(url, "", ProgramTests(""), 1.0)
    assert [request["authorization"] for request in requests] == [None, "Bearer s3cret"]


def test_results_of_a_sandbox_elsewhere(
    server: tuple[str, list[dict[str, Any]], list[Any]],
) -> None:
    url, requests, results = server
    results += [
        result("Finished", 1, "+\n"),
        result("TimeLimitExceeded", 0, ""),
        result("Finished", 1, ""),
        {"status": "SandboxError", "run_result": None},
    ]
    verifier = VERIFIERS.build({"name": "code", "url": url, "seconds": 2.0})
    found = [verifier.judge(GOLD, f"```python\n{RIGHT}\n```") for _ in range(4)]
    wrong, unscorable = Outcome.WRONG, Outcome.UNSCORABLE
    assert [verdict.outcome for verdict in found] == [wrong, wrong, unscorable, unscorable]
    assert found[2].reason == f"the sandbox at {url} did not start the program"
    assert found[3].reason.startswith(f"the sandbox at {url} gave no result")
    assert requests[0]["language"] == "python"
    assert requests[0]["run_timeout"] == 2.0


@pytest.mark.security
def test_a_sandbox_elsewhere_gives_a_program_neither_tests_nor_word(
    server: tuple[str, list[dict[str, Any]], list[Any]],
) -> None:
    url, requests, _ = server
    verifier = VERIFIERS.build({"name": "code", "url": url, "seconds": 30.0})
    source = """
import os, sys
print(open(f"/proc/self/cmdline").read())
os.system("cat /proc/*/cmdline")
"""
    assert verifier.judge(GOLD, f"{source}\n{RIGHT}").outcome is Outcome.CORRECT
    assert verifier.judge(GOLD, f"{source}\ndouble = abs").outcome is Outcome.WRONG
    equal = "class Equal:\n    __eq__ = lambda self, other: True\ndouble = lambda x: Equal()"
    assert verifier.judge(GOLD, equal).outcome is Outcome.WRONG
    assert len(requests) == 3
    for request in requests:
        word = json.loads(request["stdin"])["word"]
        assert word not in request["code"]
        assert "double" not in request["code"]


def test_a_sandbox_that_is_not_there_makes_programs_unscorable() -> None:
    verifier = VERIFIERS.build({"name": "code", "url": "http://127.0.0.1:1/run_code"})
    found = verifier.judge(GOLD, RIGHT)
    assert found.outcome is Outcome.UNSCORABLE
    assert "Connection refused" in found.reason
