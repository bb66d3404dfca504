"""Races by simulation: how often a verdict is false, and how many seeds a race saves.

    python experiments/race/simulate.py                  # from bandit.csv; a few minutes
    python experiments/race/simulate.py --store race.db  # writes bandit.csv anew, from a store
    python experiments/race/simulate.py --races 20 --output DIR --figure FILE  # a piece of it

A value is an effect of the seed plus noise of the arm; differences of two arms have a standard
deviation of 1, in which effects are given. `bandit.csv` has pass@1 of real trainings
(`bandit.yaml`); a race on it draws its seeds from those, each once.

    errors.csv   equal arms: races with a false verdict at any look
    seeds.csv    one arm with an effect: seeds of an arm, of a race and of fixed designs
    rare.csv     an arm that fails in a few of its runs: how often a race calls it equal
    trained.csv  races on the trainings
    docs/figures/race.svg  the figure of seeds.csv and trained.csv
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from scipy import stats

from advsweep import load_metrics
from advsweep.statistics.racing import DuelVerdict, Standing, judge_race, level_of
from advsweep.statistics.sequences import confidence_sequence

FOLDER = Path(__file__).resolve().parent
FIGURE = FOLDER.parents[1] / "docs" / "figures" / "race.svg"
ALPHA = 0.05
EFFECTS = (0.0, 1.0, 2.0, 4.0)
ARMS = (2, 4, 20)
# A margin far below the spread: nothing is proven equal.
NARROW = 1e-9
WIDE = 1.0
# Fixed designs, and the most seeds of a race, are planned for this effect and power.
PLANNED, POWER = 1.0, 0.8
# By number of arms: about the fewest with which a race has that power.
MOST = {2: 20, 4: 27}
SKEWED_ARMS = (2, 4, 10)
# An arm that loses .4 in one run of ten, beside a margin and a number of seeds as by default, and
# standard deviations of the differences that settle such a margin in a few seeds.
FAILING, LOSS, RARE_MARGIN, RARE_MOST = 0.1, 0.4, 0.02, 12
RARE_SPREADS = (0.005, 0.01)
RARE_ARMS = (2, 4)
# Seeds at which equal arms are looked at.
MANY = 30
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
# Noise of an arm, centred, with a standard deviation of √½: differences of two have 1.
NOISE: dict[str, Draw] = {
    "normal": lambda rng, size: rng.standard_normal(size) * math.sqrt(0.5),
    "skewed (exponential)": lambda rng, size: (rng.exponential(size=size) - 1) * math.sqrt(0.5),
    "heavy tails (t, 3 df)": lambda rng, size: rng.standard_t(3, size) * math.sqrt(0.5 / 3),
}


def race(values: np.ndarray, margin: float = NARROW) -> tuple[list[Standing], list[int]]:
    """Race arms on values that are all there; return the end and the seeds of each arm."""
    have = [0] * len(values)
    whole = values.tolist()
    while True:
        known = [own[:n] + [None] * (len(own) - n) for own, n in zip(whole, have, strict=True)]
        standings = judge_race(known, margin=margin, alpha=ALPHA)
        wanted = [max(n, own.wanted) for n, own in zip(have, standings, strict=True)]
        if wanted == have:
            return standings, have
        have = wanted


def falls(values: np.ndarray) -> bool:
    """Whether some pair of equal arms is told apart at any look, with every seed of every arm."""
    arms = len(values)
    for b in range(arms):
        for a in range(b):
            level = level_of(arms, ALPHA, baseline=a == 0)
            last = confidence_sequence((values[a] - values[b]).tolist(), level)[-1]
            if not last.low <= 0 <= last.high:
                return True
    return False


def peeks(values: np.ndarray) -> bool:
    """The same with t-tests at every look, with Bonferroni's correction for the pairs."""
    arms, most = values.shape
    pairs = arms * (arms - 1) / 2
    n = np.arange(2, most + 1)
    limit = stats.t.ppf(1 - ALPHA / 2 / pairs, n - 1)
    for b in range(arms):
        for a in range(b):
            d = values[a] - values[b]
            mean = np.cumsum(d)[1:] / n
            sd = np.sqrt((np.cumsum(d**2)[1:] - n * mean**2) / (n - 1))
            if (np.abs(mean) * np.sqrt(n) > limit * sd).any():
                return True
    return False


def find_errors(races: int) -> Iterator[dict[str, Any]]:
    """Give equal arms many seeds: the share of races with a false verdict at any look."""
    for name, draw in NOISE.items():
        for arms in ARMS:
            rng = np.random.default_rng(arms)
            size = races if arms < max(ARMS) else max(races // 5, 1)
            yield _errors(name, [draw(rng, (arms, MANY)) for _ in range(size)])
    for arms in SKEWED_ARMS:
        yield _errors("skewed differences (exponential)", skewed_races(arms, races))


def skewed_races(arms: int, races: int) -> list[np.ndarray]:
    """Draw arms of one mean: without noise of the baseline a difference is as skewed as its arm."""
    rng = np.random.default_rng(arms - 2)
    drawn = []
    for _ in range(races):
        skewed = rng.exponential(size=(arms - 1, MANY)) - 1
        drawn.append(np.concatenate([np.zeros((1, MANY)), skewed]))
    return drawn


def find_rare_failures(races: int) -> Iterator[dict[str, Any]]:
    """Race an arm that loses `LOSS` in a share `FAILING` of its runs against a baseline."""
    for spread in RARE_SPREADS:
        for arms in RARE_ARMS:
            rng = np.random.default_rng(arms)
            ends = [_race_rare_failures(rng, arms, spread) for _ in range(races)]
            verdicts = [end[1].to_baseline.verdict for end in ends]
            yield {
                "arms": arms,
                "sd": spread,
                "failing": FAILING,
                "loss": LOSS,
                "margin": RARE_MARGIN,
                "races": races,
                "equal": verdicts.count(DuelVerdict.EQUAL) / races,
                "below": verdicts.count(DuelVerdict.BELOW) / races,
                "seeds": float(np.median([end[1].seeds for end in ends])),
            }


def _race_rare_failures(rng: np.random.Generator, arms: int, spread: float) -> list[Standing]:
    values = NOISE["normal"](rng, (arms, RARE_MOST)) * spread
    values[1] -= LOSS * (rng.random(RARE_MOST) < FAILING)
    return race(values, RARE_MARGIN)[0]


def _errors(name: str, drawn: Sequence[np.ndarray]) -> dict[str, Any]:
    return {
        "values": name,
        "arms": len(drawn[0]),
        "races": len(drawn),
        "sequences": sum(map(falls, drawn)) / len(drawn),
        "t_tests": sum(map(peeks, drawn)) / len(drawn),
    }


def power_of(n: int, effect: float, arms: int) -> float:
    """Return the power of paired t-tests of all arms against the baseline, after Bonferroni."""
    limit = stats.t.ppf(1 - ALPHA / 2 / (arms - 1), n - 1)
    return float(stats.nct.sf(limit, n - 1, effect * math.sqrt(n)))


def fixed_seeds(effect: float, arms: int) -> int:
    """Return the seeds of a fixed design with 80 % power."""
    return next(n for n in range(2, 1000) if power_of(n, effect, arms) >= POWER)


def race_many(arms: int, effect: float, margin: float, most: int, races: int) -> dict[str, Any]:
    """Race arms of which the second has an effect; return its verdicts and the seeds of an arm."""
    rng = np.random.default_rng([arms, most])
    means = np.zeros(arms)
    means[1] = effect
    ends = []
    for _ in range(races):
        noise = NOISE["normal"](rng, (arms, most))
        ends.append(race(means[:, None] + rng.standard_normal(most) + noise, margin))
    found = [standings[1].to_baseline.verdict for standings, _ in ends if standings[1].to_baseline]
    seeds = [sum(have) / arms for _, have in ends]
    low, median, high = np.quantile(seeds, [0.25, 0.5, 0.75])
    return {
        "power": found.count(DuelVerdict.ABOVE) / races,
        "equal": found.count(DuelVerdict.EQUAL) / races,
        "low": float(low),
        "median": float(median),
        "high": float(high),
    }


def find_seeds(races: int) -> Iterator[dict[str, Any]]:
    """Race arms of which one has an effect, beside fixed designs of the same power."""
    for arms in (2, 4):
        planned, most = fixed_seeds(PLANNED, arms), MOST[arms]
        for effect in EFFECTS:
            for margin in (NARROW, WIDE):
                found = race_many(arms, effect, margin, most, races)
                yield {
                    "arms": arms,
                    "effect": effect,
                    "margin": 0 if margin == NARROW else margin,
                    "fixed": planned,
                    "fixed_power": power_of(planned, effect, arms),
                    "known": fixed_seeds(effect, arms) if effect else "",
                    "most": most,
                    **found,
                    "saved": planned - found["median"],
                }


def read_trained() -> dict[str, np.ndarray]:
    """Return pass@1 of each arm by seed, the baseline first."""
    with (FOLDER / "bandit.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {arm: np.array([float(row[arm]) for row in rows]) for arm in rows[0] if arm != "seed"}


def race_trained(races: int) -> Iterator[dict[str, Any]]:
    """Race each arm of the trainings against the baseline."""
    (_, base), *others = read_trained().items()
    planned, most = fixed_seeds(PLANNED, 2), MOST[2]
    for name, values in others:
        rng = np.random.default_rng(0)
        difference = values - base
        seeds, verdicts = [], []
        for _ in range(races):
            chosen = rng.permutation(len(base))[:most]
            standings, have = race(np.stack([base[chosen], values[chosen]]))
            seeds.append(have[1])
            verdicts.append(standings[1].to_baseline and standings[1].to_baseline.verdict)
        low, median, high = np.quantile(seeds, [0.25, 0.5, 0.75])
        yield {
            "arm": name,
            "seeds": len(base),
            "difference": float(difference.mean()),
            "sd": float(difference.std(ddof=1)),
            "effect": float(difference.mean() / difference.std(ddof=1)),
            "skewness": float(stats.skew(difference)),
            "above": verdicts.count(DuelVerdict.ABOVE) / races,
            "below": verdicts.count(DuelVerdict.BELOW) / races,
            "fixed": planned,
            "most": most,
            "low": float(low),
            "median": float(median),
            "high": float(high),
            "saved": planned - float(median),
        }


def write_trained(store: str) -> None:
    """Write pass@1 of the trainings in a store, by seed and arm."""
    frame = load_metrics(store, sweep="race-bandit", names=["pass@1"])
    last = frame[frame["step"] == frame["step"].max()]
    table = last.pivot_table(index="seed", columns="estimator", values="value", sort=False)
    table.to_csv(FOLDER / "bandit.csv", float_format="%.6g")


def draw(seeds: Sequence[dict[str, Any]], trained: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the seeds of an arm over the effect."""
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "race", "font.size": 9})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(9.5, 3.2), layout="constrained")
    panels: list[tuple[str, list[dict[str, Any]]]] = [
        (
            f"{arms} arms, one with an effect",
            [r for r in seeds if r["arms"] == arms and not r["margin"]],
        )
        for arms in (2, 4)
    ]
    panels.append(("2 arms of trainings (bandit)", list(trained)))
    for axis, (title, rows) in zip(axes, panels, strict=True):
        x = np.abs([row["effect"] for row in rows])
        median = np.array([row["median"] for row in rows])
        spread = [median - [r["low"] for r in rows], [r["high"] for r in rows] - median]
        axis.axhline(rows[0]["fixed"], color="#555555", label="fixed, planned for an effect of 1")
        known = [(row["effect"], row["known"]) for row in rows if row.get("known")]
        if known:
            axis.plot(*zip(*known, strict=True), "s", color="#999999", label="fixed, effect known")
        axis.errorbar(x, median, spread, fmt="o", color="#0072b2", capsize=3, label="race")
        axis.axhline(rows[0]["most"], color="#0072b2", linestyle=":", label="race, at most")
        axis.set(title=title, xlabel="effect, in standard deviations", ylim=(0, None))
    axes[0].set_ylabel("seeds of an arm")
    axes[1].legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})


def time_a_look() -> float:
    """Return the milliseconds that planning a look of 20 arms x 12 seeds takes."""
    values = np.random.default_rng(0).standard_normal((20, 12)).tolist()
    judge_race(values, margin=NARROW, alpha=ALPHA)
    begin = time.process_time()
    for _ in range(20):
        judge_race(values, margin=NARROW, alpha=ALPHA)
    return (time.process_time() - begin) / 20 * 1000


def write(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write records as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})


def main() -> None:
    """Simulate, write the tables and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--races", type=int, default=1000, help="races of each kind")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--figure", type=Path, default=FIGURE, help="file of the figure")
    parser.add_argument("--store", help="write bandit.csv from the trainings in this store")
    given = parser.parse_args()
    if given.store:
        write_trained(given.store)
    print(f"planning a look of 20 arms x 12 seeds: {time_a_look():.1f} ms")
    seeds, trained = list(find_seeds(given.races)), list(race_trained(given.races))
    write(list(find_errors(given.races)), given.output / "errors.csv")
    write(list(find_rare_failures(given.races)), given.output / "rare.csv")
    write(seeds, given.output / "seeds.csv")
    write(trained, given.output / "trained.csv")
    draw(seeds, trained, given.figure)


if __name__ == "__main__":
    main()
