"""Verifiers: they judge an answer as correct, wrong or unscorable."""

from __future__ import annotations

from advsweep.registry import Registry
from advsweep.tasks.verifiers.base import Outcome, Verdict, Verifier

__all__ = ["VERIFIERS", "Outcome", "Verdict", "Verifier"]


VERIFIERS: Registry[Verifier] = Registry(
    "verifier",
    {
        "boxed_math": "advsweep.tasks.verifiers.boxed_math",
        "choice": "advsweep.tasks.verifiers.choice",
        "code": "advsweep.tasks.verifiers.code",
        "numeric": "advsweep.tasks.verifiers.numeric",
        "regex": "advsweep.tasks.verifiers.pattern",
    },
    group="advsweep.verifiers",
    base="advsweep.tasks.verifiers.base:Verifier",
    function="verify",
    adapter="advsweep.tasks.functions:verifier_class",
    takes_code=True,
)
