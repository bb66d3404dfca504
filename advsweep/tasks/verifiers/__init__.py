"""Verifiers: whether an answer is right; correct, wrong, or not to be told."""

from advsweep.tasks.verifiers.base import Outcome, Verdict, Verifier
from advsweep.tasks.verifiers.registry import VERIFIERS

__all__ = ["VERIFIERS", "Outcome", "Verdict", "Verifier"]
