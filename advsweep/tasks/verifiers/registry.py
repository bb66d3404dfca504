"""The verifiers by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advsweep.registry import Registry

if TYPE_CHECKING:
    from advsweep.tasks.verifiers.base import Verifier

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
