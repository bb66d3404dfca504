"""The command line: one thin module per command.

Commands import heavy libraries inside their functions, so that `--help` and listings start fast.
"""

from advsweep.cli.app import main

__all__ = ["main"]
