"""What the user allows on the command line, for this process and its children."""

from __future__ import annotations


def trust_commands(trust_store: bool) -> None:
    """Record that the user trusts the store to name the commands of runs (`--trust-store`)."""
    if trust_store:
        from advsweep.backends.command.template import allow_stored_templates

        allow_stored_templates()


def allow_programs(run_code: bool) -> None:
    """Record that programs of a model may run here (`--run-code`)."""
    if run_code:
        from advsweep.tasks.verifiers import base

        base.give_consent()
