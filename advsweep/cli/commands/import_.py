"""`advsweep import`: turn logs of another trainer into runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_sweep
from advsweep.cli.output import echo_line, print_json, progress_bar
from advsweep.config.overrides import parse_assignments
from advsweep.errors import ConfigError, counted, first_of
from advsweep.importing import ImportRequest, ImportSummary, import_runs
from advsweep.logs import READERS
from advsweep.logs.names import NamePattern, assign
from advsweep.store import open_store

EXAMPLES = (
    "advsweep import csv log.csv --set estimator=grpo --set seed=0",
    "advsweep import tensorboard logs --name-pattern '{estimator}-s{seed}'",
)


def import_(
    form: Annotated[
        str,
        typer.Argument(
            show_default=False,
            metavar="FORMAT",
            help="The format: console, csv, jsonl, lm-eval, rollouts (prime-rl, NeMo-RL, open-"
            "instruct), tensorboard, trl, verl, wandb, or one of another package.",
        ),
    ],
    source: Annotated[
        str,
        typer.Argument(
            show_default=False,
            metavar="SOURCE",
            help="A file or a folder; for wandb ENTITY/PROJECT.",
        ),
    ],
    sweep: Annotated[
        str | None,
        typer.Option(
            "--sweep",
            metavar="NAME",
            autocompletion=complete_sweep,
            help="Add the runs to this sweep.",
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a config key of every run: estimator=grpo. Repeatable.",
        ),
    ] = None,
    name_pattern: Annotated[
        str | None,
        typer.Option(
            "--name-pattern",
            metavar="PATTERN",
            help="Config keys in the names of files or folders: '{estimator}-s{seed}'. Others "
            "are left out.",
        ),
    ] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="THEIRS=OURS",
            help="Rename a metric, as in train/score=reward/mean; NAME=step names the step, "
            "NAME=estimator (any config key) a setting. Repeatable.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="COLUMN,...",
            help="Columns that tell the runs of one file apart, besides estimator, seed, run and "
            "their like.",
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            "--rows",
            metavar="KEY,...",
            help="Config keys that alone tell settings apart (default: all that do not name "
            "folders, machines or times). Runs that differ in others are replicates.",
        ),
    ] = None,
    decimal: Annotated[
        str | None,
        typer.Option(
            "--decimal",
            metavar="SIGN",
            help="csv: the decimal sign, a point or a comma.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print what would be imported; change nothing.",
        ),
    ] = False,
    store: options.Store = None,
    output_format: options.RecordFormat = "text",
) -> None:
    """Turn logs of another trainer into runs of the store.

    Reports, plots and claims work on these runs as on others. Metrics get our names by the
    format's table; the others keep theirs. Importing again adds what is new and nothing else.
    Nothing in them is executed, and no worker trains them.
    """
    reader = READERS.get(form, where="FORMAT").build(
        {} if decimal is None else {"decimal": decimal}, where="--decimal"
    )
    settings: dict[str, Any] = {}
    for key, value in parse_assignments(assignments or []).items():
        assign(settings, key, value)
    pattern = None if name_pattern is None else NamePattern(name_pattern)
    with open_store(store) as opened, progress_bar("runs") as on_run:
        request = ImportRequest(
            settings=settings,
            pattern=pattern,
            names=_parse_mapping(mapping or []),
            by=_listed(by),
            rows=None if rows is None else _listed(rows),
            sweep=sweep,
            dry_run=dry_run,
            on_run=on_run,
            on_read=lambda name, done, size: echo_line(
                f"reading {name}: {done >> 20:,} of {size >> 20:,} MiB", err=True
            ),
        )
        summary = import_runs(opened, reader, source, request)
    if output_format == "text":
        _print_imported(summary, dry_run=dry_run)
        return
    print_json(_document(summary))


def _parse_mapping(texts: Sequence[str]) -> dict[str, str]:
    """Return our names by those of the log."""
    names = {}
    for text in texts:
        # Names of metrics may have an = of their own, ours do not.
        theirs, _, ours = (part.strip() for part in text.rpartition("="))
        if not theirs or not ours:
            raise ConfigError(f"--map: expected THEIRS=OURS, got {text!r}")
        names[theirs] = ours
    return names


def _document(summary: ImportSummary) -> dict[str, Any]:
    """Return what `--format json` prints."""
    keys = ("action", "seed", "steps", "new_steps", "points", "evaluations")
    runs = [
        {"source": source, "id": run.run_id, **{key: getattr(run, key) for key in keys}}
        for source, run in summary.runs
    ]
    return {
        "runs": runs,
        "renamed": summary.names.renamed,
        "kept": sorted(summary.names.kept),
        "left_out": summary.left_out,
        "unmatched": summary.unmatched,
        "notes": list(summary.notes),
    }


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _print_imported(summary: ImportSummary, *, dry_run: bool) -> None:
    left_out = [f"{reason} ({count:,})" for reason, count in sorted(summary.left_out.items())]
    if summary.unmatched:
        left_out.append(f"name does not match: {first_of(summary.unmatched, 8)}")
    renamed = [f"{theirs} -> {ours}" for theirs, ours in sorted(summary.names.renamed.items())]
    lines = [
        ("would take" if dry_run else "took", _count_imported(summary)),
        ("renamed", first_of(renamed, 8) or "nothing"),
        ("kept", first_of(sorted(summary.names.kept), 8) or "nothing"),
        ("left out", "; ".join(left_out) or "nothing"),
        *(("note", note) for note in summary.notes),
    ]
    for title, text in lines:
        echo_line(f"{title:<10} {text}")


def _count_imported(summary: ImportSummary) -> str:
    """Return the numbers of runs, by what was done with them, and of what they have."""
    runs = [run for _, run in summary.runs]
    actions = Counter(run.action.value for run in runs)
    counts = ", ".join(f"{n} {action}" for action, n in actions.items())
    steps = sum(run.steps for run in runs)
    new_steps = sum(run.new_steps for run in runs)
    evaluations = sum(run.evaluations for run in runs)
    parts = [
        f"{counted(len(runs), 'run')} ({counts or 'none'})",
        f"{counted(f'{steps:,}', 'step')} ({new_steps:,} new)",
        counted(len(summary.metrics), "metric"),
    ]
    if evaluations:
        parts.append(counted(evaluations, "evaluation"))
    return ", ".join(parts)
