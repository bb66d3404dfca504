"""Intervals of ranks: which places in a ranking the data leave open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advsweep.statistics.comparison import compare_seeds


@dataclass(frozen=True)
class RankInterval:
    """The place of a method among others, 1 for the best.

    Attributes:
        place: the place by the means alone.
        low, high: the best and the worst place that the tests leave open.
    """

    place: int
    low: int
    high: int


def rank_intervals(
    methods: Sequence[Mapping[int, float]], *, higher: bool, level: float = 0.95
) -> list[RankInterval | None]:
    """Return the interval of each method's rank.

    A method has at least as many others before it as are better by a paired t-test over seeds,
    and as many behind it as are worse. The p-values of a method's comparisons are adjusted after
    Holm, so that the interval misses the method's true rank in at most 1 - level of all cases,
    whatever the other differences are.

    Source: Mogstad, Romano, Shaikh and Wilhelm (2024), "Inference for Ranks with Applications to
    Mobility across Neighbourhoods and Academic Achievement across Countries", marginal intervals.

    Departures: Holm's adjustment of t-tests in the place of a bootstrap of the largest statistic,
    as a handful of seeds has too few different resamples: four have 35.

    Args:
        methods: the value of each seed; values that are not finite count as missing.
        higher: whether higher values are better.

    Returns:
        None for a method with fewer than two finite values, which takes no part.
    """
    sign = 1.0 if higher else -1.0
    finite = [{s: sign * v for s, v in m.items() if math.isfinite(v)} for m in methods]
    ranked = [i for i, values in enumerate(finite) if len(values) > 1]
    means = {i: math.fsum(finite[i].values()) / len(finite[i]) for i in ranked}
    intervals: list[RankInterval | None] = [None] * len(methods)
    for i in ranked:
        tests = [compare_seeds(finite[i], finite[j]) for j in ranked if j != i]
        adjusted = holm([test.p_value for test in tests])
        settled = [t for t, p in zip(tests, adjusted, strict=True) if p <= 1 - level]
        intervals[i] = RankInterval(
            place=1 + sum(means[j] > means[i] for j in ranked),
            low=1 + sum(test.difference < 0 for test in settled),
            high=len(ranked) - sum(test.difference > 0 for test in settled),
        )
    return intervals


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple tests so that no call is false at all (Holm, 1979).

    The i-th smallest of m values becomes max over j ≤ i of min(1, (m - j + 1) p₍ⱼ₎).
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [math.nan] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
