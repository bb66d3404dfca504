"""The user's consent to run programs that a model wrote.

It is part of a process's environment and of nothing else: no config, no sweep file and no store
can give it. The command line sets the variables for its own process, and its children inherit
them. Executors hand them to the jobs that the present command submits.
"""

from __future__ import annotations

import os

RUN_CODE = "ADVSWEEP_RUN_CODE"
RUN_CODE_AS_ROOT = "ADVSWEEP_RUN_CODE_AS_ROOT"


def run_code_allowed() -> bool:
    """Whether this process may run programs that a model wrote."""
    return os.environ.get(RUN_CODE) == "1"


def run_code_as_root_allowed() -> bool:
    """Whether this process may run them as root, which the limits of a sandbox bind less."""
    return os.environ.get(RUN_CODE_AS_ROOT) == "1"


def give_consent(*, run_code: bool, as_root: bool) -> None:
    """Allows this process, and those that it starts from now on, what is true; forbids nothing."""
    if run_code:
        os.environ[RUN_CODE] = "1"
    if as_root:
        os.environ[RUN_CODE_AS_ROOT] = "1"
