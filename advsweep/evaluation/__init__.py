"""Evaluation: counts of correct answers among n samples per problem, for every backend."""

from advsweep.evaluation.evaluate import (
    ProblemResult,
    evaluate,
    evaluate_in_pieces,
    evaluation_identity,
)

__all__ = ["ProblemResult", "evaluate", "evaluate_in_pieces", "evaluation_identity"]
