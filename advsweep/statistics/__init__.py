"""Statistics of the product on numpy arrays; never imports torch."""

from advsweep.statistics.association import (
    correlation_interval,
    correlation_p_value,
    ratio_of_means,
)
from advsweep.statistics.comparison import (
    Comparison,
    RankInterval,
    benjamini_hochberg,
    compare_arms,
    compare_paired,
    compare_seeds,
    compare_unpaired,
    holm,
    improvement_share,
    pool_spread,
    rank_intervals,
    seeds_needed,
)
from advsweep.statistics.curves import Regression, regress, value_at
from advsweep.statistics.equivalence import equivalence_margin, equivalence_p_value
from advsweep.statistics.intervals import bootstrap_over_problems, student_t_interval
from advsweep.statistics.pass_at_k import answer_entropy, mean_over_problems, pass_at_k

__all__ = [
    "Comparison",
    "RankInterval",
    "Regression",
    "answer_entropy",
    "benjamini_hochberg",
    "bootstrap_over_problems",
    "compare_arms",
    "compare_paired",
    "compare_seeds",
    "compare_unpaired",
    "correlation_interval",
    "correlation_p_value",
    "equivalence_margin",
    "equivalence_p_value",
    "holm",
    "improvement_share",
    "mean_over_problems",
    "pass_at_k",
    "pool_spread",
    "rank_intervals",
    "ratio_of_means",
    "regress",
    "seeds_needed",
    "student_t_interval",
    "value_at",
]
