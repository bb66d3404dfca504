"""Evaluation: n samples per held-out problem become counts; the same for every backend."""

from advsweep.evaluation.evaluate import (
    ProblemResult,
    evaluate,
    evaluate_in_pieces,
    evaluation_identity,
)

__all__ = ["ProblemResult", "evaluate", "evaluate_in_pieces", "evaluation_identity"]
