"""The pool: hard deadlines, workers that die, and processes that end with their owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from advsweep.errors import TrainingError
from advsweep.tasks.verifiers import VERIFIERS, Outcome, Verdict
from advsweep.tasks.verifiers.pool import Job, VerifierPool

# Takes for ever on a text of many a's that does not end with one.
SLOW = VERIFIERS.build({"name": "regex", "pattern": r"(?:a+)+$|answer is ([a-z]+)"})
HANGING: Job = ({"answer": "x"}, "a" * 60 + "!")
RIGHT: Job = ({"answer": "x"}, "the answer is x")
WRONG: Job = ({"answer": "x"}, "the answer is y")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")


def children(pid: int) -> set[int]:
    """The processes that a process has forked and not yet taken leave of."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return set(map(int, listed.read_text().split())) if listed.exists() else set()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def server_of(pool: VerifierPool) -> int:
    assert pool._process is not None
    return pool._process.pid


@pytest.fixture
def make() -> Iterator[Callable[..., VerifierPool]]:
    pools: list[VerifierPool] = []

    def make(deadline: float = 60.0, workers: int = 2) -> VerifierPool:
        pools.append(VerifierPool(SLOW, workers=workers, deadline=deadline))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def outcomes(answers: list[Verdict]) -> list[Outcome]:
    return [answer.outcome for answer in answers]


def test_answers_come_in_the_order_of_the_jobs(make: Callable[..., VerifierPool]) -> None:
    jobs = [RIGHT if i % 3 else WRONG for i in range(100)]
    expected = [Outcome.CORRECT if i % 3 else Outcome.WRONG for i in range(100)]
    pool = make()
    assert outcomes(pool.judge(jobs)) == expected
    assert outcomes(pool.judge(jobs[:1])) == expected[:1]
    assert pool.judge([]) == []


@pytest.mark.slow
@pytest.mark.security
def test_an_answer_that_hangs_is_wrong_and_holds_up_no_other(
    make: Callable[..., VerifierPool],
) -> None:
    pool = make(deadline=1.0)
    jobs = [RIGHT] * 20
    jobs[3] = jobs[17] = HANGING
    answers = pool.judge(jobs)
    assert [a.reason for a in answers if a.reason] == ["it took more than 1 s"] * 2
    expected = [Outcome.CORRECT] * 20
    expected[3] = expected[17] = Outcome.WRONG
    assert outcomes(answers) == expected
    # Those that were killed are gone, and others have taken their places.
    assert len(children(server_of(pool))) == 2
    assert outcomes(pool.judge([WRONG])) == [Outcome.WRONG]


def test_reference_answers_are_read(make: Callable[..., VerifierPool]) -> None:
    readable, unreadable = make().judge([({"answer": "x"}, None), ({"answer": " "}, None)])
    assert readable.outcome is Outcome.CORRECT
    assert unreadable.outcome is Outcome.UNSCORABLE


def test_a_worker_that_was_killed_is_replaced(make: Callable[..., VerifierPool]) -> None:
    pool = make()
    pool.judge([RIGHT])
    for worker in children(server_of(pool)):
        os.kill(worker, signal.SIGKILL)
    assert outcomes(pool.judge([RIGHT, WRONG] * 20)) == [Outcome.CORRECT, Outcome.WRONG] * 20


def test_a_server_that_was_killed_is_started_again(make: Callable[..., VerifierPool]) -> None:
    pool = make()
    pool.judge([RIGHT])
    before = server_of(pool)
    workers = children(before)
    os.kill(before, signal.SIGKILL)
    assert outcomes(pool.judge([RIGHT])) == [Outcome.CORRECT]
    assert server_of(pool) != before
    wait_until(lambda: not any(is_alive(worker) for worker in workers))


def test_an_interrupted_call_leaves_no_answers_behind(
    make: Callable[..., VerifierPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make()
    pool.judge([RIGHT])
    connection = pool._connection
    assert connection is not None
    with monkeypatch.context() as patch:
        patch.setattr(type(connection), "recv", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            pool.judge([RIGHT])
    assert outcomes(pool.judge([WRONG])) == [Outcome.WRONG]


def _interrupt(connection: object) -> None:
    raise KeyboardInterrupt


def test_a_server_that_cannot_be_started_is_an_error(
    make: Callable[..., VerifierPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TrainingError, match="ended 3 times with the same 1 answer;"):
        make().judge([RIGHT])


def is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


OWNER = """
    import os, sys, threading, time
    from advsweep.tasks.verifiers import VERIFIERS
    from advsweep.tasks.verifiers.pool import pool_for

    verifier = VERIFIERS.build({"name": "regex", "pattern": r"(?:a+)+$|answer is ([a-z]+)"})
    gold = {"answer": "x"}

    def judge():
        pool = pool_for(verifier, workers=1, deadline=1000.0)
        (found,) = pool.judge([(gold, "answer is x")])
        return found.outcome.value, pool._process.pid

    print(*judge(), flush=True)
    child = os.fork()
    if child == 0:
        print(*judge(), flush=True)
        if sys.argv[1] == "killed":
            time.sleep(1000)
        sys.exit(0)
    if sys.argv[1] == "killed":
        pool = pool_for(verifier, workers=1, deadline=1000.0)
        pool.judge([(gold, "a" * 60 + "!")])
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("how", ["finished", "killed"])
def test_processes_end_with_their_owner_and_a_forked_process_has_its_own(how: str) -> None:
    """Killed in the middle of an answer that hangs, while the forked process lives on."""
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), how],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert owner.stdout is not None
    try:
        told = [owner.stdout.readline().split() for _ in range(2)]
        assert [words[0] for words in told] == ["correct", "correct"]
        servers = [int(words[1]) for words in told]
        assert servers[0] != servers[1]
        if how == "killed":
            workers = children(servers[0])
            assert workers
            owner.kill()
            wait_until(lambda: not any(is_alive(pid) for pid in {servers[0], *workers}))
            assert is_alive(servers[1])
        else:
            assert owner.wait(60) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(owner.pid, signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    wait_until(lambda: not any(is_alive(pid) for pid in servers))
