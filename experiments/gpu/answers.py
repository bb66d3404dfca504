"""What the documents say of the study on a GPU."""

from __future__ import annotations

import math

import page_queries
from scipy import stats


def million_weights() -> list[float]:
    """The weights of the models, in millions."""
    weights = page_queries.table("gpu/h200/bases.csv")["weights"].unique()
    (number,) = weights
    return [round(number / 1e6)]


AGREEMENT = "gpu/h200/agreement.csv"


def agreement(estimator: str, verdict: str) -> list[float]:
    """In how many of an estimator's differences the two scales have a verdict."""
    table = page_queries.table(AGREEMENT)
    of_estimator = table[table["estimator"] == estimator]
    return [int((of_estimator["verdict"] == verdict).sum())]


def settled_on_cpu(estimator: str) -> list[float]:
    """How many of an estimator's differences on the CPU have an interval without 0."""
    table = page_queries.table(AGREEMENT)
    table = table[table["estimator"] == estimator]
    return [int((table["cpu_low"] * table["cpu_high"] > 0).sum())]


def difference(estimator: str, metric: str) -> list[float]:
    """A difference to RLOO on the GPU, with its interval."""
    row = page_queries.only_row(AGREEMENT, [estimator, f"metric={metric}"])
    return [row["gpu_difference"], row["gpu_low"], row["gpu_high"]]


def cpu_parameters() -> list[float]:
    """How many times as many weights the GPU's models have as the leaderboard's."""
    weights = page_queries.table("gpu/h200/bases.csv")["weights"].iloc[0]
    return [round(weights / page_queries.evaluate("leaderboard.parameters")[0], -1)]


def equal_within(estimator: str, *metrics: str) -> list[float]:
    """The smallest margins within which the GPU's runs show it to be equivalent to RLOO.

    In thousandths, rounded up; each difference has the spread of its own pairs.
    """
    table = page_queries.table(AGREEMENT)
    own = table[table["estimator"] == estimator].set_index("metric")
    margins = []
    for metric in metrics:
        row = own.loc[metric]
        df = row["pairs"] - 1
        error = (row["gpu_high"] - row["gpu_low"]) / 2 / stats.t.ppf(1 - page_queries.LEVEL / 2, df)
        margin = abs(row["gpu_difference"]) + error * stats.t.ppf(1 - page_queries.LEVEL, df)
        margins.append(math.ceil(1000 * margin) / 1000)
    return margins


def undecided_on_gpu(estimator: str) -> list[float]:
    """No value; an error unless all of an estimator's intervals on the GPU include 0."""
    table = page_queries.table(AGREEMENT)
    table = table[table["estimator"] == estimator]
    if (table["gpu_low"] * table["gpu_high"] > 0).any():
        raise page_queries.QueryError(f"{estimator} differs from RLOO on the GPU")
    return []
