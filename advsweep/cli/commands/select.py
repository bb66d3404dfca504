"""`advsweep select`: difficulty levels of a task's problems, by a model's solve rates."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli.shared import evaluation_options, options
from advsweep.cli.shared.options import RecordFormat
from advsweep.cli.shared.output import echo_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from advsweep.store import EvaluationRecord


class SplitName(Enum):
    """Whose levels are asked for."""

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
        typer.Option("--task", metavar="NAME", help="A task, as `advsweep tasks` lists them."),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="JSON lines for task.level_file=FILE.")
    ],
    samples: evaluation_options.Samples = None,
    protocol: evaluation_options.Protocol = None,
    fields: evaluation_options.Fields = None,
    split: Annotated[
        SplitName, typer.Option("--split", help="The problems that levels are made of.")
    ] = SplitName.TRAIN,
    config_dirs: options.ConfigDir = None,
    run_code: options.RunCode = False,
    run_code_as_root: options.RunCodeAsRoot = False,
    store: options.Store = None,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Sort a task's problems into levels 0 to 6 by how often a model solves them.

    The levels are AVSPO's: from 0, solved in at least 95 % of the samples, to 6, in less than
    1 %. It is an evaluation of the training problems, kept and resumed as `eval` does it.
    """
    from advsweep.cli.shared.output import print_json
    from advsweep.errors import ConfigError
    from advsweep.evaluation.standalone import evaluate_subject
    from advsweep.store import open_store
    from advsweep.tasks.base import Split

    options.give_consent(run_code, run_code_as_root)
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise ConfigError(f"--out: expected a file in a folder that is there, got '{out}'")
    asked = evaluation_options.asked(
        model=model,
        task=task,
        protocol=protocol,
        samples=samples,
        fields=fields or [],
        config_dirs=config_dirs or [],
    )
    weights, problems, settings = asked.weights(), asked.task(), asked.settings()
    with (
        closing(open_store(store)) as opened,
        evaluation_options.shown_progress(model) as on_progress,
    ):
        evaluation = evaluate_subject(
            opened,
            weights,
            problems,
            settings,
            split=Split(split.value),
            on_progress=on_progress,
            on_change=evaluation_options.say_change,
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
        echo_line(f"{left_out} problems left out, of which no answer could be scored", err=True)


def _rows(evaluation: EvaluationRecord) -> list[dict[str, Any]]:
    """A line for each problem of which some answer could be scored."""
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
    """Writes the file whole or not at all."""
    import json

    from advsweep.errors import ConfigError

    part = out.with_name(f"{out.name}.part")
    try:
        part.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        part.replace(out)
    except OSError as error:
        raise ConfigError(
            f"--out: expected a file that can be written, got '{out}': {error.strerror}"
        ) from error
