"""The command line: one thin module per command, heavy imports inside the commands."""

from advsweep.cli.app import main

__all__ = ["main"]
