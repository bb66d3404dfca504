"""Draw how PSR and RLOO learn over 600 steps, and what diversity is left at each pass@1.

    python experiments/speed/draw.py

Reads runs.csv, and the level of pass@1 at which matched_RANGE.csv compares, of `python
experiments/study.py speed`, and writes paths.svg: means over the seeds.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

FOLDER = Path(__file__).resolve().parent
DIFFICULTIES = ("hard", "easy")
# Okabe and Ito's, which any kind of colour vision tells apart.
COLOURS = {"rloo": "#0072B2", "psr": "#D55E00"}
NAMES = {"rloo": "RLOO", "psr": "PSR"}
DASHES = {2e-4: "-", 4e-4: "--"}


def draw_over_steps(axis: Axes, runs: pd.DataFrame) -> None:
    """Draw the mean of pass@1 over the steps, with the range of its 95 % interval."""
    for (estimator, rate), rows in runs.groupby(["estimator", "optimizer.lr"]):
        by_step = rows.groupby("step")["pass@1"]
        mean = by_step.mean()
        # A normal interval is near enough for a band that nothing is read from.
        half = 1.96 * by_step.sem()
        axis.fill_between(mean.index, mean - half, mean + half, color=COLOURS[estimator], alpha=0.1)
        label = f"{NAMES[estimator]}, {rate:.0e}".replace("e-0", "e-")
        axis.plot(mean.index, mean, DASHES[rate], color=COLOURS[estimator], label=label)
    axis.set_xlabel("step")
    axis.set_ylabel("pass@1")


def draw_over_accuracy(axis: Axes, runs: pd.DataFrame, level: float) -> None:
    """Draw the mean entropy of right answers over the mean pass@1 of the same steps."""
    axis.axvline(level, color="0.7", lw=0.8)
    for (estimator, rate), rows in runs.groupby(["estimator", "optimizer.lr"]):
        mean = rows.groupby("step")[["pass@1", "entropy/right_rarefied"]].mean()
        axis.plot(
            mean["pass@1"],
            mean["entropy/right_rarefied"],
            DASHES[rate],
            color=COLOURS[estimator],
            lw=1.2,
        )
    axis.set_xlabel("pass@1")
    axis.set_ylabel("entropy of right answers (nats)")


def main() -> None:
    mpl.rcParams["svg.hashsalt"] = "speed"
    recorded = pd.read_csv(FOLDER / "runs.csv")
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained")
    for column, difficulty in enumerate(DIFFICULTIES):
        runs = recorded[recorded["sweep"] == f"speed-{difficulty}"]
        (level,) = pd.read_csv(FOLDER / f"matched_{difficulty}.csv")["level"].unique()
        above = axes[0, column]
        below = axes[1, column]
        draw_over_steps(above, runs)
        draw_over_accuracy(below, runs, level)
        above.set_title(f"{difficulty} prompts", fontsize=10)
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(FOLDER / "paths.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
