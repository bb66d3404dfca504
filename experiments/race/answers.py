"""What the answer of the study of races says of its tables."""

from __future__ import annotations

import page_queries

ERRORS = "race/errors.csv"
SEEDS = "race/seeds.csv"
RARE = "race/rare.csv"


def false_differences() -> list[float]:
    """The least and the largest share of races of equal arms that tell some apart."""
    table = page_queries.table(ERRORS)
    alike = table[~table["values"].str.startswith("skewed differences")]["sequences"]
    return [float(alike.min()), float(alike.max())]


def false_differences_skewed() -> list[float]:
    """The same where the differences themselves are skewed."""
    table = page_queries.table(ERRORS)
    skewed = table[table["values"].str.startswith("skewed differences")]["sequences"]
    return [float(skewed.min()), float(skewed.max())]


def false_equals() -> list[float]:
    """What an arm loses, in one of how many runs, and how often it is "equal" all the same."""
    table = page_queries.table(RARE)
    (loss,) = table["loss"].unique()
    (failing,) = table["failing"].unique()
    return [float(loss), 1 / failing, float(table["equal"].min()), float(table["equal"].max())]


def saved(arms: str, *effects: str) -> list[float]:
    """The least and the largest number of seeds that a race saves, and those of a fixed design."""
    table = page_queries.rows(SEEDS, [f"arms={arms}", "margin=0"])
    chosen = table[table["effect"].isin([float(effect) for effect in effects])]
    (planned,) = chosen["fixed"].unique()
    return [float(chosen["saved"].min()), float(chosen["saved"].max()), float(planned)]


def cost(arms: str, effect: str) -> list[float]:
    """How many seeds a race costs more than a fixed design."""
    conditions = [f"arms={arms}", "margin=0", f"effect={effect}"]
    return [-float(page_queries.value(SEEDS, *conditions, "saved")[0])]


def trainings() -> list[float]:
    table = page_queries.table("race/bandit.csv")
    return [int(table.drop(columns="seed").size)]


def most_false_differences() -> list[float]:
    """The largest share of races of equal arms that tell some apart."""
    return false_differences()[1:]


def saved_at_large_effects() -> list[float]:
    """The least and the largest number of seeds that a race saves at effects of 2 and 4."""
    table = page_queries.table(SEEDS)
    chosen = table[(table["margin"] == 0) & table["effect"].isin([2, 4])]["saved"]
    return [float(chosen.min()), float(chosen.max())]
