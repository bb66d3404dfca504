"""Runs programs of a model against tests: on this machine under limits, or on a server.

One process runs the program and another the tests. Only plain values pass between them. What the
processes can reach depends on the isolation (see `inside`).
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
