"""Draw what arms gain over RLOO beside the correlation of their credit with the truth, and by cost.

    python experiments/turns/draw.py

Reads the tables and runs.csv of `python experiments/study.py turns` and writes credit.svg, the
difference in pass@1 over the credit in the four settings, and tokens.svg, pass@1 of the transformer
over steps and over generated tokens: means over the seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1] / "tools"))

from page_queries import evaluate  # noqa: E402 (found by the line above)

NAMES = {
    "table_short": "table, short walks",
    "table_long": "table, long walks",
    "tiny_short": "transformer, short walks",
    "tiny_long": "transformer, long walks",
}
# Okabe and Ito's, which any kind of colour vision tells apart.
COLOURS = {
    "rloo": "#000000",
    "grpo": "#999999",
    "psr": "#D55E00",
    "turn_return": "#56B4E9",
    "gigpo": "#0072B2",
    "by_turn": "#CC79A7",
    "vine": "#009E73",
}
LABELS = {"by_turn": "rloo by state"}


def draw_credit(axis: Axes, setting: str) -> None:
    """Draw each arm's difference to RLOO, with its interval, over the correlation of its credit."""
    axis.axhline(0, color="0.7", lw=0.8)
    for arm, colour in COLOURS.items():
        label = LABELS.get(arm, arm)
        middle, low, high = (0.0, 0.0, 0.0)
        if arm != "rloo":
            middle, low, high = evaluate(f"turns.gain {setting} {arm}")
        if arm == "vine":
            # Its credit is its own truth, or was not measured: it has a height and no place.
            axis.axhspan(low, high, color=colour, alpha=0.15, lw=0)
            axis.axhline(middle, color=colour, lw=1.2, label=label)
            continue
        (place,) = evaluate(f"turns.credit {setting} {arm}")
        error = [[middle - low], [high - middle]]
        axis.errorbar([place], [middle], error, fmt="o", color=colour, ms=5, lw=1, label=label)
    axis.set_title(NAMES[setting], fontsize=10)


def draw_over(axis: Axes, runs: pd.DataFrame, column: str) -> None:
    """Draw the mean of pass@1 over the mean of a column at the same steps."""
    for arm in ("vine", "gigpo", "psr", "rloo"):
        by_step = runs[runs["estimator"] == arm].groupby("step")[[column, "pass@1"]].mean()
        axis.plot(by_step[column], by_step["pass@1"], "-o", ms=2.5, color=COLOURS[arm], label=arm)


def main() -> None:
    mpl.rcParams["svg.hashsalt"] = "turns"
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained")
    for axis, setting in zip(axes.flat, NAMES, strict=True):
        draw_credit(axis, setting)
    for axis in axes[1]:
        axis.set_xlabel("correlation of credit with the truth")
    for axis in axes[:, 0]:
        axis.set_ylabel("pass@1 less that of RLOO")
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(FOLDER / "credit.svg", metadata={"Date": None})

    recorded = pd.read_csv(FOLDER / "runs.csv", low_memory=False)
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained", sharey="row")
    for place, length in enumerate(("short", "long")):
        runs = recorded[recorded["sweep"] == f"turns-tiny-{length}"]
        over_steps, over_tokens = axes[2 * place : 2 * place + 2]
        draw_over(over_steps, runs, "step")
        draw_over(over_tokens, runs[runs["step"] > 0], "cost/tokens")
        over_steps.set_xlabel("step")
        over_tokens.set_xlabel("generated tokens")
        over_tokens.set_xscale("log")
        for axis in (over_steps, over_tokens):
            axis.set_title(f"{length} walks", fontsize=10)
    axes[0].set_ylabel("pass@1")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(FOLDER / "tokens.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
