"""Runs programs of a model against tests: here under limits, or on a server.

Two processes take part. One runs the program, the other the tests, and only plain values cross
between them; what each may reach depends on the isolation (see `inside`).
"""

from advsweep.tasks.verifiers.sandbox.inside.confine import hide_memory
from advsweep.tasks.verifiers.sandbox.local import (
    STARTING_SECONDS,
    Limits,
    Sandbox,
    namespaces_missing,
)
from advsweep.tasks.verifiers.sandbox.order import Order, Run
from advsweep.tasks.verifiers.sandbox.remote import REMOTE_SECONDS, SANDBOX_TOKEN, run_remotely

__all__ = [
    "REMOTE_SECONDS",
    "SANDBOX_TOKEN",
    "STARTING_SECONDS",
    "Limits",
    "Order",
    "Run",
    "Sandbox",
    "hide_memory",
    "namespaces_missing",
    "run_remotely",
]
