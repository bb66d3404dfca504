"""Does an audition's order of estimators predict the order of the leaderboard's trainings?

    python experiments/audition/validate.py                 # auditions, then the results
    python experiments/audition/validate.py --results       # the results of auditions.csv alone
    python experiments/audition/validate.py --smoke --output DIR  # one base, two estimators

Every base of the leaderboard (eight seeds in three ranges) is auditioned with its 16 estimators
by `advsweep audition`. Trained results are those of experiments/leaderboard/runs.csv.

    auditions.csv     a row per range, seed and estimator: means over held-out prompts
    correlations.csv  rank correlations over estimators, each a mean over seeds
    docs/figures/audition.svg
"""

from __future__ import annotations

import argparse
import io
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from scipy import stats

from advsweep import load_runs

FOLDER = Path(__file__).resolve().parent
TRAINED = FOLDER.parent / "leaderboard" / "runs.csv"
FIGURE = FOLDER.parents[1] / "docs" / "figures" / "audition.svg"
RANGES = ("hard", "middle", "easy")
SEEDS = 8
ESTIMATORS = (
    *("rloo", "grpo", "dr_grpo", "psr", "power_alpha", "maxrl", "passk_mix", "asym_grpo"),
    *("fade", "avspo", "a_grae", "grpo_n", "opo", "reinforce_pp", "reinforce_pp_baseline"),
    "grpo:scope=batch",
)
# Weights that favour failures: the worst of every range.
FAILURES = ("asym_grpo", "a_grae", "grpo_n")
MEASURES = ("log_odds", "pass@1", "pass@8", "token_entropy")
# Measures of the audition, and what they should predict. The first is the primary one.
PAIRS = {
    "log_odds": "pass@1",
    "token_entropy": "entropy/right_rarefied",
    "pass@8": "pass@32",
}
LAST = 150
# The rate of most arms, at which the tuning trained all of them, with two other bases.
COMMON = 2e-4
DRAWS = 20_000


def advsweep(*arguments: str) -> str:
    command = [sys.executable, "-c", "from advsweep.cli import main; main()", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def audition_all(
    store: Path, ranges: Sequence[str], seeds: int, estimators: Sequence[str], *overrides: str
) -> pd.DataFrame:
    """Make the bases, and audition the estimators on each."""
    found = []
    for difficulty in ranges:
        # One step: a run is what has a base.
        advsweep(
            *("sweep", f"+experiment=leaderboard/{difficulty}", "sweep.blocks=[{estimator: rloo}]"),
            *("sweep.tune=null", "sweep.controls=[]", f"sweep.seeds={seeds}", "steps=1"),
            *(
                "evaluation.n=4",
                "evaluation.n_between=null",
                "evaluation.k=[1]",
                "evaluation.at=[]",
            ),
            *(*overrides, "--store", str(store)),
        )
        runs = load_runs(str(store), sweep=f"leaderboard-{difficulty}")
        for run, seed in zip(runs["run"], runs["seed"], strict=True):
            print(f"{difficulty} seed {seed}", file=sys.stderr, flush=True)
            text = advsweep(
                *("audition", str(run), "--step", "0", "--estimators", ",".join(estimators)),
                *("--store", str(store), "--format", "csv"),
            )
            own = pd.read_csv(io.StringIO(text))[["candidate", *MEASURES, "sample_share"]]
            found.append(own.assign(range=difficulty, seed=seed))
    first = ["range", "seed", "candidate"]
    table = pd.concat(found).sort_values(first)
    return table[[*first, *MEASURES, "sample_share"]]


def trained(difficulty: str) -> pd.DataFrame:
    """Return the leaderboard's runs at each arm's best rate, and at the common rate."""
    runs = pd.read_csv(TRAINED)
    runs = runs[~runs["row"].str.contains("A/A|placebo", regex=True)]
    batch = runs["row"].str.contains("scope=batch", regex=False)
    runs["candidate"] = runs["estimator"].where(~batch, "grpo scope=batch")
    name = f"leaderboard-{difficulty}"
    best = runs[runs["sweep"] == name].assign(rate="best")
    common = runs[(runs["sweep"] == f"{name}-tuning") & np.isclose(runs["optimizer.lr"], COMMON)]
    return pd.concat([best, common.assign(rate="common")])


def correlations(auditions: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield rank correlations between means over seeds, by range, pair, rate and step."""
    rng = np.random.default_rng(0)
    for difficulty in RANGES:
        own = auditions[auditions["range"] == difficulty]
        runs = trained(difficulty)
        for measure, outcome in PAIRS.items():
            predicted = own.groupby("candidate")[measure].mean()
            for (rate, step), rows in runs[runs["step"] > 0].groupby(["rate", "step"]):
                values = rows.groupby("candidate")[outcome].mean().dropna()
                for arms in ("all", "without failures"):
                    chosen = [
                        name
                        for name in values.index.intersection(predicted.index)
                        if arms == "all" or name not in FAILURES
                    ]
                    x, y = predicted[chosen].rank(), values[chosen].rank()
                    rho = float(np.corrcoef(x, y)[0, 1])
                    yield {
                        "range": difficulty,
                        "measure": measure,
                        "outcome": outcome,
                        "rate": rate,
                        "step": step,
                        "arms": arms,
                        "n": len(chosen),
                        "correlation": rho,
                        **interval(rho, len(chosen)),
                        "p": permutation_p(x.to_numpy(), y.to_numpy(), rng),
                        "ceiling": ceiling(rows[rows["candidate"].isin(chosen)], outcome),
                    }


def interval(rho: float, n: int) -> dict[str, float]:
    """Return the 95 % interval of a rank correlation (Fieller, Hartley and Pearson 1957)."""
    half = stats.norm.ppf(0.975) * math.sqrt(1.06 / (n - 3))
    z = math.atanh(max(min(rho, 0.999), -0.999))
    return {"low": math.tanh(z - half), "high": math.tanh(z + half)}


def permutation_p(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> float:
    """Return the two-sided p that estimators are in an order that has nothing to do with x."""
    centred = y - y.mean()
    orders = rng.permuted(np.tile(x - x.mean(), (DRAWS, 1)), axis=1) @ centred
    found = abs((x - x.mean()) @ centred)
    return float((1 + (np.abs(orders) >= found - 1e-9).sum()) / (1 + DRAWS))


def ceiling(rows: pd.DataFrame, outcome: str) -> float:
    """Return how well the trainings predict themselves: halves of the seeds, all ways.

    The mean rank correlation between halves, stepped up to all seeds (Spearman and Brown); its
    root is the most that a perfect predictor of the truth reaches in the mean.
    """
    table = rows.pivot_table(index="candidate", columns="seed", values=outcome).dropna()
    if table.shape[1] < 4:
        return math.nan
    rng = np.random.default_rng(0)
    orders = np.array([rng.permutation(table.shape[1]) for _ in range(200)])
    means = (table.to_numpy()[:, half].mean(axis=2) for half in np.array_split(orders, 2, axis=1))
    first, second = (stats.zscore(stats.rankdata(own, axis=0)) for own in means)
    found = (first * second).mean(axis=0)
    r = max(float(np.mean(found)), 0.0)
    return math.sqrt(2 * r / (1 + r))


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw the rank correlations with the results after each number of steps."""
    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "audition", "font.size": 9, "svg.fonttype": "none"}
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.1), sharey=True, constrained_layout=True)
    titles = {
        "log_odds": "log-odds in the audition,\npass@1 of the trainings",
        "token_entropy": "token entropy in the audition,\ncorrect-answer entropy of the trainings",
    }
    for axis, (measure, title) in zip(axes, titles.items(), strict=True):
        for number, difficulty in enumerate(RANGES):
            own = table[
                (table["measure"] == measure)
                & (table["range"] == difficulty)
                & (table["arms"] == "all")
                & (table["rate"] == "best")
            ].sort_values("step")
            x = own["step"] * 1.06 ** (number - 1)
            errors = (own["correlation"] - own["low"], own["high"] - own["correlation"])
            colour = ("#D55E00", "#0072B2", "#009E73")[number]
            axis.errorbar(
                *(x, own["correlation"]), yerr=errors, color=colour, marker="os^"[number],
                markersize=4, linewidth=1.2, elinewidth=0.7, label=f"{difficulty} prompts",
            )  # fmt: skip
        axis.axhline(0, color="#888888", linewidth=0.8)
        axis.set(xscale="log", title=title, xlabel="training step", ylim=(-1, 1))
        ticks = sorted(table["step"].unique())
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
    axes[0].set_ylabel("rank correlation over 16 estimators")
    axes[1].legend(frameon=False, loc="lower right")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, default=Path("auditions.db"))
    parser.add_argument("--results", action="store_true", help="read auditions.csv")
    parser.add_argument("--smoke", action="store_true", help="one base and two estimators")
    parser.add_argument("--output", type=Path, default=FOLDER, help="the folder of the tables")
    parser.add_argument("--figure", type=Path, default=FIGURE)
    options = parser.parse_args()
    path = options.output / "auditions.csv"
    if options.smoke:
        base = "model.pretraining_steps=300"
        made = audition_all(options.store, ["easy"], 1, ESTIMATORS[:2], base)
        made.to_csv(path, index=False, float_format="%.6g")
        return
    if not options.results:
        made = audition_all(options.store, RANGES, SEEDS, ESTIMATORS)
        made.to_csv(path, index=False, float_format="%.6g")
    table = pd.DataFrame(correlations(pd.read_csv(path)))
    table.to_csv(options.output / "correlations.csv", index=False, float_format="%.4g")
    draw(table, options.figure)


if __name__ == "__main__":
    main()
