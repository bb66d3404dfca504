"""Verifiers: they judge an answer as correct, wrong or unscorable."""

from __future__ import annotations

from advsweep.registry import Registry
from advsweep.tasks.verifiers.base import Outcome, Verdict, Verifier

__all__ = ["VERIFIERS", "Outcome", "Verdict", "Verifier"]


VERIFIERS: Registry[Verifier] = Registry(
    "verifier",
    {
        **dict.fromkeys(
            ("boxed_math", "choice", "numeric", "regex"), "advsweep.tasks.verifiers.answers"
        ),
        "code": "advsweep.tasks.verifiers.code",
    },
    group="advsweep.verifiers",
    base="advsweep.tasks.verifiers.base:Verifier",
)
