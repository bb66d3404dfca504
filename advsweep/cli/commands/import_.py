"""`advsweep import`: make runs of the logs of other trainers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_importer
from advsweep.cli.options import RecordFormat
from advsweep.cli.output import echo_line, print_json, progress_bar
from advsweep.errors import ConfigError, counted, first_of

if TYPE_CHECKING:
    from advsweep.importing import ImportSummary

_LISTED = 8


def import_(
    form: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT",
            help="The format: csv, jsonl, lm-eval, tensorboard, trl, verl, wandb, or one of "
            "another package.",
            autocompletion=complete_importer,
        ),
    ],
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A file or a folder; for wandb also ENTITY/PROJECT."),
    ],
    store: options.Store = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a config key of every run, such as estimator=grpo; may be repeated.",
        ),
    ] = None,
    name_pattern: Annotated[
        str | None,
        typer.Option(
            "--name-pattern",
            metavar="PATTERN",
            help="Take config keys from the names of files or folders: '{estimator}-s{seed}'. "
            "Runs whose names do not match are left out.",
        ),
    ] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="THEIRS=OURS",
            help="Rename a metric, as in train/score=reward/mean; NAME=step names the step. May be "
            "repeated; comes before the format's own table.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="COLUMN,...",
            help="Columns that tell the runs of one file apart (default: estimator, seed, run, "
            "run_id and run_name).",
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
            help="The decimal sign of csv, . or , (default: a point, and no cell with a comma).",
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option("--sweep", metavar="NAME", help="Add the runs to this sweep."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be imported; change nothing.")
    ] = False,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Reports, plots and claims work on these runs as on others. Metrics get our names by the
    format's table; the others keep theirs. Values that are not numbers, incomplete lines and the
    like are left out and counted. Of a step that was logged twice the last value counts. Importing
    again adds what is new and nothing else. Imported runs are data: nothing in them is executed,
    and no worker trains them.

    Examples:
        advsweep import csv log.csv --set estimator=grpo --set seed=0
        advsweep import tensorboard logs --name-pattern '{estimator}-s{seed}'
    """
    from advsweep.importing import import_runs
    from advsweep.logs import READERS
    from advsweep.logs.names import NamePattern, parse_settings
    from advsweep.store import open_store

    node = form if decimal is None else {"name": form, "decimal": decimal}
    reader = READERS.build(node, where="FORMAT")
    settings = parse_settings(assignments or [])
    pattern = None if name_pattern is None else NamePattern(name_pattern)
    with open_store(store) as opened, progress_bar("runs") as on_run:
        summary = import_runs(
            opened,
            reader,
            source,
            settings=settings,
            pattern=pattern,
            names=_names(mapping or []),
            by=_listed(by),
            rows=None if rows is None else _listed(rows),
            sweep=sweep,
            dry_run=dry_run,
            on_run=on_run,
        )
    if output is RecordFormat.JSON:
        print_json(_record(summary))
    else:
        _print(summary, dry_run=dry_run)


def _names(mapping: list[str]) -> dict[str, str]:
    names = {}
    for text in mapping:
        # Names of metrics may have an = of their own, ours do not.
        theirs, _, ours = text.rpartition("=")
        if not theirs.strip() or not ours.strip():
            raise ConfigError(f"--map: expected THEIRS=OURS, got {text!r}")
        names[theirs.strip()] = ours.strip()
    return names


def _listed(text: str | None) -> list[str]:
    return [] if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _record(summary: ImportSummary) -> dict[str, Any]:
    return {
        "runs": [
            {
                "source": source,
                "id": written.run_id,
                "action": written.action.value,
                "seed": written.seed,
                "steps": written.steps,
                "new_steps": written.new_steps,
                "points": written.points,
                "evaluations": written.evaluations,
            }
            for source, written in summary.runs
        ],
        "renamed": summary.names.renamed,
        "kept": sorted(summary.names.kept),
        "left_out": summary.left_out,
        "unmatched": summary.unmatched,
        "notes": list(summary.notes),
    }


def _print(summary: ImportSummary, *, dry_run: bool) -> None:
    actions = Counter(written.action for _, written in summary.runs)
    counts = ", ".join(f"{n} {action.value}" for action, n in actions.items())
    steps = sum(written.steps for _, written in summary.runs)
    new = sum(written.new_steps for _, written in summary.runs)
    evaluations = sum(written.evaluations for _, written in summary.runs)
    names = summary.names
    metrics = len({*names.kept, *names.renamed.values()})
    took = f"{counted(len(summary.runs), 'run')} ({counts or 'none'}), "
    took += f"{counted(f'{steps:,}', 'step')} ({new:,} new), {counted(metrics, 'metric')}"
    took += f", {counted(evaluations, 'evaluation')}" if evaluations else ""
    lines = [("would take" if dry_run else "took", took)]
    lines.append(("renamed", _some([f"{a} -> {b}" for a, b in sorted(names.renamed.items())])))
    lines.append(("kept", _some(sorted(names.kept))))
    left = [f"{reason} ({count:,})" for reason, count in sorted(summary.left_out.items())]
    left += [f"name does not match: {_some(summary.unmatched)}"] if summary.unmatched else []
    lines.append(("left out", "; ".join(left) or "nothing"))
    lines += [("note", note) for note in summary.notes]
    for title, text in lines:
        echo_line(f"{title:<10} {text}")


def _some(names: list[str]) -> str:
    return first_of(names, _LISTED) or "nothing"
