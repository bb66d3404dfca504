"""Arguments and options that several commands share.

A command annotates a parameter with one of these, `store: options.Store = None`. An argument or
option of a single command is annotated in the command's module, in the same way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from advsweep.cli.completion import complete_override, complete_run, complete_sweep, complete_target

# Arguments

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        show_default=False,
        metavar="[KEY=VALUE]...",
        autocompletion=complete_override,
        help="Config keys with their values, as `advsweep keys` lists them, or a sweep file "
        "(FILE.yaml).",
    ),
]
Run = Annotated[
    str,
    typer.Argument(
        show_default=False,
        metavar="RUN",
        autocompletion=complete_run,
        help="A run's id, the start of its identity, or 'last'.",
    ),
]
Targets = Annotated[
    list[str],
    typer.Argument(
        show_default=False,
        metavar="RUN...|SWEEP",
        autocompletion=complete_target,
        help="Runs (ids, starts of identities, 'last'), or a sweep for all its runs.",
    ),
]
OptionalTargets = Annotated[
    list[str] | None,
    typer.Argument(
        show_default=False,
        metavar="[RUN...|SWEEP]",
        autocompletion=complete_target,
        help="Runs (ids, starts of identities, 'last'), or a sweep for all its runs.",
    ),
]
NamedSweep = Annotated[
    str,
    typer.Argument(
        show_default=False,
        metavar="SWEEP",
        autocompletion=complete_sweep,
        help="The sweep.",
    ),
]
Sweep = Annotated[
    str | None,
    typer.Argument(
        show_default=False,
        metavar="[SWEEP]",
        autocompletion=complete_sweep,
        help="Only this sweep.",
    ),
]


def sweep_and_settings(text: str) -> Any:
    """Return the argument of a command that takes a sweep, and settings for its runs.

    Args:
        text: its help.
    """
    return typer.Argument(
        show_default=False,
        metavar="[SWEEP] [KEY=VALUE]...",
        autocompletion=complete_sweep,
        help=text,
    )


# Options

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="ADVSWEEP_STORE",
        help="The store: a path, or postgresql://USER@HOST/DATABASE.",
    ),
]
ListFormat = Annotated[
    Literal["table", "csv", "json"],
    typer.Option("--format", metavar="table|csv|json", help="Choose the output format."),
]
RecordFormat = Annotated[
    Literal["text", "json"],
    typer.Option("--format", metavar="text|json", help="Choose the output format."),
]
ConfigDirs = Annotated[
    list[Path] | None,
    typer.Option("--config-dir", metavar="DIR", help="Search this folder of config groups first."),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        min=1,
        help="Run at most this many at once (default: one a core).",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Start nothing; print the resolved config, or the runs and their time.",
    ),
]
Multirun = Annotated[
    bool,
    typer.Option("--multirun", "-m", help="Train every combination, as `advsweep sweep` does."),
]
Force = Annotated[bool, typer.Option("--force", help="Train finished runs again as new attempts.")]
Retries = Annotated[
    int,
    typer.Option(
        "--retries",
        metavar="N",
        min=0,
        help="Retry a failed run up to N times from its last checkpoint.",
    ),
]
RunCode = Annotated[
    bool,
    typer.Option(
        "--run-code",
        help="Let the verifier 'code' run programs of a model here (or ADVSWEEP_RUN_CODE=1).",
    ),
]
TrustStore = Annotated[
    bool,
    typer.Option(
        "--trust-store",
        help="Run the training commands, and the code of files, recorded in the store; they may do "
        "anything that you may do on this machine.",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where", metavar="EXPR", help="Select runs: 'estimator=fade,grpo group_size>=8'."
    ),
]
Samples = Annotated[
    int | None,
    typer.Option("--samples", "-n", metavar="N", min=1, help="Samples per problem."),
]
EvaluationFields = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of evaluation, task, generation, model or backend: "
        "evaluation.temperature=0.6; choose the sampler, generation=vllm, or the protocol, "
        "evaluation=greedy; may be repeated.",
    ),
]
Drawing = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Draw into this .png, .svg or .pdf file.",
    ),
]
