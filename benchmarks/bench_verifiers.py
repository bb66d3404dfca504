"""How many answers are verified per second, and what one that hangs costs.

    python benchmarks/bench_verifiers.py

Plain numbers are compared where the training runs; everything else goes to processes that can
be killed, one per core. The target is 1,500 boxed plain numbers per second on two cores.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence

from advsweep.tasks.base import Problem
from advsweep.tasks.dataset import Dataset
from advsweep.tasks.verifiers.pool import usable_cores

THINKING = "Let us think step by step. " * 100
DEADLINE = 2.0


def problems(golds: Sequence[str]) -> list[Problem]:
    return [Problem(str(i), f"{i}?", 0, {"answer": gold}) for i, gold in enumerate(golds)]


def rate(task: Dataset, golds: Sequence[str], answers: Sequence[str]) -> tuple[float, float]:
    """Answers per second, and the seconds in all."""
    texts = [f"{THINKING}\\boxed{{{answer}}}" for answer in answers]
    asked = problems(golds)
    start = time.perf_counter()
    task.score(asked, texts)
    seconds = time.perf_counter() - start
    return len(texts) / seconds, seconds


def main() -> None:
    task = Dataset(data="none.jsonl", deadline=DEADLINE)
    rate(task, ["x"], ["x"])  # starts the processes
    whole = [str(i // 8) for i in range(20_000)]
    halves = [f"{i // 8}.5" for i in range(2_000)]
    roots = [f"\\frac{{{i // 8}}}{{\\sqrt{{2}}}}" for i in range(400)]
    print(f"{usable_cores()} cores; completions of {len(THINKING)} characters")
    print(f"{'boxed answers':<34} {'per second':>11}")
    for name, golds, answers in (
        ("plain whole numbers", whole, whole[1:] + whole[:1]),
        ("decimals, by math-verify", halves, halves[1:] + halves[:1]),
        ("fractions and roots, by math-verify", roots, [f"{g} + 0" for g in roots]),
    ):
        print(f"{name:<34} {rate(task, golds, answers)[0]:>11,.0f}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tower = "10^{10^{10^{10}}}"
        seconds = rate(task, ["3", *roots[:50]], [tower, *roots[:50]])[1]
    print(f"51 answers, one of which hangs: {seconds:.2f} s, at a deadline of {DEADLINE:g} s")


if __name__ == "__main__":
    main()
