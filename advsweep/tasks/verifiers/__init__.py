"""Verifiers: they judge an answer as correct, wrong or unscorable."""

from __future__ import annotations

from advsweep.registry import Registry
from advsweep.tasks.verifiers.base import Outcome, Verdict, Verifier

__all__ = ["VERIFIERS", "Outcome", "Verdict", "Verifier"]


_PACKAGE = "advsweep.tasks.verifiers"

VERIFIERS: Registry[Verifier] = Registry(
    "verifier",
    {
        "boxed_math": f"{_PACKAGE}.answers",
        "choice": f"{_PACKAGE}.answers",
        "code": f"{_PACKAGE}.code",
        "numeric": f"{_PACKAGE}.answers",
        "regex": f"{_PACKAGE}.answers",
    },
    group="advsweep.verifiers",
    base="advsweep.tasks.verifiers.base:Verifier",
)
