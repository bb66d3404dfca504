"""Benchmark verifiers: answers per second, and the cost of an answer that hangs.

    python benchmarks/bench_verifiers.py

Plain numbers are compared where the training runs; everything else goes to processes that can
be killed, one per core. The target is 1,500 boxed plain numbers per second on two cores. The
figures in parentheses are per second of CPU time, of all these processes together. The target of
`numeric` and `choice` is 100,000 plain answers per second of CPU time, and that for the 512 routes
of a step 2 ms.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from figures import head, show

from advsweep.tasks.base import Problem
from advsweep.tasks.dataset import Dataset
from advsweep.tasks.routes import Routes
from advsweep.tasks.verifiers import VERIFIERS

THINKING = "Let us think step by step. " * 100
DEADLINE = 2.0
TARGET = "1,500"


class Cost(NamedTuple):
    """Wall-clock seconds and CPU seconds of verifying answers."""

    wall: float
    cpu: float


def problems(golds: Sequence[str]) -> list[Problem]:
    return [Problem(str(i), f"{i}?", 0, {"answer": gold}) for i, gold in enumerate(golds)]


def score(task: Dataset, golds: Sequence[str], answers: Sequence[str]) -> Cost:
    texts = [f"{THINKING}\\boxed{{{answer}}}" for answer in answers]
    batch = problems(golds)
    began, cpu = time.perf_counter(), cpu_seconds()
    task.score(batch, texts)
    return Cost(time.perf_counter() - began, cpu_seconds() - cpu)


def cpu_seconds() -> float:
    """Returns CPU seconds of this process and, on Linux, of children in their own sessions."""
    own, ticks = os.getpid(), 0
    # Fields after the name: state, parent, group, session, ..., four kinds of CPU time.
    processes = [_fields(folder) for folder in Path("/proc").glob("[0-9]*")]
    sessions = {fields[3] for fields in processes if fields and int(fields[1]) == own}
    for fields in processes:
        if fields and fields[3] in sessions - {str(os.getsid(0))}:
            ticks += sum(map(int, fields[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _fields(folder: Path) -> list[str]:
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []  # it has ended


def quick_rates() -> dict[str, float]:
    """Returns plain answers per CPU second that are judged where the training runs."""
    numbers = [str(i) for i in range(1000)]
    letters = list("ABCD")
    cases = {
        "numeric": (numbers, "\\boxed{%s}"),
        "choice": (letters, "The answer is %s."),
    }
    rates = {}
    for name, (golds, form) in cases.items():
        verifier = VERIFIERS.build(name)
        texts = [form % gold for gold in golds]
        seconds = []
        for _ in range(5):
            began = time.process_time()
            for i in range(20_000):
                place = i % len(golds)
                verifier.judge_quickly({"answer": golds[place]}, texts[place])
            seconds.append(time.process_time() - began)
        rates[name] = 20_000 / min(seconds)
    return rates


def routes_ms() -> float:
    """Returns the median CPU milliseconds of scoring 512 routes, a third of them right."""
    task, rng = Routes(), np.random.default_rng(0)
    prompts = [problem for problem in task.draw(64, rng) for _ in range(8)]
    walks = [p.reference["solution"] for p in task.draw(512, rng)]
    texts = [
        walk if i % 3 else p.reference["solution"]
        for i, (p, walk) in enumerate(zip(prompts, walks, strict=True))
    ]
    task.score(prompts, texts)  # makes the map
    seconds = []
    for _ in range(100):
        began = time.process_time()
        task.score(prompts, texts)
        seconds.append(time.process_time() - began)
    return statistics.median(seconds) * 1e3


def main() -> None:
    task = Dataset(data="none.jsonl", deadline=DEADLINE)
    score(task, ["x"], ["x"])  # starts the processes
    whole = [str(i // 8) for i in range(20_000)]
    halves = [f"{i // 8}.5" for i in range(2_000)]
    roots = [f"\\frac{{{i // 8}}}{{\\sqrt{{2}}}}" for i in range(400)]
    head("per s")
    for name, golds, answers, target in (
        ("plain whole numbers", whole, whole[1:] + whole[:1], TARGET),
        ("decimals", halves, halves[1:] + halves[:1], ""),
        ("fractions and roots, by math-verify", roots, [f"{g} + 0" for g in roots], ""),
    ):
        cost = score(task, golds, answers)
        show(name, f"{len(golds) / cost.wall:,.0f} ({len(golds) / cost.cpu:,.0f})", target)
    for name, rate in quick_rates().items():
        show(f"{name}, plain answers", f"{rate:,.0f}", "100,000")
    show("512 routes on a map, CPU ms", f"{routes_ms():.2f}", "2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tower = "10^{10^{10^{10}}}"
        alone = score(task, roots[:50], roots[:50])
        beside = score(task, ["3", *roots[:50]], [tower, *roots[:50]])
    show("50 answers, s", f"{alone.wall:.2f}")
    show("  with one more that hangs", f"{beside.wall:.2f}", f"{alone.wall + DEADLINE:.2f}")


if __name__ == "__main__":
    main()
