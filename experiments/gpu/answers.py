"""What the documents say of the study on a GPU."""

from __future__ import annotations

import page_queries


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
    (row,) = page_queries.rows(AGREEMENT, [estimator, f"metric={metric}"]).to_dict("records")
    return [row["gpu_difference"], row["gpu_low"], row["gpu_high"]]


def cpu_parameters() -> list[float]:
    """How many times as many weights the GPU's models have as the leaderboard's."""
    weights = page_queries.table("gpu/h200/bases.csv")["weights"].iloc[0]
    return [round(weights / page_queries.evaluate("leaderboard.parameters")[0], -1)]


def undecided_on_gpu(estimator: str) -> list[float]:
    """No value; an error unless all of an estimator's intervals on the GPU include 0."""
    table = page_queries.table(AGREEMENT)
    table = table[table["estimator"] == estimator]
    if (table["gpu_low"] * table["gpu_high"] > 0).any():
        raise page_queries.QueryError(f"{estimator} differs from RLOO on the GPU")
    return []
