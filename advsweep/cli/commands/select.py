"""`advsweep select`: levels of problems by how often a model solves them."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from advsweep.cli import consent, options
from advsweep.cli.evaluation import EvaluationOptions, parse_request, say_change
from advsweep.cli.output import echo_line, progress_bar
from advsweep.errors import ConfigError, counted
from advsweep.evaluation.evaluate import solve_rate_levels
from advsweep.evaluation.standalone import evaluate_subject
from advsweep.local_files import replace_file
from advsweep.store import open_store
from advsweep.tasks.base import Split
from advsweep.writing import plain_value

EXAMPLES = ("advsweep select --model Qwen/Qwen2.5-0.5B --task gsm8k --output levels.jsonl",)


def select(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="PATH_OR_ID",
            help="The selector: a folder, or a hub's name.",
        ),
    ],
    task: Annotated[
        str,
        typer.Option(
            "--task",
            metavar="NAME",
            help="A task, as `advsweep list tasks` lists them.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write JSON lines for task.level_file=FILE.",
        ),
    ],
    samples: options.Samples = None,
    fields: options.EvaluationFields = None,
    config_dirs: options.ConfigDirs = None,
    run_code: options.RunCode = False,
    store: options.Store = None,
) -> None:
    """Sort problems into levels by how often a model solves them.

    Assigns the levels 0 to 6 of AVSPO to the problems of a task: level 0 is solved in at least
    95 % of the samples, level 6 in less than 1 %. The counts are an evaluation, which the store
    keeps and resumes as for `eval`.
    """
    consent.allow_programs(run_code)
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise ConfigError(f"--output: expected a file in an existing folder, got '{output}'")
    request = parse_request(
        EvaluationOptions(task, samples, fields or [], config_dirs or []), model=model
    )
    assert request.subject is not None
    with closing(open_store(store)) as opened, progress_bar(model, lines="problems") as show:
        evaluation = evaluate_subject(
            opened,
            request.subject,
            request.task,
            request.settings,
            split=Split.TRAIN,
            on_progress=show,
            on_change=say_change,
        )
    scored = evaluation.n > 0
    n, c = evaluation.n[scored], evaluation.c[scored]
    ids = [name for name, use in zip(evaluation.problem_ids, scored, strict=True) if use]
    columns = {"id": ids, "level": solve_rate_levels(c / n), "n": n, "c": c}
    table = zip(*(plain_value(column) for column in columns.values()), strict=True)
    rows = [dict(zip(columns, row, strict=True)) for row in table]
    replace_file(output, "".join(f"{json.dumps(row)}\n" for row in rows))
    levels = Counter(row["level"] for row in rows)
    counts = ", ".join(f"{levels[level]} of level {level}" for level in sorted(levels))
    echo_line(f"{output}: {counts}")
    if left_out := len(evaluation.problem_ids) - len(rows):
        echo_line(f"Skipped {counted(left_out, 'problem')} without a scorable answer.", err=True)
