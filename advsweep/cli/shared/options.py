"""Options that several commands share, so that they are spelt and explained alike."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from advsweep.cli.shared.completion import (
    complete_estimator,
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
        help="Overrides in Hydra's grammar, such as estimator=fade seed=3 optimizer.lr=1e-4.",
        autocompletion=complete_override,
        show_default=False,
    ),
]
ConfigDir = Annotated[
    list[Path] | None,
    typer.Option(
        "--config-dir",
        metavar="DIR",
        help="A folder of config groups of your own, searched first; may be repeated.",
    ),
]
NewSweepName = Annotated[
    str | None,
    typer.Option("--name", help="The sweep's name (default: the experiment's, or a hash)."),
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Runs side by side (default: the cores)."),
]
TrustStore = Annotated[
    bool,
    typer.Option(
        "--trust-store",
        help="Use the executors and trackers that the store has for its sweeps; they may run "
        "commands here and send results elsewhere.",
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
        help="Only runs that are so: 'estimator=fade,grpo group_size>=8 pass@1>0.3'; keys of the "
        "config, seed, status, sweep, or a column; may be repeated.",
    ),
]
SweepName = Annotated[
    str | None,
    typer.Argument(metavar="[SWEEP]", help="Only this sweep.", autocompletion=complete_sweep),
]
_TARGETS = "Runs (ids, starts of identities, 'last'), or all those of a sweep."
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
EstimatorName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="An estimator's name or alias.", autocompletion=complete_estimator
    ),
]
EstimatorOptions = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="FIELD=VALUE",
        help="A parameter of the estimator, delta=0.5 or base.name=dr_grpo; may be repeated.",
    ),
]

Retries = Annotated[
    int,
    typer.Option(
        "--retries",
        min=0,
        metavar="N",
        help="How often a failed run is tried again, from its last checkpoint and after a pause "
        "that doubles each time.",
    ),
]
RetryOn = Annotated[
    str,
    typer.Option(
        "--retry-on",
        metavar="CLASS,...",
        help="The failures after which it is: oom (no memory left), timeout (--time-limit), "
        "killed (a signal, or no sign of life), disk (full, or files may not grow), error (an "
        "exception, and all else).",
    ),
]
TimeLimit = Annotated[
    str | None,
    typer.Option(
        "--time-limit",
        metavar="DURATION",
        help="What one try of a run may take, such as 90s, 15m or 1h30m; it then ends with a "
        "checkpoint, or is killed 20 s later.",
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        help="What a run's process and those that it has started may hold in memory together "
        "(resident, not reserved; what they share counts once), such as 512M or 8G; above that "
        "they are killed.",
    ),
]
StorePatience = Annotated[
    str,
    typer.Option(
        "--store-patience",
        envvar="ADVSWEEP_STORE_PATIENCE",
        metavar="DURATION",
        help="How long to wait for a store that does not answer, is locked or, on a server, has "
        "no room; the runs go on to their next checkpoint.",
        show_envvar=True,
    ),
]


RunCode = Annotated[
    bool,
    typer.Option(
        "--run-code",
        help="Allow programs that a model wrote to run here, where the verifier is 'code' "
        "(or ADVSWEEP_RUN_CODE=1).",
    ),
]
RunCodeAsRoot = Annotated[
    bool,
    typer.Option(
        "--run-code-as-root",
        help="Allow them to run even as root (or ADVSWEEP_RUN_CODE_AS_ROOT=1).",
    ),
]


def give_consent(run_code: bool, as_root: bool) -> None:
    """Allows this process and its children what `RunCode` and `RunCodeAsRoot` are given for."""
    from advsweep.tasks.verifiers import consent

    if run_code or as_root:
        consent.give_consent(run_code=run_code, as_root=as_root)


class ListFormat(Enum):
    """How a listing is printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class RecordFormat(Enum):
    """How a single record is printed."""

    TEXT = "text"
    JSON = "json"


Listing = Annotated[
    ListFormat, typer.Option("--format", help="table for people; csv or json for programs.")
]
Record = Annotated[
    RecordFormat, typer.Option("--format", help="text for people; json for programs.")
]
