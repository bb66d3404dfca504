"""Statistics of the product on numpy arrays; never imports torch."""

from advsweep.statistics.entropy import answer_entropy
from advsweep.statistics.intervals import Interval, student_t_interval
from advsweep.statistics.pass_at_k import mean_over_problems, pass_at_k
from advsweep.statistics.regression import predict

__all__ = [
    "Interval",
    "answer_entropy",
    "mean_over_problems",
    "pass_at_k",
    "predict",
    "student_t_interval",
]
