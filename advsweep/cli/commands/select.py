"""`advsweep select`: assign difficulty levels to problems by a model's solve rates."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli import evaluation_options, options
from advsweep.cli.options import RecordFormat
from advsweep.cli.output import echo_line
from advsweep.errors import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from advsweep.store import EvaluationRecord


class SplitName(Enum):
    """Problems to assign levels to."""

    TRAIN = "train"
    HELD_OUT = "held_out"


def select(
    model: Annotated[
        str,
        typer.Option(
            "--model", metavar="PATH_OR_ID", help="The selector: a folder, or a hub's name."
        ),
    ],
    task: Annotated[
        str,
        typer.Option("--task", metavar="NAME", help="A task, as `advsweep list tasks` lists them."),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="JSON lines for task.level_file=FILE.")
    ],
    samples: evaluation_options.Samples = None,
    protocol: evaluation_options.Protocol = None,
    fields: evaluation_options.Fields = None,
    split: Annotated[
        SplitName, typer.Option("--split", help="Assign levels to these problems.")
    ] = SplitName.TRAIN,
    config_dirs: options.ConfigDir = None,
    run_code: options.RunCode = False,
    store: options.Store = None,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Assigns the levels 0 to 6 of AVSPO to the problems of a task: level 0 is solved in at least
    95 % of the samples, level 6 in less than 1 %. The counts are an evaluation, which the store
    keeps and resumes as for `eval`.

    Examples:
        advsweep select --model Qwen/Qwen2.5-0.5B --task gsm8k --out levels.jsonl
    """
    from advsweep.cli.output import print_json
    from advsweep.errors import ConfigError
    from advsweep.evaluation.standalone import evaluate_subject
    from advsweep.store import open_store
    from advsweep.tasks.base import Split

    options.give_consent(run_code)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise ConfigError(f"--out: expected a file in an existing folder, got '{out}'")
    request = evaluation_options.parse_request(
        model=model,
        task=task,
        protocol=protocol,
        samples=samples,
        fields=fields or [],
        config_dirs=config_dirs or [],
    )
    weights, problems, settings = request.subject(), request.task(), request.settings()
    with (
        closing(open_store(store)) as opened,
        evaluation_options.evaluation_progress(model) as on_progress,
    ):
        evaluation = evaluate_subject(
            opened,
            weights,
            problems,
            settings,
            split=Split(split.value),
            on_progress=on_progress,
            on_change=evaluation_options.print_change,
        )
    rows = _rows(evaluation)
    _write(out, rows)
    levels = Counter(row["level"] for row in rows)
    left_out = len(evaluation.problem_ids) - len(rows)
    counts = {str(level): levels[level] for level in sorted(levels)}
    if output is RecordFormat.JSON:
        print_json({"file": out, "levels": counts, "left_out": left_out})
        return
    echo_line(f"{out}: " + ", ".join(f"{n} of level {level}" for level, n in counts.items()))
    if left_out:
        echo_line(f"Skipped {counted(left_out, 'problem')} without a scorable answer.", err=True)


def _rows(evaluation: EvaluationRecord) -> list[dict[str, Any]]:
    """Returns a row for each problem with at least one scorable answer."""
    from advsweep.evaluation.evaluate import solve_rate_levels

    scored = evaluation.n > 0
    n, c = evaluation.n[scored], evaluation.c[scored]
    ids = [name for name, use in zip(evaluation.problem_ids, scored, strict=True) if use]
    levels = solve_rate_levels(c / n)
    return [
        {"id": name, "level": level, "n": of, "c": correct}
        for name, level, of, correct in zip(
            ids, levels.tolist(), n.tolist(), c.tolist(), strict=True
        )
    ]


def _write(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes the file atomically."""
    import json

    from advsweep.errors import ConfigError

    part = out.with_name(f"{out.name}.part")
    try:
        part.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        part.replace(out)
    except OSError as error:
        raise ConfigError(
            f"--out: expected a writable file, got '{out}': {error.strerror}"
        ) from error
