"""Evaluation: n samples per held-out problem become counts; the same for every backend."""

from advsweep.evaluation.evaluate import ProblemResult, evaluate, evaluation_identity
from advsweep.evaluation.pieces import evaluate_in_pieces

__all__ = ["ProblemResult", "evaluate", "evaluate_in_pieces", "evaluation_identity"]
