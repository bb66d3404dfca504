"""Statistics of the product on numpy arrays; never imports torch."""

from advsweep.statistics.association import (
    RankCorrelation,
    correlation_interval,
    correlation_p_value,
    rank_correlation,
)
from advsweep.statistics.blocks import BlockSpread, PooledSpread, pool_spread
from advsweep.statistics.comparison import (
    Comparison,
    benjamini_hochberg,
    compare_paired,
    compare_seeds,
    compare_unpaired,
    improvement_share,
    permutation_p_value,
)
from advsweep.statistics.intervals import (
    Estimate,
    Interval,
    all_or_none_interval,
    bootstrap_over_problems,
    interquartile_mean,
    student_t_interval,
)
from advsweep.statistics.pass_at_k import answer_entropy, mean_over_problems, pass_at_k
from advsweep.statistics.pass_laws import LAWS, LawFit, compare_laws
from advsweep.statistics.power import seeds_needed
from advsweep.statistics.power_law import PowerLaw, fit_pass_at_k
from advsweep.statistics.ranks import RankInterval, holm, rank_intervals
from advsweep.statistics.rarefaction import RAREFIED, rarefied_entropy
from advsweep.statistics.ratios import (
    SpreadRatio,
    difference_of_shares,
    fisher_p_value,
    ratio_of_means,
    ratio_of_spreads,
)
from advsweep.statistics.regression import (
    CommonSlope,
    Regression,
    predict,
    regress,
    regress_within,
    value_at,
)
from advsweep.statistics.solve_rates import BetaComponent, SolveRateFit, fit_solve_rates

__all__ = [
    "LAWS",
    "RAREFIED",
    "BetaComponent",
    "BlockSpread",
    "CommonSlope",
    "Comparison",
    "Estimate",
    "Interval",
    "LawFit",
    "PooledSpread",
    "PowerLaw",
    "RankCorrelation",
    "RankInterval",
    "Regression",
    "SolveRateFit",
    "SpreadRatio",
    "all_or_none_interval",
    "answer_entropy",
    "benjamini_hochberg",
    "bootstrap_over_problems",
    "compare_laws",
    "compare_paired",
    "compare_seeds",
    "compare_unpaired",
    "correlation_interval",
    "correlation_p_value",
    "difference_of_shares",
    "fisher_p_value",
    "fit_pass_at_k",
    "fit_solve_rates",
    "holm",
    "improvement_share",
    "interquartile_mean",
    "mean_over_problems",
    "pass_at_k",
    "permutation_p_value",
    "pool_spread",
    "predict",
    "rank_correlation",
    "rank_intervals",
    "rarefied_entropy",
    "ratio_of_means",
    "ratio_of_spreads",
    "regress",
    "regress_within",
    "seeds_needed",
    "student_t_interval",
    "value_at",
]
