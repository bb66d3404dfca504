"""The user's consent to run programs that a model wrote.

Consent is part of a process's environment and nothing else: no config, sweep file or store can
give it. The command line sets the variables for its own process, and its children inherit them.
Executors pass them to the jobs that the present command submits.

The module stands alone because every command imports it, and the sandbox is slow to import.
"""

from __future__ import annotations

import os

RUN_CODE = "ADVSWEEP_RUN_CODE"
RUN_CODE_AS_ROOT = "ADVSWEEP_RUN_CODE_AS_ROOT"


def run_code_allowed() -> bool:
    """Return whether this process may run programs that a model wrote."""
    return os.environ.get(RUN_CODE) == "1"


def run_code_as_root_allowed() -> bool:
    """Return whether it may run them as root, on whom a sandbox's limits have less effect."""
    return os.environ.get(RUN_CODE_AS_ROOT) == "1"


def give_consent(*, run_code: bool, as_root: bool) -> None:
    """Allow this process and its future children what is true; false forbids nothing."""
    if run_code:
        os.environ[RUN_CODE] = "1"
    if as_root:
        os.environ[RUN_CODE_AS_ROOT] = "1"
