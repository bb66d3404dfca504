"""Benchmark the figures of 2,000 runs in one file, beside pandas and matplotlib.

    python benchmarks/bench_plot.py

The runs are 20 configurations with 100 seeds each, as `bench_report.py` makes them: three metrics
over 100 steps, and an evaluation of 140 problems. `advsweep plot` draws five figures of them. The
peer reads the same points and draws one figure, the means of the three metrics with their
intervals. Both are whole processes, by their CPU time and peak of memory; they take turns.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from bench_report import SWEEP, fill
from figures import head, show

from advsweep.store import open_store

RUNS = 2_000
SEEDS = 100
ROUNDS = 3

PEER = """
import sqlite3, sys
import matplotlib
import pandas as pd
from scipy.special import stdtrit

matplotlib.use("agg")
from matplotlib import pyplot

query = (
    "select runs.config_hash as config, metrics.name as metric, points.step, points.value"
    " from points join metrics on metrics.id = points.metric_id join runs on runs.id = run_id"
)
points = pd.read_sql(query, sqlite3.connect(sys.argv[1]))
means = points.groupby(["metric", "config", "step"])["value"].agg(["mean", "std", "count"])
means["half"] = stdtrit(means["count"] - 1.0, 0.975) * means["std"] / means["count"] ** 0.5
names = means.index.unique("metric")
figure, axes = pyplot.subplots(len(names), 1, figsize=(8, 7), layout="constrained")
for axis, name in zip(axes, names, strict=True):
    for config, curve in means.loc[name].groupby("config"):
        steps = curve.index.get_level_values("step")
        low, high = curve["mean"] - curve["half"], curve["mean"] + curve["half"]
        axis.fill_between(steps, low, high, alpha=0.1)
        axis.plot(steps, curve["mean"], label=config[-2:])
figure.legend(loc="outside lower center", ncols=10)
figure.savefig(sys.argv[2], dpi=150)
"""


class Cost(NamedTuple):
    """What a process took."""

    seconds: float
    megabytes: float


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/advsweep.db"
        with open_store(url) as store:
            fill(store, RUNS, SEEDS)
        code = "from advsweep.cli import main; main()"
        target = str(Path(folder, "figures.png"))
        plot = [sys.executable, "-c", code, "plot", SWEEP, "--store", url, "--output", target]
        peer = [sys.executable, "-c", PEER, url, target]
        rounds = [(_measure(plot), _measure(peer)) for _ in range(ROUNDS)]
    ours = [one for one, _ in rounds]
    theirs = [other for _, other in rounds]
    head("CPU s")
    ratio = statistics.median(one.seconds / other.seconds for one, other in rounds)
    show(
        f"`plot` of {RUNS:,} runs, five figures",
        f"{statistics.median(cost.seconds for cost in ours):.1f} ({ratio:.1f} x)",
        "3 x",
        f"{statistics.median(cost.seconds for cost in theirs):.1f}",
        "pandas and matplotlib, one figure",
    )
    show(
        "  peak of memory, MB",
        f"{statistics.median(cost.megabytes for cost in ours):.0f}",
        "",
        f"{statistics.median(cost.megabytes for cost in theirs):.0f}",
    )


def _measure(command: list[str]) -> Cost:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
