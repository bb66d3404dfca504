"""advsweep: compare advantage estimators for RLVR on equal terms.

`sweep` and `judge` train, and the other functions read a store into pandas frames (docs/python.md).
Importing `advsweep` alone imports none of them, and neither torch, pandas nor SQLAlchemy.
"""

from __future__ import annotations

from importlib import import_module

# Not imported, so that a command handles Ctrl-C a little sooner.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from advsweep.api import sweep
    from advsweep.judging.api import judge
    from advsweep.report.api import (
        load_evaluations,
        load_metrics,
        load_problems,
        load_runs,
        plot,
        report,
    )

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "judge",
    "load_evaluations",
    "load_metrics",
    "load_problems",
    "load_runs",
    "plot",
    "report",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name in ("report", "sweep"):
        # The packages of these names are callable.
        return import_module(f"advsweep.{name}")
    if name == "judge":
        return import_module("advsweep.judging.api").judge
    if name in __all__:
        return getattr(import_module("advsweep.report.api"), name)
    raise AttributeError(f"module 'advsweep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
