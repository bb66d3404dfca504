"""Runs programs of a model against tests: here under limits, or on a server.

Two processes take part. One runs the program, the other the tests, and only plain values cross
between them; what each may reach depends on the isolation (see `inside`).
"""

from advsweep.tasks.verifiers.sandbox.inside.isolation import hide_memory
from advsweep.tasks.verifiers.sandbox.runners import (
    REMOTE_SECONDS,
    SANDBOX_TOKEN,
    STARTING_SECONDS,
    Limits,
    Sandbox,
    namespaces_missing,
    run_remotely,
)
from advsweep.tasks.verifiers.sandbox.submission import ProgramResult, Submission

__all__ = [
    "REMOTE_SECONDS",
    "SANDBOX_TOKEN",
    "STARTING_SECONDS",
    "Limits",
    "ProgramResult",
    "Sandbox",
    "Submission",
    "hide_memory",
    "namespaces_missing",
    "run_remotely",
]
