"""Benchmark what a command costs before its first word, beside the imports that it needs.

    python benchmarks/bench_cli.py

CPU time of whole processes, their children included. The commands and their peers take turns, so
that the load of the machine hits them alike; each figure is a median. A ratio is the median of
the ratios within a turn. The commands read a store with the runs of `+experiment=demo`, trained
by the fake backend.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from figures import head, show

ROUNDS = 15
FEWER_ROUNDS = 2
TYPER = "import typer"
ORM = "import sqlalchemy.orm"
PANDAS = "import sqlalchemy.orm, pandas"
COMPARED = {
    "--help": (TYPER, "2"),
    "TAB": ("--help", "1"),
    "sweep --help": (TYPER, ""),
    "ls": (ORM, "1.6"),
    "status demo": (ORM, "1.6"),
    "show last": (ORM, "1.6"),
    "logs last": (ORM, "1.6"),
    "report demo": (PANDAS, "2"),
}
"""Commands with their peer, and how often its time they may take."""

OTHERS = (
    *(
        "keys",
        "list methods",
        "list experiments",
        "list estimators",
        "list tasks",
        "sweep +experiment=demo --dry-run",
    ),
    *("run --dry-run", "run sed=1"),
)
"""Commands without a target; the last has a typing error."""

COMPLETION = {
    "_ADVSWEEP_COMPLETE": "complete_bash",
    "COMP_WORDS": "advsweep re",
    "COMP_CWORD": "1",
}
"""What bash sets when TAB is pressed after `advsweep re`."""

# An installed package has its bytecode, which this variable forbids to write.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
# The backend `fake` of the tests.
ENVIRONMENT["PYTHONPATH"] = str(Path(__file__).parents[1] / "tests" / "installed")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        started = time.perf_counter()
        total = cpu_seconds("sweep +experiment=demo backend=fake")
        wall = time.perf_counter() - started
        peers = dict.fromkeys(peer for peer, _ in COMPARED.values())
        times = take_turns([*dict.fromkeys([*COMPARED, *peers, "pass"])], ROUNDS)
        head("CPU ms")
        for command, (peer, target) in COMPARED.items():
            ratio = statistics.median(
                mine / its for mine, its in zip(times[command], times[peer], strict=True)
            )
            show(
                f"advsweep {command}",
                f"{median_ms(times[command])} ({ratio:.2f} x)",
                target and f"{target} x",
                median_ms(times[peer]),
                f"advsweep {peer}" if peer in COMPARED else f"python -c '{peer}'",
            )
        show("python -c pass", median_ms(times["pass"]))
        for command, seconds in take_turns([*OTHERS], FEWER_ROUNDS).items():
            show(f"advsweep {command}", median_ms(seconds))
        show("a sweep of 16 nearly empty runs", f"{total:.1f} CPU s")
        show("  by the clock", f"{wall:.1f} s")


def take_turns(commands: list[str], rounds: int) -> Mapping[str, list[float]]:
    """Returns the CPU seconds of each command in each round, after one round for the caches."""
    times: dict[str, list[float]] = {command: [] for command in commands}
    for command in commands:
        cpu_seconds(command)
    for _ in range(rounds):
        for command in commands:
            times[command].append(cpu_seconds(command))
    return times


def median_ms(seconds: list[float]) -> str:
    return f"{1000 * statistics.median(seconds):.0f}"


def cpu_seconds(command: str) -> float:
    """Runs Python code, a command of advsweep, or its completion; returns its CPU time."""
    is_code = command == "pass" or command.startswith("import ")
    code = command if is_code else "from advsweep.cli import main; main()"
    words = [] if is_code or command == "TAB" else command.split()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", code, *words],
        # A typing error ends with exit code 2.
        check=command != "run sed=1",
        capture_output=True,
        env=ENVIRONMENT | (COMPLETION if command == "TAB" else {}),
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


if __name__ == "__main__":
    main()
