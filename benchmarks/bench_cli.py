"""Benchmark the start of commands, and a small sweep per run.

    python benchmarks/bench_cli.py

CPU time of whole processes, median of several; an empty Python stands beside it for scale.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from figures import head, show

RUNS = 9
COMMANDS = {"--help": "150", "ls": "", "show 1": "", "report bench": "", "sweep --help": ""}
SWEEP = [
    *("sweep", "--name", "bench", "backend=fake", "steps=5", "prompts_per_step=8"),
    *("seed=range(4)", "evaluation.n=8", "evaluation.k=[1,8]", "evaluation.every=0"),
]
ADVSWEEP = [sys.executable, "-c", "from advsweep.cli import main; main()"]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        started = time.perf_counter()
        total = cpu_seconds([*ADVSWEEP, *SWEEP])
        wall = time.perf_counter() - started
        empty = median_ms([sys.executable, "-c", "pass"])
        head("CPU ms")
        for command, target in COMMANDS.items():
            cost = median_ms([*ADVSWEEP, *command.split()])
            show(f"advsweep {command}", f"{cost:.0f}", target, f"{empty:.0f}", "python -c pass")
        show("a sweep of 4 nearly empty runs", f"{total:.1f} CPU s")
        show("  by the clock", f"{wall:.1f} s")


def median_ms(command: list[str]) -> float:
    cpu_seconds(command)
    return 1000 * statistics.median(cpu_seconds(command) for _ in range(RUNS))


def cpu_seconds(command: list[str]) -> float:
    before = os.times()
    subprocess.run(command, check=True, capture_output=True)
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


if __name__ == "__main__":
    main()
