"""Verifiers: whether an answer is right; correct, wrong, or not to be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advsweep.registry import Registry
from advsweep.tasks.verifiers.base import Outcome, Verdict, Verifier

if TYPE_CHECKING:
    from advsweep.tasks.verifiers.base import Verifier

__all__ = ["VERIFIERS", "Outcome", "Verdict", "Verifier"]


_PACKAGE = "advsweep.tasks.verifiers"

VERIFIERS: Registry[Verifier] = Registry(
    "verifier",
    {
        "boxed_math": f"{_PACKAGE}.boxed_math",
        "choice": f"{_PACKAGE}.choice",
        "code": f"{_PACKAGE}.code",
        "numeric": f"{_PACKAGE}.numeric",
        "regex": f"{_PACKAGE}.pattern",
    },
    group="advsweep.verifiers",
)
