"""What a command costs before it does anything, and what a small sweep costs per run.

    python benchmarks/bench_cli.py

CPU time of whole processes, median of several; an empty Python stands beside it for scale.
The target for `--help` is 150 ms.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

RUNS = 9
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
        print(f"{'command':<28} {'CPU ms, median':>15} {'of python -c pass':>18}")
        empty = median_ms([sys.executable, "-c", "pass"])
        print(f"{'python -c pass':<28} {empty:>15.0f} {1:>17.1f}x")
        for command in ("--help", "ls", "show 1", "report bench", "sweep --help"):
            cost = median_ms([*ADVSWEEP, *command.split()])
            print(f"{'advsweep ' + command:<28} {cost:>15.0f} {cost / empty:>17.1f}x")
        print(f"a sweep of 4 nearly empty runs: {total:.1f} CPU s, {wall:.1f} s of wall time")


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
