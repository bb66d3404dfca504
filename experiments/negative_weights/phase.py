"""Compare where policies broke with the prediction, and draw both.

    python experiments/negative_weights/phase.py

Reads runs.csv, of `python experiments/study.py negative_weights`, and writes cells.csv, a row for
each difficulty, weight and learning rate, and phase.svg. Prints what follows from them:

    rule    how many of the broken and of the other cells prediction.py's rule has right; a cell is
            broken if most of its seeds are
    fitted  the same for a logistic regression on log rate and n, each difficulty predicted from
            the two others
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from prediction import BROKEN, LIMITS, is_broken, negative_share
from scipy.optimize import minimize
from scipy.special import expit

FOLDER = Path(__file__).resolve().parent
ENDS = {"psr": math.inf, "nsr": 0.0}
"""The weights λ of the estimators that have none."""


def cells() -> pd.DataFrame:
    """Return a row per difficulty, weight and rate."""
    runs = pd.read_csv(FOLDER / "runs.csv")
    found = runs["row"].str.extract(r"task\.levels=\[(?P<level>\d)\]").astype(int)
    found["weight"] = runs["estimator"].map(ENDS)
    of_lam = runs["row"].str.extract(r"estimator\.lam=([\d.]+)")[0].astype(float)
    found["weight"] = found["weight"].fillna(of_lam)
    found["lr"], found["seed"] = runs["optimizer.lr"], runs["seed"]
    found["start"] = runs["step"] == 0
    found["pass@1"] = runs["pass@1"]
    keys = ["level", "weight", "lr"]
    ends = found[~found["start"]].set_index([*keys, "seed"])["pass@1"]
    bases = found[found["start"]].set_index([*keys, "seed"])["pass@1"]
    both = pd.DataFrame({"base": bases, "pass@1": ends}).reset_index()
    both["broken"] = both["pass@1"] < BROKEN * both["base"]
    table = both.groupby(keys).agg(
        seeds=("seed", "size"),
        base=("base", "mean"),
        end=("pass@1", "mean"),
        broken=("broken", "sum"),
    )
    table = table.reset_index()
    rows = [*zip(table["base"], table["weight"], table["lr"], strict=True)]
    table["negative_share"] = [negative_share(base, weight) for base, weight, _ in rows]
    table["predicted"] = [is_broken(*row) for row in rows]
    return table


def is_right(table: pd.DataFrame) -> pd.Series:
    """Return whether most seeds of a cell did what was predicted."""
    return (table["broken"] > table["seeds"] / 2) == table["predicted"]


def fitted(table: pd.DataFrame) -> pd.Series:
    """Return whether a regression on the other difficulties is right about each cell."""
    features = np.column_stack(
        [np.ones(len(table)), np.log10(table["lr"]) + 4, table["negative_share"]]
    )
    broken = (table["broken"] / table["seeds"]).to_numpy()
    right = pd.Series(False, index=table.index)
    for level in table["level"].unique():
        apart = (table["level"] == level).to_numpy()

        def loss(weights: np.ndarray, known: np.ndarray = ~apart) -> float:
            signs = features[known] @ weights
            likelihood = broken[known] * np.log(expit(signs) + 1e-12)
            likelihood += (1 - broken[known]) * np.log(expit(-signs) + 1e-12)
            # A weak penalty, as classes that a line separates have no largest likelihood.
            return float(-likelihood.sum() + 0.01 * (weights[1:] ** 2).sum())

        weights = minimize(loss, np.zeros(3)).x
        right[apart] = ((features[apart] @ weights) > 0) == (broken[apart] > 0.5)
    return right


def draw(table: pd.DataFrame) -> None:
    """Draw pass@1 over that of the base by weight and rate, and the predicted boundary."""
    mpl.rcParams["svg.hashsalt"] = "phase"
    levels = sorted(table["level"].unique())
    figure, axes = plt.subplots(
        1, len(levels), figsize=(10, 3.4), sharey=True, layout="constrained"
    )
    rates, weights = sorted(LIMITS), sorted(table["weight"].unique(), reverse=True)
    norm = mpl.colors.TwoSlopeNorm(1.0, 0.0, 2.0)
    for axis, level in zip(axes, levels, strict=True):
        own = table[table["level"] == level].set_index(["weight", "lr"])
        ratio = np.array(
            [[own.loc[(w, r), "end"] / own.loc[(w, r), "base"] for r in rates] for w in weights]
        )
        image = axis.imshow(ratio, cmap="PuOr", norm=norm, aspect="auto")
        for y, weight in enumerate(weights):
            for x, rate in enumerate(rates):
                cell = own.loc[(weight, rate)]
                shade = "white" if abs(ratio[y, x] - 1) > 0.7 else "black"
                axis.text(x, y, f"{cell['end']:.2f}"[1:], ha="center", va="center", color=shade)
                if cell["predicted"]:
                    for color, width in (("black", 3.0), ("white", 1.2)):
                        frame = (x - 0.45, y - 0.43), 0.9, 0.86
                        axis.add_patch(
                            mpl.patches.Rectangle(*frame, fill=False, ec=color, lw=width)
                        )
        axis.set_xticks(range(len(rates)), [f"{rate:.0e}".replace("e-0", "e-") for rate in rates])
        axis.set_title(f"level {level}, base pass@1 {own['base'].mean():.2f}")
        axis.set_xlabel("learning rate")
    names = {math.inf: "successes alone", 0.0: "failures alone"}
    axes[0].set_yticks(range(len(weights)), [names.get(w, f"λ = {w:g}") for w in weights])
    figure.colorbar(image, ax=axes, label="pass@1 over the base's", extend="max")
    figure.savefig(FOLDER / "phase.svg", metadata={"Date": None})


def main() -> None:
    table = cells()
    table.to_csv(FOLDER / "cells.csv", index=False, float_format="%.6g")
    draw(table)
    broken = table["broken"] > table["seeds"] / 2
    for name, right in (("rule", is_right(table)), ("fitted", fitted(table))):
        parts = [f"{right[own].sum()} of {own.sum()}" for own in (broken, ~broken)]
        by_level = right.groupby(table["level"]).sum().to_dict()
        print(f"{name}: {parts[0]} broken and {parts[1]} other cells; by level {by_level}")
    wrong = table[~is_right(table)]
    print(wrong.to_string())


if __name__ == "__main__":
    main()
