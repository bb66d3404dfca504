"""How well halving finds each arm's best learning rate, beside the full grid at equal cost.

    python benchmarks/halving.py > benchmarks/halving.csv

Scores are drawn like those of the leaderboard's tuning runs (`experiments/leaderboard/runs.csv`):
pass@1 of an arm at a rate and a seed is the mean of the arm at the rate, plus what the seed adds to
all rates, plus normal noise. The means are of two kinds: `arms` has the 48 measured curves (16 arms
on three tasks, five rates), whose own noise makes rates look further apart than they are; `tasks`
has the mean curve of each task, without the arms that collapse, in which they are closer. The noise
of each task is what is left of the scores of an arm without the means of its rates and seeds. What
a seed adds has no effect here, as rates are compared on equal seeds; it is drawn nevertheless.

`best` is the share of arms for which the truly best rate is chosen, in %; `loss` is how much lower
the true pass@1 of the chosen rate is than the best one's, in points of pass@1 x 100. The choice is
that of `tune` without growing grids.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from advsweep.config.space import Tune

RUNS = Path(__file__).parents[1] / "experiments" / "leaderboard" / "runs.csv"
RATES = (5e-5, 1e-4, 2e-4, 4e-4, 8e-4)
STEP = "150"
# Arms that lose most of their pass@1 at rates of the grid.
COLLAPSING = ("asym_grpo", "a_grae", "grpo_n")
# Tunings for each line of the table.
DRAWS = 24_000
FIELDS = ("curves", "method", "seeds", "runs", "best", "loss")
METHODS = (
    *(("grid", seeds) for seeds in (1, 2, 3, 4, 5, 8)),
    *(("halving", seeds) for seeds in (2, 3, 4, 6, 8, 12)),
)


@dataclass(frozen=True)
class Curve:
    """An arm on a task.

    Attributes:
        means: [rates], its true pass@1.
        noise: the standard deviation between seeds that rates do not share.
        spread: the standard deviation of what a seed adds to all rates.
    """

    means: np.ndarray
    noise: float
    spread: float


@dataclass(frozen=True)
class Result:
    """How a method did.

    Attributes:
        runs: those of an arm.
        best, loss: as in the table.
        loss_error: the standard error of the simulated loss.
    """

    runs: int
    best: float
    loss: float
    loss_error: float


def read_scores() -> dict[str, dict[str, np.ndarray]]:
    """Return pass@1 of each task and arm, [rates, seeds]."""
    scores: dict[tuple[str, str], dict[tuple[float, str], float]] = {}
    with RUNS.open(newline="") as file:
        for row in csv.DictReader(file):
            if not row["sweep"].endswith("-tuning") or row["step"] != STEP:
                continue
            rate = row["optimizer.lr"]
            arm = row["row"].replace(f" optimizer.lr={rate}", "")
            scores.setdefault((row["sweep"], arm), {})[float(rate), row["seed"]] = float(
                row["pass@1"]
            )
    tables: dict[str, dict[str, np.ndarray]] = {}
    for (sweep, arm), by_run in scores.items():
        seeds = sorted({seed for _, seed in by_run})
        table = np.array([[by_run[rate, seed] for seed in seeds] for rate in RATES])
        tables.setdefault(sweep, {})[arm] = table
    return tables


def read_curves() -> dict[str, list[Curve]]:
    """Return the curves of each kind."""
    curves: dict[str, list[Curve]] = {"arms": [], "tasks": []}
    for tables in read_scores().values():
        whole = [table for arm, table in tables.items() if arm not in COLLAPSING]
        noise = float(np.sqrt(np.mean([_noise_variance(table) for table in whole])))
        spread = float(np.mean([table.mean(axis=0).std(ddof=1) for table in whole]))
        curves["arms"] += [Curve(table.mean(axis=1), noise, spread) for table in tables.values()]
        curves["tasks"].append(Curve(np.mean(whole, axis=(0, 2)), noise, spread))
    return curves


def _noise_variance(table: np.ndarray) -> float:
    rest = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    rates, seeds = table.shape
    return float((rest**2).sum() / ((rates - 1) * (seeds - 1)))


def choose(tune: Tune, scores: np.ndarray) -> int:
    """Return the index of the rate that `tune` chooses.

    Args:
        scores: [rates, seeds], of which halving reads a part.
    """
    ranked = [*tune.values]
    for rung in tune.rungs:
        means = scores[:, : rung.seeds].mean(axis=1)
        ranked = tune.ranked({rate: means[RATES.index(rate)] for rate in ranked[: rung.values]})
    return RATES.index(ranked[0])


def simulate(curves: Sequence[Curve], method: str, seeds: int, times: int) -> Result:
    """Tune each curve so many times; the random numbers follow from the number of seeds."""
    rng = np.random.default_rng(seeds)
    tune = Tune(values=RATES, seeds=seeds, halving=method == "halving", extend=0)
    losses = []
    for curve in curves:
        for _ in range(times):
            shared = rng.normal(0, curve.spread, seeds)
            noise = rng.normal(0, curve.noise, (len(RATES), seeds))
            chosen = choose(tune, curve.means[:, None] + shared + noise)
            losses.append(100 * (curve.means.max() - curve.means[chosen]))
    return Result(
        runs=tune.runs,
        best=100 * float(np.mean(np.array(losses) == 0)),
        loss=float(np.mean(losses)),
        loss_error=float(np.std(losses) / np.sqrt(len(losses))),
    )


def main() -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(FIELDS)
    for kind, curves in read_curves().items():
        times = DRAWS // len(curves)
        for method, seeds in METHODS:
            result = simulate(curves, method, seeds, times)
            writer.writerow(
                [kind, method, seeds, result.runs, f"{result.best:.0f}", f"{result.loss:.2f}"]
            )


if __name__ == "__main__":
    main()
