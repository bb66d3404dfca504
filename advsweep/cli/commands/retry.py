"""`advsweep retry`: restart runs with the settings that they share."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli import consent, execution, options
from advsweep.cli.completion import complete_target
from advsweep.cli.restart import RestartOptions, restart
from advsweep.cli.runs import split_overrides
from advsweep.errors import ConfigError
from advsweep.sweep.retry_policy import Policy

EXAMPLES = (
    "advsweep retry demo",
    "advsweep retry 12 14 --retries 0",
)


def retry(
    arguments: Annotated[
        list[str],
        typer.Argument(
            show_default=False,
            metavar="RUN...|SWEEP [KEY=VALUE]...",
            autocompletion=complete_target,
            help="Runs (ids, starts of identities, 'last'), or a sweep for all its runs; and "
            "settings of executor, resources, stopping or tracking.",
        ),
    ],
    jobs: options.Jobs = None,
    retries: options.Retries = 2,
    run_code: options.RunCode = False,
    trust_store: options.TrustStore = False,
    store: options.Store = None,
    output_format: options.RecordFormat = "text",
) -> None:
    """Restart runs that failed, were stopped or never started.

    Takes failed, interrupted, stopped, lost and pending runs. They resume from their last
    checkpoint with the resources of their sweep (without a sweep: one core each) and their own rule
    for early stopping. The store supplies their config, but not their executor and tracker: give
    executor= and tracking=. Done and running runs are skipped; pruned runs resume only with
    stopping=none or another rule.
    """
    consent.allow_programs(run_code)
    consent.trust_commands(trust_store)
    how = RestartOptions(jobs=jobs, policy=Policy(retries=retries), as_json=output_format == "json")
    names, overrides = split_overrides(arguments)
    if not names:
        raise ConfigError(f"expected runs or a sweep to restart, got {' '.join(overrides)}")
    with execution.writable_store(store, create=False) as opened:
        code = restart(opened, names, overrides, how)
    raise typer.Exit(code)
