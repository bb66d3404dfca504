"""The working folder, which may be somebody else's: what libraries must not read from it."""

from __future__ import annotations

import contextlib
import os
from contextlib import AbstractContextManager


def outside_working_folder() -> AbstractContextManager[None]:
    """A stretch in the root folder of the system, for all threads of this process.

    Some libraries read settings from the working folder when they are loaded: matplotlib reads
    `matplotlibrc`, and wandb reads `wandb/settings`, which may name the server that gets the
    user's key. The root folder belongs to the administrator of the machine.

    Raises:
        OSError: the working folder is gone.
    """
    return contextlib.chdir(os.sep)
