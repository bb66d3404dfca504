"""What the user allows on the command line, for this process and its children."""

from __future__ import annotations

from pathlib import Path

from advsweep.errors import ConfigError
from advsweep.named_code import allow_stored_code


def trust_commands(trust_store: bool, folder: Path | None = None) -> None:
    """Record that the user trusts the store to name commands, and to hold code (`--trust-store`).

    Args:
        folder: where their programs are on this machine; None: where the store has them.

    Raises:
        ConfigError: there is no such folder, or the store is not trusted.
    """
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"--folder: expected a folder with the programs of runs, got '{folder}'")
    if folder is not None and not trust_store:
        raise ConfigError(
            "--folder: expected --trust-store as well, as the commands of the runs are the store's"
        )
    if trust_store:
        from advsweep.backends.command.template import allow_stored_templates

        allow_stored_code()
        allow_stored_templates("" if folder is None else str(folder.absolute()))


def allow_programs(run_code: bool) -> None:
    """Record that programs of a model may run here (`--run-code`)."""
    if run_code:
        from advsweep.tasks.verifiers import base

        base.give_consent()
