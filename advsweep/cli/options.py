"""Options that several commands share, defined once so that names and help texts agree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from advsweep.cli.completion import (
    complete_override,
    complete_run,
    complete_sweep,
    complete_target,
)

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="ADVSWEEP_STORE",
        metavar="URL",
        help=(
            "The store of runs: a path, or postgresql://USER@HOST/DATABASE "
            "(default: ./advsweep.db)."
        ),
        show_envvar=True,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Config keys with their values, such as estimator=fade seed=3 optimizer.lr=1e-4, or "
        "a sweep file (FILE.yaml); `advsweep keys` lists the keys.",
        autocompletion=complete_override,
        show_default=False,
    ),
]
ConfigDir = Annotated[
    list[Path] | None,
    typer.Option(
        "--config-dir",
        metavar="DIR",
        help="Search this folder of config groups first; may be repeated.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", "-j", min=1, help="Run at most this many at once (default: one a core)."
    ),
]
TrustStore = Annotated[
    bool,
    typer.Option(
        "--trust-store",
        help="Start the training commands recorded in the store; they may do anything that you "
        "may do on this machine.",
    ),
]
RunKey = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run's id, the start of its identity, or 'last'.",
        autocompletion=complete_run,
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="EXPR",
        help="Select runs: 'estimator=fade,grpo group_size>=8 pass@1>0.3'. A key is a config key, "
        "seed, status, sweep, or a column; may be repeated.",
    ),
]
SweepName = Annotated[
    str | None,
    typer.Argument(metavar="[SWEEP]", help="Only this sweep.", autocompletion=complete_sweep),
]
_TARGETS = "Runs (ids, starts of identities, 'last'), or a sweep for all its runs."
Targets = Annotated[
    list[str],
    typer.Argument(metavar="RUN...|SWEEP", help=_TARGETS, autocompletion=complete_target),
]
OptionalTargets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN...|SWEEP]",
        help=_TARGETS,
        autocompletion=complete_target,
        show_default=False,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a field: delta=0.5 or base.name=dr_grpo; may be repeated.",
    ),
]

RETRIED = "oom,timeout,killed"
"""The failures that are retried by default."""

Retries = Annotated[
    int,
    typer.Option(
        "--retries",
        min=0,
        metavar="N",
        help="Retry a failed run up to N times from its last checkpoint; the pause before each "
        "retry doubles.",
    ),
]
RunCode = Annotated[
    bool,
    typer.Option(
        "--run-code",
        help="Allow the verifier 'code' to run programs that a model wrote on this machine "
        "(or ADVSWEEP_RUN_CODE=1; as root ADVSWEEP_RUN_CODE_AS_ROOT=1 as well).",
    ),
]


def trust_commands(trust_store: bool) -> None:
    """Record that the user trusts the store to name the commands of runs."""
    if trust_store:
        from advsweep.backends.command.consent import allow_stored_templates

        allow_stored_templates()


def give_consent(run_code: bool) -> None:
    """Record the consent given by `--run-code` for this process and its children."""
    if run_code:
        from advsweep.tasks.verifiers import base

        base.give_consent()


ListFormat = Literal["table", "csv", "json"]
RecordFormat = Literal["text", "json"]
Listing = Annotated[
    ListFormat, typer.Option("--format", help="table for people; csv or json for programs.")
]
Record = Annotated[
    RecordFormat, typer.Option("--format", help="text for people; json for programs.")
]
