"""`python -m advsweep` is the command `advsweep`."""

from __future__ import annotations

import subprocess
import sys

from advsweep import __version__


def test_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "advsweep", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"advsweep {__version__}\n"
