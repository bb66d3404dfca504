"""Answers that hang or crash their verifier: none is correct, and none leaves the count."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from advsweep.tasks.verifiers import VERIFIERS, Outcome, Verdict
from advsweep.tasks.verifiers.pool import VerifierPool

pytestmark = [
    pytest.mark.security,
    pytest.mark.skipif(sys.platform != "linux", reason="it ends processes by signals"),
]

# A verifier that does what the completion says. A reference answer `bad` cannot be read, and `slow`
# takes longer than any deadline.
DOES_AS_IT_IS_BID = """
import os, signal, sys, time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from advsweep.tasks.verifiers.base import Verifier, verdict


@dataclass(kw_only=True)
class Obedient(Verifier):
    name: ClassVar[str] = "obedient"

    def reads(self, gold):
        if gold["answer"] == "slow":
            while True:
                pass
        if gold["answer"] == "fails":
            raise RuntimeError("no gold")
        return gold["answer"] != "bad"

    def judge(self, gold, completion):
        what, _, where = completion.partition(" ")
        if what == "busy":
            Path(where).touch()
            time.sleep(0.3)
            Path(where).unlink()
            return verdict(True, "x")
        if what == "once" and Path(where).exists():
            return verdict(not [*Path(where).parent.glob("busy*")], "x")
        if what == "once":
            Path(where).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if gold["answer"] != "x":
            self.reads(gold)
            raise RuntimeError("no gold")
        if what == "sleep":
            time.sleep(600)
        if what == "compute":
            while True:
                pass
        if what == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if what == "exit":
            sys.exit(3)
        if what == "recurse":
            return self.judge(gold, completion)
        if what == "allocate":
            return bytearray(8 * 2**30)
        if what == "os":
            raise OSError("no room")
        return verdict(completion == "right", completion)

    def solution(self, gold):
        return gold["answer"]
"""


@pytest.fixture
def make(
    install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., VerifierPool]]:
    points = {"advsweep.verifiers": {"obedient": "obedient:Obedient"}}
    folder = install("obedient", points, obedient=DOES_AS_IT_IS_BID)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    pools: list[VerifierPool] = []

    def make(deadline: float = 30.0, workers: int = 1) -> VerifierPool:
        # The package is on the path of the pool's processes alone.
        verifier = cast("Any", SimpleNamespace(plain=lambda: {"name": "obedient"}))
        pools.append(VerifierPool(verifier, workers=workers, deadline=deadline))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def judge(pool: VerifierPool, *completions: str, gold: str = "x") -> list[Verdict]:
    return pool.judge([({"answer": gold}, text) for text in completions])


def test_an_answer_that_ends_the_verifier_is_wrong(make: Callable[..., VerifierPool]) -> None:
    what = ["right", "crash", "exit", "recurse", "allocate", "right", "no"]
    found = judge(make(), *what)
    expected = {"right": Outcome.CORRECT}
    assert [each.outcome for each in found] == [expected.get(w, Outcome.WRONG) for w in what]
    assert [found[1].reason, found[2].reason] == [
        "it ended the verifier (SIGSEGV)",
        "it ended the verifier (exit code 1)",
    ]
    assert found[3].reason.startswith("the verifier failed (RecursionError")
    assert found[4].reason.startswith("it ended the verifier")


@pytest.mark.parametrize("how", ["sleep", "compute"])
def test_an_answer_that_hangs_is_wrong(make: Callable[..., VerifierPool], how: str) -> None:
    right, hanging = judge(make(deadline=0.5), "right", how)
    assert right.outcome is Outcome.CORRECT
    assert hanging == (Outcome.WRONG, None, "it took more than 0.5 s")


def test_a_death_that_happens_once_is_no_fault_of_the_answer(
    make: Callable[..., VerifierPool], tmp_path: Path
) -> None:
    """As where the machine was short of memory: the answer is tried once more, alone."""
    busy = [f"busy {tmp_path / f'busy{number}'}" for number in range(4)]
    found = judge(make(workers=2), f"once {tmp_path / 'died'}", *busy, "right")
    assert (tmp_path / "died").exists()
    assert [each.outcome for each in found] == [Outcome.CORRECT] * 6


@pytest.mark.parametrize("gold", ["bad", "slow", "fails"])
def test_no_answer_is_wrong_where_the_reference_answer_cannot_be_read(
    make: Callable[..., VerifierPool], gold: str
) -> None:
    pool = make(deadline=0.5)
    assert judge(pool, "right", gold=gold)[0].outcome is Outcome.UNSCORABLE
    (answer,) = pool.judge([({"answer": gold}, None)])
    assert answer.outcome is Outcome.UNSCORABLE


def test_faults_of_the_machine_are_unscorable(make: Callable[..., VerifierPool]) -> None:
    found = judge(make(), "os")
    assert found == [(Outcome.UNSCORABLE, None, "the verifier failed (OSError: no room)")]


def box(text: str) -> str:
    return f"\\boxed{{{text}}}"


MATHS = {
    "tower": box("9^{9^{9}}"),
    "brackets": box("(" * 500 + "1" + ")" * 500),
    "braces": box("{" * 500 + "1" + "}" * 500),
    "factorial": box("((9!)!)!"),
    "roots": box("\\sqrt{" * 300 + "2" + "}" * 300),
    "fractions": box("\\frac{1}{" * 200 + "2" + "}" * 200),
    "integral": box("\\int_0^1 e^{x^x} \\sin(x^{x}) dx"),
    "sum": box("\\sum_{n=1}^{10000000} n^n"),
    "exponent": box("1e999999999"),
    "megabyte of digits": box("9" * 1_000_000),
    "megabyte of terms": box("x+" * 500_000 + "1"),
    "set": box("\\{" + ",".join(map(str, range(20_000))) + "\\}"),
    "unbalanced": "\\boxed{" * 100_000,
    "closed too often": "\\boxed{3" + "}" * 100_000 + "{" * 100_000,
    "spaces": "\\boxed" + " " * 1_000_000,
    "digits of another script": box("๗๓"),
    "null": box("\0"),
    "half a pair": box("\ud800"),
    "infinity": box("\\frac{1}{0}"),
    "bidirectional": box("\u202e27"),
}


@pytest.mark.slow
def test_no_mathematics_is_correct_or_leaves_the_count_by_being_hard() -> None:
    pool = VerifierPool(VERIFIERS.build("boxed_math"), workers=2, deadline=1.0)
    gold = {"answer": "\\frac{1}{3}"}
    try:
        # A machine that is busy may not read even the reference answer in time at first.
        while pool.judge([(gold, box("1/3"))])[0] != (Outcome.CORRECT, "1/3", ""):
            time.sleep(0.1)
        found = pool.judge([(gold, text) for text in MATHS.values()])
        outcomes = [answer.outcome for answer in found]
        assert dict(zip(MATHS, outcomes, strict=True)) == dict.fromkeys(MATHS, Outcome.WRONG)
    finally:
        pool.close()


@pytest.mark.parametrize("name", ["numeric", "choice", "boxed_math"])
def test_what_is_judged_in_the_training_process_is_bounded(name: str) -> None:
    verifier = VERIFIERS.build(name)
    gold = {"answer": "B" if name == "choice" else "73"}
    for text in MATHS.values():
        found = verifier.judge_quickly(gold, text)
        assert found is None or found.outcome is Outcome.WRONG
