"""Draw what random verdicts do to a model, by learning rate and by what bounds a step.

    python experiments/random_rewards/draw.py

Reads report.csv, of `python experiments/study.py random_rewards`, and writes rates.svg: differences
in pass@1 to the base model after 150 steps, with their 95 % intervals.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd

FOLDER = Path(__file__).resolve().parent
DIFFERENCE = "pass@1_difference"
NOTHING, DESTROYED = 0.02, 0.05
# Okabe and Ito's, which any kind of colour vision tells apart.
STYLES = {
    "clip .2, two inner epochs": ("#0072B2", "o"),
    "no clip, two inner epochs": ("#D55E00", "s"),
    "clip .2, one inner epoch": ("#009E73", "^"),
    "true verdicts": ("#000000", "D"),
}


def bound_of(row: pd.Series) -> str:
    """Name what bounds the steps of a row."""
    if row["estimator"] == "rloo":
        return "true verdicts"
    clip = "clip .2" if row["objective.clip_low"] < 1 else "no clip"
    epochs = "one inner epoch" if row["backend.inner_epochs"] == 1 else "two inner epochs"
    return f"{clip}, {epochs}"


def write_rate(rate: float) -> str:
    return f"{rate:.1e}".replace("e-0", "e-").replace(".0e", "e")


def main() -> None:
    mpl.rcParams["svg.hashsalt"] = "random_rewards"
    rows = pd.read_csv(FOLDER / "report.csv")
    rows = rows[rows["optimizer.lr"].notna()]
    figure, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
    axis.axhspan(-DESTROYED, DESTROYED, color="0.95")
    axis.axhspan(-NOTHING, NOTHING, color="0.88")
    axis.axhline(0, color="0.6", lw=0.8)
    bounds = rows.apply(bound_of, axis=1)
    for place, (bound, (colour, marker)) in enumerate(STYLES.items()):
        values = rows[bounds == bound].sort_values("optimizer.lr")
        shift = 1 + 0.04 * (place - 1.5)
        errors = [
            values[DIFFERENCE] - values[f"{DIFFERENCE}_low"],
            values[f"{DIFFERENCE}_high"] - values[DIFFERENCE],
        ]
        axis.errorbar(
            values["optimizer.lr"] * shift,
            values[DIFFERENCE],
            errors,
            label=bound,
            marker=marker,
            capsize=2,
            color=colour,
        )
    axis.set_xscale("log")
    rates = sorted(rows["optimizer.lr"].unique())
    axis.set_xticks(
        rates, [f"{rate:.1e}".replace("e-0", "e-").replace(".0e", "e") for rate in rates]
    )
    axis.minorticks_off()
    axis.set_xlabel("learning rate")
    axis.set_ylabel("difference in pass@1 to the base")
    axis.set_title("grey: within .02 and .05 of the base", fontsize=9)
    axis.legend(frameon=False)
    figure.savefig(FOLDER / "rates.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
