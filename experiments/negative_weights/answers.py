"""What the answer of the study of negative weights says of its tables."""

from __future__ import annotations

import page_queries

CELLS = "negative_weights/cells.csv"


def base(level: str) -> list[float]:
    """pass@1 of the bases at a level."""
    return page_queries.value(CELLS, f"level={level}", "base")


def breaks_from(level: str, weight: str) -> list[float]:
    """The smallest rate at which most bases end below half of their pass@1, or an error."""
    cells = page_queries.rows(CELLS, [f"level={level}", f"weight={weight}"])
    broken = cells[cells["broken"] > cells["seeds"] / 2]
    if broken.empty:
        raise page_queries.QueryError(f"weight {weight} breaks at no rate of level {level}")
    return [float(broken["lr"].min())]


def no_mixture_breaks(level: str) -> list[float]:
    """No value; an error if a policy trained on both signs breaks from any base of a level."""
    cells = page_queries.rows(CELLS, [f"level={level}", "weight!=0", "weight!=inf"])
    if cells["broken"].sum():
        raise page_queries.QueryError(f"of level {level} some mixtures break")
    return []


def broken_bases_but_one(level: str, weight: str, rate: str) -> list[float]:
    """The rate and the number of bases; an error unless one of them breaks."""
    conditions = [f"level={level}", f"weight={weight}", f"lr={rate}"]
    cell = page_queries.only_row(CELLS, conditions)
    if cell["broken"] != 1:
        raise page_queries.QueryError(f"{cell['broken']} bases break, not one")
    return [cell["lr"], cell["seeds"]]


def seeds() -> list[float]:
    return page_queries.value(CELLS, "seeds")


def not_excluded(loss: str) -> list[float]:
    """A loss of failures alone on easy prompts that the interval includes."""
    file = "negative_weights/report_0.csv"
    low = float(page_queries.difference(file, "nsr", "optimizer.lr=3e-4", "pass@1")[1])
    if low > -float(loss):
        raise page_queries.QueryError(f"the interval ends at {low}")
    return [float(loss)]


def named_cells() -> list[float]:
    """How many broken cells the rule names, and how many that are not broken.

    No value if it misses a broken one.
    """
    cells = page_queries.table(CELLS)
    is_broken = cells["broken"] > cells["seeds"] / 2
    named = cells["predicted"].astype(bool)
    if (is_broken & ~named).any():
        raise page_queries.QueryError("the rule misses a broken cell")
    return [int((is_broken & named).sum()), int((~is_broken & named).sum())]
