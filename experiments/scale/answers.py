"""What the page of PSR and RLOO on a real model says of its runs and tables, and its table."""

from __future__ import annotations

import page_queries

from advsweep.statistics import compare_paired

RUNS = "scale/runs.csv"
REPORT = "scale/report.csv"
FIRST = "scale/first.csv"
LEARNED = "scale/learned.csv"
ARMS = ("rloo", "psr", "rloo (A/A)")
RATES = (3e-6, 1e-5)
# The bounds of the rule of claims.yaml.
FEWEST, MOST = 6, 16


def steps() -> list[float]:
    return [page_queries.last_step(RUNS)]


def trained() -> list[float]:
    """How many runs there are."""
    return [page_queries.count_runs(RUNS)]


def seeds() -> list[float]:
    """How many seeds all arms have."""
    return [page_queries.seeds_of(REPORT)]


def first_seeds() -> list[float]:
    """How many seeds the rule is applied to."""
    return [page_queries.seeds_of(FIRST)]


def seeds_by_rule() -> list[float]:
    """The seeds that the first ones ask for, by the rule of claims.yaml.

    The larger number of PSR's two rates, within the bounds.
    """
    rows = [page_queries.only_row(FIRST, _conditions("psr", rate)) for rate in RATES]
    needed = max(int(row["pass@1_seeds_needed"]) for row in rows)
    return [min(max(needed, FEWEST), MOST)]


def change(arm: str, rate: str) -> list[float]:
    """The difference of an arm's pass@1 to RLOO's at the same rate, with its interval."""
    return page_queries.difference(REPORT, *_conditions(arm, rate), "pass@1")


def verdict() -> list[page_queries.Value]:
    """Whether pass@1 differs significantly from RLOO's, if both arms do at both rates, or none."""
    others = [arm for arm in ARMS if arm != "rloo"]
    named = ["&".join(_conditions(arm, rate)) for arm in others for rate in RATES]
    return page_queries.verdict(REPORT, "pass@1", *named)


def excludes(file: str, arm: str) -> list[float]:
    """No value; an error unless PSR's intervals at both rates exclude another table's difference.

    That of an arm's pass@1 to the baseline of its table.
    """
    _require(file, arm, inside=False)
    return []


def admits(file: str, arm: str) -> list[float]:
    """No value; an error unless another table's difference lies in PSR's intervals at both rates.

    That of an arm's pass@1 to the baseline of its table.
    """
    _require(file, arm, inside=True)
    return []


def _require(file: str, arm: str, *, inside: bool) -> None:
    (other,) = page_queries.change(file, arm, "pass@1")
    for rate in RATES:
        _, low, high = change("psr", str(rate))
        if (low <= other <= high) != inside:
            raise page_queries.QueryError(f"{other:.3f} and [{low:.3f}, {high:.3f}] at {rate:g}")


def across() -> list[float]:
    """pass@1 of PSR at the smaller rate less RLOO's at the larger one, with its interval."""
    ends = page_queries.rows(RUNS, [f"step={steps()[0]}"])
    by_row = ends.pivot(index="seed", columns="row", values="pass@1")
    found = compare_paired(
        by_row["psr optimizer.lr=3e-06"].to_numpy(),
        by_row["rloo optimizer.lr=1e-05"].to_numpy(),
    )
    return [found.difference, found.low, found.high]


def learned(arm: str, rate: str) -> list[float]:
    """The difference of an arm's pass@1 to the base's, with its interval."""
    return page_queries.difference(LEARNED, *_conditions(arm, rate), "pass@1")


def table() -> str:
    """The arms at each rate, with their differences in pass@1 to RLOO at the same rate."""
    arms = [("base", page_queries.only_row(REPORT, ["base"]))]
    for rate in RATES:
        for arm in ARMS:
            arms.append((arm, page_queries.only_row(REPORT, _conditions(arm, rate))))
    return page_queries.arms_table(arms, "pass@4")


def _conditions(arm: str, rate: float | str) -> tuple[str, str]:
    return arm, f"optimizer.lr={rate}"
