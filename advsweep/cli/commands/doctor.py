"""`advsweep doctor`: what is installed, what is missing for which feature, and what is usable."""

from __future__ import annotations

from advsweep.cli.shared import options
from advsweep.cli.shared.options import RecordFormat


def doctor(
    store: options.Store = None,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Show what is installed, what is missing and how to get it.

    Checks this machine, the store, and the packages that each feature needs; tries the GPU in a
    process of its own, Slurm's commands, and PostgreSQL if --store names a server. Changes and
    downloads nothing. The exit code is 0 also if something is missing.

    Examples:
        advsweep doctor
        advsweep doctor --format json
        advsweep doctor --store postgresql://me@db.example.org/runs
    """
    from advsweep.cli.shared.installation import State, examine
    from advsweep.cli.shared.output import echo, echo_line, print_columns, print_json

    checks = examine(store)
    if output is RecordFormat.JSON:
        print_json({"checks": checks})
        return
    print_columns(
        ["state", "what", "details"],
        [[check.state.value, check.name, check.detail] for check in checks],
    )
    remedies = [check for check in checks if check.state is not State.OK and check.remedy]
    if remedies:
        echo("\nTo get what is missing:")
        for check in remedies:
            echo_line(f"  {check.name}: {check.remedy}")
